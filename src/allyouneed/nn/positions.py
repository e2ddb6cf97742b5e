"""The position of a token: sinusoidal, learned and rotary.

PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i+1) = cos(pos / 10000^(2i/d)).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def angles(positions: Tensor, width: int, base: float = 10000.0) -> Tensor:
    """pos / base^(2i/d) for i = 0 … d/2 - 1: (..., d/2)"""
    i = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32)
    return positions[..., None].float() / base ** (i / width)


def sinusoid(positions: Tensor, width: int, layout: str = "interleaved") -> Tensor:
    """The table of the lecture, (..., width). "interleaved": sin, cos, sin, cos as the paper writes it;
    "half": all sines, then all cosines, as Marian and tensor2tensor store it."""
    a = angles(positions, width)
    if layout == "half":
        return torch.cat([a.sin(), a.cos()], dim=-1)
    return torch.stack([a.sin(), a.cos()], dim=-1).flatten(-2)


class Sinusoidal(nn.Module):
    """The fixed table, for any length."""

    table: Tensor

    def __init__(self, width: int, layout: str = "interleaved", size: int = 512) -> None:
        super().__init__()
        self.width, self.layout = width, layout
        self.register_buffer("table", sinusoid(torch.arange(size), width, layout), persistent=False)

    def forward(self, positions: Tensor, room: int) -> Tensor:
        """(T,) or (B, T) positions, all smaller than `room` -> (..., D)"""
        if room > self.table.size(0):
            table = sinusoid(torch.arange(2 * room, device=self.table.device), self.width, self.layout)
            self.table = table.to(self.table.dtype)
        return self.table[positions]


class Learned(nn.Module):
    """One learned vector per position, for at most `size` positions."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.table = nn.Embedding(size, width)

    def forward(self, positions: Tensor, room: int) -> Tensor:
        """(T,) or (B, T) positions, all smaller than `room` -> (..., D)"""
        return self.table(positions)


class Rotary(nn.Module):
    """Rotates queries and keys by an angle that grows with the position, so that q · k depends on their distance
    (Su et al., 2021). Takes any length.

    `stretch` slows the turns down, for texts longer than the `context` of the training (Llama 3). With n turns in
    that context, an angle is multiplied by k + (1 - k) / stretch, k = (n - 1) / 3 cut to 0 … 1: fast turns stay as they
    are. Without a context k is 0."""

    table: Tensor

    def __init__(
        self, head_width: int, base: float = 10000.0, size: int = 512, stretch: float = 1.0, context: int = 0
    ) -> None:
        super().__init__()
        self.head_width, self.base, self.stretch, self.context = head_width, base, stretch, context
        self.register_buffer("table", self._angles(torch.arange(size)), persistent=False)

    def _angles(self, positions: Tensor) -> Tensor:
        a = angles(positions, self.head_width, self.base)
        if self.stretch != 1.0:
            turns = self.context * angles(positions.new_ones(()), self.head_width, self.base) / (2 * math.pi)
            unscaled = ((turns - 1) / 3).clamp(0, 1) if self.context else torch.zeros_like(turns)
            a = a * (unscaled + (1 - unscaled) / self.stretch)
        return torch.stack([a.cos(), a.sin()])  # (2, T, K/2)

    def forward(self, positions: Tensor, room: int) -> tuple[Tensor, Tensor]:
        """cos and sin for `rotate`, (T, K/2) or (B, 1, T, K/2)."""
        if room > self.table.size(1):
            self.table = self._angles(torch.arange(2 * room, device=self.table.device))
        cos, sin = self.table[0][positions], self.table[1][positions]
        return (cos, sin) if positions.dim() == 1 else (cos[:, None], sin[:, None])


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each plane (x_i, x_{i + K/2}) by the angle of its position; x (B, H, T, K)."""
    cos, sin = (t.to(x.dtype) for t in rotary)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)
