"""Pictures as codes: what a dVAE learns from, and captions with the codes of their pictures."""

from __future__ import annotations

import numpy as np
import torch

from allyouneed.data.batches.base import EvenBatches, Numbers, Size
from allyouneed.data.batches.pictures import as_tensor
from allyouneed.data.store import Ragged
from allyouneed.nn.batch import Tensors
from allyouneed.nn.losses import IGNORE
from allyouneed.randomness import draw, shifted


class PlainPictures(EvenBatches):
    """Pictures (N, H, W, C) of bytes that become `codes` codes each."""

    def __init__(self, pixels: np.ndarray, codes: int) -> None:
        super().__init__(len(pixels), codes)
        self.pixels, self.codes = pixels, codes

    def size(self, numbers: Numbers, key: int) -> Size:
        return Size({"pixels": len(numbers) * self.codes}, len(numbers) * self.codes)

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        return {"pixels": as_tensor(self.pixels[numbers])}


class CaptionedCodes(EvenBatches):
    """Captions of at most `most` tokens, longer ones cut, and the codes (N, codes) of their pictures. `blank` fills up
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
