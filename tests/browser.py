"""A real browser for pages: what it asks the network for and what it complains about is kept."""

from __future__ import annotations

import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OWN = ("data:", "blob:", "about:")


class Watched:
    """A tab; `requests` are the addresses that it asked for, `errors` what the console said."""

    def __init__(self, tab: Any) -> None:
        self.tab, self.requests, self.errors = tab, list[str](), list[str]()
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.on("console", lambda message: message.type in ("error", "warning") and self.errors.append(message.text))
        tab.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, address: str | Path, hash: str = "") -> Watched:
        url = address.absolute().as_uri() if isinstance(address, Path) else address
        self.tab.goto(url + (f"#{hash}" if hash else ""))
        return self.ready()

    def ready(self) -> Watched:
        """Once all that was asked for is drawn."""
        self.tab.wait_for_selector("[aria-busy]", state="detached")
        return self

    @property
    def outside(self) -> list[str]:
        """What it asked for besides the page itself."""
        return [url for url in self.requests[1:] if not url.startswith(OWN)]

    def text(self, selector: str) -> str:
        return str(self.ready().tab.inner_text(selector))

    def texts(self, selector: str) -> list[str]:
        return [str(text) for text in self.ready().tab.locator(selector).all_inner_texts()]


_started: list[Any] = []  # the browser that tests of one file share, and what drives it


def _browser() -> Any:
    if CHROMIUM is None:
        pytest.skip("needs chromium")
    if not _started:
        play = pytest.importorskip("playwright.sync_api").sync_playwright().start()
        _started.extend([play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"]), play])
    return _started[0]


def close_browser() -> None:
    if _started:
        browser, play = _started
        browser.close()
        play.stop()
        _started.clear()


@contextmanager
def browsing(**context: Any) -> Iterator[Watched]:
    """A tab that shares nothing with another one but the browser."""
    own = _browser().new_context(**context)
    try:
        yield Watched(own.new_page())
    finally:
        own.close()


@contextmanager
def serving(*runs: Any) -> Iterator[str]:
    """The address of the live page of some runs."""
    uvicorn = pytest.importorskip("uvicorn")
    from allyouneed.serve import app

    with socket.create_server(("127.0.0.1", 0)) as place:
        server = uvicorn.Server(uvicorn.Config(app(runs), log_level="warning", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [place]}, daemon=True)
        thread.start()
        try:
            yield f"http://localhost:{place.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(10)


@pytest.fixture
def offline() -> Iterator[Watched]:
    """A tab without a network."""
    with browsing(offline=True, viewport={"width": 1280, "height": 900}) as tab:
        yield tab
