"""Serve: runs over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from allyouneed.errors import UserError
from allyouneed.look.learning import Begun
from allyouneed.run import Run
from allyouneed.serve import endpoints, live, openai
from allyouneed.serve.guard import Guard, problem
from allyouneed.serve.limits import Limits
from allyouneed.serve.served import MissingRunError, Runs
from allyouneed.serve.worker import FullError
from allyouneed.version import __version__

__all__ = ["Limits", "app"]
LIMITS = Limits()


def app(runs: Sequence[Run | Begun], limits: Limits = LIMITS) -> Guard:
    """An ASGI app: the page of `ayn look` at /, and the API beside it."""
    served = Runs(runs, limits)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        for one in served.by_name.values():
            if one.started is not None:
                one.started.close()

    made = FastAPI(title="allyouneed", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    guard = Guard(made, limits, list(served.by_name))
    for kind in (UserError, MissingRunError, FullError, RequestValidationError, HTTPException, Exception):
        made.add_exception_handler(kind, failed)
    for routes in (openai.routes(served), endpoints.routes(served), live.routes(list(served.by_name.values()))):
        made.include_router(routes)

    @made.get("/health/live", tags=["health"])
    async def alive() -> Response:
        """Whether the server works."""
        workers = [one.started for one in served.by_name.values() if one.started is not None]
        fine = all(worker.thread is None or worker.thread.is_alive() for worker in workers)
        return Response("ok" if fine else "a worker has ended", 200 if fine else 503, media_type="text/plain")

    @made.get("/health/ready", tags=["health"])
    async def ready() -> Response:
        """Whether requests are taken."""
        return Response(*(("shutting down", 503) if guard.draining else ("ok", 200)), media_type="text/plain")

    @made.get("/metrics", tags=["health"])
    async def metrics() -> Response:
        """What was counted, for Prometheus."""
        found: dict[str, list[str]] = {}
        for one in served.by_name.values():
            now = (one.started.running, one.started.waiting) if one.started is not None else (0, 0)
            for head, lines in one.metrics.lines(one.name, *now):
                found.setdefault(head, []).extend(lines)
        text = "".join(f"{line}\n" for head, lines in found.items() for line in (head, *lines))
        return Response(text, media_type="text/plain; version=0.0.4")

    @made.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response((files(__name__) / "reference.html").read_bytes(), media_type="text/html")

    return guard


async def failed(request: Request, error: Exception) -> Response:
    """One sentence, in the form of OpenAI's API."""
    status, message, param, code = 400, str(error), None, None
    if isinstance(error, MissingRunError):
        status, param, code = 404, "model", "model_not_found"
    elif isinstance(error, FullError):
        status, message, code = 429, "too many requests wait: try again soon", "queue_full"
    elif isinstance(error, HTTPException):
        status, message = error.status_code, str(error.detail)
    elif isinstance(error, RequestValidationError):
        first = error.errors()[0]
        unknown = first["type"] == "extra_forbidden"
        names = [part for part in first["loc"][1:] if isinstance(part, str)]
        param = ".".join(names if unknown else names[:1]) or None
        said = "it is not supported: leave it out" if unknown else first["msg"]
        message = f"{param}: {said}" if param else said
    elif not isinstance(error, UserError):
        status, message = 500, f"this request failed: {type(error).__name__}"
    headers = {"Retry-After": "1"} if status == 429 else {}
    return Response(problem(status, message, param, code), status, headers, "application/json")
