"""Batches in order, from any position, split into micro-batches and over the processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from allyouneed.data.batches.base import Batch, Examples, Numbers, Size
from allyouneed.randomness import make_key
from allyouneed.training.distributed import Ranks


@dataclass(frozen=True)
class Step:
    """The data of one optimizer step: its position in the epoch, and this process's share in micro-batches."""

    epoch: int
    batch: int
    last: bool  # of its epoch
    size: Size  # of the whole batch, all processes together
    pieces: list[Batch]


Steps = Generator[Step, None, None]


@dataclass(frozen=True)
class Feed:
    """The steps of a run. It has no state to save: the plan is a function of (seed, epoch)."""

    examples: Examples
    ranks: Ranks
    device: torch.device
    seed: int
    batch_tokens: int

    def plan(self, epoch: int) -> list[Numbers]:
        return self.examples.plan(self.seed, epoch, self.batch_tokens)

    def steps(self, epoch: int, batch: int, pieces: int) -> Steps:
        """Endless steps from this position. On a GPU, the next batches are made while it computes."""
        steps = self._steps(epoch, batch, pieces)
        return _ahead(steps, 4) if self.device.type == "cuda" else steps

    def _steps(self, epoch: int, batch: int, pieces: int) -> Steps:
        while True:
            plan = self.plan(epoch)
            for i in range(batch, len(plan)):
                yield self.step(epoch, i, i == len(plan) - 1, plan[i], pieces)
            epoch, batch = epoch + 1, 0

    def step(self, epoch: int, batch: int, last: bool, numbers: Numbers, pieces: int) -> Step:
        """One step in `pieces` micro-batches. Its size follows from the plan, without asking the other processes."""
        key = make_key(self.seed, epoch)
        made = self.split(numbers, pieces, key)
        size = self.examples.size(numbers, key) if self.ranks.world > 1 else _together([piece.size for piece in made])
        return Step(epoch, batch, last, size, made)

    def cover(self, part: float = 1.0) -> Iterator[Batch]:
        """This process's share of all examples, each once, or of a part of them."""
        for numbers in self.examples.sample(self.batch_tokens, part):
            yield from self.split(numbers, 1, key=0)

    def split(self, numbers: Numbers, pieces: int, key: int) -> list[Batch]:
        """This process's share of one batch, in `pieces` micro-batches."""
        mine = numbers[self.ranks.rank :: self.ranks.world]
        parts = np.array_split(mine, max(1, min(pieces, len(mine))))
        made = [self.examples.collate(part, key) for part in parts if len(part)]
        return [batch.pin() for batch in made] if self.device.type == "cuda" else made


def _together(sizes: list[Size]) -> Size:
    names = {name for size in sizes for name in size.counts}
    counts = {name: sum(size.counts[name] for size in sizes) for name in names}
    return Size(counts, sum(size.units for size in sizes))


def _ahead(steps: Steps, size: int) -> Steps:
    """The same steps, made by a thread that is up to `size` steps ahead and ends with its reader."""
    pool = ThreadPoolExecutor(1)
    try:
        ready = deque(pool.submit(next, steps) for _ in range(size))
        while True:
            step = ready.popleft().result()
            ready.append(pool.submit(next, steps))
            yield step
    finally:
        pool.shutdown(cancel_futures=True)
