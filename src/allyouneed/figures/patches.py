"""What a ViT has learned of its patches: which places are alike, and what it looks for in a patch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.figures import style

SIDE = 4.2  # inches of each half
GAP = 0.7


def patch_figure(cosines: Any, filters: Any, out: Path, title: str = "") -> None:
    """On the left a map for each patch: the cosine (G, G, G, G) of its position with that of every other. On the right
    the filters (K, P, P, C), each from its darkest value to its brightest."""
    table, shown = np.asarray(cosines, dtype=float), np.asarray(filters, dtype=float)
    grid, across = len(table), math.ceil(math.sqrt(len(shown)))
    maps = np.full((grid, grid, grid + 1, grid + 1), np.nan)
    maps[:, :, :grid, :grid] = table
    width = 2 * SIDE + GAP + 0.8
    with style.figure(out, width, SIDE, [title]) as made:
        left = made.add_axes((0, 0, SIDE / width, 1))
        drawn = left.imshow(_tiled(maps)[:-1, :-1], cmap="RdBu_r", vmin=-1.0, vmax=1.0, interpolation="nearest")
        style.titles(left, title)
        bar = made.add_axes((SIDE / width + 0.008, 0.2, 0.01, 0.6))
        style.colour_bar(made, drawn, bar, "cosine", [-1.0, 0.0, 1.0])
        right = made.add_axes((1 - SIDE / width, 0, SIDE / width, 1))
        right.imshow(_sheet(shown, across), interpolation="nearest", vmin=0.0, vmax=1.0, cmap="gray")
        for axes, name in ((left, "each patch: which places are like its own"), (right, "filters of the patches")):
            axes.set_xticks([])
            axes.set_yticks([])
            axes.grid(False)
            axes.spines[:].set_visible(False)
            axes.set_xlabel(name, labelpad=8, color=style.GREY)


def _tiled(maps: np.ndarray) -> np.ndarray:
    """(R, C, H, W) -> (R · H, C · W)"""
    return maps.transpose(0, 2, 1, 3).reshape(maps.shape[0] * maps.shape[2], -1)


def _sheet(filters: np.ndarray, across: int) -> np.ndarray:
    """The filters in rows, with white between them: (H, W) or (H, W, 3)."""
    low, high = filters.min((1, 2, 3), keepdims=True), filters.max((1, 2, 3), keepdims=True)
    scaled = (filters - low) / np.maximum(high - low, 1e-9)
    scaled = scaled[..., :3] if scaled.shape[3] >= 3 else scaled[..., :1]
    rows = math.ceil(len(scaled) / across)
    side = filters.shape[1]
    sheet = np.ones((rows * across, side + 1, side + 1, scaled.shape[3]))
    sheet[: len(scaled), :side, :side] = scaled
    sheet = sheet.reshape(rows, across, side + 1, side + 1, -1)
    channels = [_tiled(sheet[..., i])[:-1, :-1] for i in range(sheet.shape[4])]
    return channels[0] if len(channels) == 1 else np.stack(channels, -1)
