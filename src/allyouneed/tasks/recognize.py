"""recognize: one label for a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.pictures import Augment, PictureBatches
from allyouneed.data.examples import LabelledPicture
from allyouneed.metrics import Score, exact_score
from allyouneed.models.labeller import Labeller
from allyouneed.predict.pictures import TOP, RecognizeProcessor
from allyouneed.tasks.base import once
from allyouneed.tasks.baselines import picture_baselines
from allyouneed.tasks.labels import LabelOptions, OneLabel
from allyouneed.tasks.pictures import PictureTask

SHOWN = 24  # mistakes on a contact sheet
BLOCK = 1024  # pictures whose values are counted at once


@dataclass(frozen=True)
class RecognizeOptions(Augment, LabelOptions):
    pool: str = option("first", "the head reads [CLS] (first) or the mean of the patches", choices=("first", "mean"))


class Recognize(RecognizeProcessor, PictureTask[Labeller], OneLabel):
    """loss = -log p(label | picture)"""

    Options = RecognizeOptions
    shape = "pictures"
    unit = "picture"
    sheet_name, sheet_title = "mistakes", "The most confident mistakes: the prediction, and what is right"

    def notes(self) -> list[str]:
        c = self.recipe.model
        mean, std = (" ".join(f"{value:.3f}" for value in values) for values in (self.mean, self.std))
        return [
            *super().notes(),
            f"each picture is {c.image} x {c.image} pixels, {c.grid} x {c.grid} patches of {c.patch} x {c.patch}; "
            f"mean {mean}, standard deviation {std}, by channel",
        ]

    def study(self) -> None:
        """Also the mean and the standard deviation of each channel of the training pictures."""
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

    def examples(self, split: str) -> PictureBatches:
        learning = split == "train"
        return PictureBatches(
            self.pixels(split),
            self.goals(split),
            self.longest,
            learning=learning,
            mixed=self.options.mix > 0,
            weights=self.label_weights() if learning else None,
        )

    def whole(self, split: str, model: Labeller) -> PictureBatches:
        return PictureBatches(self.pixels(split), self.goals(split), self.longest)

    def items(self, split: str) -> int:
        return len(self.pixels(split))  # damaged ones are left out

    def scores(self, split: str, decode: DecodeConfig, answers: Mapping[int, Tensor]) -> list[Score]:
        """Accuracy, macro-F1, and how often the label is among the first five."""
        truth = self.goals(split)[list(answers)]
        self.sheet = self._confident_mistakes(answers, truth, split)
        scores = super().scores(split, decode, answers)
        if len(self.labels) > TOP:
            first = sum(int(right in p.topk(TOP).indices) for right, p in zip(truth.tolist(), answers.values()))
            sign = f"exact|classes:{len(self.labels)}|split:{split}|n:{len(truth)}"
            scores.append(exact_score(f"top-{TOP}", first, len(truth), sign))
        return scores

    @once
    def simple(self, split: str) -> dict[str, np.ndarray]:
        return picture_baselines(self.pixels("train"), self.goals("train"), self.pixels(split), len(self.labels))

    def _confident_mistakes(
        self, found: Mapping[int, Tensor], truth: np.ndarray, split: str
    ) -> list[tuple[np.ndarray, str]]:
        """The mistakes with the highest probabilities."""
        wrong = [(number, p, int(p.argmax()), int(right)) for (number, p), right in zip(found.items(), truth)]
        wrong = [mistake for mistake in wrong if mistake[2] != mistake[3]]
        wrong.sort(key=lambda mistake: -float(mistake[1].max()))
        return [
            (
                self.pixels(split)[number],
                f"{self.labels[best]} {100 * float(p[best]):.0f} %\nright: {self.labels[right]}",
            )
            for number, p, best, right in wrong[:SHOWN]
        ]

    def input_of(self, example: LabelledPicture) -> dict[str, str]:
        return {"picture": example.where}
