"""A contact sheet: small pictures in rows, each with a line or two below it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.figures import style

SIDE, GAP, LINE = 1.1, 0.15, 0.17  # inches: of a picture, between two, and of a line of text


def contact_sheet(pictures: Sequence[Any], told: Sequence[str], out: Path, title: str = "", columns: int = 0) -> None:
    """Pictures (H, W) or (H, W, C) of bytes, with 1 to 4 channels; None leaves a place free."""
    columns = columns or min(len(pictures), 8)
    rows = math.ceil(len(pictures) / columns)
    lines = max((text.count("\n") + 1 for text in told if text), default=0)
    width = columns * (SIDE + GAP) - GAP
    tall = SIDE + GAP + lines * LINE
    height = rows * tall
    with style.figure(out, width, height, [title, *told]) as made:
        whole = made.add_axes((0, 0, 1, 1))
        whole.set_axis_off()
        style.titles(whole, title)
        for number, (picture, text) in enumerate(zip(pictures, told)):
            if picture is None:
                continue
            row, column = divmod(number, columns)
            left, top = column * (SIDE + GAP) / width, 1 - row * tall / height
            axes = made.add_axes((left, top - SIDE / height, SIDE / width, SIDE / height))
            axes.imshow(_visible(np.asarray(picture)), interpolation="nearest", vmin=0, vmax=255, cmap="gray")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=style.PALE, linewidth=0.5)  # many pictures are white at their edges
            for i, line in enumerate(text.split("\n")):
                axes.text(
                    0.5,
                    -(0.06 + i * LINE) / SIDE,
                    style.visible(line, 20).replace("␣", " "),
                    transform=axes.transAxes,
                    ha="center",
                    va="top",
                    fontsize=8,
                    color=style.INK if not i else style.GREY,
                )


def _visible(picture: np.ndarray) -> np.ndarray:
    """(H, W) if it is grey; with alpha over white."""
    if picture.ndim == 3 and picture.shape[2] in (2, 4):
        alpha = picture[..., -1:] / 255
        picture = np.rint(picture[..., :-1] * alpha + 255 * (1 - alpha)).astype(np.uint8)
    return picture[..., 0] if picture.ndim == 3 and picture.shape[2] == 1 else picture
