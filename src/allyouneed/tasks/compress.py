"""compress: a picture becomes a grid of codes, and the codes a picture again."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.image_codes import PlainPictures
from allyouneed.metrics import Score
from allyouneed.models.dvae import DVAE
from allyouneed.predict.image_tokenizer import ImageTokenizer
from allyouneed.predict.pictures import CompressProcessor
from allyouneed.tasks.base import WHOLE, Carry, Moment, TestBudget
from allyouneed.tasks.pictures import PictureTask
from allyouneed.terminal import Say

SHOWN = 12  # pictures on a contact sheet, each beside its copy
COLD = 1 / 16  # the last temperature of `gumbel`
COOLED = 0.8  # of the training: then it is reached


@dataclass(frozen=True)
class CompressOptions:
    """There are none."""


class Compress(CompressProcessor, PictureTask[DVAE]):
    """loss = |picture - decode(encode(picture))|²"""

    Options = CompressOptions
    shape = "plain"
    unit = "code"
    weights: ClassVar[dict[str, float]] = {"pixels": 1.0}
    sheet_name, sheet_title = "copies", "Pictures, and what is left of them after they were codes"

    def notes(self) -> list[str]:
        c = self.recipe.model
        return [
            *super().notes(),
            f"each picture is {c.image} x {c.image} pixels and becomes {c.grid} x {c.grid} codes; there are "
            f"{c.codes:,}, so {8 * c.image**2 * c.channels:,} bits become {math.ceil(c.tokens * math.log2(c.codes)):,}",
        ]

    def examples(self, split: str) -> PlainPictures:
        return PlainPictures(self.pixels(split), self.longest)

    def losses(
        self, model: DVAE, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        pixels, temperature = batch.tensors["pixels"].float() / 255, None
        if at is not None and model.codebook is not None:
            cooling = math.cos(math.pi / 2 * min(1.0, at.part / COOLED)) ** 2
            temperature = torch.tensor(COLD + (1 - COLD) * cooling, device=pixels.device)
        return {"pixels": model.loss(pixels, temperature)}

    def test(self, model: DVAE, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE) -> list[Score]:
        """How near copies are to their pictures, and how much of the codebook they use."""
        tokenizer, pixels = ImageTokenizer(model), self.pixels(split)
        wrong, counts, self.covered, self.sheet = 0.0, np.zeros(len(tokenizer), np.int64), 0, []
        for numbers in budget.pieces(len(pixels)):
            for at in range(0, len(numbers), 1024):
                own = np.asarray(pixels[numbers[at : at + 1024]])
                codes = tokenizer.encode(own)
                copies = tokenizer.decode(codes)
                wrong += float(np.square(own.astype(np.float64) - copies).sum())
                counts += np.bincount(codes.ravel(), minlength=len(tokenizer))
                self.covered += len(own)
                for picture, copy in zip(own[: SHOWN - len(self.sheet) // 2], copies):
                    self.sheet += [(picture, "picture"), (copy, "copy")]
        error = max(wrong / (255**2 * self.covered * pixels[0].size), 1e-10)
        part = counts[counts > 0] / counts.sum()
        c = self.recipe.model
        signature = f"codes:{c.grid}x{c.grid} of {c.codes}|pixels:{c.image}x{c.image}x{c.channels}|split:{split}"
        return [
            Score("PSNR", -10 * math.log10(error), signature),
            Score("codes used", 100 * float((counts > 0).mean()), signature),
            Score("code perplexity", math.exp(-float((part * np.log(part)).sum())), signature),
        ]
