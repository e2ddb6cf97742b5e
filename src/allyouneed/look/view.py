"""View: what a page shows of one run, as plain values and arrays that are fetched when they are needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from allyouneed.errors import UserError

PARTS = 1000  # a part of 1, such as an attention weight, is stored in thousandths: what is shown is stored exactly


class View:
    """`shown` is plain values, as JSON. An array in it is a reference, {"piece": name, "shape": …, "type": …}; the
    bytes of a piece are made when they are asked for. What else can be asked is in `questions`."""

    def __init__(self) -> None:
        self.shown: dict[str, Any] = {}
        self.pieces: dict[str, Callable[[], bytes]] = {}
        self.optional: list[str] = []  # pieces that a saved page may leave out, if it would become too large
        self.questions: dict[str, Callable[..., View]] = {}  # of a live page; each has another view as its answer

    def piece(self, name: str) -> bytes:
        """The bytes of a piece; a UserError if there is none with this name."""
        if name not in self.pieces:
            raise UserError(f"there are no numbers {name}: load the page again")
        return self.pieces[name]()

    def ask(self, name: str, asked: str | bytes) -> View:
        """The answer to a question, whose arguments are JSON; a UserError if it has none."""
        try:
            return self.questions[name](**json.loads(asked))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError("the page asks for what this run does not have: load the page again") from error

    def put(
        self,
        name: str,
        value: Any,
        kind: str = "float32",
        shape: Sequence[int] = (),
        optional: bool = False,
        **how: Any,
    ) -> dict[str, Any]:
        """A reference to an array, or to one of this shape that a function makes when it is asked for; `kind` is one of
        PACKED."""
        if name in self.pieces:
            raise ValueError(f"two pieces are called {name}")
        make = value if callable(value) else lambda: value
        shape = shape if callable(value) else value.shape
        self.pieces[name] = lambda: PACKED[kind](_array(make()))
        self.optional += [name] * optional
        return {"piece": name, "shape": [*shape[:2], 4] if kind == "uint8" else [*shape], "type": kind}


def thousandths(values: np.ndarray) -> bytes:
    """Parts of 1."""
    found = np.rint(np.clip(values, 0, 1) * PARTS).astype(np.uint16).ravel()
    # The low bytes and the high bytes apart: nearly all of the high ones are zero.
    return (found & 255).astype(np.uint8).tobytes() + (found >> 8).astype(np.uint8).tobytes()


def rgba(pixels: np.ndarray) -> bytes:
    """An image, (H, W, C) bytes."""
    channels = pixels.shape[-1]
    colour = pixels[..., [0, 0, 0] if channels < 3 else [0, 1, 2]]
    alpha = pixels[..., -1:] if channels in (2, 4) else np.full_like(pixels[..., :1], 255)
    return np.concatenate([colour, alpha], -1).astype(np.uint8).tobytes()


PACKED: dict[str, Callable[..., bytes]] = {
    "float32": lambda values: values.astype("<f4").tobytes(),
    "int32": lambda values: values.astype("<i4").tobytes(),
    "json": lambda value: json.dumps(finite(value)).encode(),  # plain values
    "parts": thousandths,
    "lower": lambda values: thousandths(values[np.tril_indices(len(values))]),  # of a matrix that has only zeros above
    "uint8": rgba,
}


def finite(value: Any) -> Any:
    """Plain values in which numbers that JSON does not have are None."""
    if isinstance(value, dict):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def _array(value: Any) -> Any:
    return value.detach().float().cpu().numpy() if isinstance(value, Tensor) else value
