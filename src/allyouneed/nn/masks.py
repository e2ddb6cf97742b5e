"""Mask: who may look at whom. True = may attend. Symbolic until a kernel needs a tensor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Mask:
    """Three ways to restrict attention, which may be combined.

    keep      (B, 1, 1|Tq, Tk) bool with the true B: these keys exist
    causal    position i sees j <= i: itself and the past (its input is shifted by one, so it may see itself)
    segments  (B, T) integers: sequences packed in one row see only their own
    """

    keep: Tensor | None = None
    causal: bool = False
    segments: Tensor | None = None
    # Made by `settle`. Kernels differ in what a query gives that may look at nothing (NaN in some), so they get
    # `open`, in which it may look at everything, and what it gives is taken back where it does not see.
    sees: Tensor | None = None  # (B, 1, 1|Tq, 1)
    open: Tensor | None = None  # (B, 1, 1|Tq, Tk)

    @staticmethod
    def padding(lengths: Tensor, size: int) -> Mask:
        """Rows of these true lengths (B,), padded on the right to `size`."""
        return Mask(keep=(torch.arange(size, device=lengths.device) < lengths[:, None])[:, None, None])

    @property
    def is_flag(self) -> bool:
        """Nothing but causality: the kernels have a flag for it, and no tensor is needed."""
        return self.causal and self.keep is None and self.segments is None

    def settle(self, queries: int, keys: int, device: torch.device) -> Mask:
        """The same mask with its tensor made, once for all layers; the bare causal flag stays a flag."""
        if self.sees is not None or (self.is_flag and queries == keys):
            return self
        keep = self.tensor(queries, keys, device)
        if keep is None:
            return self
        sees = keep.any(-1, keepdim=True)
        return Mask(keep, sees=sees, open=keep | ~sees)

    def tensor(self, queries: int, keys: int, device: torch.device) -> Tensor | None:
        """(B|1, 1, 1|Tq, Tk) bool, or None where everyone may look at everyone."""
        keep = self.keep
        if self.causal:
            if queries != keys:
                raise ValueError(f"a causal mask needs as many queries as keys, not {queries} and {keys}")
            past = torch.ones(queries, keys, dtype=torch.bool, device=device).tril()[None, None]
            keep = past if keep is None else keep & past
        if self.segments is not None:
            same = (self.segments[:, :, None] == self.segments[:, None, :])[:, None]
            keep = same if keep is None else keep & same
        return keep
