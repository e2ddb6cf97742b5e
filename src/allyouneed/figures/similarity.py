"""Cosines of all pairs of vectors, one panel per layer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.figures import style


def similarity(
    layers: Sequence[tuple[str, Any]], labels: Sequence[str], groups: Sequence[int], out: Path, title: str
) -> None:
    """Matrices (N, N) of cosines, each with its name above; labels on the left, lines between the groups."""
    borders = [i - 0.5 for i in range(1, len(groups)) if groups[i] != groups[i - 1]]
    side = max(2.4, 0.27 * len(labels))
    with style.figure(out, side * len(layers) + 1.0, side) as made:
        grid = made.subplots(1, len(layers), squeeze=False)[0]
        for at, (axes, (name, matrix)) in enumerate(zip(grid, layers)):
            drawn = axes.imshow(np.asarray(matrix, dtype=float), cmap="RdBu_r", vmin=-1.0, vmax=1.0)
            axes.grid(False)
            axes.set_title(name, pad=8)
            axes.set_xticks([])
            axes.set_yticks(range(len(labels)), labels if at == 0 else [""] * len(labels))
            axes.tick_params(length=0)
            for border in borders:
                axes.axhline(border, color=style.INK, linewidth=0.9)
                axes.axvline(border, color=style.INK, linewidth=0.9)
        made.subplots_adjust(wspace=0.08)
        last = grid[-1].get_position()
        style.colour_bar(
            made, drawn, made.add_axes((last.x1 + 0.015, last.y0, 0.014, last.height)), "cosine",
            [-1.0, -0.5, 0.0, 0.5, 1.0],
        )  # fmt: skip
        made.suptitle(title, x=grid[0].get_position().x0, y=last.y1 + 0.26, ha="left", fontsize=12)
