"""`ayn lecture all`: each topic once, one page of all, and what went wrong is said."""

from __future__ import annotations

import json
import re

import pytest

from allyouneed import lectures
from allyouneed.errors import UserError
from allyouneed.lectures import booklet, paths
from allyouneed.lectures.base import Lecture
from allyouneed.terminal import say
from browser import offline  # noqa: F401  (a fixture)


@pytest.fixture(autouse=True)
def _two_topics(monkeypatch):
    """Those that need no model."""
    few = {name: lectures.TOPICS[name] for name in ("gradients", "paths")}
    monkeypatch.setattr(lectures, "TOPICS", few)
    monkeypatch.setattr(booklet, "TOPICS", few)
    monkeypatch.setattr(paths, "LENGTHS", (8, 16))
    monkeypatch.setattr(paths, "REPEATS", 1)


def test_a_page_of_all_topics_needs_nothing_else(tmp_path, offline):  # noqa: F811
    said: list[str] = []
    assert booklet.show_all(Lecture(tmp_path, said.append)) == f"the booklet is {tmp_path / 'booklet.html'}"
    page = offline.open(tmp_path / "booklet.html").tab
    assert page.locator("h2").all_inner_texts() == [topic.about for topic in lectures.TOPICS.values()]
    assert page.locator("ol a").count() == page.locator("section").count() == 2
    wide = page.locator("img").evaluate_all("all => all.map(image => image.naturalWidth)")
    assert len(wide) == 2
    assert min(wide) > 500
    told = [
        block["text"] for block in json.loads((tmp_path / "gradients.json").read_text())["shown"] if "text" in block
    ]
    assert page.locator("#gradients p[dir]").all_inner_texts() == told
    assert page.locator("#paths tbody tr").count() == 8
    assert page.locator("#paths pre").inner_text() == "ayn lecture paths"
    assert (offline.outside, offline.errors) == ([], [])


def test_what_was_shown_before_is_kept_and_what_is_missing_is_shown(tmp_path):
    said: list[str] = []
    lecture = Lecture(tmp_path, said.append)
    lectures.show("gradients", lecture)
    before = (tmp_path / "gradients.json").stat().st_mtime_ns
    booklet.show_all(lecture)
    assert (tmp_path / "gradients.json").stat().st_mtime_ns == before
    assert "gradients: shown before" in said
    for damaged in ("", "{}", "[]", '{"given": {"version": "0"}, "shown": []}'):
        (tmp_path / "paths.json").write_text(damaged)
        assert booklet.read_record(tmp_path, "paths") == {}
    (tmp_path / "gradients.png").unlink()
    said.clear()
    booklet.show_all(lecture)
    assert not any("shown before" in line for line in said)


def test_a_topic_that_fails_leaves_the_others(tmp_path, monkeypatch):
    def fail(lecture: Lecture) -> None:
        raise UserError("there is no room <left>")

    monkeypatch.setattr(paths, "show", fail)
    said: list[str] = []
    with pytest.raises(UserError, match="is without paths; what went wrong is said above"):
        booklet.show_all(Lecture(tmp_path, said.append))
    assert "paths: there is no room <left>" in said
    assert re.findall(r'section id="(\w+)"', (tmp_path / "booklet.html").read_text()) == ["gradients"]


def test_what_was_asked_is_text(tmp_path):
    """A text of the reader's own, and the name of a run, are shown and never run."""
    evil = "<script>alert(1)</script>\x1b[2J"
    lecture = Lecture(tmp_path, say=lambda text: None, run=evil, text=evil, name="paths")
    lecture.tell(evil)
    lecture.table([evil], [[evil]])
    lecture.write({}, about=evil, slides=evil, seconds=1)
    page = booklet.write_booklet(tmp_path).read_text()
    assert "<script" not in page
    assert "\x1b" not in page
    assert page.count("&lt;script&gt;") == 8


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="file"):
        lectures.show("paths", Lecture(tmp_path / "file" / "out", say))
