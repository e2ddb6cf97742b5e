"""How much of a split a test scores: all of it, a number of examples, or as many as fit into the time that is left."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

DRAWN = 7  # the seed of the order in which examples are drawn
FIRST, LEAST = 16, 4  # examples of the first piece, which is always scored, and of the smallest other one
PART = 0.25  # of the time that is left, for the next piece: the machine may become slower


@dataclass(frozen=True)
class Extent:
    """At most `limit` examples or windows (0: all). `until`: when to end, a time.monotonic()."""

    limit: int = 0
    until: float = math.inf

    def over(self) -> bool:
        return time.monotonic() >= self.until

    def pieces(self, total: int) -> Iterator[np.ndarray]:
        """The numbers of the examples to score: all in one piece or, if there is a limit or an end, drawn at random
        and always in the same order. The pace of the pieces so far tells how many still fit."""
        if self == WHOLE:
            yield np.arange(total)
            return
        order, at = np.random.default_rng(DRAWN).permutation(total)[: self.limit or total], 0
        size = FIRST if self.until < math.inf else len(order)
        while at < len(order) and (size >= LEAST or not at):
            began = time.monotonic()
            piece = order[at : at + size]
            yield np.sort(piece)
            now, at = time.monotonic(), at + len(piece)
            each = max(1e-9, now - began) / len(piece)
            size = min(2 * len(piece), int(PART * max(0.0, min(self.until - now, 1e9)) / each))


WHOLE = Extent()
