"""Replicas: the app in several processes, on one machine or more, through Ray Serve."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")

import ray
from ray import serve

from allyouneed.errors import UserError
from allyouneed.run import load
from allyouneed.serve import app
from allyouneed.serve.limits import Limits
from allyouneed.serve.running import listen
from allyouneed.storage.runfolder import RunFolder

NAME = "allyouneed"
Options = tuple[str, str, str]  # device, precision, engine


class Replica:
    """The app in a process of its own, with its own copy of each run."""

    def __init__(self, folders: list[str], limits: Limits, options: Options, threads: int) -> None:
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
        await self.guard.app(scope, None, send)  # past the guard, which asks for the key
        if sent[0]["status"] != 200:
            raise RuntimeError(sent[1]["body"].decode())


def serve_replicas(
    folders: Sequence[str], limits: Limits, place: tuple[str, int], replicas: int, options: Options, threads: int,
    ready: Callable[[int], None],
) -> None:  # fmt: skip
    """Serve until Ctrl-C or SIGTERM; then accepted requests are answered. `ready` is called with the port. The replicas
    are on the cluster of $RAY_ADDRESS or, without it, on this machine."""
    paths = [str(RunFolder.open(Path(folder)).path.absolute()) for folder in folders]
    with listen(*place) as free:
        host, port = place[0], free.getsockname()[1]
    here = {} if "RAY_ADDRESS" in os.environ else {"include_dashboard": False, "object_store_memory": 100 << 20}
    requests, quiet = len(paths) * limits.rows, {"enable_access_log": False, "log_level": "ERROR"}
    accepted = 2 * len(paths) * (limits.rows + limits.waiting)  # more than the guard takes: its 429 is the answer
    try:
        ray.init(log_to_driver=False, logging_level="ERROR", **here)
        found = ray.cluster_resources()
        if here and found["CPU"] < replicas * threads:
            raise UserError(
                f"{replicas} replicas with --threads {threads} are more than the {found['CPU']:.0f} CPU cores"
            )
        actor = {"num_cpus": threads, "num_gpus": int(options[0] != "cpu" and "GPU" in found)}
        ingress: Any = serve.ingress()(Replica)
        made: Any = serve.deployment(
            ingress, name=NAME, ray_actor_options=actor, max_ongoing_requests=accepted, max_queued_requests=accepted,
            graceful_shutdown_timeout_s=limits.seconds, logging_config=quiet, autoscaling_config={
                "min_replicas": 1, "initial_replicas": replicas, "max_replicas": replicas,
                "target_ongoing_requests": requests,
            },
        )  # fmt: skip
        serve.start("EveryNode", {"host": host, "port": port}, logging_config=quiet)
        serve.run(made.bind(paths, limits, options, threads), name=NAME)
        ended = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        ready(port)
        ended.wait()
    except (UserError, KeyboardInterrupt):
        raise
    except Exception as error:
        raise UserError(f"Ray did not start the replicas; its logs say why: {error}") from None
    finally:
        while ray.is_initialized() and NAME in serve.status().applications:
            with suppress(TimeoutError):  # after a minute: some requests take longer
                serve.delete(NAME)
        ray.shutdown()
