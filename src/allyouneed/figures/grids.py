"""Small matrices with their numbers in the cells, in lines: one figure of a computation, step by step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from allyouneed.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CELL, NARROW, WIDEST = 0.5, 0.16, 6.0  # inches: of a cell with its number, and without; of a grid
MOST = 12  # rows or columns of a grid with numbers
GAP, NAME, HEADS = 0.55, 0.5, 0.45  # inches: between two grids, for the name below one, for the labels above


@dataclass(frozen=True)
class Grid:
    """A matrix; -inf is grey. `columns` are the labels above it. Weights are white to navy, other numbers blue (below
    zero) to red (above), as far as the largest of the matrix."""

    name: str
    values: np.ndarray
    columns: Sequence[str] = ()
    weights: bool = False

    @property
    def numbered(self) -> bool:
        return max(self.values.shape) <= MOST

    @property
    def width(self) -> float:
        count = self.values.shape[1]
        return count * min(CELL if self.numbered or self.columns else NARROW, WIDEST / count)


def plot_grids(lines: Sequence[Sequence[Grid]], rows: Sequence[str], out: Path, title: str) -> None:
    """Lines of grids that all have the same rows; each grid has its name above."""
    high = len(rows) * min(CELL, WIDEST / len(rows))
    width = max(sum(grid.width + GAP for grid in line) - GAP for line in lines)
    above = [HEADS * any(grid.columns for grid in line) for line in lines]
    height = len(lines) * (high + NAME) + sum(above)
    labels = [_label(row) for row in rows]
    heads = [_label(label) for line in lines for grid in line for label in grid.columns]
    with style.figure(out, width, height, [title, *labels, *heads]) as made:
        bottom = height
        for line, room in zip(lines, above):
            left, bottom = 0.0, bottom - room - high
            for at, grid in enumerate(line):
                axes = made.add_axes((left / width, bottom / height, grid.width / width, high / height))
                _fill(axes, grid)
                axes.set_yticks(np.arange(len(rows)) + 0.5, labels if at == 0 else [])
                left += grid.width + GAP
            bottom -= NAME
        made.suptitle(title, x=0.0, y=1.0 + 0.4 / height, ha="left", fontsize=13)


def _fill(axes: Axes, grid: Grid) -> None:
    values = np.asarray(grid.values, dtype=float)
    known = np.isfinite(values)
    shown = np.ma.masked_invalid(values)
    largest = float(np.abs(values[known]).max(initial=0.0)) or 1.0
    if grid.weights:
        axes.pcolormesh(shown, cmap=style.weight_colours(), vmin=0.0, vmax=1.0, edgecolors=style.PALE, linewidth=0.5)
    else:
        axes.pcolormesh(shown, cmap="RdBu_r", vmin=-largest, vmax=largest, edgecolors=style.PALE, linewidth=0.5)
    axes.grid(False)
    axes.set_facecolor(style.PALE)
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set(visible=True, color=style.PALE)
    axes.xaxis.tick_top()
    heads = [_label(label) for label in grid.columns]
    axes.set_xticks(np.arange(len(heads)) + 0.5, heads, fontsize=9)
    if any(len(head) > 5 for head in heads):
        for label in axes.get_xticklabels():
            label.set(rotation=30, rotation_mode="anchor", ha="left", va="baseline")
    axes.set_xlabel(grid.name, labelpad=6, fontsize=11)
    if grid.numbered:
        for (row, column), value in np.ndenumerate(values):
            dark = abs(value) > (0.5 if grid.weights else 0.6 * largest) and math.isfinite(value)
            text, colour = number_text(float(value)), "white" if dark else style.INK
            axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=9, color=colour)


def _label(text: str) -> str:
    return style.visible(text, 12).replace("␣", " ")


def number_text(value: float) -> str:
    """A number for a cell: 2, -0.35, −∞."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else f"{'−' * (value < 0)}∞"
    text = f"{value:.2f}".removesuffix(".00").replace("-", "−")
    return "0" if text == "−0" else text
