"""How much memory a step needs, before it is needed, and what to do when it was not enough."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from allyouneed.format import human_bytes
from allyouneed.nn.block import Block
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


def estimate(model: nn.Module, config: Any, tokens: int, *, adam: bool, device: torch.device, half: bool) -> Estimate:
    """Weights and gradients, the optimizer's memory, and what the backward pass must remember of `tokens` tokens:
    about 14 vectors of the model's width a block, the feed-forward layer's inside, and the logits with their
    gradient. Right to a factor of two, which is enough to start with the right number of micro-batches."""
    weights, optimizer = lasting(model, adam=adam)
    own = getattr(model, "remembered", None)  # a model without Blocks counts for itself
    values = own(tokens) if own is not None else _remembered(model, config, tokens)
    size = 2 if half else 4
    return Estimate(weights, optimizer, activations=values * size, available=available(device))


def lasting(model: nn.Module, *, adam: bool) -> tuple[int, int]:
    """Bytes that a training holds from step to step: of weights and gradients, and of the optimizer. What is frozen has
    neither gradient nor optimizer."""
    parameters = sum(p.numel() for p in model.parameters())
    if getattr(model, "in_place", False):  # it learns without gradients and without an optimizer
        return 4 * parameters, 0
    learned = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return 4 * (parameters + learned), learned * (8 if adam else 4)


def _remembered(model: nn.Module, config: Any, tokens: int) -> int:
    layers = sum(isinstance(module, Block) for module in model.modules())
    hidden = config.hidden or 4 * config.width
    vocab = getattr(config, "target_vocab", 0) or config.vocab
    return tokens * (layers * (14 * config.width + 3 * hidden) + 3 * vocab)


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has an error of its own; the CPU's allocator says it in words."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
