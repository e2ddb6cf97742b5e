"""Texts with one label, or with one per token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from allyouneed.batch import IGNORE, Tensors
from allyouneed.data.batches.base import Examples, Numbers, Size, lay_rows, random_bits
from allyouneed.data.store import Ragged
from allyouneed.randomness import shifted
from allyouneed.text.layout import Layout


class Labelled(Examples):
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
        self.unknown, self.hidden, self.weights = unknown, hidden, weights
        self.lengths = layout.cut([side.lengths for side in sides], longest)
        super().__init__(np.sum(self.lengths, axis=0) + layout.specials(len(sides)))

    def size(self, numbers: Numbers, key: int) -> Size:
        labels = self._labels(numbers)
        labels = labels[labels != IGNORE]
        return Size({"labels": len(labels) if self.weights is None else self.weights[labels].sum()}, len(labels))

    def _labels(self, numbers: Numbers) -> np.ndarray:
        """Those of the texts, or of all tokens of the first side, one text after the other."""
        if not isinstance(self.labels, Ragged):
            return self.labels[numbers]
        rows = lay_rows(Layout(), [(self.labels.tokens, self.labels.offsets[numbers], self.lengths[0][numbers])])
        return rows.ids[rows.inside[0]]

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        sides = [(side.tokens, side.offsets[numbers], count[numbers]) for side, count in zip(self.sides, self.lengths)]
        rows = lay_rows(self.layout, sides)
        found: Tensors = {"lengths": torch.from_numpy(rows.lengths), "segments": torch.from_numpy(rows.segments)}
        if self.letters is not None:
            found["chars"] = torch.from_numpy(self.letters[rows.ids])  # (B, T, C)
        else:
            found["ids"] = torch.from_numpy(rows.ids)
            if self.unknown is not None and self.hidden:
                hidden = shifted(random_bits(key, numbers, rows.ids.shape[1]), 33) < self.hidden * 2**31
                found["ids"].masked_fill_(hidden & torch.from_numpy(np.logical_or.reduce(rows.inside)), self.unknown)
        labels = self._labels(numbers)
        if isinstance(self.labels, Ragged):
            texts, labels = labels, np.full_like(rows.ids, IGNORE)
            labels[rows.inside[0]] = texts
        if self.weights is not None:
            found["weights"] = torch.from_numpy(self.weights[np.maximum(labels, 0)]).float()
        return {**found, "targets": torch.from_numpy(labels)}
