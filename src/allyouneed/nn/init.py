"""How weights start: a model's table from the paths of its parameters to distributions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn

Init = Callable[[Tensor], Any]
ZERO: Init = nn.init.zeros_
XAVIER: Init = nn.init.xavier_uniform_


def init_weights(module: nn.Module, table: Mapping[str, Init]) -> None:
    """The first row whose pattern fits the path of a parameter says how it starts; others stay as torch makes them."""
    for path, parameter in module.named_parameters():
        row = next((init for pattern, init in table.items() if fnmatchcase(path, pattern)), as_made)
        row(parameter)


def as_made(p: Tensor) -> None:
    """As torch makes it."""


def normal(std: float) -> Init:
    """Normal with this σ."""
    return lambda p: nn.init.normal_(p, std=std)


def uniform(most: float) -> Init:
    """Uniform between -most and most."""
    return lambda p: nn.init.uniform_(p, -most, most)


def fan_in(gain: float = 1.0) -> Init:
    """Normal, so that what a matrix gives has `gain` times the variance of what it gets."""
    return lambda p: nn.init.normal_(p, std=math.sqrt(gain / p.size(1)))


def published(p: Tensor) -> None:
    """Normal with σ = 0.02 in the published width of 768, and larger in a narrower model, so that what a matrix gives
    is of the same size."""
    nn.init.normal_(p, std=0.02 * math.sqrt(768 / p.size(1)))
