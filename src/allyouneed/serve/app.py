"""The app: the page of `ayn look`, live. What is shown is computed when it is asked for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.middleware.trustedhost import TrustedHostMiddleware

from allyouneed.errors import UserError
from allyouneed.format import human_bytes
from allyouneed.look.learning import Begun, show_progress
from allyouneed.look.page import frame, plain, scripts
from allyouneed.look.starts import SHAPES
from allyouneed.look.view import View
from allyouneed.predict.images import ImageReader
from allyouneed.run import Run

MOST = 8 << 20  # bytes of an image, or of a question
STORED = 8  # views whose numbers can still be fetched
LOCAL = ["localhost", "127.0.0.1", "[::1]"]
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline' data:; style-src 'self' "
    "'unsafe-inline'; img-src 'self' data: blob:; frame-ancestors 'none'",
}


class Views:
    """The last views of a run, by number."""

    def __init__(self, run: Run | Begun) -> None:
        self.run, self.stored, self.lock, self.keys = run, OrderedDict[int, View](), threading.Lock(), count(1)

    def make(self, given: str | bytes) -> str:
        """The view of a text, or of the bytes of an image."""
        return self.store(self.run.view(self._checked(given)))

    def _checked(self, given: Any) -> Any:
        """No path of a file is taken from a page."""
        reads_images = self.loaded is not None and isinstance(self.loaded.predictor, ImageReader)
        if reads_images and given and isinstance(given, str) and given not in SHAPES:
            raise UserError("this run reads images: choose a file")
        return given

    @property
    def loaded(self) -> Run | None:
        return self.run.loaded if isinstance(self.run, Begun) else self.run

    def store(self, view: View) -> str:
        """What is shown of it, and the key of its numbers; what has none is not stored."""
        key = 0
        if view.pieces or view.questions:
            with self.lock:
                self.stored[key := next(self.keys)] = view
                while len(self.stored) > STORED:
                    self.stored.popitem(last=False)
        return f'{{"key": {key}, "shown": {plain(view.shown)}}}'

    def find(self, key: int) -> View:
        with self.lock:
            if key not in self.stored:
                raise UserError("this text is no longer here: ask for it again")
            self.stored.move_to_end(key)
            return self.stored[key]

    def ask(self, key: int, name: str, asked: bytes) -> str:
        """The answer to a question about a view."""
        if self.loaded is None:
            raise UserError("this run has no weights yet")
        return self.store(self.loaded.ask(self.find(key), name, asked))


def app(runs: Sequence[Run | Begun]) -> FastAPI:
    """An ASGI app that shows these runs."""
    made = FastAPI(title="allyouneed", docs_url=None, redoc_url=None, openapi_url=None)
    made.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL)
    stored = [Views(run) for run in runs]

    @made.middleware("http")
    async def headers(request: Request, go_on: Callable[[Request], Any]) -> Response:
        answer: Response = await go_on(request)
        answer.headers.update(HEADERS)
        return answer

    @made.exception_handler(UserError)
    async def refuse(_: Request, error: UserError) -> Response:
        return Response(json.dumps({"error": str(error)}), 400, media_type="application/json")

    async def answer(run: int, make: Callable[[Views], str | bytes]) -> Response:
        if not 0 <= run < len(stored):
            raise UserError(f"there is no run {run}")
        found = await asyncio.to_thread(make, stored[run])
        kind = "application/json" if isinstance(found, str) else "application/octet-stream"
        return Response(found, media_type=kind)

    @made.get("/")
    async def page() -> Response:
        modules = {name: f"./assets/{name}" for name in scripts()}
        live = f'<script type="text/plain" data-live="{len(runs)}"></script>'
        title = ", ".join(run.folder.path.absolute().name for run in runs)
        return Response(frame(modules, live, title), media_type="text/html")

    @made.get("/assets/{name}")
    async def script(name: str) -> Response:
        if name not in scripts():
            raise UserError(f"there is no script {name}")
        return Response(scripts()[name], media_type="text/javascript")

    @made.get("/look/{run}")
    async def look(run: int, text: str = "") -> Response:
        return await answer(run, lambda views: views.make(text))

    @made.post("/look/{run}")
    async def look_at_image(run: int, request: Request) -> Response:
        body = await _body(request)
        return await answer(run, lambda views: views.make(body))

    @made.get("/look/{run}/{key}/{piece:path}")
    async def numbers(run: int, key: int, piece: str) -> Response:
        return await answer(run, lambda views: views.find(key).piece(piece))

    @made.post("/look/{run}/{key}/{question}")
    async def ask(run: int, key: int, question: str, request: Request) -> Response:
        asked = await _body(request)
        return await answer(run, lambda views: views.ask(key, question, asked))

    @made.get("/learning/{run}")
    async def learning(run: int, seen: int = -1) -> Response:
        return await answer(run, lambda views: plain(show_progress(views.run.folder, seen)))

    return made


async def _body(request: Request) -> bytes:
    """What was sent."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MOST:
            raise UserError(f"this has more than {human_bytes(MOST)}: give less")
    return body
