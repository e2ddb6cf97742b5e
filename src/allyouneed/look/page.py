"""Page: views as one HTML file that needs nothing else: no network, no server."""

from __future__ import annotations

import base64
import html
import json
import os
import webbrowser
import zlib
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from allyouneed.look.view import View, finite
from allyouneed.storage.wholefile import write_pieces

HOME = files("allyouneed.look") / "assets"
BUDGET = 6 << 20  # bytes of pieces that a saved page may leave out
PREFIX = "look/"  # of the names by which the scripts of a page import each other


@cache
def scripts() -> dict[str, bytes]:
    """The scripts of a page, by name."""
    return {file.name: file.read_bytes() for file in HOME.iterdir() if file.name.endswith(".js")}


@cache
def asset(name: str) -> bytes:
    return (HOME / name).read_bytes()


def frame(modules: dict[str, str], data: str, title: str) -> str:
    """The HTML around the data of a page; `modules` are the addresses of its scripts."""
    imports = json.dumps({"imports": {PREFIX + name: address for name, address in modules.items()}})
    whole = asset("page.html").decode()
    filled = {"TITLE": html.escape(title), "STYLE": asset("page.css").decode(), "IMPORTS": imports, "DATA": data}
    for name, value in filled.items():
        whole = whole.replace(f"<!--{name}-->", value)
    return whole


class Page:
    """What some runs compute for one text. A notebook shows it; `save` writes it."""

    def __init__(self, views: Sequence[View], title: str) -> None:
        self.views, self.title = views, title

    def write(self) -> Iterator[bytes]:
        """The page, piece by piece."""
        modules = {
            name: f"data:text/javascript;base64,{base64.b64encode(text).decode()}" for name, text in scripts().items()
        }
        before, after = frame(modules, "<!--DATA-->", self.title).split("<!--DATA-->")
        yield before.encode()
        for number, view in enumerate(self.views):
            yield from _data(view, number)
        yield after.encode()

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page into a file."""
        out = Path(path)
        write_pieces(out, self.write())
        return out

    def open(self, path: str | os.PathLike[str]) -> bool:
        """Save the page and show it in a browser; returns whether there is one."""
        return webbrowser.open(self.save(path).absolute().as_uri())

    def _repr_html_(self) -> str:
        """For notebooks: a frame of its own, so that neither disturbs the other."""
        whole = html.escape(b"".join(self.write()).decode(), quote=True)
        return f'<iframe srcdoc="{whole}" style="width: 100%; height: 820px; border: 1px solid #ccc"></iframe>'


def _data(view: View, number: int) -> Iterator[bytes]:
    """A view and its pieces as elements of the page, which scripts read but no browser runs."""
    missing, spent, optional = [], 0, set(view.optional)
    for name, make in view.pieces.items():
        if name in optional and spent > BUDGET:  # not even made
            missing.append(name)
            continue
        packed = zlib.compress(make(), 6)
        if name in optional:
            spent += len(packed)
            if spent > BUDGET:
                missing.append(name)
                continue
        yield _element(f"{number}/{name}", base64.b64encode(packed).decode())
    yield _element(f"{number}", plain({**view.shown, "missing": missing}))


def _element(name: str, text: str) -> bytes:
    return f'<script type="text/plain" data-piece="{html.escape(name)}">{text}</script>\n'.encode()


def plain(value: Any) -> str:
    """JSON that ends no element of HTML and starts none; numbers that JSON does not have are null."""
    text = json.dumps(finite(value), separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
