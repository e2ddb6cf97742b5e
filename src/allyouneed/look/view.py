"""View: what a page shows of one run, as plain values and arrays that are fetched when they are needed."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from allyouneed.errors import UserError

PARTS = 1000  # a part of 1, such as an attention weight, is stored in thousandths: what is shown is stored exactly

Make = Callable[[], "np.ndarray | Tensor"]


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

    def numbers(self, name: str, shape: Sequence[int], make: Make, optional: bool = False) -> dict[str, Any]:
        """A reference to numbers, fp32."""
        return self._refer(name, shape, "float32", lambda: _array(make()).astype("<f4").tobytes(), optional)

    def integers(self, name: str, shape: Sequence[int], make: Make, optional: bool = False) -> dict[str, Any]:
        """A reference to whole numbers, 32 bits."""
        return self._refer(name, shape, "int32", lambda: _array(make()).astype("<i4").tobytes(), optional)

    def values(self, name: str, make: Callable[[], Any]) -> dict[str, Any]:
        """A reference to plain values, as JSON."""
        return self._refer(name, (), "json", lambda: json.dumps(finite(make())).encode(), False)

    def parts(
        self, name: str, shape: Sequence[int], make: Make, lower: bool = False, optional: bool = False
    ) -> dict[str, Any]:
        """A reference to parts of 1, in thousandths; `lower`: of a square matrix that is zero above its diagonal, only
        what is not."""

        def packed() -> bytes:
            values = _array(make())
            if lower:
                values = values[np.tril_indices(len(values))]
            found = np.rint(np.clip(values, 0, 1) * PARTS).astype(np.uint16).ravel()
            # The low bytes and the high bytes apart: nearly all of the high ones are zero.
            return (found & 255).astype(np.uint8).tobytes() + (found >> 8).astype(np.uint8).tobytes()

        return self._refer(name, shape, "parts", packed, optional) | ({"lower": True} if lower else {})

    def image(self, name: str, shape: Sequence[int], make: Callable[[], np.ndarray]) -> dict[str, Any]:
        """A reference to an image, (H, W, C) bytes, as RGBA."""

        def rgba() -> bytes:
            pixels = make()
            h, w, c = pixels.shape
            colour = pixels[..., [0, 0, 0] if c < 3 else [0, 1, 2]]
            alpha = pixels[..., -1:] if c in (2, 4) else np.full((h, w, 1), 255, np.uint8)
            return np.concatenate([colour, alpha], -1).astype(np.uint8).tobytes()

        return self._refer(name, (*shape[:2], 4), "uint8", rgba, False)

    def _refer(
        self, name: str, shape: Sequence[int], kind: str, make: Callable[[], bytes], optional: bool
    ) -> dict[str, Any]:
        if name in self.pieces:
            raise ValueError(f"two pieces are called {name}")
        self.pieces[name] = make
        if optional:
            self.optional.append(name)
        return {"piece": name, "shape": list(shape), "type": kind}


def finite(value: Any) -> Any:
    """Plain values in which numbers that JSON does not have are None."""
    if isinstance(value, dict):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    if isinstance(value, float) and not abs(value) < float("inf"):
        return None
    return value


def _array(value: np.ndarray | Tensor) -> np.ndarray:
    return value.detach().float().cpu().numpy() if isinstance(value, Tensor) else value
