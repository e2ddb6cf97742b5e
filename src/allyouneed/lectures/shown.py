"""A topic that was shown: as text, and as a section of a page, which a notebook draws and the booklet collects."""

from __future__ import annotations

import base64
import html
import shlex
import textwrap
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from allyouneed.format import columns
from allyouneed.terminal import brief, printable

LETTERS = 100  # in a line of text
Block = dict[str, Any]  # a paragraph, a table or a figure


@dataclass(frozen=True, repr=False)
class Shown:
    """What a topic has shown, and the folder of its files. A notebook draws it, `print` writes its words and tables."""

    folder: Path
    record: dict[str, Any]

    @property
    def numbers(self) -> dict[str, Any]:
        """The numbers behind the tables and figures."""
        found: dict[str, Any] = self.record["numbers"]
        return found

    @property
    def files(self) -> list[Path]:
        """The figures, as PNG, and the record."""
        figures = [block["figure"] for block in self.record["shown"] if "figure" in block]
        return [self.folder / name for name in (*figures, f"{self.record['topic']}.json")]

    @property
    def where(self) -> str:
        return f"in {self.folder}: {', '.join(path.name for path in self.files)}"

    def __repr__(self) -> str:
        return brief(f"Shown({self.record['topic']!r}, numbers: {', '.join(self.numbers)}; {self.where})")

    def __str__(self) -> str:
        return printable("\n".join(as_text(block) for block in self.record["shown"] if "figure" not in block))

    def _repr_html_(self) -> str:
        return f"<style>{style('topic')}</style>{self.section()}"

    def section(self) -> str:
        """The topic as a section of a page, which needs no other file."""
        name, given = self.record["topic"], self.record["given"]
        command = ["ayn", "lecture", name, *([given["text"]] if given["text"] else [])]
        command += ["--run", given["run"]] if given["run"] else []
        shown = "".join(self._block(block) for block in self.record["shown"])
        return (
            f'<section id="{name}" class="topic"><h2>{_escaped(self.record["about"])}</h2>'
            f'<p class="slides">{_escaped(self.record["slides"])}</p>'
            f"{shown}<pre>{_escaped(shlex.join(command))}</pre></section>"
        )

    def _block(self, block: Block) -> str:
        if "text" in block:
            return f'<p dir="auto">{_escaped(block["text"])}</p>'
        if "figure" in block:
            data = base64.b64encode((self.folder / block["figure"]).read_bytes()).decode()
            return f'<img alt="{_escaped(block["title"])}" src="data:image/png;base64,{data}">'
        head = "".join(f"<th>{_escaped(cell)}</th>" for cell in block["head"])
        rows = "".join(f"<tr>{''.join(f'<td>{_escaped(cell)}</td>' for cell in row)}</tr>" for row in block["rows"])
        return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


def as_text(block: Block) -> str:
    """A paragraph or a table, as it is printed."""
    if "text" in block:
        return textwrap.fill(block["text"], LETTERS) + "\n"
    return "\n".join(columns([tuple(block["head"]), *map(tuple, block["rows"])])) + "\n"


def style(name: str) -> str:
    return (resources.files("allyouneed") / "lectures" / f"{name}.css").read_text(encoding="utf-8")


def _escaped(text: object) -> str:
    return html.escape(printable(str(text)))
