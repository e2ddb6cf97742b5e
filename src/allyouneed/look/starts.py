"""Texts to start from: those of the lectures and of the built-in data that a run knows every word of."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import numpy as np

from allyouneed.config import DecodeConfig
from allyouneed.data.builtin.shapes import Shape, draw
from allyouneed.errors import UserError
from allyouneed.predict.base import Predictor
from allyouneed.predict.images import ImageReader

STARTS = tomllib.loads((files("allyouneed.look") / "starts.toml").read_text(encoding="utf-8"))
SHAPES = {name: Shape(**shape) for name, shape in STARTS["images"].items()}
MOST = 6


def start_image(name: str) -> np.ndarray | None:
    """The image with this name, (H, W, 3) bytes; None: there is none."""
    return draw([SHAPES[name]]) if name in SHAPES else None


def starts(predictor: Predictor, decode: DecodeConfig) -> list[str]:
    """Up to MOST of the texts for this task, whose words it all knows."""
    if isinstance(predictor, ImageReader):
        return list(SHAPES)
    return _known("texts", predictor, decode)[:MOST]


def lines(predictor: Predictor, decode: DecodeConfig) -> list[str]:
    """Lines among which the nearest to a text are found, until others are given."""
    return _known("lines", predictor, decode)


def _known(kind: str, predictor: Predictor, decode: DecodeConfig) -> list[str]:
    texts = STARTS[kind].get(predictor.recipe.task_kind, ())
    return [text for text in texts if _knows(predictor, text, decode)]


def _knows(predictor: Predictor, text: str, decode: DecodeConfig) -> bool:
    try:
        return not predictor.unknown(predictor.read(text, decode))
    except UserError:
        return False
