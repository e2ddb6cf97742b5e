"""Labeller: a reader that turns a text into vectors, and a head that turns them into labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.nn.losses import cross_entropy


class Labeller(nn.Module):
    """p(label | text) = softmax(head(reader(text))), one label for the text or one for each token, as the head says.

    The reader is a model's `Reader`; what it can inherit from a language model is its `body`.
    """

    def __init__(self, reader: Any, head: nn.Module) -> None:
        super().__init__()
        self.reader, self.head = reader, head

    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        """ids (B, T), lengths (B,), and chars (B, T, C) where the reader wants them -> logits (B, C) or (B, T, C)"""
        return self.head(self.reader(tensors), tensors["lengths"])

    def loss(self, tensors: dict[str, Tensor], targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of the labels, summed."""
        return cross_entropy(self(tensors).flatten(0, -2), targets.flatten(), smoothing)

    @property
    def limit(self) -> int | None:
        """The most tokens a text may have."""
        limit: int | None = getattr(self.reader, "limit", None)
        return limit

    def remembered(self, tokens: int) -> int:
        """Values the backward pass needs of so many tokens: the reader's own count, or, for each matrix, what goes into
        it and what comes out."""
        own = getattr(self.reader, "remembered", None)
        if own is not None:
            return int(own(tokens))
        tables = {id(m.weight): m.embedding_dim for m in self.modules() if isinstance(m, nn.Embedding)}
        return tokens * sum(tables.get(id(p), sum(p.shape)) for p in self.parameters() if p.dim() == 2)

    @property
    def device(self) -> torch.device:
        return next(self.head.parameters()).device
