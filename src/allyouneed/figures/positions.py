"""The position encoding as a heat map: one row per position, one column per dimension."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.figures import style


def sinusoid(table: Any, out: Path) -> None:
    """A table (T, D) of sines and cosines: position down, dimension across, -1 blue to 1 red."""
    values = np.asarray(table, dtype=float)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"a position table has the shape (positions, dimensions), not {values.shape}")
    with style.figure(out, 7.0, 4.2) as made:
        axes = made.add_axes((0, 0, 1, 1))
        axes.grid(False)
        drawn = axes.imshow(values, cmap="RdBu_r", vmin=-1.0, vmax=1.0, aspect="auto", interpolation="nearest")
        for axis in (axes.xaxis, axes.yaxis):
            style.whole_numbers(axis)
        axes.set_xlabel("dimension")
        axes.set_ylabel("position")
        axes.set_title("Position encoding", pad=10)
        style.colour_bar(made, drawn, made.add_axes((1.03, 0, 0.022, 1)), "value", [-1.0, -0.5, 0.0, 0.5, 1.0])
