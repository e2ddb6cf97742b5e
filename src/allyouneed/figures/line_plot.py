"""Curves in panels side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from allyouneed.figures import style

# Distinct for every kind of colour vision, and by their marks in black and white.
COLOURS = (style.BLUE, style.ORANGE, "#009e73", style.RED, "#cc79a7", style.INK)
MARKS = "osD^vP"


@dataclass(frozen=True)
class Panel:
    """One set of axes. `curves` are (name, x, y); a name keeps its colour in every panel."""

    title: str
    x: str
    y: str
    curves: Sequence[tuple[str, Sequence[float], Sequence[float]]]
    logx: bool = False
    logy: bool = False
    low: float | None = None  # where the y axis begins; None: where the curves do
    ticks: Sequence[float] = field(default=())  # of x; empty: matplotlib chooses


def plot_curves(panels: Sequence[Panel], out: Path, title: str) -> None:
    """The panels side by side, with one legend above."""
    from matplotlib.ticker import FuncFormatter

    names = list(dict.fromkeys(name for panel in panels for name, _, _ in panel.curves))
    with style.figure(out, max(7.5, 5.6 * len(panels)), 4.2) as made:
        grid = made.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(grid, panels):
            for name, x, y in panel.curves:
                at = names.index(name)  # later curves have smaller marks, to hide nothing
                axes.plot(
                    np.asarray(x, dtype=float), np.asarray(y, dtype=float), label=name, linewidth=1.8,
                    color=COLOURS[at % len(COLOURS)], marker=MARKS[at % len(MARKS)],
                    markersize=max(4.0, 8.0 - 1.6 * at), markevery=max(1, len(x) // 16),
                )  # fmt: skip
            axes.set_title(panel.title, pad=10)
            axes.set_xlabel(panel.x)
            axes.set_ylabel(panel.y)
            if panel.logx:
                axes.set_xscale("log", base=2)
            if panel.logy:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter(FuncFormatter(_power))
            if panel.ticks:
                axes.set_xticks(list(panel.ticks), [f"{tick:g}" for tick in panel.ticks])
                axes.minorticks_off()
            if panel.low is not None:
                axes.set_ylim(bottom=panel.low)
        made.tight_layout(w_pad=3.0)
        handles = {name: line for axes in grid for line, name in zip(*axes.get_legend_handles_labels())}
        left = grid[0].get_position().x0
        made.suptitle(title, x=left, y=1.1, ha="left", fontsize=13)
        made.legend(
            [handles[name] for name in names], names, loc="lower left", ncols=len(names),
            bbox_to_anchor=(left, 0.985), borderaxespad=0.0, borderpad=0.0, handlelength=1.8,
        )  # fmt: skip


def _power(value: float, _: int) -> str:
    """0.001 to 9,999 as a plain number, others as a power of ten."""
    if 1e-3 <= value < 1e4:
        return f"{value:,g}"
    return f"10{str(round(math.log10(value))).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"
