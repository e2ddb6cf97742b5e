"""How well a query fits a key: the scores of the lectures, (B, H, Tq, K) and (B, H, Tk, K) -> (B, H, Tq, Tk)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

Score = Callable[[Tensor, Tensor], Tensor]


def dot(q: Tensor, k: Tensor) -> Tensor:
    """q · k"""
    return q @ k.transpose(-2, -1)


def scaled_dot(q: Tensor, k: Tensor) -> Tensor:
    """q · k / sqrt(d_k), so that the softmax does not saturate as the heads grow wider."""
    return dot(q, k) / math.sqrt(q.size(-1))


def cosine(q: Tensor, k: Tensor) -> Tensor:
    """q · k / (|q| |k|): the intuition of the slides, between -1 and 1."""
    return dot(F.normalize(q, dim=-1), F.normalize(k, dim=-1))


SCORES: dict[str, Score] = {"dot": dot, "scaled_dot": scaled_dot, "cosine": cosine}
