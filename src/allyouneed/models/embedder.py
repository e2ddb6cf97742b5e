"""Embedder: a body that reads a text, and one vector of it; texts that belong together get similar vectors."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.batch import Tensors
from allyouneed.models.base import Body, Model
from allyouneed.nn.heads import pool
from allyouneed.nn.losses import cross_entropy
from allyouneed.nn.trace import Trace


class Embedder(Model):
    """v(text) = pool(body(text)). It has no weights but those of its body. `around`: how many special tokens, which
    are left out, stand before and after a text."""

    def __init__(self, body: Body, pooling: str, around: tuple[int, int]) -> None:
        super().__init__()
        self.body, self.pooling, self.around = body, pooling, around
        body.leave_summary()

    def forward(self, tensors: Tensors, *, trace: Trace | None = None) -> Tensor:
        """ids (B, T) and lengths (B,) -> (B, D)"""
        return pool(self.body.read(tensors, trace and trace.at(self)), tensors["lengths"], self.pooling, self.around)

    def loss(self, tensors: Tensors, temperature: float) -> Tensor:
        """-Σ log p(b_i | a_i) with p = softmax_j(cos(a_i, b_j) / temperature) over the pairs j of the group, and the
        same from b to a: the mean of the two sums (van den Oord et al., 2018). source and target (B, G, T)"""
        a = self._unit(tensors["source"], tensors["lengths"])
        b = self._unit(tensors["target"], tensors["target_lengths"])
        with torch.autocast(a.device.type, enabled=False):  # 16 bits would tell too few cosines apart
            cosines = a.float() @ b.float().mT  # (B, G, G)
        logits = (cosines / temperature).masked_fill(tensors["same"], -torch.inf)
        right = torch.arange(logits.size(-1), device=logits.device).repeat(len(logits))
        forward, backward = (cross_entropy(side.flatten(0, 1), right) for side in (logits, logits.mT))
        return 0.5 * (forward + backward)

    def _unit(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """(B, G, T) -> vectors of length one (B, G, D)"""
        vectors = self({"ids": ids.flatten(0, 1), "lengths": lengths.flatten()})
        return F.normalize(vectors, dim=-1).view(*ids.shape[:2], -1)
