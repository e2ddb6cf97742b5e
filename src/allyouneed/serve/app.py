"""The app: the page of `ayn look`, live. What is shown is computed when it is asked for."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
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

MOST = 8 << 20  # bytes of an image
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
        self.run, self.stored, self.lock = run, OrderedDict[int, View](), threading.Lock()

    def make(self, given: str | bytes) -> str:
        """The view of a text, or of the bytes of an image."""
        return self.store(self.run.view(self._checked(given)))

    def ask(self, text: str, question: str) -> str:
        if (run := self.loaded) is None:
            raise UserError("this run has no weights yet")
        return f'{{"shown": {plain(run.ask(self._checked(text), question).shown)}}}'

    @property
    def loaded(self) -> Run | None:
        return self.run.loaded if isinstance(self.run, Begun) else self.run

    def _checked(self, given: Any) -> Any:
        """No path of a file is taken from a page."""
        reads_images = self.loaded is not None and isinstance(self.loaded.predictor, ImageReader)
        if given and isinstance(given, str) and reads_images and given not in SHAPES:
            raise UserError("this run reads images: choose a file")
        return given

    def go_on(self, key: int, step: int, token: int, settings: Mapping[str, str]) -> str:
        if (view := self.stored.get(key)) is None or view.go_on is None:
            raise UserError("this answer is no longer here: ask for the text again")
        return self.store(view.go_on(step, token, settings))

    def store(self, view: View) -> str:
        with self.lock:
            self.stored[key := next(reversed(self.stored), 0) + 1] = view
            while len(self.stored) > STORED:
                self.stored.popitem(last=False)
        return f'{{"key": {key}, "shown": {plain(view.shown)}}}'


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

    @made.get("/")
    async def page() -> Response:
        modules = {name: f"./assets/{name}" for name in scripts()}
        live = f'<script type="text/plain" data-live="{len(runs)}"></script>'
        title = ", ".join(run.folder.path.absolute().name for run in runs)
        return Response(frame(modules, live, title), media_type="text/html")

    @made.get("/assets/{name}")
    async def script(name: str) -> Response:
        if name not in scripts():
            return _refusal(404, f"there is no script {name}")
        return Response(scripts()[name], media_type="text/javascript")

    async def answer(run: int, make: Callable[[Views], str]) -> Response:
        if not 0 <= run < len(stored):
            return _refusal(404, f"there is no run {run}")
        try:
            return Response(await asyncio.to_thread(make, stored[run]), media_type="application/json")
        except UserError as error:
            return _refusal(400, str(error))

    @made.get("/look/{run}")
    async def look(run: int, text: str = "", ask: str = "") -> Response:
        return await answer(run, lambda views: views.ask(text, ask) if ask else views.make(text))

    @made.post("/look/{run}")
    async def look_at_image(run: int, request: Request) -> Response:
        body = b""
        async for piece in request.stream():
            body += piece
            if len(body) > MOST:
                return _refusal(413, f"the file has more than {human_bytes(MOST)}: give a smaller one")
        return await answer(run, lambda views: views.make(body))

    @made.get("/look/{run}/{key}/continue")
    async def go_on(run: int, key: int, step: int, asked: Request, token: int = -1) -> Response:
        return await answer(run, lambda views: views.go_on(key, step, token, asked.query_params))

    @made.get("/learning/{run}")
    async def learning(run: int, seen: int = -1) -> Response:
        if not 0 <= run < len(runs):
            return _refusal(404, f"there is no run {run}")
        try:
            progress = await asyncio.to_thread(show_progress, runs[run].folder, seen)
        except UserError as error:
            return _refusal(400, str(error))
        return Response(plain(progress), media_type="application/json")

    @made.get("/look/{run}/{key}/{piece:path}")
    async def numbers(run: int, key: int, piece: str) -> Response:
        view = stored[run].stored.get(key) if 0 <= run < len(stored) else None
        if view is None or piece not in view.pieces:
            return _refusal(404, "these numbers are no longer here: ask for the text again")
        return Response(await asyncio.to_thread(view.pieces[piece]), media_type="application/octet-stream")

    return made


def _refusal(code: int, why: str) -> Response:
    return Response(json.dumps({"error": why}), code, media_type="application/json")
