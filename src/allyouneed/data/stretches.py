"""A long text in stretches that follow each other: for word vectors, whose words look at their neighbours."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from allyouneed.data.batches import Batch, Examples, Numbers, Size
from allyouneed.nn.batch import Tensors

STRETCH = 1000  # tokens


class Stretches(Examples):
    """An example is a stretch of 1000 tokens; a batch has as many in a row as its budget allows, and the batches of an
    epoch come in a random order. `ends` are the tokens that end a line, `unknown` is no word either."""

    def __init__(self, stream: np.ndarray, ends: Sequence[int], unknown: int) -> None:
        self.stream, self.ends, self.unknown = stream, list(ends), unknown

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        batches = self.cover(batch_tokens)
        return [batches[i] for i in np.random.default_rng((seed, epoch)).permutation(len(batches))]

    def __len__(self) -> int:
        return -(-len(self.stream) // STRETCH)

    def first(self, stretches: int) -> Stretches:
        """The first stretches of the text."""
        return Stretches(self.stream[: stretches * STRETCH], self.ends, self.unknown)

    def cover(self, batch_tokens: int) -> list[Numbers]:
        stretches = np.arange(len(self))
        rows = max(1, batch_tokens // STRETCH)
        return [stretches[i : i + rows] for i in range(0, len(stretches), rows)]

    def collate(self, numbers: Numbers, key: int = 0) -> Batch:
        tokens = self._tokens(numbers)
        return Batch({"tokens": torch.from_numpy(tokens)}, self._size(tokens))

    def size(self, numbers: Numbers, key: int) -> Size:
        return self._size(self._tokens(numbers))

    def _size(self, tokens: np.ndarray) -> Size:
        words = int(((tokens >= 0) & (tokens != self.unknown)).sum())
        return Size({"words": words}, words)

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        return {"tokens": torch.from_numpy(self._tokens(numbers))}

    def _tokens(self, numbers: Numbers) -> np.ndarray:
        """One row of tokens (N,), where -1 ends a line; the numbers follow each other."""
        tokens = self.stream[numbers[0] * STRETCH : (numbers[-1] + 1) * STRETCH].astype(np.int32)
        tokens[np.isin(tokens, self.ends)] = -1
        return tokens
