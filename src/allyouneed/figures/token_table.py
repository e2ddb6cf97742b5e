"""Rows of boxes, one column per token: what is hidden of a text, what is added to its tokens, what is said of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TALL, LETTER, GAP = 0.34, 0.085, 0.17  # inches: of a box, of a letter in it, between two groups of rows


@dataclass(frozen=True)
class Row:
    """`cells`: the text of each box; none where there is no box. A single one is as wide as all. `kinds`: of each box,
    a name in the legend; none: it is white. `note` stands on the right, `sign` between this row and the one below."""

    name: str
    cells: Sequence[str | None]
    kinds: Sequence[str] = ()
    note: str = ""
    sign: str = ""


def token_table(rows: Sequence[Row], colours: Mapping[str, str], out: Path, title: str, legend: bool = True) -> None:
    """The rows from top to bottom. `colours`: of each kind of box; those of the legend are named above the rows."""
    columns = max(len(row.cells) for row in rows)
    full = [[cell or "" for cell in row.cells] for row in rows if len(row.cells) == columns]
    edges = [0.0, *accumulate(max(0.38, max(map(len, several)) * LETTER + 0.16) for several in zip(*full))]
    width = edges[-1]
    tops, bottom = [], 0.0
    for row in rows:
        tops.append(bottom)
        bottom += TALL + (GAP if row.sign else 0.05)
    notes = [text for row in rows for text in (row.name, row.note)]
    texts = [cell for several in full for cell in several]
    with style.figure(out, width, bottom, [title, *texts, *notes]) as made:
        axes = made.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, width), ylim=(bottom, 0))
        axes.set_axis_off()
        for row, top in zip(rows, tops):
            _draw(axes, row, top, edges, colours)
        if legend:
            _legend(axes, colours)
        style.titles(axes, title)


def _draw(axes: Axes, row: Row, top: float, edges: Sequence[float], colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Rectangle

    middle = top + TALL / 2
    side: dict[str, Any] = {"va": "center", "fontsize": 10}
    axes.text(-0.12, middle, row.name, ha="right", color=style.INK, **side)
    axes.text(edges[-1] + 0.12, middle, row.note, ha="left", color=style.GREY, **side)
    bounds = list(pairwise(edges if len(row.cells) > 1 else (0.0, edges[-1])))
    for at, ((left, right), cell) in enumerate(zip(bounds, row.cells)):
        if cell is not None:
            fill = colours.get(row.kinds[at] if row.kinds else "", "white")
            edge: dict[str, Any] = {"facecolor": fill, "edgecolor": style.GREY, "linewidth": 0.7}
            axes.add_patch(Rectangle((left + 0.03, top), right - left - 0.06, TALL, **edge))
            text: dict[str, Any] = {"va": "center", "fontsize": 9, "color": "white" if _dark(fill) else style.INK}
            axes.text((left + right) / 2, middle, cell, ha="center", **text)
    for left, right in pairwise(edges) if row.sign else ():
        sign: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 10, "color": style.GREY}
        axes.text((left + right) / 2, top + TALL + GAP / 2, row.sign, **sign)


def _dark(colour: str) -> bool:
    """Whether white letters are easier to read on it than black ones."""
    if not colour.startswith("#"):
        return False
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return 0.299 * red + 0.587 * green + 0.114 * blue < 130


def _legend(axes: Axes, colours: Mapping[str, str]) -> None:
    from matplotlib.patches import Patch

    handles = [Patch(facecolor=colour, edgecolor=style.GREY, linewidth=0.7, label=name) for name, colour in
               colours.items()]  # fmt: skip
    axes.legend(
        handles=handles, loc="upper left", bbox_to_anchor=(0.0, 0.0), ncols=len(handles), borderaxespad=0.4,
        borderpad=0.0, handlelength=1.2, handleheight=1.0, columnspacing=1.4,
    )  # fmt: skip
