"""A contact sheet: small images in rows, each with a few lines below it."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.figures import style

SIDE, GAP, LINE = 1.1, 0.15, 0.17  # inches: of an image, between two, and of a line of text
LETTERS, MOST = 18, 4  # in a line below an image; lines of one paragraph at most


def contact_sheet(images: Sequence[Any], texts: Sequence[str], out: Path, title: str = "", columns: int = 0) -> None:
    """Images (H, W) or (H, W, C) of bytes, with 1 to 4 channels; None leaves a gap. The first paragraph below
    each is black, those after a line break are grey."""
    columns = columns or min(len(images), 8)
    rows = math.ceil(len(images) / columns)
    below = [_wrapped(text) for text in texts]
    most = max(map(len, below), default=0)
    width = columns * (SIDE + GAP) - GAP
    tall = SIDE + GAP + most * LINE
    height = rows * tall
    with style.figure(out, width, height, [title, *texts]) as made:
        whole = made.add_axes((0, 0, 1, 1))
        whole.set_axis_off()
        style.titles(whole, title)
        for number, (image, wrapped) in enumerate(zip(images, below)):
            if image is None:
                continue
            row, column = divmod(number, columns)
            left, top = column * (SIDE + GAP) / width, 1 - row * tall / height
            axes = made.add_axes((left, top - SIDE / height, SIDE / width, SIDE / height))
            axes.imshow(_visible(np.asarray(image)), interpolation="nearest", vmin=0, vmax=255, cmap="gray")
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=style.PALE, linewidth=0.5)  # many images are white at their edges
            for i, (line, colour) in enumerate(wrapped):
                font: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 8, "color": colour}
                shown = style.visible(line, LETTERS).replace("␣", " ")
                axes.text(0.5, -(0.06 + i * LINE) / SIDE, shown, transform=axes.transAxes, **font)


def _wrapped(text: str) -> list[tuple[str, str]]:
    """Lines that fit below an image, each with its colour."""
    return [
        (line, style.GREY if number else style.INK)
        for number, paragraph in enumerate(text.split("\n"))
        for line in textwrap.wrap(paragraph, LETTERS)[:MOST]
    ]


def _visible(image: np.ndarray) -> np.ndarray:
    """With alpha over white."""
    if image.ndim == 3 and image.shape[2] in (2, 4):
        alpha = image[..., -1:] / 255
        return np.rint(image[..., :-1] * alpha + 255 * (1 - alpha)).astype(np.uint8)
    return image
