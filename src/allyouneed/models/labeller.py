"""Labeller: a body that reads a text, and a head that gives it labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.batch import Tensors
from allyouneed.models.base import Body, Model
from allyouneed.nn.losses import cross_entropy, divergence
from allyouneed.nn.trace import Trace, record


class Labeller(Model):
    """p(label | text) = softmax(head(body(text))): one label per text or one per token, as the head says.

    `preprocess` prepares images for the body. A `reader` of all the body's layers may stand between body and head. A
    `base` adds scores of its own to those of the head, by the `shares` of both, but not while the model learns."""

    def __init__(
        self,
        body: Body,
        head: nn.Module,
        reader: Any = None,
        preprocess: nn.Module | None = None,
        base: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.body, self.head, self.reader, self.base = body, head, reader, base
        self.preprocess = preprocess or nn.Identity()
        self.compiles = preprocess is not None  # images have one size, so one compiled loss fits all batches
        self.useful_at_start = base is not None
        if base is not None:
            self.shares: Tensor
            self.register_buffer("shares", torch.tensor([1.0, 0.0]))
        if self.head.pool != "first":
            body.leave_summary()

    def forward(self, tensors: Tensors, *, trace: Trace | None = None) -> Tensor:
        """What `preprocess` or the body takes, and lengths (B,) -> logits (B, C) or (B, T, C)"""
        return self._label(self.preprocess(tensors), trace)

    def _label(self, tensors: Tensors, trace: Trace | None = None) -> Tensor:
        trace = trace and trace.at(self)
        hidden = self.body.read(tensors, trace) if self.reader is None else self.reader(self.body, tensors, trace)
        if self.head.pool == "first":
            hidden = self.body.summary(hidden)[:, None]
        logits = self.head(hidden, tensors["lengths"])
        if self.base is not None and not self.training:
            logits = self.shares[0] * self.base(tensors) + self.shares[1] * logits
        record(trace, self, "logits", logits)
        return logits

    def loss(self, tensors: Tensors, targets: Tensor, smoothing: float = 0.0, agreement: float = 0.0) -> Tensor:
        """The cross-entropy of the labels, summed. With `agreement` (R-Drop, Liang et al., 2021): its mean over two
        passes, which differ in dropout, plus the divergence of their predictions with this weight."""
        tensors = self.preprocess(tensors)
        logits, targets = self._label(tensors).flatten(0, -2), targets.flatten()
        loss = self._errors(logits, tensors, targets, smoothing)
        if agreement:
            others = self._label(tensors).flatten(0, -2)
            loss = (loss + self._errors(others, tensors, targets, smoothing)) / 2
            loss = loss + agreement * divergence(logits, others, targets)
        return loss

    def _errors(self, logits: Tensor, tensors: Tensors, targets: Tensor, smoothing: float) -> Tensor:
        """The cross-entropy. An example that is a mixture of two has two labels."""
        weights = tensors.get("weights")
        loss = cross_entropy(logits, targets, smoothing, None if weights is None else weights.flatten())
        if "other_targets" in tensors:
            loss = loss + cross_entropy(logits, tensors["other_targets"], smoothing, tensors["other_weights"])
        return loss
