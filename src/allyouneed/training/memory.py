"""How much memory a step needs, before it is needed, and what to do when it was not enough."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from allyouneed.format import human_bytes
from allyouneed.models.base import Model
from allyouneed.runtime import available


@dataclass(frozen=True)
class Estimate:
    """Bytes by part."""

    weights: int
    optimizer: int
    activations: int
    available: int

    @property
    def total(self) -> int:
        return self.weights + self.optimizer + self.activations

    def halved(self) -> Estimate:
        """With micro-batches half the size."""
        return replace(self, activations=self.activations // 2)

    def __str__(self) -> str:
        return (
            f"about {human_bytes(self.total)} of {human_bytes(self.available)} free "
            f"(weights and gradients {human_bytes(self.weights)}, optimizer {human_bytes(self.optimizer)}, "
            f"activations {human_bytes(self.activations)})"
        )


def estimate(model: Model, tokens: int, *, adam: bool, device: torch.device, half: bool) -> Estimate:
    """Weights and gradients, the optimizer's memory, and what the backward pass must remember of `tokens` tokens, as
    the model says. Right to a factor of two, which is enough to start with the right number of micro-batches."""
    weights, optimizer = lasting(model, adam=adam)
    return Estimate(weights, optimizer, model.remembered(tokens) * (2 if half else 4), available(device))


def lasting(model: Model, *, adam: bool) -> tuple[int, int]:
    """Bytes that training holds from step to step: of weights and gradients, and of the optimizer. What is frozen has
    neither gradient nor optimizer."""
    parameters = sum(p.numel() for p in model.parameters())
    if model.in_place:
        return 4 * parameters, 0
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return 4 * (parameters + learning), 8 * learning if adam else 4 * learning


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has an error of its own; the CPU's allocator says it in words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
