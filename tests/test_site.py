"""The site of the documents: it builds without a warning, no link in it is broken, and nothing comes from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from test_docs import HOME, TOP


class Read(HTMLParser):
    """The links of a page, what it loads, and the places that can be linked to."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links, self.loads, self.ids = list[str](), list[str](), set[str]()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        self.ids.add(found.get("id", ""))
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag in ("script", "img", "iframe") and "src" in found:
            self.loads.append(found["src"])
        if tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(found["href"])


@pytest.mark.slow
def test_it_builds_and_no_link_is_broken(tmp_path):
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")  # a download would fail
    environment = {**os.environ, **nowhere, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=TOP, env=environment, capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {path: Read(path) for path in tmp_path.rglob("*.html") if path.name != "404.html"}
    broken = []
    for path, page in pages.items():
        assert not [link for link in page.loads if re.match(r"https?:|//", link)], path
        for link in {*page.links, *page.loads}:
            if re.match(r"https?:|data:|mailto:", link):
                continue
            where, _, place = link.partition("#")
            target = (path.parent / where).resolve() if where else path
            if not target.is_file() or (place and target in pages and place not in pages[target].ids):
                broken.append((path.relative_to(tmp_path), link))
    assert not broken
    assert (tmp_path / "index.html").is_file()
    rooms = {path.name for path in HOME.iterdir() if (path / "__init__.py").is_file()}
    missing = {room for room in rooms if not (tmp_path / "reference" / f"{room}.html").is_file()}
    assert not missing
    assert "allyouneed.nn.attention.attend" in pages[tmp_path / "reference" / "nn.html"].ids
