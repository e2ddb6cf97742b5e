"""A confusion matrix as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.figures import style

MOST_PRINTED = 16  # classes; with more, the counts do not fit their cells
MOST_SHOWN = 60  # classes; with more, the rarest become one


def confusion_matrix(table: Any, labels: Sequence[str], out: Path, title: str = "") -> None:
    """Counts (C, C), true classes down, predicted ones across. The colour of a cell is its fraction of the row, so that
    the diagonal shows the recall of each class, however rare it is."""
    counts = np.asarray(table, dtype=np.int64)
    size = len(labels)
    if counts.shape != (size, size) or not size:
        raise ValueError(f"counts of shape {counts.shape} do not fit {size} labels: expected ({size}, {size})")
    counts, labels = _commonest(counts, labels)
    size = len(labels)
    parts = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    cell = 0.75 if size <= 8 else 0.55 if size <= MOST_PRINTED else max(0.18, 8 / size)  # inches
    side = max(size * cell, 1.5)
    names = [style.visible(label.replace(" ", "\N{NO-BREAK SPACE}"), 20).replace("␣", " ") for label in labels]
    with style.figure(out, side, side, [title, *names]) as made:
        axes = made.add_axes((0, 0, 1, 1))
        axes.grid(False)
        drawn = axes.pcolormesh(
            parts, cmap=style.weight_colours(), vmin=0.0, vmax=1.0, edgecolors=style.PALE, linewidth=0.5
        )
        axes.invert_yaxis()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(True)
        axes.spines[:].set_color(style.PALE)
        middle = [index + 0.5 for index in range(size)]
        font = 10 if cell > 0.3 else 7
        axes.set_xticks(middle, names, fontsize=font)
        axes.set_yticks(middle, [f"{name} ({row.sum():,})" for name, row in zip(names, counts)], fontsize=font)
        if any(label.get_window_extent().width > 0.9 * cell * style.DPI for label in axes.get_xticklabels()):
            for label in axes.get_xticklabels():
                label.set(rotation=45, ha="right", va="top", rotation_mode="anchor")
        axes.set_xlabel("predicted class", labelpad=8, color=style.GREY)
        axes.set_ylabel("true class (count)", labelpad=8, color=style.GREY)
        if size <= MOST_PRINTED:
            for (row, column), count in np.ndenumerate(counts):
                colour = "white" if parts[row, column] > 0.5 else style.INK if count else style.GREY
                axes.text(column + 0.5, row + 0.5, f"{count:,}", ha="center", va="center", fontsize=9, color=colour)
        style.titles(axes, title)
        tall = min(1.0, 3.0 / side)
        bar = made.add_axes((1 + 0.2 / side, 1 - tall, 0.15 / side, tall))
        style.colour_bar(made, drawn, bar, "fraction of its row", [0.0, 0.25, 0.5, 0.75, 1.0])


def _commonest(counts: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, Sequence[str]]:
    """The most frequent classes in their order, and all others as one."""
    if len(labels) <= MOST_SHOWN:
        return counts, labels
    kept = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[: MOST_SHOWN - 1])
    groups = np.full(len(labels), MOST_SHOWN - 1)
    groups[kept] = np.arange(MOST_SHOWN - 1)
    table = np.zeros((MOST_SHOWN, MOST_SHOWN), dtype=np.int64)
    np.add.at(table, (groups[:, None], groups[None]), counts)
    return table, [*(labels[i] for i in kept), f"{len(labels) - len(kept)} others"]
