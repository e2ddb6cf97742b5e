"""How well a query fits a key: the scores of the lectures, (B, H, Tq, K) and (B, H, Tk, K) -> (B, H, Tq, Tk)."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

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


def named_score(name: str) -> Score:
    """One of SCORES."""
    if name not in SCORES:
        raise ValueError(f"score = '{name}' is not one of {', '.join(SCORES)}")
    return SCORES[name]


class AttentionScore(nn.Module):
    """A score between decoder states and the outputs h of an encoder. What does not depend on the query is computed
    once per source, by `keys`. The base class has no parameters: dot or cosine."""

    def __init__(self, score: Score = dot) -> None:
        super().__init__()
        self.score = score
        self.k: nn.Module = nn.Identity()

    def keys(self, h: Tensor) -> Tensor:
        """(..., Tk, width of the source) -> (..., Tk, K)"""
        return self.k(h)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(..., Tq, width of the query) and (..., Tk, K) -> (..., Tq, Tk)"""
        return self.score(q, k)


class General(AttentionScore):
    """q · W h (Luong et al., 2015)"""

    def __init__(self, query: int, source: int) -> None:
        super().__init__()
        self.k = nn.Linear(source, query, bias=False)


class Additive(AttentionScore):
    """v · tanh(W q + U h + b) (Bahdanau et al., 2015)"""

    def __init__(self, query: int, source: int) -> None:
        super().__init__()
        self.q = nn.Linear(query, query, bias=False)
        self.k = nn.Linear(source, query)
        self.v = nn.Linear(query, 1, bias=False)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.v(torch.tanh(self.q(q).unsqueeze(-2) + k.unsqueeze(-3))).squeeze(-1)


def make_score(kind: str, query: int, source: int) -> AttentionScore:
    """additive, general, dot or cosine, for queries and a source of these widths."""
    if kind == "additive":
        return Additive(query, source)
    return General(query, source) if kind == "general" else AttentionScore(SCORES[kind])
