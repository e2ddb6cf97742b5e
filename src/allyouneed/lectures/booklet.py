"""All topics, one after the other, and one page of what they have shown: text, tables and figures, in one HTML file."""

from __future__ import annotations

import base64
import html
import json
import shlex
from importlib import resources
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError
from allyouneed.lectures import TOPICS, show
from allyouneed.lectures.base import Lecture
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
    found = {name: record for name in TOPICS if (record := read_record(folder, name))}
    contents = "".join(f'<li><a href="#{name}">{_text(record["about"])}</a></li>' for name, record in found.items())
    pages = "".join(_page(folder, name, record) for name, record in found.items())
    style = (resources.files("allyouneed") / "lectures" / "booklet.css").read_text(encoding="utf-8")
    out = folder / "booklet.html"
    write_text(
        out,
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>The Transformer lectures</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head><body>'
        f"<h1>The Transformer lectures</h1><p>Seen in models that this machine has trained, by allyouneed {__version__}"
        f".</p><ol>{contents}</ol>{pages}</body></html>\n",
    )
    return out


def _page(folder: Path, name: str, record: dict[str, Any]) -> str:
    given = record["given"]
    command = ["ayn", "lecture", name, *([given["text"]] if given["text"] else [])]
    command += ["--run", given["run"]] if given["run"] else []
    shown = "".join(_block(folder, block) for block in record["shown"])
    return (
        f'<section id="{name}"><h2>{_text(record["about"])}</h2><p class="slides">{_text(record["slides"])}</p>'
        f"{shown}<pre>{_text(shlex.join(command))}</pre></section>"
    )


def _block(folder: Path, block: dict[str, Any]) -> str:
    if "text" in block:
        return f'<p dir="auto">{_text(block["text"])}</p>'
    if "figure" in block:
        data = base64.b64encode((folder / block["figure"]).read_bytes()).decode()
        return f'<img alt="{_text(block["title"])}" src="data:image/png;base64,{data}">'
    head = "".join(f"<th>{_text(cell)}</th>" for cell in block["head"])
    rows = "".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in block["rows"])
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def _text(text: object) -> str:
    return html.escape(printable(str(text)))
