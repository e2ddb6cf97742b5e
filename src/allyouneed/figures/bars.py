"""Horizontal bars: the mean of several values each, and the values themselves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allyouneed.figures import style

ROW = 0.36  # inches


def plot_bars(
    rows: Mapping[str, Sequence[float]], out: Path, title: str, unit: str, line: float, note: str, strong: int = 1
) -> None:
    """A bar from 0 to the mean of each row, with a dot per value. The first bars, so many as are `strong`, are
    those to compare with. A dashed `line` is a value that means something: `note` says what."""
    with style.figure(out, 8.0, ROW * len(rows) + 1.3, [*rows, title]) as made:
        axes = made.subplots()
        for at, values in enumerate(rows.values()):
            mean = sum(values) / len(values)
            axes.barh(at, mean, height=0.62, color=style.BLUE if at < strong else "#9acaf7")
            dots = axes.plot(values, [at] * len(values), linestyle="none", marker="o", markersize=4, color=style.INK)
            clear = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # no line runs through the number
            place = (max(mean, *values), at)
            axes.annotate(
                f"{mean:.3g}", place, (9, 0), textcoords="offset points", va="center", bbox=clear, fontsize=10
            )
        dashes = axes.axvline(line, color=style.RED, linestyle="--", linewidth=1.3)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.12 * max(line, *(max(values) for values in rows.values())))
        axes.set_xlabel(unit)
        made.tight_layout(rect=(0, 0, 1, 1 - 0.45 / (ROW * len(rows) + 1.3)))
        left = axes.get_position().x0
        made.suptitle(title, x=left, y=0.995, ha="left", fontsize=13)
        above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
        axes.legend([dots[0], dashes], ["one seed", note], ncols=2, borderpad=0.0, **above)
