"""Images from data sets, and those that a test shows; recognize: one label for an image; compress: an image becomes
a grid of codes, and the codes an image again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.augment import Augment
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.images import ImageBatches, PlainImages
from allyouneed.data.examples import LabelledImage
from allyouneed.data.images import ImageSplit
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.figures import contact_sheet
from allyouneed.metrics import Score, exact_score
from allyouneed.models.dvae import DVAE
from allyouneed.models.labeller import Labeller
from allyouneed.predict.images import TOP, CompressProcessor, ImageProcessor, ImageTokenizer, RecognizeProcessor
from allyouneed.tasks.base import WHOLE, Carry, M, Moment, Task, TestBudget, once
from allyouneed.tasks.baselines import image_baselines
from allyouneed.tasks.labels import LabelOptions, OneLabel
from allyouneed.terminal import Say
from allyouneed.text import Tokenizer

MISTAKES, COPIES = 24, 12  # images on a contact sheet: of mistakes, and of those beside their copies
BLOCK = 1024  # images that are read at once
COLD = 1 / 16  # the last temperature of `gumbel`
COOLED = 0.8  # of the training: then it is reached


class ImageTask(ImageProcessor, Task[M]):
    """A task whose examples are images. Unless it has captions, there is no tokenizer."""

    sheet_name: ClassVar[str]  # of the file with the contact sheet of a test
    sheet_title: ClassVar[str]
    sheet: list[tuple[np.ndarray, str]]  # of the last test: images, and the text below each

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.sheet = []

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        return super().make_tokenizers() if self.shape == "captions" else {}

    def rows(self, split: str) -> list[Ragged]:
        """Images have no length."""
        return []

    @once
    def pixels(self, split: str) -> np.ndarray:
        """(N, H, W, C) bytes; damaged images leave the split here."""
        images, (side, channels) = cast(ImageSplit, self.data.splits[split]), self.image_shape
        found = images.stored(self.token_key(split, "pixels"), side, channels, self.recipe.data)
        if not len(found):
            raise UserError(f"the {split} split has no images: give more data or another data.{split}_part")
        return found

    def study(self) -> None:
        for split in self.data.splits:
            self.pixels(split)  # damaged images leave the split
        super().study()

    def notes(self) -> list[str]:
        """Which images were left out."""
        splits = {name: cast(ImageSplit, split) for name, split in self.data.splits.items()}
        counts = ", ".join(f"{split.damaged:,} of {name}" for name, split in splits.items() if split.damaged)
        return [f"damaged images that are left out (data.skip_bad): {counts}"] if counts else []

    def write_figures(self, folder: Path, mark: str) -> list[Path]:
        """Also the contact sheet of the last test."""
        made = super().write_figures(folder, mark)
        if self.sheet:
            made.append(folder / f"{self.sheet_name}{mark}.png")
            images, texts = zip(*self.sheet)
            contact_sheet(images, texts, made[-1], self.sheet_title)
        return made


@dataclass(frozen=True)
class RecognizeOptions(Augment, LabelOptions):
    pool: str = option("first", "the head reads [CLS] (first) or the mean of the patches", choices=("first", "mean"))


class Recognize(RecognizeProcessor, ImageTask[Labeller], OneLabel):
    """loss = -log p(label | image)"""

    Options = RecognizeOptions
    shape = "images"
    unit = "image"
    sheet_name, sheet_title = "mistakes", "The most confident mistakes: the prediction, and what is right"

    def notes(self) -> list[str]:
        c = self.recipe.model
        mean, std = (" ".join(f"{value:.3f}" for value in values) for values in (self.mean, self.std))
        return [
            *super().notes(),
            f"each image is {c.image} x {c.image} pixels, {c.grid} x {c.grid} patches of {c.patch} x {c.patch}; "
            f"mean {mean}, standard deviation {std}, by channel",
        ]

    def study(self) -> None:
        """Also the mean and the standard deviation of each channel of the training images."""
        super().study()
        if self.mean:
            return
        pixels = self.pixels("train")
        counts = np.zeros((pixels.shape[3], 256))
        for start in range(0, len(pixels), BLOCK):
            for channel, of_channel in enumerate(counts):
                of_channel += np.bincount(pixels[start : start + BLOCK, ..., channel].ravel(), minlength=256)
        parts, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
        mean = parts @ values
        spread = np.sqrt(np.maximum(0, parts @ values**2 - mean**2))
        self.mean, self.std = mean.round(6).tolist(), np.maximum(spread, 1e-3).round(6).tolist()

    def examples(self, split: str) -> ImageBatches:
        learning = split == "train"
        return ImageBatches(
            self.pixels(split),
            self.goals(split),
            self.longest,
            learning=learning,
            mixed=self.options.mix > 0,
            weights=self.label_weights() if learning else None,
        )

    def whole(self, split: str, model: Labeller) -> ImageBatches:
        return ImageBatches(self.pixels(split), self.goals(split), self.longest)

    def items(self, split: str) -> int:
        return len(self.pixels(split))  # damaged ones are left out

    def scores(self, split: str, decode: DecodeConfig, answers: Mapping[int, Tensor]) -> list[Score]:
        """Also how often the label is among the first five. The sheet shows the most confident mistakes."""
        truth = self.goals(split)[list(answers)]
        wrong = [(number, p, int(right)) for (number, p), right in zip(answers.items(), truth) if p.argmax() != right]
        wrong.sort(key=lambda mistake: -float(mistake[1].max()))
        self.sheet = [
            (self.pixels(split)[n], f"{self.labels[p.argmax()]} {100 * p.max():.0f} %\nright: {self.labels[right]}")
            for n, p, right in wrong[:MISTAKES]
        ]
        scores = super().scores(split, decode, answers)
        if len(self.labels) > TOP:
            first = sum(int(right in p.topk(TOP).indices) for right, p in zip(truth.tolist(), answers.values()))
            sign = f"exact|classes:{len(self.labels)}|split:{split}|n:{len(truth)}"
            scores.append(exact_score(f"top-{TOP}", first, len(truth), sign))
        return scores

    @once
    def simple(self, split: str) -> dict[str, np.ndarray]:
        return image_baselines(self.pixels("train"), self.goals("train"), self.pixels(split), len(self.labels))

    def input_of(self, example: LabelledImage) -> dict[str, str]:
        return {"image": example.where}


@dataclass(frozen=True)
class CompressOptions:
    """There are none."""


class Compress(CompressProcessor, ImageTask[DVAE]):
    """loss = |image - decode(encode(image))|²"""

    Options = CompressOptions
    shape = "plain"
    unit = "code"
    weights: ClassVar[dict[str, float]] = {"pixels": 1.0}
    sheet_name, sheet_title = "copies", "Images, and what is left of them after they were codes"

    def notes(self) -> list[str]:
        c = self.recipe.model
        return [
            *super().notes(),
            f"each image is {c.image} x {c.image} pixels and becomes {c.grid} x {c.grid} codes; there are "
            f"{c.codes:,}, so {8 * c.image**2 * c.channels:,} bits become {math.ceil(c.tokens * math.log2(c.codes)):,}",
        ]

    def examples(self, split: str) -> PlainImages:
        return PlainImages(self.pixels(split), self.longest)

    def losses(
        self, model: DVAE, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        pixels, temperature = batch.tensors["pixels"].float() / 255, None
        if at is not None and model.codebook is not None:
            cooling = math.cos(math.pi / 2 * min(1.0, at.part / COOLED)) ** 2
            temperature = torch.tensor(COLD + (1 - COLD) * cooling, device=pixels.device)
        return {"pixels": model.loss(pixels, temperature)}

    def test(self, model: DVAE, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE) -> list[Score]:
        """How near copies are to their images, and how much of the codebook they use."""
        tokenizer, pixels = ImageTokenizer(model), self.pixels(split)
        wrong, counts, self.covered, self.sheet = 0.0, np.zeros(len(tokenizer), np.int64), 0, []
        for numbers in budget.pieces(len(pixels)):
            for at in range(0, len(numbers), BLOCK):
                own = np.asarray(pixels[numbers[at : at + BLOCK]])
                codes = tokenizer.encode(own)
                copies = tokenizer.decode(codes)
                wrong += float(np.square(own.astype(np.float64) - copies).sum())
                counts += np.bincount(codes.ravel(), minlength=len(tokenizer))
                self.covered += len(own)
                for image, copy in zip(own[: COPIES - len(self.sheet) // 2], copies):
                    self.sheet += [(image, "image"), (copy, "copy")]
        error = max(wrong / (255**2 * self.covered * pixels[0].size), 1e-10)
        part = counts[counts > 0] / counts.sum()
        c = self.recipe.model
        signature = f"codes:{c.grid}x{c.grid} of {c.codes}|pixels:{c.image}x{c.image}x{c.channels}|split:{split}"
        return [
            Score("PSNR", -10 * math.log10(error), signature),
            Score("codes used", 100 * float((counts > 0).mean()), signature),
            Score("code perplexity", math.exp(-float((part * np.log(part)).sum())), signature),
        ]
