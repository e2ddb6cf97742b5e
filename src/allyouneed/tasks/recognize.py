"""recognize: one label for a picture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.augment import Augment, PictureBatches, See
from allyouneed.data.examples import LabelledPicture
from allyouneed.data.report import Report, describe
from allyouneed.errors import UserError, told
from allyouneed.figures import contact_sheet
from allyouneed.metrics import Score, exact_score
from allyouneed.models.labeller import Labeller, PictureLabeller
from allyouneed.nn.heads import ClassifyHead
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer
from allyouneed.tasks.base import Alignment, Guess, Say, Task, once, traced
from allyouneed.tasks.baselines import picture_baselines
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.labels import LabelOptions, OneLabel
from allyouneed.tasks.pictures import PictureReader

SHOWN = 24  # mistakes on a contact sheet
BLOCK = 1024  # pictures whose values are counted at once
TOP = 5


@dataclass(frozen=True)
class RecognizeOptions(LabelOptions):
    pool: str = option("first", "the head reads [CLS] (first) or the mean of the patches", choices=("first", "mean"))
    flip: float = option(0.0, "augmentation: how often left and right are swapped", low=0.0, high=1.0)
    shift: float = option(0.0, "augmentation: moved by at most this part of the side", low=0.0, high=1.0)
    changes: int = option(0, "augmentation: random changes per picture (rotate, contrast, …)", low=0, high=10)
    strength: float = option(0.5, "augmentation: how strong these changes are", low=0.0, high=1.0)
    erase: float = option(0.0, "augmentation: how often a rectangle is blanked", low=0.0, high=1.0)
    mix: float = option(0.0, "augmentation: how often another picture is mixed in (mixup, cutmix)", low=0.0, high=1.0)


class Recognize(PictureReader[Labeller], OneLabel):
    """loss = -log p(label | picture)"""

    Options = RecognizeOptions
    unit = "picture"
    expects = "likely labels of the picture"
    mean: list[float]  # of each channel of the training pictures, from 0 to 1
    std: list[float]
    mistakes: list[tuple[np.ndarray, str]]  # of the last test: the pictures, and what was said of them

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.mean, self.std, self.mistakes = [], [], []

    def take_tokenizers(self, donor: Task) -> None:
        """The body expects pictures normalised as those that it has learned from."""
        if isinstance(donor, Recognize):
            self.mean, self.std = donor.mean, donor.std

    @property
    def longest(self) -> int:
        return int(self.recipe.model.tokens)

    def build_model(self) -> Labeller:
        config = self.recipe.model
        body = self.kind.BodyClass(config)
        body.freeze(config.freeze)
        head = ClassifyHead(body.width, len(self.labels), self.options.pool, config.dropout, (1, 0))
        augment = Augment(**{f.name: getattr(self.options, f.name) for f in fields(Augment)})
        return PictureLabeller(body, head, see=See(self.mean, self.std, augment))

    def report(self) -> Report:
        lengths = {split: np.full(len(self.pixels(split)), self.longest) for split in self.data.splits}
        if not self.labels:
            self.labels = self.find_labels()
        if not self.mean:
            self._measure()
        for split in lengths:
            self.goals(split)  # a UserError for labels that are not in the training data
        c = self.recipe.model
        report = describe(self.data, {}, None, "tokens", {split: self.classes(split) for split in lengths})
        report.notes += self.damaged()
        report.notes.append(
            f"each picture is {c.image} x {c.image} pixels, {c.grid} x {c.grid} patches of {c.patch} x {c.patch}; "
            f"mean {_told(self.mean)}, standard deviation {_told(self.std)}, by channel"
        )
        return report

    def _measure(self) -> None:
        """The mean and the standard deviation of each channel of the training pictures."""
        pixels = self.pixels("train")
        counts = np.zeros((pixels.shape[3], 256))
        for start in range(0, len(pixels), BLOCK):
            for channel, known in enumerate(counts):
                known += np.bincount(pixels[start : start + BLOCK, ..., channel].ravel(), minlength=256)
        parts, values = counts / counts.sum(1, keepdims=True), np.arange(256) / 255
        mean = parts @ values
        spread = np.sqrt(np.maximum(0, parts @ values**2 - mean**2))
        self.mean, self.std = mean.round(6).tolist(), np.maximum(spread, 1e-3).round(6).tolist()

    def extras(self) -> dict[str, Any]:
        return {**super().extras(), "mean": self.mean, "std": self.std}

    def take(self, extras: dict[str, Any]) -> None:
        super().take(extras)
        self.mean, self.std = ([float(value) for value in extras[name]] for name in ("mean", "std"))
        if not len(self.mean) == len(self.std) == self.recipe.model.channels or min(self.std) <= 0:
            raise ValueError

    def examples(self, split: str) -> PictureBatches:
        learning = split == "train"
        return PictureBatches(
            self.pixels(split),
            self.goals(split),
            self.longest,
            learning=learning,
            mixed=learning and self.options.mix > 0,
            weights=self.label_weights() if learning else None,
        )

    def test(self, model: Labeller, split: str, decode: DecodeConfig, say: Say, extent: Extent = WHOLE) -> list[Score]:
        """Accuracy, macro-F1, and how often the label is among the first five."""
        batches = PictureBatches(self.pixels(split), self.goals(split), self.longest)
        found = self.probabilities(model, batches, extent)
        truth, self.covered = self.goals(split)[list(found)], len(found)
        pictures = list(self.data.splits[split])
        self._tested = lambda: (self._record(pictures[number], p) for number, p in found.items())
        self.mistakes = self._surest(found, truth, split)
        scores = self.judged(truth, found, split, "pictures")
        if len(self.labels) > TOP:
            first = sum(int(right in p.topk(TOP).indices) for right, p in zip(truth.tolist(), found.values()))
            sign = f"exact|classes:{len(self.labels)}|split:{split}|n:{len(truth)}"
            scores.append(exact_score(f"top-{TOP}", first, len(truth), sign))
        return scores

    @once
    def simple(self, split: str) -> dict[str, np.ndarray]:
        return picture_baselines(self.pixels("train"), self.goals("train"), self.pixels(split), len(self.labels))

    def _surest(self, found: dict[int, Tensor], truth: np.ndarray, split: str) -> list[tuple[np.ndarray, str]]:
        """The mistakes with the highest probabilities."""
        wrong = [
            (number, p, int(right)) for (number, p), right in zip(found.items(), truth) if int(p.argmax()) != right
        ]
        wrong.sort(key=lambda mistake: -float(mistake[1].max()))
        return [
            (
                self.pixels(split)[number],
                f"{self.labels[int(p.argmax())]} {100 * float(p.max()):.0f} %\nright: {self.labels[right]}",
            )
            for number, p, right in wrong[:SHOWN]
        ]

    def _record(self, picture: LabelledPicture, p: Tensor) -> dict[str, Any]:
        best = int(p.argmax())
        sure = round(float(p[best]), 6)
        return {
            "picture": picture.where,
            "prediction": self.labels[best],
            "reference": picture.label,
            "probability": sure,
        }

    def draw(self, folder: Path, mark: str) -> list[Path]:
        """The confusion matrix of the last test, and its surest mistakes."""
        made = super().draw(folder, mark)
        if not self.mistakes:
            return made
        out = folder / f"mistakes{mark}.png"
        pictures, told = zip(*self.mistakes)
        contact_sheet(pictures, told, out, "The surest mistakes: what was said, and what is right")
        return [*made, out]

    def predict(
        self, model: Labeller, inputs: Iterable[Any], decode: DecodeConfig, show: Callable[[str], None] | None = None
    ) -> Iterator[Answer]:
        if not self.labels:
            raise UserError(f"this run has no labels: it is a body to start a training from, with {told('--init')}")
        source = iter(inputs)
        while several := list(islice(source, 8 * decode.batch)):
            yield from self._answers(model, [self.frames(given) for given in several])

    def _batches(self, pictures: Sequence[bytes]) -> PictureBatches:
        pixels = self.as_pixels(pictures)
        return PictureBatches(pixels, np.zeros(len(pixels), np.int64), self.longest)

    def _answers(self, model: Labeller, inputs: Sequence[Sequence[bytes]]) -> Iterator[Answer]:
        """The mean over the frames of each input."""
        frames = iter(self.probabilities(model, self._batches([one for some in inputs for one in some])).values())
        for some in inputs:
            p = torch.stack(list(islice(frames, len(some)))).mean(0)
            top = p.topk(min(TOP, len(p)))
            pairs = zip(top.indices.tolist(), top.values.tolist())
            told = [f"  {self.labels[i]} {100 * value:.1f} %" for i, value in pairs if value >= 0.0005][1:]
            clip = {"frames": len(some)} if len(some) > 1 else {}
            mean = f"  (the mean of {len(some)} pictures)" if clip else ""
            yield self.labelled(p, clip, "".join(told) + mean)

    @torch.inference_mode()
    def attention(self, model: Labeller, text: Any, decode: DecodeConfig) -> dict[str, Alignment]:
        batch, trace = self._batches(self.frames(text)[:1]).collate(np.arange(1)).to(model.device), Trace("weights")
        model(batch.tensors, trace=trace)
        grid = range(1, self.recipe.model.grid + 1)
        tokens = ["[CLS]", *(f"{row}, {column}" for row in grid for column in grid)]
        return traced(trace, lambda place: (tokens, tokens))

    def draw_heads(self, found: dict[str, Alignment], text: str, place: str, out: Path) -> str:
        """How much [CLS] attends to each patch, by layer and head, over the picture; first through all layers."""
        c = self.recipe.model
        pixels = self.as_pixels(self.frames(text)[:1])[0]
        whole = rollout([one.weights for one in found.values()])
        several = len(next(iter(found.values())).weights)  # heads
        columns = max(2, several)
        maps: list[Tensor | None] = [None, whole[0, 1:]]
        told = ["picture", "all layers"]
        for layer, (name, one) in enumerate(found.items(), 1):
            if place in ("", name):
                maps += [None] * (-len(maps) % columns) + list(one.weights[:, 0, 1:])
                told += [""] * (-len(told) % columns) + [f"layer {layer}, head {i + 1}" for i in range(several)]
        sheet = [None if weights is None else lit(pixels, weights.view(c.grid, c.grid).numpy()) for weights in maps]
        contact_sheet([pixels, *sheet[1:]], told, out, "Where [CLS] looks", columns)
        return place or "all heads"

    def table(self, model: Labeller, text: Any, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The likely labels of the picture."""
        (answer,) = self._answers(model, [self.frames(text)])
        p = torch.tensor(list(answer.details["probabilities"].values()))
        return [self.guess(str(text), p, most)]


def rollout(layers: Sequence[Tensor]) -> Tensor:
    """(T, T): how much of each token is in each token after all layers, from their attention (H, T, T), if half of a
    token stays what it was in each layer (Abnar and Zuidema, 2020)."""
    found = torch.eye(layers[0].size(-1))
    for weights in layers:
        found = (0.5 * weights.mean(0) + 0.5 * torch.eye(weights.size(-1))) @ found
    return found


def lit(pixels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The picture (H, W, C), bright where the weights (G, G) are large and dark where they are small."""
    share = weights / max(float(weights.max()), 1e-9)
    share = share.repeat(pixels.shape[0] // len(share), 0).repeat(pixels.shape[1] // len(share), 1)
    colours = pixels[..., :3] if pixels.shape[2] > 2 else pixels[..., :1].repeat(3, 2)
    return np.rint(colours * (0.15 + 0.85 * share[..., None])).astype(np.uint8)


def _told(values: Sequence[float]) -> str:
    return " ".join(f"{value:.3f}" for value in values)
