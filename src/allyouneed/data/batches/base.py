"""Examples -> batches. The plan of an epoch is a function of (seed, epoch), so a run resumes at any batch at once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from allyouneed.batch import Tensors
from allyouneed.randomness import draw, make_key
from allyouneed.text.layout import Layout

Numbers = np.ndarray  # of examples
EXAMPLE = 1 << 24  # random numbers that one example has: positions in its text


@dataclass(frozen=True)
class Size:
    """What is known of a batch before it is made."""

    counts: dict[str, float]  # by the name of each loss: what its sum is divided by; whole numbers or weights
    units: int  # tokens, words or texts, as the progress line shows them


@dataclass
class Batch:
    """Tensors for the model, and the batch's size."""

    tensors: Tensors
    size: Size

    @property
    def rows(self) -> int:
        return self.shapes[0][0]

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Of each tensor."""
        return tuple(cast(Tensor, t).shape for t in self.tensors.values())

    def to(self, device: torch.device) -> Batch:
        """On the device; from pinned memory the copy does not wait."""
        return self._map(lambda t: t.to(device, non_blocking=True))

    def pin(self) -> Batch:
        return self._map(lambda t: t.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed = {name: change(cast(Tensor, t)) for name, t in self.tensors.items()}
        return Batch(cast(Tensors, changed), self.size)


class Examples(ABC):
    """One split, ready for the loop: batches of examples of about one length, as many as the token budget allows.
    Everything random in a batch is a function of its key and its examples. `sizes`: tokens per example."""

    varies: ClassVar[bool] = True  # batches differ in their shapes
    in_order: ClassVar[bool] = False  # each batch goes on where the one before has ended

    def __init__(self, sizes: np.ndarray) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    @abstractmethod
    def size(self, numbers: Numbers, key: int) -> Size:
        """The size of a batch, without making it: each process knows it for the examples of all processes."""

    @abstractmethod
    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        """The tensors of some examples."""

    def collate(self, numbers: Numbers, key: int = 0) -> Batch:
        """The batch of some examples. `key` is that of the epoch, and always the same in evaluation."""
        return Batch(self.tensors(numbers, key), self.size(numbers, key))

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        """The batches of one epoch, shuffled: a function of its arguments and nothing else."""
        rng = np.random.default_rng((seed, epoch))
        batches = self._batches(self.numbered(make_key(seed, epoch)), batch_tokens, rng)
        return [batches[i] for i in rng.permutation(len(batches))]

    def cover(self, batch_tokens: int, among: Numbers | None = None) -> list[Numbers]:
        """Batches that show every token of all examples, or of some, exactly once, in a fixed order: for evaluation."""
        return self._batches(self.numbered(0, among), batch_tokens)

    def _batches(
        self, examples: tuple[Numbers, np.ndarray], batch_tokens: int, rng: np.random.Generator | None = None
    ) -> list[Numbers]:
        """The longest examples first; with `rng` only about so: the neighbours of an example change every epoch."""
        numbers, sizes = examples
        noise = 0.0 if rng is None else rng.uniform(0, 1, len(sizes)) * (1 + 0.1 * sizes)
        order = np.argsort(-(sizes + noise), kind="stable")
        return self.fill(numbers[order], sizes[order], batch_tokens)

    def sample(self, batch_tokens: int, part: float) -> list[Numbers]:
        """A part of the batches of `cover`, always the same one: spread evenly, or the first if they are in order."""
        batches = self.cover(batch_tokens)
        some = min(len(batches), max(1, math.ceil(part * len(batches))))
        return batches[:some] if self.in_order else [batches[i * len(batches) // some] for i in range(some)]

    def numbered(self, key: int, among: Numbers | None = None) -> tuple[Numbers, np.ndarray]:
        """The numbers of the examples, of all or of some, and their sizes (N,)."""
        among = np.arange(len(self)) if among is None else among
        return among, self.sizes[among]

    def fill(self, numbers: Numbers, sizes: np.ndarray, batch_tokens: int) -> list[Numbers]:
        """Batches of these examples, which are in the order of their sizes (N,)."""
        return fill(numbers, sizes, batch_tokens)


class EvenBatches(Examples):
    """Examples of one length, in batches of equal size: a rest that does not fill one waits for the next epoch."""

    varies = False

    def __init__(self, examples: int, tokens: int) -> None:
        super().__init__(np.full(examples, tokens))

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        batches = super().plan(seed, epoch, batch_tokens)
        most = max(map(len, batches), default=0)
        return [numbers for numbers in batches if len(numbers) == most]


def fill(order: Numbers, sizes: np.ndarray, batch_tokens: int) -> list[Numbers]:
    """Batches of these examples, of so many tokens each (N,): longest first, so that the first of the next ones tells
    how many fit."""
    batches, i = [], 0
    while i < len(order):
        rows = max(1, batch_tokens // int(sizes[i]))
        rows = max(1, batch_tokens // int(sizes[i : i + rows].max()))
        batches.append(order[i : i + rows])
        i += rows
    return batches


def random_bits(key: int, numbers: Numbers, width: int) -> Tensor:
    """(B, T) 64 random bits for each token of these examples: a function of the key, the example and the position."""
    return draw(key, torch.from_numpy(numbers)[:, None] * EXAMPLE + torch.arange(width))


@dataclass(frozen=True)
class Rows:
    """Texts in rows, padded on the right."""

    ids: np.ndarray  # (B, T)
    lengths: np.ndarray  # (B,)
    segments: np.ndarray  # (B, T)
    inside: list[np.ndarray]  # (B, T) bool for each of the one or two texts: where its tokens are


def lay_rows(layout: Layout, sides: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], padding: int = 0) -> Rows:
    """One row per example. Each of the one or two sides is an array of tokens, and for each example where its text
    begins there, and how many tokens it has, (B,) each.

    Without a loop over the rows: on a GPU this runs beside the thread that launches kernels.
    """
    lengths = np.sum([count for _, _, count in sides], axis=0) + layout.specials(len(sides))
    ids = np.full((len(lengths), int(lengths.max())), padding, dtype=np.int64)
    segments, found = np.zeros_like(ids), []
    at = np.zeros(len(lengths), dtype=np.int64)  # where the next part begins in each row

    def put(specials: Sequence[int]) -> None:
        for special in specials:
            ids[np.arange(len(at)), at] = special
            at[:] += 1

    put(layout.start)
    for number, (tokens, starts, count) in enumerate(sides):
        position = np.arange(ids.shape[1]) - at[:, None]
        inside = (position >= 0) & (position < count[:, None])
        ids[inside] = tokens[(starts[:, None] + position)[inside]]
        found.append(inside)
        if number:
            segments[(position >= 0) & (np.arange(ids.shape[1]) < lengths[:, None])] = number
        at += count
        put(layout.between if number + 1 < len(sides) else layout.end)
    return Rows(ids, lengths.astype(np.int64), segments, found)
