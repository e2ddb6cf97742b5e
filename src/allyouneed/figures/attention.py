"""Attention weights as heat maps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allyouneed.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import QuadMesh
    from matplotlib.figure import Figure


def alignment(
    weights: Any, source: Sequence[str], target: Sequence[str], out: Path, title: str = "", shown: str = ""
) -> None:
    """Weights (T_target, T_source), each row adding up to one: target words on the left, source words on top. `shown`
    says which attention this is; it stands below the title."""
    table = _checked(weights, source, target, dims=2)
    rows, columns = table.shape
    most = max(rows, columns)
    cell = 0.55 if most <= 12 else max(0.22, 8 / most)  # inches
    width, height = columns * cell, rows * cell
    texts = [title, *map(style.visible, [*source, *target])]
    with style.figure(out, width, height, texts) as made:
        axes = made.add_axes((0, 0, 1, 1))
        drawn = _heatmap(axes, table)
        font = 11 if cell > 0.3 else 9
        _name_columns(axes, source, cell, font)
        _name_rows(axes, target, font)
        if most <= 12:
            _print_values(axes, table)
        _weight_bar(made, drawn, width, height)
        style.titles(axes, title, shown)


def heads(weights: Any, source: Sequence[str], target: Sequence[str], out: Path, title: str = "") -> None:
    """Weights (H, T_target, T_source): one small heat map per head, numbered from 1. Long texts show positions."""
    table = _checked(weights, source, target, dims=3)
    count, rows, columns = table.shape
    across = 4 if count > 6 else math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    most = max(rows, columns)
    cell = min(0.3, max(0.18, 2.4 / most)) if most <= 32 else 3.2 / most  # inches
    gap_x, gap_y = 0.3, 0.45
    width, height = across * (columns * cell + gap_x) - gap_x, down * (rows * cell + gap_y) - gap_y
    texts = [title, *(map(style.visible, [*source, *target]) if most <= 32 else [])]
    with style.figure(out, width, height, texts) as made:
        for head in range(count):
            row, column = divmod(head, across)
            left = column * (columns * cell + gap_x)
            bottom = height - row * (rows * cell + gap_y) - rows * cell
            axes = made.add_axes((left / width, bottom / height, columns * cell / width, rows * cell / height))
            drawn = _heatmap(axes, table[head])
            if most <= 32:
                _name_columns(axes, source if row == 0 else [], cell, 8, "key")
                _name_rows(axes, target if column == 0 else [], 8, "query")
            else:
                _number(axes, row == 0, column == 0)
            # Below the panel: above it are the words of the first row.
            axes.annotate(
                f"head {head + 1}",
                (0.5, 0),
                (0, -5),
                "axes fraction",
                "offset points",
                ha="center",
                va="top",
                fontsize=10,
            )
            if head == 0:
                style.titles(axes, title)
        _weight_bar(made, drawn, width, height)


def _checked(weights: Any, source: Sequence[str], target: Sequence[str], dims: int) -> np.ndarray:
    table = np.asarray(weights, dtype=float)
    if table.ndim != dims or table.shape[-2:] != (len(target), len(source)) or not table.size:
        raise ValueError(
            f"weights of shape {table.shape} do not fit {len(target)} target and {len(source)} source tokens: "
            f"expected {'(heads, target, source)' if dims == 3 else '(target, source)'}, none of them empty"
        )
    return table


def _heatmap(axes: Axes, table: np.ndarray) -> QuadMesh:
    """Cells 0..1 with a light grid, row 0 on top, the column labels on top."""
    axes.grid(False)
    many = table.size > 4096
    drawn = axes.pcolormesh(
        table, cmap=style.weight_colours(), vmin=0.0, vmax=1.0,
        edgecolors="none" if many else style.PALE, linewidth=0.0 if many else 0.5,
        rasterized=many,
    )  # fmt: skip
    axes.invert_yaxis()
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(style.PALE)
    return drawn


def _name_columns(axes: Axes, words: Sequence[str], cell: float, font: int, name: str = "source") -> None:
    """One word per column, slanted if one of them is wider than its cell."""
    labels = [style.visible(word) for word in words]
    axes.set_xticks([index + 0.5 for index in range(len(labels))], labels, fontsize=font)
    drawn = axes.get_xticklabels()
    room = 0.9 * cell * style.DPI  # pixels
    if any(label.get_window_extent().width > room for label in drawn):
        for label in drawn:
            label.set(rotation=45, ha="left", va="baseline", rotation_mode="anchor")
    if labels:
        axes.set_xlabel(name, labelpad=8, color=style.GREY)


def _name_rows(axes: Axes, words: Sequence[str], font: int, name: str = "target") -> None:
    labels = [style.visible(word) for word in words]
    axes.set_yticks([index + 0.5 for index in range(len(labels))], labels, fontsize=font)
    if labels:
        axes.set_ylabel(name, labelpad=8, color=style.GREY)


def _number(axes: Axes, top: bool, left: bool) -> None:
    """Positions from 1 instead of words, on the outer edges."""
    for axis, shown, name in ((axes.xaxis, top, "key position"), (axes.yaxis, left, "query position")):
        last = round(max(axis.get_view_interval()))
        step = next(step for step in (10, 20, 50, 100, 200, 500, 10**9) if last / step <= 8)
        positions = [1, *range(step, last + 1, step)] if shown else []
        axis.set_ticks(
            [position - 0.5 for position in positions], [str(position) for position in positions], fontsize=8
        )
        if shown:
            axis.set_label_text(name, color=style.GREY)


def _print_values(axes: Axes, table: np.ndarray) -> None:
    for (row, column), value in np.ndenumerate(table):
        axes.text(
            column + 0.5, row + 0.5, f"{value:.2f}" if math.isfinite(value) else "?", ha="center", va="center",
            fontsize=9, color="white" if value > 0.5 else style.INK,
        )  # fmt: skip


def _weight_bar(made: Figure, drawn: QuadMesh, width: float, height: float) -> None:
    """The colour bar on the right, from the top, readable even beside a single row."""
    tall = min(max(height, 1.5), 4.0)
    axes = made.add_axes((1 + 0.2 / width, 1 - tall / height, 0.15 / width, tall / height))
    style.colour_bar(made, drawn, axes, "attention weight", [0.0, 0.25, 0.5, 0.75, 1.0])
