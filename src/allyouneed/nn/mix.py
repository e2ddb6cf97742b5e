"""Mix: one vector per token from all layers of a model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

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
