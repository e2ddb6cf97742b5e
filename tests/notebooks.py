"""The notebooks of the lecture notes, each run once for all tests that ask what it shows."""

from __future__ import annotations

import fcntl
import os
import re
import resource
import sys
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = ("midterm-review", "chapter-08", "comp7607", "deep-learning-basics", "ece-1786")


def path(name: str) -> Path:
    return FOLDER / f"{name}.ipynb"


def read(name: str) -> Any:
    return pytest.importorskip("nbformat").read(path(name), as_version=4)


def sources(name: str, kind: str) -> list[str]:
    return [cell.source for cell in read(name).cells if cell.cell_type == kind]


def topics(name: str) -> list[str]:
    """The topics of the lectures that a notebook shows."""
    return re.findall(r"lecture\(\"(\S+)\"", "\n".join(sources(name, "code")))


def run_once(name: str, every: pytest.TempPathFactory) -> Path:
    """A folder with the notebook and what its cells printed, from a fresh kernel, and the processor time it took. All
    processes that test share it."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    base = every.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "notebooks" / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock, pytest.MonkeyPatch.context() as patch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "seconds").exists():
            return folder
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.delenv("ALLYOUNEED_MIRROR", raising=False)
        for proxy in ("http_proxy", "https_proxy"):
            patch.setenv(proxy, "http://127.0.0.1:9")  # a download would fail
        notebook, before = read(name), resource.getrusage(resource.RUSAGE_CHILDREN)
        where = {"metadata": {"path": str(folder)}}
        nbclient.NotebookClient(notebook, timeout=540, kernel_name="python3", resources=where).execute()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        nbformat.write(notebook, folder / "shown.ipynb")
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        (folder / "seconds").write_text(str(seconds))
    return folder


def shown(topic: str, every: pytest.TempPathFactory) -> Path:
    """Where a notebook has shown a topic with its own settings."""
    (name,) = (name for name in NAMES if topic in topics(name))
    return run_once(name, every) / "runs" / "lectures"
