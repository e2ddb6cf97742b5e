"""Mask: which keys a query may attend to. True = may attend. Symbolic until a kernel needs a tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from allyouneed.nn.layers import real


@dataclass(frozen=True)
class Mask:
    """Two ways to restrict attention, which may be combined.

    allowed  (B, 1, 1|Tq, Tk) bool with the true B: the keys that exist, or those that each query may see
    causal   position i sees j <= i: itself and the past (the input is shifted by one, so a token may see itself)
    lengths  (B,) of the keys, if `allowed` hides only their padding
    """

    allowed: Tensor | None = None
    causal: bool = False
    lengths: Tensor | None = None

    @staticmethod
    def padding(lengths: Tensor, size: int) -> Mask:
        """Rows with these true lengths (B,), right-padded to `size`."""
        return Mask(real(lengths, size)[:, None, None], lengths=lengths)

    def tensor(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """(B|1, 1, 1|Tq, Tk) bool, or None if every query may see every key."""
        if not self.causal:
            return self.allowed
        if queries != keys:
            raise ValueError(f"a causal mask needs as many queries as keys, not {queries} and {keys}")
        past = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()[None, None]
        return past if self.allowed is None else self.allowed & past

    def added(self, dtype: torch.dtype) -> Mask:
        """Of a mask that the kernels take without a tensor, nothing is added to the scores."""
        return self

    def prepare(self, queries: int, keys: int, device: torch.device) -> Mask:
        """The same mask with its tensors made, once for all layers. A mask that the kernels take without a tensor,
        none at all or the causal flag alone, stays as it is."""
        if self.allowed is None and (queries == keys or not self.causal):
            return self
        allowed = self.tensor(queries, keys, device)
        assert allowed is not None
        sees = allowed.any(-1, keepdim=True)
        return Prepared(allowed | ~sees, lengths=None if self.causal else self.lengths, sees=sees)


@dataclass(frozen=True)
class Prepared(Mask):
    """A mask as the fused kernels take it. They differ in what they return for a query that may see nothing (some
    NaN), so in `allowed` such a query sees everything, and its output becomes zero afterwards."""

    sees: Tensor | None = None  # (B, 1, 1|Tq, 1): whether a query may see anything; None: each does
    bias: Tensor | None = None  # `allowed` as the kernels add it to the scores: 0 or -inf

    def added(self, dtype: torch.dtype) -> Mask:
        """With its bias, which every layer would make again."""
        if self.allowed is None:
            return self
        bias = torch.full_like(self.allowed, -torch.inf, dtype=dtype).masked_fill_(self.allowed, 0)
        return replace(self, bias=bias)

    def prepare(self, queries: int, keys: int, device: torch.device) -> Mask:
        return self

    def tensor(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        return self.allowed if self.allowed is None or self.sees is None else self.allowed & self.sees
