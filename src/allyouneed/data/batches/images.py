"""Images in batches: with labels, alone, or as codes with captions."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from allyouneed.batch import IGNORE, Tensors
from allyouneed.data.batches.base import EvenBatches, Numbers, Size
from allyouneed.data.store import Ragged
from allyouneed.randomness import draw, shifted


class ImageBatches(EvenBatches):
    """Images (N, H, W, C) of bytes and their labels (N,), each of `tokens` tokens. `mixed`: each comes with another
    image of the split, to be mixed with. `weights` (classes,): how much each label counts."""

    def __init__(
        self,
        pixels: np.ndarray,
        labels: np.ndarray,
        tokens: int,
        *,
        learning: bool = False,
        mixed: bool = False,
        weights: np.ndarray | None = None,
    ) -> None:
        super().__init__(len(pixels), tokens)
        self.pixels, self.labels, self.tokens, self.weights = pixels, labels, tokens, weights
        self.learning, self.mixed = learning, mixed

    def size(self, numbers: Numbers, key: int) -> Size:
        labels = self.labels[numbers]
        return Size({"labels": len(labels) if self.weights is None else self.weights[labels].sum()}, len(labels))

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        found: Tensors = {
            "pixels": as_tensor(self.pixels[numbers]),
            "lengths": torch.full((len(numbers),), self.tokens),
            "targets": torch.from_numpy(self.labels[numbers]),
        }
        if self.weights is not None:
            found["weights"] = self._weights(numbers)
        if self.learning:
            found["keys"] = draw(key, torch.from_numpy(numbers))
        if self.learning and self.mixed:
            random = shifted(draw(found["keys"], torch.zeros_like(found["keys"])), 1)
            others = (random % len(self.labels)).numpy()
            found |= {
                "other": as_tensor(self.pixels[others]),
                "other_targets": torch.from_numpy(self.labels[others]),
                "other_weights": self._weights(numbers),  # the other image does not change how much an example counts
            }
        return found

    def _weights(self, numbers: Numbers) -> Tensor:
        weights = np.ones(len(numbers)) if self.weights is None else self.weights[self.labels[numbers]]
        return torch.from_numpy(weights).float()


def as_tensor(pixels: np.ndarray) -> Tensor:
    """(B, H, W, C) -> (B, C, H, W)"""
    return torch.from_numpy(np.array(pixels.transpose(0, 3, 1, 2), order="C"))


class PlainImages(EvenBatches):
    """Images (N, H, W, C) of bytes that become `codes` codes each."""

    def __init__(self, pixels: np.ndarray, codes: int) -> None:
        super().__init__(len(pixels), codes)
        self.pixels, self.codes = pixels, codes

    def size(self, numbers: Numbers, key: int) -> Size:
        return Size({"pixels": len(numbers) * self.codes}, len(numbers) * self.codes)

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        return {"pixels": as_tensor(self.pixels[numbers])}


class CaptionedCodes(EvenBatches):
    """Captions of at most `most` tokens, longer ones cut, and the codes (N, codes) of their images. `blank` fills up
    a short caption, and replaces a whole one with the probability `hidden`, so that the model also learns to draw
    without a caption."""

    def __init__(self, captions: Ragged, codes: np.ndarray, *, most: int, blank: int, hidden: float = 0.0) -> None:
        super().__init__(len(codes), 1 + most + codes.shape[1])
        self.captions, self.codes, self.most, self.blank, self.hidden = captions, codes, most, blank, hidden

    def size(self, numbers: Numbers, key: int) -> Size:
        words = np.minimum(self.captions.lengths[numbers], self.most - 1) + 1  # and the blank that ends it
        codes = self.codes[numbers].size
        return Size({"captions": int(words[~self._hides(numbers, key)].sum()), "codes": codes}, codes)

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        ids = np.full((len(numbers), 1 + self.most), self.blank)
        targets = np.full((len(numbers), self.most), IGNORE)
        for row, (number, hide) in enumerate(zip(numbers, self._hides(numbers, key))):
            words = self.captions[number][: self.most]
            if not hide:
                ids[row, 1 : 1 + len(words)] = words
                targets[row, : len(words) + 1] = ids[row, 1 : 2 + len(words)]
        codes = torch.from_numpy(self.codes[numbers].astype(np.int64))
        return {"ids": torch.from_numpy(ids), "targets": torch.from_numpy(targets), "codes": codes}

    def _hides(self, numbers: Numbers, key: int) -> np.ndarray:
        """(B,) bool: whose captions are blank, a function of (key, example)."""
        if not self.hidden:
            return np.zeros(len(numbers), bool)
        return (shifted(draw(key, torch.from_numpy(numbers)), 33) < self.hidden * 2**31).numpy()
