"""ayn serve: runs as an HTTP API, with the page of `ayn look`."""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allyouneed.cli import common
from allyouneed.cli.common import argument, flag, load, option
from allyouneed.errors import UserError
from allyouneed.format import human_bytes
from allyouneed.terminal import write

if TYPE_CHECKING:
    from allyouneed.run import Run

KEY = "AYN_API_KEY"


def number(name: str, metavar: str, low: int, high: int, help: str) -> Any:
    return typer.Option(name, metavar=metavar, min=low, max=high, help=help)


def serve_command(
    run: Annotated[list[str] | None, argument("RUN…", "Folders of runs.")] = None,
    host: Annotated[str, option("ADDRESS", "Where to listen; another than this machine needs a key.")] = "127.0.0.1",
    port: Annotated[int, number("--port", "PORT", 0, 65535, "0: any free one.")] = 8000,
    key: Annotated[str, option("KEY", f"What every request must show.  [default: ${KEY}]", "--key")] = "",
    insecure: Annotated[bool, flag("--insecure", "Listen elsewhere without a key.")] = False,
    rows: Annotated[int, number("--rows", "N", 1, 4096, "Answers decoded together, per run.")] = 32,
    waiting: Annotated[int, number("--waiting", "N", 1, 100_000, "Requests that may wait, per run.")] = 128,
    cache: Annotated[int, number("--cache", "MIB", 1, 1 << 20, "Memory of what rows remember, per run.")] = 1024,
    seconds: Annotated[int, number("--seconds", "S", 1, 86_400, "The longest time of an answer.")] = 300,
    threads: Annotated[
        int, number("--threads", "N", 1, 4096, "CPU threads; with 1 answers never differ in a bit.")
    ] = 1,
    cors: Annotated[list[str] | None, option("ORIGIN", "A page elsewhere that may ask; may be repeated.")] = None,
    ray: Annotated[int, number("--ray", "REPLICAS", 0, 1024, "Serve through Ray Serve with so many replicas.")] = 0,
    device: common.Device = "auto",
    precision: common.Precision = "auto",
    engine: common.Engine = "torch",
) -> None:
    """Serve runs over HTTP until Ctrl-C: OpenAI's API at /v1, one endpoint per task, and the live
    page at /. What there is: /docs

    \b
    Example:
      ayn serve runs/en-it
      curl localhost:8000/translate -H 'Content-Type: application/json' -d '{"input": "I am Italian."}'
    """
    if not run:
        raise UserError("name the runs to serve: ayn serve RUN [RUN …]")
    if strange := [one for one in cors or () if not one.startswith(("http://", "https://"))]:
        raise UserError(f"--cors {strange[0]} is not the origin of a page: write it as https://example.org")
    key = key or os.environ.get(KEY, "")
    loopback = _is_loopback(host)
    if not loopback and not key:
        if not insecure:
            raise UserError(
                f"{host} can be reached by others: give --key KEY or ${KEY}, or --insecure to serve everyone"
            )
        shown = "anyone who can reach this address may ask: there is no key"
        write(f"\033[31m{shown}\033[0m" if sys.stderr.isatty() else shown, err=True)
    try:
        from allyouneed.serve import Limits, app
        from allyouneed.serve.running import listen
        from allyouneed.serve.running import run as serve
    except ModuleNotFoundError as error:
        raise UserError(f"serving needs {error.name}: pip install 'allyouneed[serve]'") from None
    own = Limits() if loopback else Limits(hosts=())
    limits = Limits(
        rows=rows,
        waiting=waiting,
        cache=cache << 20,
        seconds=seconds,
        key=key,
        origins=tuple(cors or ()),
        hosts=own.hosts,
    )
    shown = f"[{host}]" if ":" in host else "localhost" if loopback else host

    def ready(port: int) -> None:
        address = f"http://{shown}:{port}/"
        write(f"serving at {address}, the API is at {address}docs; until Ctrl-C")

    if ray:
        try:
            from allyouneed.serve.replicas import serve_replicas
        except ModuleNotFoundError as error:
            raise UserError(f"replicas need {error.name}: pip install 'allyouneed[ray]'") from None
        serve_replicas(run, limits, (host, port), ray, (device, precision, engine), threads, ready)
        write("stopped")
        return
    import torch

    torch.set_num_threads(threads)
    place = listen(host, port)
    loaded = [load(folder, device, precision, engine) for folder in run]
    made = app(loaded, limits)
    for name, one in zip(made.names, loaded):
        write(f"{name}: {describe(one, limits.rows, limits.cache)}")
    serve(made, place, lambda: ready(place.getsockname()[1]))
    write("stopped")


def describe(run: Run, rows: int, cache: int) -> str:
    """What a run may take of the memory."""
    from allyouneed.predict.base import Writing
    from allyouneed.predict.engine import Engine

    predictor = run.predictor
    if not isinstance(predictor, Writing) or isinstance(predictor.model, Engine):
        return f"{run.recipe.task_kind}, {run.device}, {run.precision}"
    tokens = predictor.model.limit or 2048
    need = rows * predictor.state_bytes(tokens)
    return (
        f"{run.recipe.task_kind}, {run.device}, {run.precision}; up to {rows} rows, which take at most "
        f"{human_bytes(min(need, cache))} of cache ({rows} rows of {tokens:,} tokens: {human_bytes(need)})"
    )


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
