"""Texts with one label, or with one per token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from allyouneed.data.batches.base import EXAMPLE, Buckets, Numbers, Size, lay_rows, padded
from allyouneed.data.store import Ragged
from allyouneed.nn.batch import Tensors
from allyouneed.nn.losses import IGNORE
from allyouneed.randomness import draw, shifted
from allyouneed.text.layout import Layout


class Labelled(Buckets):
    """Texts, or pairs of texts (`sides`), as their layout puts them. Each has one label, or one per token: `labels` is
    then as ragged as the first side, with IGNORE where a token has none.

    `letters` (N, C): the tokens are rows of this table, and the model reads letters; row 0 is padding. `unknown` is the
    share `hidden` of the tokens in training, so that the model learns to read around unknown words. `weights` (C,): how
    much each label counts.
    """

    def __init__(
        self,
        sides: Sequence[Ragged],
        labels: np.ndarray | Ragged,
        layout: Layout,
        longest: int,
        *,
        letters: np.ndarray | None = None,
        unknown: int | None = None,
        hidden: float = 0.0,
        weights: np.ndarray | None = None,
    ) -> None:
        self.sides, self.labels, self.layout, self.letters = sides, labels, layout, letters
        self.weights = weights
        self.unknown, self.hidden = unknown, hidden if unknown is not None else 0.0
        self.kept = layout.cut([side.lengths for side in sides], longest)  # tokens of each side
        super().__init__(np.sum(self.kept, axis=0) + layout.specials(len(sides)))

    def size(self, numbers: Numbers, key: int) -> Size:
        if isinstance(self.labels, Ragged):
            labels, _ = padded(self.labels, numbers, self.kept[0][numbers], IGNORE)
            labels = labels[labels != IGNORE]
        else:
            labels = self.labels[numbers]
        return Size({"labels": len(labels) if self.weights is None else self.weights[labels].sum()}, len(labels))

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        sides = [(side.tokens, side.offsets[numbers], kept[numbers]) for side, kept in zip(self.sides, self.kept)]
        rows = lay_rows(self.layout, sides)
        found: Tensors = {"lengths": torch.from_numpy(rows.lengths), "segments": torch.from_numpy(rows.segments)}
        if self.letters is not None:
            found["chars"] = torch.from_numpy(self.letters[rows.ids])  # (B, T, C)
        else:
            found["ids"] = self._hide(torch.from_numpy(rows.ids), torch.from_numpy(rows.texts >= 0), numbers, key)
        if isinstance(self.labels, Ragged):
            labels, first = np.full_like(rows.ids, IGNORE), rows.texts == 0
            labels[first] = self.labels.tokens[rows.places[first]]
        else:
            labels = self.labels[numbers]
        if self.weights is not None:
            found["weights"] = torch.from_numpy(self.weights[np.maximum(labels, 0)]).float()
        return {**found, "targets": torch.from_numpy(labels)}

    def _hide(self, ids: Tensor, texts: Tensor, numbers: Numbers, key: int) -> Tensor:
        if not self.hidden:
            return ids
        places = torch.from_numpy(numbers)[:, None] * EXAMPLE + torch.arange(ids.size(1))
        hidden = shifted(draw(key, places), 33) < self.hidden * 2**31
        return ids.masked_fill(hidden & texts, cast(int, self.unknown))
