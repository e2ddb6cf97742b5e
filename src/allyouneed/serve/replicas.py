"""Replicas: the app in several processes, on one machine or more, through Ray Serve."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ray
from ray import serve

from allyouneed.errors import UserError
from allyouneed.run import load
from allyouneed.serve import app
from allyouneed.serve.limits import Limits
from allyouneed.serve.running import listen
from allyouneed.storage.runfolder import RunFolder


class Replica:
    """The app in a process of its own, with its own copy of each run."""

    def __init__(self, folders: list[str], limits: Limits, options: tuple[str, str, str], threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self.guard = app([load(folder, *options) for folder in folders], limits)

    def __serve_build_asgi_app__(self) -> Any:
        return self.guard

    async def check_health(self) -> None:
        """Ray starts another replica in the place of one that raises here."""
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "GET", "path": "/health/live", "headers": [], "query_string": b""}
        await self.guard.app(scope, None, send)  # without the guard, which asks for the key
        if sent[0]["status"] != 200:
            raise RuntimeError(sent[1]["body"].decode())


def serve_replicas(
    folders: Sequence[str], limits: Limits, host: str, port: int, replicas: int, options: tuple[str, str, str], threads: int,
    ready: Callable[[int], None],
) -> None:  # fmt: skip
    """Serve until Ctrl-C or SIGTERM; then accepted requests are answered. `ready` is called with the port. The replicas
    are on the cluster of $RAY_ADDRESS or, without it, on this machine."""
    paths = [str(RunFolder.open(Path(folder)).path.absolute()) for folder in folders]
    with listen(host, port) as place:
        port = place.getsockname()[1]
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    here = {} if "RAY_ADDRESS" in os.environ else {"include_dashboard": False, "object_store_memory": 100 << 20}
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **here)  # type: ignore[arg-type]
    except Exception as error:
        raise UserError(f"Ray did not start: {error}") from None
    try:
        _deploy(paths, limits, host, port, replicas, options, threads)
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        ready(port)
        ended.wait()
        serve.delete("default")  # waits for the requests that the replicas have accepted
    finally:
        serve.shutdown()
        ray.shutdown()


def _deploy(
    folders: list[str], limits: Limits, host: str, port: int, replicas: int, options: tuple[str, str, str], threads: int
) -> None:
    found = ray.cluster_resources()
    if found.get("CPU", 0) < replicas * threads and "RAY_ADDRESS" not in os.environ:
        raise UserError(
            f"{replicas} replicas with {threads} threads each need {replicas * threads} CPU cores, and this machine has "
            f"{found.get('CPU', 0):.0f}: ask for fewer replicas or threads"
        )
    gpus = 1 if options[0] != "cpu" and found.get("GPU") else 0
    accepted = len(folders) * (limits.rows + limits.waiting)
    quiet = {"enable_access_log": False, "log_level": "ERROR"}
    made = serve.deployment(
        serve.ingress()(Replica),
        name="allyouneed",
        ray_actor_options={"num_cpus": threads, "num_gpus": gpus},
        autoscaling_config={
            "min_replicas": 1, "initial_replicas": replicas, "max_replicas": replicas,
            "target_ongoing_requests": limits.rows * len(folders),
        },
        max_ongoing_requests=2 * accepted,  # more than the guard takes, so that its 429 is the answer
        max_queued_requests=2 * accepted,
        graceful_shutdown_timeout_s=limits.seconds,
        logging_config=quiet,
    )  # fmt: skip
    serve.start("EveryNode", {"host": host, "port": port}, logging_config=quiet)
    try:
        serve.run(made.bind(folders, limits, options, threads))
    except RuntimeError as error:
        raise UserError(f"the replicas did not start, and Ray's logs say why: {error}") from None
