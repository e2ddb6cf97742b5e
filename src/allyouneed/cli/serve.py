"""ayn serve: runs as an HTTP API, with the page of `ayn look`."""

from __future__ import annotations

import ipaddress
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allyouneed.cli.common import argument, flag, load, option
from allyouneed.errors import UserError
from allyouneed.format import human_bytes
from allyouneed.terminal import write

if TYPE_CHECKING:
    from allyouneed.run import Run

KEY = "AYN_API_KEY"
HERE = "127.0.0.1"


def number(name: str, metavar: str, help: str) -> Any:
    return typer.Option(name, metavar=metavar, help=help, show_default=False)


def serve_command(
    run: Annotated[list[str] | None, argument("RUN…")] = None,
    host: Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen.", show_default=False)] = HERE,
    port: Annotated[int, number("--port", "PORT", "8000; 0: any free one.")] = 8000,
    key: Annotated[str, option("KEY", f"What every request must show; or ${KEY}.", "--key")] = "",
    insecure: Annotated[bool, flag("--insecure", "Listen elsewhere without a key.")] = False,
    rows: Annotated[int, number("--rows", "N", "Answers decoded together, per run (32).")] = 32,
    waiting: Annotated[int, number("--waiting", "N", "Requests that may wait, per run (128).")] = 128,
    cache: Annotated[int, number("--cache", "MIB", "Memory of what rows remember, per run (1024).")] = 1024,
    seconds: Annotated[int, number("--seconds", "S", "The longest time of an answer (300).")] = 300,
    threads: Annotated[int, number("--threads", "N", "CPU threads (1: no answer ever differs in a bit).")] = 1,
    cors: Annotated[list[str] | None, option("ORIGIN", "Another page that may ask; may be repeated.", "--cors")] = None,
    ray: Annotated[int, number("--ray", "REPLICAS", "Serve through Ray Serve with so many replicas.")] = 0,
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", show_default=False, help="As of `ayn use`.")
    ] = "auto",
    precision: Annotated[
        str, typer.Option("--precision", metavar="NAME", show_default=False, help="As of `ayn use`.")
    ] = "auto",
    engine: Annotated[
        str, typer.Option("--engine", metavar="NAME", show_default=False, help="As of `ayn use`.")
    ] = "torch",
) -> None:
    """\b
    Serve runs over HTTP: OpenAI's API, an endpoint per task, the live page.
    Example:
      ayn serve runs/en-it
    """
    for name, value, least in (
        ("rows", rows, 1),
        ("waiting", waiting, 1),
        ("cache", cache, 1),
        ("seconds", seconds, 1),
    ):
        if value < least:
            raise UserError(f"--{name} {value} is too small: give at least {least}")
    if not 0 <= port <= 65535 or threads < 1 or ray < 0:
        raise UserError(f"--port {port} --threads {threads} --ray {ray}: a port is 0 to 65535, the others are positive")
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
