"""The optimizer with its parameter groups, the learning rate over time, and averaged weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.config import TrainConfig
from allyouneed.models.base import Model

BRIEF = 0.1  # of the steps of a run with train.minutes, at most, are warm-up
LONGEST = 0.5  # of the steps of any other run, where the user or the recipe has said how many they are


def parameter_groups(model: Model, config: TrainConfig) -> list[dict[str, Any]]:
    """The trainable parameters, grouped by weight decay and learning rate. The matrices of linear layers decay; biases,
    norms, embeddings and positions do not, nor does an output matrix tied to an embedding. `factor` multiplies the
    learning rate: train.layer_decay to the power of the distance from the head, in layers."""
    embeddings = {id(p) for m in model.modules() if isinstance(m, nn.Embedding) for p in m.parameters(recurse=False)}
    factors = _factors(model, config.layer_decay)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for p in model.parameters():
        if p.requires_grad:
            decay = config.weight_decay if p.dim() >= 2 and id(p) not in embeddings else 0.0
            groups.setdefault((factors.get(id(p), 1.0), -decay), []).append(p)
    return [
        {"params": some, "weight_decay": -decay, "factor": factor} for (factor, decay), some in sorted(groups.items())
    ]


def _factors(model: Model, decay: float) -> dict[int, float]:
    """decay^n for each parameter of the body, n layers below the head, by its id. All others have the factor 1."""
    if decay == 1:
        return {}
    stages = model.body.stages()
    return {
        id(p): decay ** (len(stages) - number)
        for number, stage in enumerate(stages)
        for module in stage
        for p in module.parameters()
    }


def make_optimizer(model: Model, config: TrainConfig) -> torch.optim.Optimizer:
    groups = parameter_groups(model, config)
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum)
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


def warmup(total: int, config: TrainConfig) -> int:
    """Steps of warm-up: train.warmup, or a part of a run that is short, so that it ends with a falling rate. A constant
    rate never falls."""
    if config.schedule == "constant":
        return config.warmup
    return min(config.warmup, math.ceil((BRIEF if config.minutes else LONGEST) * total))


def learning_rate(step: float, total: int, config: TrainConfig) -> float:
    """The learning rate of step 0, 1, … of `total`: a linear warm-up, then the schedule.

    noam: lr · sqrt(warmup / step), the paper's shape with its peak at `lr`.
    """
    warm = warmup(total, config)
    if step < warm:
        return config.lr * (step + 1) / warm
    if config.schedule == "constant":
        return config.lr
    if config.schedule == "noam":
        return config.lr * math.sqrt(max(1, warm) / (step + 1))
    done = min(1.0, (step - warm) / max(1, total - warm))
    shape = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.lr * (config.min_lr + (1.0 - config.min_lr) * shape)


class MovingAverage:
    """θ' ← d θ' + (1 - d) θ after each step; d is smaller in the first steps, to forget the initial weights."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.parameters = dict(model.named_parameters())
        self.averages = {name: p.detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        parameters = [p.detach() for p in self.parameters.values()]
        torch._foreach_lerp_(list(self.averages.values()), parameters, 1 - decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Inside the block, the model has the averaged weights."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def _swap(self) -> None:
        for p, average in zip(self.parameters.values(), self.averages.values()):
            p.data, average.data = average.data, p.data


def mean(models: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of each tensor, summed in double precision."""
    return {
        name: (sum(m[name].double() for m in models) / len(models)).to(models[0][name].dtype)  # type: ignore[union-attr]
        for name in models[0]
    }
