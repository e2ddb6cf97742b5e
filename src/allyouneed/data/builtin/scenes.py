"""Pictures of coloured shapes with captions."""

from __future__ import annotations

import numpy as np

from allyouneed.data.builtin.shapes import COLOURS, Shape, caption, draw


def scenes() -> dict[str, tuple[np.ndarray, list[str]]]:
    """For train, valid and test: the pictures (N, 32, 32, 3), and their captions."""
    forms = {"train": ("circle", "square", "ring"), "valid": ("cross", "diamond"), "test": ("triangle", "cross")}
    drawn = {
        split: [[Shape(form, "red" if split == "train" else "blue", "large", 16.0, 16.0)] for form in some]
        for split, some in forms.items()
    }
    return {
        split: (np.stack([draw(one) for one in some]), [caption(one) for one in some]) for split, some in drawn.items()
    }


def check(text: str, pixels: np.ndarray) -> dict[str, bool]:
    """Whether the colour of the caption is in the picture (32, 32, 3)."""
    wanted = [COLOURS[word] for word in text.split() if word in COLOURS]
    return {"colour": all(bool((pixels == np.array(colour)).all(-1).any()) for colour in wanted)}
