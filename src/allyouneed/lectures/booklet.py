"""All topics, one after the other, and one page of what they have shown: text, tables and figures, in one HTML file."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError
from allyouneed.lectures import TOPICS, show
from allyouneed.lectures.base import Lecture
from allyouneed.lectures.shown import Shown, style
from allyouneed.storage.wholefile import write_text
from allyouneed.terminal import printable
from allyouneed.version import __version__


def show_all(lecture: Lecture) -> str:
    """Show every topic that has not been shown yet, and write the booklet. Returns what was written."""
    failed = []
    for name in TOPICS:
        if read_record(lecture.out, name):
            lecture.say(f"{name}: shown before")
            continue
        lecture.say(f"{name}: {TOPICS[name].about}")
        try:
            show(name, lecture)
        except UserError as error:
            lecture.say(f"{name}: {error}")
            failed.append(name)
    booklet = write_booklet(lecture.out)
    if failed:
        raise UserError(f"{booklet} is without {', '.join(failed)}; what went wrong is said above")
    return f"the booklet is {booklet}"


def read_record(folder: Path, name: str) -> dict[str, Any]:
    """What a topic has shown, as this version shows it; else nothing."""
    try:
        record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        figures = [folder / block["figure"] for block in record["shown"] if "figure" in block]
        return record if record["given"]["version"] == __version__ and all(map(Path.is_file, figures)) else {}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def write_booklet(folder: Path) -> Path:
    """One page of all topics that were shown, in the order of the notes; it needs no other file."""
    found = [Shown(folder, record) for name in TOPICS if (record := read_record(folder, name))]
    topics = [(shown.record["topic"], html.escape(printable(shown.record["about"]))) for shown in found]
    contents = "".join(f'<li><a href="#{name}">{about}</a></li>' for name, about in topics)
    pages = "".join(shown.section() for shown in found)
    out, looks = folder / "booklet.html", style("booklet") + style("topic")
    write_text(
        out,
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The Transformer lectures</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{looks}</style></head><body>'
        f"<h1>The Transformer lectures</h1><p>Seen in models that this machine has trained, by allyouneed {__version__}"
        f".</p><ol>{contents}</ol>{pages}</body></html>\n",
    )
    return out
