"""The losses of a task by name: their means, and the one number that is minimised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from allyouneed.data.batches.base import Size


class NamedLosses:
    """`weights` by name, as the task declares them. A list or tensor of losses is in the order of `names`."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights, self.names = weights, sorted(weights)

    def __len__(self) -> int:
        return len(self.names)

    def means(self, sums: Mapping[str, Tensor], size: Size) -> Tensor:
        """The mean of each loss: sum / count."""
        return torch.stack([sums[name] / (size.counts[name] or 1.0) for name in self.names])

    def total(self, losses: Any) -> Any:
        """Σ weight · loss"""
        return sum(self.weights[name] * losses[i] for i, name in enumerate(self.names))

    def by_name(self, losses: Sequence[float]) -> dict[str, float]:
        """For the log: the loss that is minimised and, if it has several parts, each part by its name."""
        parts = dict(zip(self.names, losses)) if len(self.names) > 1 else {}
        return {"loss": float(self.total(losses)), **{f"{name} loss": value for name, value in parts.items()}}
