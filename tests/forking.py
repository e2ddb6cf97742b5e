"""Processes that are forked from one that has imported everything: each is a process of its own, and starts at once."""

from __future__ import annotations

import gc
import json
import os
import select
import subprocess
import sys
import traceback
from importlib import import_module
from typing import Any

HEAVY = (
    "matplotlib.backends.backend_agg", "matplotlib.pyplot", "pydantic.type_adapter", "torch._dynamo",
    "allyouneed.cli", "allyouneed.training.fit", "allyouneed.training.starting", "allyouneed.models.transformer",
    "allyouneed.tasks.translate",
)  # fmt: skip


class Server:
    """Forks a process for each call, one at a time; no run is loaded before."""

    def __init__(self) -> None:
        environment = {**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment
        )

    def start(self, module: str, function: str, *arguments: Any) -> int:
        """The id of a process that calls a function with plain values. The function has to end the process, or its exit
        code is 99."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([module, function, arguments]).encode() + b"\n")
        return int(self.process.stdout.readline())

    def ended(self) -> bool:
        """Whether the process has ended that was started last."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def wait(self) -> int:
        """Its exit code; of one that was killed, minus the signal."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def call(self, module: str, function: str, *arguments: Any) -> int:
        """Start a process and wait for it."""
        self.start(module, function, *arguments)
        return self.wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def run_command(arguments: list[str], folder: str, out: str, err: str) -> None:
    """`ayn …` in a folder, its output in two files."""
    from allyouneed import cli

    os.chdir(folder)
    for number, path in ((0, os.devnull), (1, out), (2, err)):
        os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.argv = ["ayn", *arguments]
    try:
        cli.main()
    except SystemExit as end:
        sys.stdout.flush()
        os._exit(int(end.code or 0))


def main() -> None:
    for name in HEAVY:
        import_module(name)
    gc.freeze()  # what a child never changes need not be copied for it
    for line in sys.stdin.buffer:
        child = os.fork()
        if child == 0:
            try:
                module, function, arguments = json.loads(line)
                getattr(import_module(module), function)(*arguments)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(99)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
