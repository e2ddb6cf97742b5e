"""Averaged weights: a moving average, or the mean of the last checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class MovingAverage:
    """θ' ← d θ' + (1 - d) θ after each step; d is smaller in the first steps, to forget the initial weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.names = [name for name, _ in model.named_parameters()]
        self.live = [p for _, p in model.named_parameters()]
        self.kept = [p.detach().clone() for p in self.live]

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.kept, [p.detach() for p in self.live], 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside the block, the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for p, kept in zip(self.live, self.kept):
            p.data, kept.data = kept.data, p.data

    def tensors(self) -> dict[str, Tensor]:
        return dict(zip(self.names, self.kept))

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, kept in zip(self.names, self.kept):
            if tensors[name].shape != kept.shape:
                raise ValueError(f"{name} is {tuple(tensors[name].shape)}, not {tuple(kept.shape)}")
            kept.copy_(tensors[name])


def mean(models: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor, summed in double precision."""
    return {
        name: (sum(m[name].double() for m in models) / len(models)).to(models[0][name].dtype)  # type: ignore[union-attr]
        for name in models[0]
    }
