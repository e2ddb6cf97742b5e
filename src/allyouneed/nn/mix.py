"""The layers of a body mixed into one."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

MIXES = ("softmax", "sum", "last")


class Mix(nn.Module):
    """γ Σ_k softmax(w)_k h_k, with learned w and γ; or the plain sum Σ_k h_k; or the last layer."""

    def __init__(self, layers: int, kind: str) -> None:
        super().__init__()
        self.kind = kind
        if kind == "softmax":
            self.weights, self.scale = nn.Parameter(torch.zeros(layers)), nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L + 1 tensors (B, T, D) -> (B, T, D)"""
        if self.kind == "last":
            return layers[-1]
        if self.kind == "sum":
            return torch.stack(list(layers)).sum(0)
        return self.scale * torch.einsum("k,k...->...", self.weights.softmax(0), torch.stack(list(layers)))
