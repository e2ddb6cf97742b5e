"""Serve: runs over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from allyouneed.errors import UserError
from allyouneed.look.learning import Begun
from allyouneed.run import Run
from allyouneed.serve import endpoints, live, openai
from allyouneed.serve.guard import Guard, problem
from allyouneed.serve.limits import Limits
from allyouneed.serve.metrics import exposed
from allyouneed.serve.reference import reference
from allyouneed.serve.served import MissingRunError, Runs
from allyouneed.serve.worker import FullError
from allyouneed.version import __version__

__all__ = ["Limits", "app"]


def app(runs: Sequence[Run | Begun], limits: Limits = Limits()) -> Guard:
    """An ASGI app: the page of `ayn look` at /, and the API beside it."""
    served = Runs(runs, limits)

    @asynccontextmanager
    async def lifespan(_: Any) -> Any:
        yield
        for one in served.by_name.values():
            if "worker" in vars(one):
                one.worker.close()

    made = FastAPI(
        title="allyouneed", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan,
        responses={400: {"description": "What was sent cannot be answered; the message says why."}},
    )  # fmt: skip
    guard = Guard(made, limits, len(runs) * (limits.waiting + limits.rows), list(served.by_name))

    def failed(status: int, message: str, param: str | None = None, code: str | None = None) -> Response:
        headers = {"Retry-After": "1"} if status == 429 else {}
        return Response(problem(status, message, param, code), status, headers, "application/json")

    @made.exception_handler(UserError)
    async def refused(request: Request, error: UserError) -> Response:
        return failed(400, str(error))

    @made.exception_handler(MissingRunError)
    async def missing(request: Request, error: MissingRunError) -> Response:
        return failed(404, str(error), "model", "model_not_found")

    @made.exception_handler(FullError)
    async def full(request: Request, error: FullError) -> Response:
        return failed(429, "too many requests wait: try again soon", code="queue_full")

    @made.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        names = [str(part) for part in first["loc"] if part != "body"]
        field = next((name for name in names if not name.isdecimal()), "")
        said = "it is not supported: leave it out" if first["type"] == "extra_forbidden" else first["msg"]
        where = ".".join(names) if first["type"] == "extra_forbidden" else field
        return failed(400, f"{where}: {said}" if where else said, where or None)

    @made.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        return failed(error.status_code, str(error.detail))

    @made.exception_handler(Exception)
    async def broken(request: Request, error: Exception) -> Response:
        return failed(500, f"this request failed: {type(error).__name__}")

    @made.get("/health/live", tags=["health"])
    async def alive() -> Response:
        """Whether all threads run."""
        fine = all(one.worker.alive for one in served.by_name.values() if "worker" in vars(one))
        return Response("ok" if fine else "a worker has ended", 200 if fine else 503, media_type="text/plain")

    @made.get("/health/ready", tags=["health"])
    async def ready() -> Response:
        """Whether requests are taken."""
        return Response(*(("shutting down", 503) if guard.draining else ("ok", 200)), media_type="text/plain")

    @made.get("/metrics", tags=["health"])
    async def metrics() -> Response:
        """What was counted, for Prometheus."""
        found = []
        for one in served.by_name.values():
            worker = one.worker if "worker" in vars(one) else None
            running, waiting = (worker.running, worker.waiting) if worker else (0, 0)
            found += one.metrics.lines(one.name, running, waiting)
        return Response(exposed(found), media_type="text/plain; version=0.0.4")

    @made.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return Response(reference(made.openapi()), media_type="text/html")

    for routes in (openai.routes(served), endpoints.routes(served), live.routes(runs)):
        made.include_router(routes)
    return guard
