"""The page of `ayn look`, live. What is shown is computed when it is asked for."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from fastapi import APIRouter, Request, Response

from allyouneed.errors import UserError
from allyouneed.look.learning import Begun, show_progress
from allyouneed.look.page import frame, plain, scripts
from allyouneed.look.starts import SHAPES
from allyouneed.look.view import View
from allyouneed.predict.images import ImageReader
from allyouneed.serve.served import Served

STORED = 8  # views whose numbers can still be fetched


class Views:
    """The last views of a run, by number."""

    def __init__(self, served: Served) -> None:
        self.served, self.stored, self.lock, self.keys = served, OrderedDict[int, View](), threading.Lock(), count(1)

    def make(self, given: Any) -> str:
        """The view of a text, or of the bytes of an image. No path of a file is taken from a page."""
        run = self.served.given
        loaded = run.loaded if isinstance(run, Begun) else run
        reads_images = loaded is not None and isinstance(loaded.predictor, ImageReader)
        if reads_images and given and isinstance(given, str) and given not in SHAPES:
            raise UserError("this run reads images: choose a file")
        if isinstance(given, bytes) and not reads_images:
            raise UserError("this run reads texts, not images")
        if isinstance(given, str):
            self.served.texts(given)
        return self.store(run.view(given))

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
        return self.store(self.served.run.ask(self.find(key), name, asked))


def routes(runs: Sequence[Served]) -> APIRouter:
    """The page of these runs, and what it asks for."""
    made, views = APIRouter(include_in_schema=False), [Views(served) for served in runs]

    async def answer(run: int, make: Callable[[Views], str | bytes]) -> Response:
        if not 0 <= run < len(views):
            raise UserError(f"there is no run {run}")
        found = await asyncio.to_thread(make, views[run])
        kind = "application/json" if isinstance(found, str) else "application/octet-stream"
        return Response(found, media_type=kind)

    @made.get("/")
    async def page() -> Response:
        modules = {name: f"./assets/{name}" for name in scripts()}
        live = f'<script type="text/plain" data-live="{len(runs)}"></script>'
        title = ", ".join(one.given.folder.path.absolute().name for one in runs)
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
        body = await request.body()
        return await answer(run, lambda views: views.make(body))

    @made.get("/look/{run}/{key}/{piece:path}")
    async def numbers(run: int, key: int, piece: str) -> Response:
        return await answer(run, lambda views: views.find(key).piece(piece))

    @made.post("/look/{run}/{key}/{question}")
    async def ask(run: int, key: int, question: str, request: Request) -> Response:
        asked = await request.body()
        return await answer(run, lambda views: views.ask(key, question, asked))

    @made.get("/learning/{run}")
    async def learning(run: int, seen: int = -1) -> Response:
        return await answer(run, lambda views: plain(show_progress(views.served.given.folder, seen)))

    return made
