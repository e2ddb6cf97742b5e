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


class Match(nn.Module):
    """A score as a part of a model that looks many times at one memory: what does not depend on the query is done once,
    by `keys`. Without parameters of its own it is dot or cosine."""

    def __init__(self, score: Score = dot) -> None:
        super().__init__()
        self.score = score

    def keys(self, memory: Tensor) -> Tensor:
        """(..., Tk, width of the memory) -> (..., Tk, K)"""
        return memory

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        """(..., Tq, width of the query) and (..., Tk, K) -> (..., Tq, Tk)"""
        return self.score(q, k)


class General(Match):
    """q · W h (Luong et al., 2015)"""

    def __init__(self, query: int, memory: int) -> None:
        super().__init__()
        self.k = nn.Linear(memory, query, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        return self.k(memory)


class Additive(Match):
    """v · tanh(W q + U h + b) (Bahdanau et al., 2015)"""

    def __init__(self, query: int, memory: int) -> None:
        super().__init__()
        self.q = nn.Linear(query, query, bias=False)
        self.k = nn.Linear(memory, query)
        self.v = nn.Linear(query, 1, bias=False)

    def keys(self, memory: Tensor) -> Tensor:
        return self.k(memory)

    def forward(self, q: Tensor, k: Tensor) -> Tensor:
        return self.v(torch.tanh(self.q(q).unsqueeze(-2) + k.unsqueeze(-3))).squeeze(-1)


def make_match(kind: str, query: int, memory: int) -> Match:
    """additive, general, dot or cosine, for queries and a memory of these widths."""
    if kind == "additive":
        return Additive(query, memory)
    return General(query, memory) if kind == "general" else Match(SCORES[kind])
