"""Boxes and arrows: the parts of a model with their shapes, the heads of attention, a recurrent edge and its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {
    "attention": "#cfe3f3", "feed_forward": "#fbe6bd", "embedding": "#d3ece2", "norm": "#eeeeee", "state": "#cfe3f3",
    "other": "#f6dfee", "none": "white",
}  # fmt: skip
WIDE, HIGH, GAP, BETWEEN = 3.9, 0.52, 0.42, 1.7  # inches: a box of a column, the arrow above it, between columns
HEADS = 8  # drawn one by one


@dataclass(frozen=True)
class Part:
    """A box of a column: its name, the shapes of its weights, and the shape of what comes out of it. Parts with the
    same `group` are framed, with how often they are repeated. `reads` is what comes from the column on the left;
    `enters` is what a part reads instead of what comes from below."""

    name: str
    weights: str
    out: str
    kind: str = "other"
    group: str = ""
    reads: str = ""
    enters: str = ""


def plot_columns(columns: Sequence[tuple[str, str, Sequence[Part]]], out: Path, title: str) -> None:
    """Columns of parts from the bottom up, each with its name and what enters it; the output of the first goes to all
    parts of the second that read it."""
    most = max(len(parts) for _, _, parts in columns)
    width, height = len(columns) * (WIDE + BETWEEN) - BETWEEN + 0.9, most * (HIGH + GAP) + 0.6
    with style.figure(out, width, height, [title]) as made:
        axes = _blank(made, width, height)
        tops = list[tuple[float, float]]()
        for number, (name, enters, parts) in enumerate(columns):
            left = number * (WIDE + BETWEEN)
            _text(axes, left + WIDE / 2, 0.0, f"{name}: {enters}", style.INK)
            _arrow(axes, (left + WIDE / 2, 0.15), (left + WIDE / 2, 0.5))
            for at, part in enumerate(parts):
                bottom = 0.5 + at * (HIGH + GAP)
                _box(axes, left, bottom, WIDE, HIGH, f"{part.name}\n{part.weights}".strip(), part.kind)
                middle, top = left + WIDE / 2, bottom + HIGH
                apart = at + 1 < len(parts) and bool(parts[at + 1].enters)
                _arrow(axes, (middle, top), (middle, top + GAP * (0.55 if apart else 1.0)))
                _text(axes, middle + 0.1, top + GAP / 2, part.out, style.GREY, ha="left")
                if part.enters:
                    _arrow(axes, (left + 0.3, bottom - 0.25), (left + 0.3, bottom))
                    _text(axes, left + 0.4, bottom - 0.17, part.enters, style.GREY, ha="left")
                if part.reads and tops:
                    _lead(axes, tops[0], (left, bottom + HIGH / 2), part.reads)
            _frames(axes, left, parts)
            tops.append((left + WIDE / 2, 0.5 + len(parts) * (HIGH + GAP)))
        made.suptitle(title, x=0.0, y=1 + 0.1 / height, ha="left", fontsize=13)


def _frames(axes: Axes, left: float, parts: Sequence[Part]) -> None:
    for group in dict.fromkeys(part.group for part in parts if part.group):
        inside = [i for i, part in enumerate(parts) if part.group == group]
        bottom, top = 0.5 + inside[0] * (HIGH + GAP) - 0.1, 0.5 + inside[-1] * (HIGH + GAP) + HIGH + 0.1
        axes.add_patch(_rectangle(left - 0.1, bottom, WIDE + 0.2, top - bottom, "none", dashed=True))
        _text(axes, left + WIDE + 0.2, (bottom + top) / 2, group.partition("#")[0], style.INK, ha="left")


def _lead(axes: Axes, start: tuple[float, float], end: tuple[float, float], text: str) -> None:
    """A line from the top of the first column, down between the columns, to a box of the second."""
    middle = end[0] - 0.45
    axes.plot([start[0], middle, middle], [start[1], start[1], end[1]], color=style.GREY, linewidth=1.2)
    _arrow(axes, (middle, end[1]), end)
    _text(axes, middle, end[1] - 0.2, text, style.GREY, ha="center")


def plot_heads(heads: int, shapes: dict[str, str], out: Path, title: str) -> None:
    """X, the matrices of each head, Q, K and V, Z, all Z side by side, W^O and the output. `shapes` by these names."""
    shown = list(range(heads)) if heads <= HEADS else [*range(HEADS - 2), -1, heads - 1]  # -1: some that are left out
    row, width, height = 0.85, 12.6, len(shown) * 0.85 + 1.0
    with style.figure(out, width, height, [title]) as made:
        axes = _blank(made, width, height)
        middle = len(shown) * row / 2
        _box(axes, 0.0, middle - 0.35, 1.2, 0.7, f"X\n{shapes['X']}", "embedding")
        for at, head in enumerate(shown):
            bottom = (len(shown) - 1 - at) * row + 0.1
            if head < 0:
                _text(axes, 4.4, bottom + 0.3, "⋮", style.INK)
                continue
            names = (f"W{head}^Q  W{head}^K  W{head}^V\n{shapes['W']}", f"Q{head}  K{head}  V{head}\n{shapes['Q']}")
            _arrow(axes, (1.2, middle), (2.0, bottom + 0.3))
            _box(axes, 2.0, bottom, 2.1, 0.6, names[0], "other")
            _arrow(axes, (4.1, bottom + 0.3), (4.5, bottom + 0.3))
            _box(axes, 4.5, bottom, 1.5, 0.6, names[1], "attention")
            _arrow(axes, (6.0, bottom + 0.3), (6.4, bottom + 0.3))
            _box(axes, 6.4, bottom, 1.0, 0.6, f"Z{head}\n{shapes['Z']}", "feed_forward")
            _arrow(axes, (7.4, bottom + 0.3), (8.2, middle))
        for left, name, kind in ((8.2, "concat", "feed_forward"), (9.9, "W^O", "other"), (11.4, "out", "embedding")):
            label = "[Z0; Z1; …]" if name == "concat" else name
            _box(axes, left, middle - 0.35, 1.2, 0.7, f"{label}\n{shapes[name]}", kind)
        _arrow(axes, (9.4, middle), (9.9, middle))
        _arrow(axes, (11.1, middle), (11.4, middle))
        made.suptitle(title, x=0.0, y=1 + 0.05 / height, ha="left", fontsize=13)


def plot_unrolled(steps: int, shapes: dict[str, str], out: Path, title: str) -> None:
    """On the left a cell with an edge to itself, on the right the same cell at each of some steps."""
    space = 1.75
    width, height = (steps + 1) * space + 1.6, 3.4
    with style.figure(out, width, height, [title]) as made:
        axes = _blank(made, width, height)
        lefts = [0.3, *(2.3 + space * i for i in range(steps))]
        for number, left in enumerate(lefts):
            at = "ₜ₁₂₃₄₅₆₇₈₉"[number]
            for bottom, name, kind in ((0.2, "x", "embedding"), (1.3, "h", "state"), (2.4, "o", "feed_forward")):
                _box(axes, left, bottom, 0.9, 0.55, f"{name}{at}\n{shapes[name]}", kind)
            _arrow(axes, (left + 0.45, 0.75), (left + 0.45, 1.3))
            _arrow(axes, (left + 0.45, 1.85), (left + 0.45, 2.4))
            _text(axes, left + 0.5, 1.02, "W_xh", style.GREY, ha="left")
            _text(axes, left + 0.5, 2.12, "W_ho", style.GREY, ha="left")
            if number > 1:
                _arrow(axes, (left - space + 0.9, 1.57), (left, 1.57))
                _text(axes, left - (space - 0.9) / 2, 1.7, "W_hh", style.GREY)
        _arrow(axes, (0.3, 1.7), (0.3, 1.42), curve=1.9)
        _text(axes, -0.2, 1.85, "W_hh", style.GREY, ha="right")
        _text(axes, 1.75, 1.57, "=", style.INK, size=18)
        made.suptitle(title, x=0.0, y=1 + 0.1 / height, ha="left", fontsize=13)


def _blank(made: Any, width: float, height: float) -> Axes:
    """Axes in inches, with nothing on them."""
    axes: Axes = made.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, width), ylim=(0, height))
    axes.set_axis_off()
    return axes


def _rectangle(left: float, bottom: float, wide: float, high: float, colour: str, dashed: bool = False) -> Any:
    from matplotlib.patches import FancyBboxPatch

    return FancyBboxPatch(
        (left, bottom), wide, high, boxstyle="round,pad=0,rounding_size=0.06", facecolor=colour, edgecolor=style.GREY,
        linewidth=1.0, linestyle="--" if dashed else "-", clip_on=False,
    )  # fmt: skip


def _box(axes: Axes, left: float, bottom: float, wide: float, high: float, text: str, kind: str) -> None:
    axes.add_patch(_rectangle(left, bottom, wide, high, COLOURS[kind]))
    _text(axes, left + wide / 2, bottom + high / 2, text, style.INK)


def _text(axes: Axes, x: float, y: float, text: str, colour: str, ha: str = "center", size: int = 9) -> None:
    axes.text(x, y, text, ha=ha, va="center", fontsize=size, color=colour, linespacing=1.4)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], curve: float = 0.0) -> None:
    how = {"arrowstyle": "-|>", "color": style.GREY, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", end, start, arrowprops={**how, "connectionstyle": f"arc3,rad={curve}"}, annotation_clip=False)
