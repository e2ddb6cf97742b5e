"""What a body's vectors are turned into: a mix of its layers, one vector per text, the scores of words and classes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from allyouneed.nn.layers import PLAIN, last, real
from allyouneed.nn.losses import linear_cross_entropy


class LMHead(nn.Module):
    """Scores of every word of the vocabulary: logits = h W^T (+ b). W may be the embedding matrix itself."""

    def __init__(self, width: int, vocab: int, *, tie: nn.Embedding | None = None, bias: bool = False) -> None:
        super().__init__()
        self.out = nn.Linear(width, vocab, bias=bias)
        if tie is not None:
            self.out.weight = tie.weight

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        weight, bias = self.out.weight, self.out.bias
        if hidden.dim() != 2 or not hidden.is_cuda or weight.itemsize != 2 or weight.size(0) % 8 == 0:
            return self.out(hidden)
        # Rows of so many 16-bit logits are not aligned as fast products need it; those of the transposed result are.
        logits = (weight @ hidden.T).T
        return logits if bias is None else logits + bias

    def loss(self, hidden: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy summed over the targets that are not padding."""
        return linear_cross_entropy(hidden, self.out.weight, self.out.bias, targets, smoothing)


class MaskedHead(nn.Module):
    """Scores of every word for a hidden one: logits = E norm(act(W h + b)) + c, where E is the embedding matrix."""

    def __init__(self, tokens: nn.Embedding, activation: str, norm: nn.Module) -> None:
        super().__init__()
        width = tokens.embedding_dim
        self.into, self.norm = nn.Linear(width, width), norm
        self.activation = "silu" if activation == "swiglu" else activation  # nothing is gated here
        self.out = nn.Linear(width, tokens.num_embeddings)
        self.out.weight = tokens.weight

    def _ready(self, hidden: Tensor) -> Tensor:
        return self.norm(PLAIN[self.activation](self.into(hidden)))

    def forward(self, hidden: Tensor) -> Tensor:
        """(..., D) -> (..., V)"""
        return self.out(self._ready(hidden))

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy summed over the targets (N,) of hidden (N, D)."""
        return linear_cross_entropy(self._ready(hidden), self.out.weight, self.out.bias, targets)


POOLS = ("max", "mean", "last", "first")


def pool(hidden: Tensor, lengths: Tensor, kind: str, around: tuple[int, int] = (0, 0)) -> Tensor:
    """One vector per text: the largest value of each dimension, the mean, or the vector of the last or first token.

    (B, T, D), of which the first `lengths` (B,) are tokens -> (B, D). The maximum and the mean leave out the special
    tokens `around` the text: so many before and after it.
    """
    if kind == "first":
        return hidden[:, 0]
    if kind == "last":
        return last(hidden, lengths)
    before, after = around
    own = real(lengths - after, hidden.size(1))[..., None]  # (B, T, 1)
    own[:, :before] = False
    if kind == "max":
        return hidden.masked_fill(~own, torch.finfo(hidden.dtype).min).amax(1)
    return hidden.masked_fill(~own, 0.0).sum(1) / (lengths - before - after)[:, None]


class ClassifyHead(nn.Module):
    """One vector of a text's vectors (`pool`), and from it the scores of every class: logits = W pool(h_1 … h_T) + b,
    or with a `hidden` layer W tanh(V pool(h_1 … h_T) + c) + b"""

    def __init__(
        self, width: int, classes: int, pool: str = "max", dropout: float = 0.0, around: tuple[int, int] = (0, 0),
        hidden: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.pool, self.around = pool, around
        self.into = nn.Sequential(nn.Linear(width, hidden), nn.Tanh()) if hidden else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(hidden or width, classes)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D), of which the first `lengths` (B,) are tokens -> (B, C)"""
        return self.out(self.dropout(self.into(pool(hidden, lengths, self.pool, self.around))))


class TagHead(nn.Module):
    """The scores of every tag, for each token by itself: logits_t = W h_t + b."""

    pool = ""

    def __init__(self, width: int, tags: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(width, tags)

    def forward(self, hidden: Tensor, lengths: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, C); what stands in the padding means nothing."""
        return self.out(self.dropout(hidden))


MIXES = ("softmax", "sum", "last")


class Mix(nn.Module):
    """From the layers h_k = [f_k; b_k], the forward and the backward direction concatenated:

    softmax: γ Σ_k softmax(w)_k h_k, with learned w and γ (Peters et al., 2018)
    sum:     Σ_k (f_k + b_k), half as wide; f_0 = b_0 counts twice
    last:    the last layer
    """

    def __init__(self, layers: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "softmax":
            self.weights, self.scale = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L + 1 tensors (B, T, 2D) -> (B, T, 2D), or (B, T, D) for the sum"""
        if self.kind == "last":
            return layers[-1]
        if self.kind == "sum":
            forward, backward = torch.stack(list(layers)).sum(0).chunk(2, dim=-1)
            return forward + backward
        return self.scale * torch.einsum("k,k...->...", self.weights.softmax(0), torch.stack(list(layers)))
