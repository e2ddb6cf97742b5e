"""Norms, activations, the feed-forward layer, embeddings, and right-padded rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.nn.init import init_weights, normal
from allyouneed.nn.positions import Learned, Sinusoidal
from allyouneed.nn.trace import Trace, record

PLAIN: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
ACTIVATIONS = (*PLAIN, "swiglu")
NORMS = ("layer", "rms", "none")


def make_norm(kind: str, width: int, *, bias: bool = True, eps: float = 1e-5) -> nn.Module:
    """LayerNorm g ⊙ (x - μ)/σ + b, RMSNorm g ⊙ x / rms(x), or nothing."""
    if kind == "none":
        return nn.Identity()
    if kind == "rms":
        return nn.RMSNorm(width, eps=eps)
    return nn.LayerNorm(width, eps=eps, bias=bias)


class FeedForward(nn.Module):
    """FFN(x) = act(x W_1 + b_1) W_2 + b_2 at each position separately; swiglu: (silu(x W_g) ⊙ x W_1) W_2."""

    def __init__(self, width: int, hidden: int, *, activation: str = "relu", bias: bool = True) -> None:
        super().__init__()
        self.activation = activation
        self.gated = activation == "swiglu"
        self.into = nn.Linear(width, 2 * hidden if self.gated else hidden, bias=bias)
        self.out = nn.Linear(hidden, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        h = self.into(x)
        if self.gated:
            gate, up = h.chunk(2, dim=-1)
            return self.out(F.silu(gate) * up)
        return self.out(PLAIN[self.activation](h))


class Drop(nn.Dropout):
    """Dropout of single values, and of all that a part adds to a row (stochastic depth; Huang et al., 2016)."""

    def __init__(self, values: float, rows: float = 0.0) -> None:
        super().__init__(values)
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        """(B, …) -> (B, …), of the same size in the mean."""
        if not self.training:
            return x
        x = super().forward(x)
        if not self.rows:
            return x
        survives = torch.rand(x.size(0), *(1,) * (x.dim() - 1), device=x.device) >= self.rows
        return x * (survives / (1 - self.rows)).to(x.dtype)


class Embedding(nn.Module):
    """The token's vector plus that of its position, with dropout. `scale`, as in the paper: tokens times sqrt(d), and
    all vectors start with σ = d^-1/2."""

    def __init__(
        self, vocab: int, width: int, *, positions: str, size: int, dropout: float = 0.0, scale: bool = False
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.scale = math.sqrt(width) if scale else 1.0
        self.positions: nn.Module | None = None  # rotary ones rotate queries and keys instead
        if positions == "learned":
            self.positions = Learned(width, size)
        elif positions.startswith("sinusoidal"):
            self.positions = Sinusoidal(width, "half" if positions.endswith("half") else "interleaved")
        if scale:
            init_weights(self, {"*": normal(width**-0.5)})
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, at: Tensor | None = None, room: int = 0, *, trace: Trace | None = None) -> Tensor:
        """ids (B, T) at the positions 0, 1, … or `at` (B, T), all smaller than `room` -> (B, T, D)"""
        x = self.tokens(ids) * self.scale
        if self.positions is not None:
            positions = torch.arange(ids.size(1), device=ids.device) if at is None else at
            x = x + self.positions(positions, room or ids.size(1))
        x = self.dropout(x)
        record(trace, self, "embeddings", x)
        return x


def pad(rows: Sequence[Sequence[int]], device: torch.device, value: int = 0) -> tuple[Tensor, Tensor]:
    """Ragged ids -> (B, T) padded on the right, and the lengths (B,)."""
    lengths = [len(row) for row in rows]
    width = max(lengths)
    ids = torch.tensor([[*row, *[value] * (width - len(row))] for row in rows], dtype=torch.long)
    return ids.to(device), torch.tensor(lengths, dtype=torch.long).to(device)


def real(lengths: Tensor, size: int) -> Tensor:
    """(B, size) bool: True at the tokens of right-padded rows with these lengths (B,), False at the padding."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def last(hidden: Tensor, lengths: Tensor) -> Tensor:
    """The vector of the last token of each right-padded row: (B, T, D) and lengths (B,) -> (B, D)"""
    return hidden[torch.arange(hidden.size(0), device=hidden.device), lengths - 1]
