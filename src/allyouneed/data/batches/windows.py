"""Pieces of a long stream of tokens: windows for language models, chunks for word vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch

from allyouneed.batch import IGNORE, Tensors
from allyouneed.data.batches.base import Examples, Numbers, Size

CHUNK = 1000  # tokens


class Windows(Examples):
    """Language modelling: one long stream of tokens, cut into windows of `context`. An example is its start.

    Every epoch shifts the cuts by a random phase, so that no token always stands first.
    """

    varies = False

    def __init__(self, stream: np.ndarray, context: int) -> None:
        self.stream, self.context = stream, context
        super().__init__(np.full(-(-(len(stream) - 1) // context), context))

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        rng = np.random.default_rng((seed, epoch))
        most = len(self.stream) - 1 - self.context
        phase = int(rng.integers(0, min(self.context, most + 1)))
        starts = rng.permutation(np.arange(phase, most + 1, self.context))
        rows = max(1, batch_tokens // self.context)
        whole = len(starts) // rows
        return np.split(starts[: whole * rows], whole) if whole else [starts]

    def numbered(self, key: int, among: Numbers | None = None) -> tuple[Numbers, np.ndarray]:
        windows, sizes = super().numbered(key, among)
        return windows * self.context, sizes

    def first(self, windows: int) -> Self:
        """The first windows of the stream."""
        return type(self)(self.stream[: windows * self.context + 1], self.context)

    def size(self, numbers: Numbers, key: int) -> Size:
        tokens = int(np.clip(len(self.stream) - 1 - self._starts(numbers), 0, self.context).sum())
        return Size({"tokens": tokens}, tokens)

    def _starts(self, numbers: Numbers) -> np.ndarray:
        return numbers

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        at = self._starts(numbers)[:, None] + np.arange(self.context + 1)  # (B, T + 1)
        real = at < len(self.stream)
        if real.all():
            tokens = self.stream[at].astype(np.int64)
            ids, targets = tokens[:, :-1], tokens[:, 1:]
        else:
            tokens = np.where(real, self.stream[np.minimum(at, len(self.stream) - 1)], 0).astype(np.int64)
            ids, targets = tokens[:, :-1], np.where(real, tokens, IGNORE)[:, 1:]
        return {"ids": torch.from_numpy(ids), "targets": torch.from_numpy(targets)}


class Streams(Windows):
    """Language modelling with a state that goes on: the stream is cut into lanes of equal length, and batch t has
    window t of every lane, so that each row continues its row of the batch before. An example is a row (its start, its
    lane, whether it is the first of its lane).

    Every epoch shifts the lanes by a random phase.
    """

    in_order = True

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        targets = len(self.stream) - 1
        lanes = self._lanes(batch_tokens, targets // self.context)
        # As many windows a lane as leave room for a phase of any size below one window.
        each = max(1, (targets + 1 - self.context) // (lanes * self.context))
        rest = targets - lanes * each * self.context
        phase = int(np.random.default_rng((seed, epoch)).integers(0, rest + 1))
        return self._walk(phase, lanes, each)

    def cover(self, batch_tokens: int, among: Numbers | None = None) -> list[Numbers]:
        windows = len(self)
        # Rather few long lanes than many short ones: at its beginning a lane knows nothing of the text before it.
        each = -(-windows // self._lanes(batch_tokens, max(1, windows // 16)))
        return self._walk(0, -(-windows // each), each)  # the last lane may end with padding

    def _lanes(self, batch_tokens: int, windows: int) -> int:
        """As many as the budget allows, and each has a window."""
        return max(1, min(batch_tokens // self.context, windows))

    def _walk(self, phase: int, lanes: int, each: int) -> list[Numbers]:
        lane = np.arange(lanes)
        return [
            np.stack([phase + (lane * each + t) * self.context, lane, np.full(lanes, t == 0)], axis=1)
            for t in range(each)
        ]

    def _starts(self, numbers: Numbers) -> np.ndarray:
        return numbers[:, 0]

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        lanes, fresh = torch.from_numpy(numbers[:, 1].copy()), torch.from_numpy(numbers[:, 2] == 1)
        return {**super().tensors(numbers, key), "lanes": lanes, "fresh": fresh}


class TokenChunks(Examples):
    """An example is a chunk of 1000 tokens; a batch has as many in a row as its budget allows, and the batches of an
    epoch come in a random order. `ends` are the tokens that end a line, `unknown` is no word either."""

    def __init__(self, stream: np.ndarray, ends: Sequence[int], unknown: int) -> None:
        self.stream, self.ends, self.unknown = stream, list(ends), unknown
        super().__init__(np.full(-(-len(stream) // CHUNK), CHUNK))

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        batches = self.cover(batch_tokens)
        return [batches[i] for i in np.random.default_rng((seed, epoch)).permutation(len(batches))]

    def first(self, chunks: int) -> TokenChunks:
        """The first chunks of the text."""
        return TokenChunks(self.stream[: chunks * CHUNK], self.ends, self.unknown)

    def size(self, numbers: Numbers, key: int) -> Size:
        tokens = self.tensors(numbers, key)["tokens"]
        words = int(((tokens >= 0) & (tokens != self.unknown)).sum())
        return Size({"words": words}, words)

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        """One row of tokens (N,), where -1 ends a line; the numbers follow each other."""
        tokens = self.stream[numbers[0] * CHUNK : (numbers[-1] + 1) * CHUNK].astype(np.int32)
        for end in self.ends:
            tokens[tokens == end] = -1
        return {"tokens": torch.from_numpy(tokens)}
