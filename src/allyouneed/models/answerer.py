"""Answerer: a body that reads a question and a text, and a head that finds the answer in the text."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.batch import Tensors
from allyouneed.models.base import Body
from allyouneed.models.labeller import Labeller
from allyouneed.nn.heads import TagHead
from allyouneed.nn.losses import cross_entropy

HEADS = ("span", "inside")


class Answerer(Labeller):
    """One special token means "no answer". span: p(the answer begins at i) and p(it ends at i), each a softmax over the
    tokens of the text and that one. inside: p(token i is in the answer), for each of them by itself."""

    def __init__(self, body: Body, kind: str, dropout: float) -> None:
        super().__init__(body, TagHead(body.width, 2 if kind == "span" else 1, dropout))
        self.kind = kind

    def loss(self, tensors: Tensors) -> Tensor:  # type: ignore[override]
        """The mean cross-entropy of each row, summed over the rows."""
        logits, allowed, targets = self(tensors).float(), tensors["allowed"], tensors["targets"]
        if self.kind == "span":
            logits = logits.masked_fill(~allowed[..., None], torch.finfo(logits.dtype).min)
            return (cross_entropy(logits[..., 0], targets[:, 0]) + cross_entropy(logits[..., 1], targets[:, 1])) / 2
        at = torch.arange(allowed.size(1), device=allowed.device)
        inside = (at >= targets[:, :1]) & (at <= targets[:, 1:])  # (B, T)
        each = F.binary_cross_entropy_with_logits(logits[..., 0], inside.float(), reduction="none")
        return ((each * allowed).sum(1) / allowed.sum(1)).sum()

    def spans(self, logits: Tensor, longest: int) -> Tensor:
        """The score of each piece of a text: logits (T, C) of its tokens -> (T, longest), where [i, n] is the piece of
        n + 1 tokens that begins at i; -inf where the text ends before. It is the log-probability, up to a constant."""
        size = len(logits)
        last = torch.arange(size)[:, None] + torch.arange(longest)  # (T, longest): the last token of each piece
        outside, last = last >= size, last.clamp(max=size - 1)
        if self.kind == "span":
            scores = logits[:, :1] + logits[:, 1][last]
        else:
            before = F.pad(logits[:, 0].double().cumsum(0), (1, 0))
            scores = (before[last + 1] - before[:-1, None]).float()
        return scores.masked_fill(outside, -torch.inf)
