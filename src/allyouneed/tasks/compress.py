"""compress: a picture as a grid of codes, and back."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig
from allyouneed.data.batches import Batch
from allyouneed.data.coded import PlainPictures
from allyouneed.data.report import Report, describe
from allyouneed.errors import UserError
from allyouneed.figures import contact_sheet
from allyouneed.metrics import Score
from allyouneed.models.dvae import DVAE
from allyouneed.predict.answers import Answer
from allyouneed.tasks.base import Carry, Guess, Moment, Say, Task
from allyouneed.tasks.book import Book
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.pictures import PictureReader

SHOWN = 12  # pictures on a contact sheet, each beside its copy
COLD = 1 / 16  # the last temperature of `gumbel`
COOLED = 0.8  # of the training: then it is reached


@dataclass(frozen=True)
class CompressOptions:
    """There are none."""


class Compress(PictureReader[DVAE]):
    """loss = |picture - decode(encode(picture))|²"""

    Options = CompressOptions
    shape = "plain"
    unit = "code"
    paints = True
    predicts = False
    weights: ClassVar[dict[str, float]] = {"pixels": 1.0}
    pairs: list[np.ndarray]  # of the last test: pictures, each before its copy

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.pairs = []

    @property
    def longest(self) -> int:
        return int(self.recipe.model.tokens)

    def report(self) -> Report:
        for split in self.data.splits:
            self.pixels(split)
        c = self.recipe.model
        report = describe(self.data, {}, None, "codes")
        report.notes += [
            *self.damaged(),
            f"each picture is {c.image} x {c.image} pixels and becomes {c.grid} x {c.grid} codes; there are "
            f"{c.codes:,}, so {8 * c.image**2 * c.channels:,} bits become {math.ceil(c.tokens * math.log2(c.codes)):,}",
        ]
        return report

    def same_outputs(self, other: Task) -> bool:
        return False  # codes mean what their own book says

    def examples(self, split: str) -> PlainPictures:
        return PlainPictures(self.pixels(split), self.longest)

    def losses(
        self, model: DVAE, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        pixels, heat = batch.tensors["pixels"].float() / 255, None
        if at is not None and model.book is not None:
            cooling = math.cos(math.pi / 2 * min(1.0, at.part / COOLED)) ** 2
            heat = torch.tensor(COLD + (1 - COLD) * cooling, device=pixels.device)
        return {"pixels": model.loss(pixels, heat)}

    def test(self, model: DVAE, split: str, decode: DecodeConfig, say: Say, extent: Extent = WHOLE) -> list[Score]:
        """How near copies are to their pictures, and how much of the code book they use."""
        book, pixels = Book(model), self.pixels(split)
        wrong, counts, self.covered, self.pairs = 0.0, np.zeros(len(book), np.int64), 0, []
        for numbers in extent.pieces(len(pixels)):
            for at in range(0, len(numbers), 1024):
                own = np.asarray(pixels[numbers[at : at + 1024]])
                codes = book.encode(own)
                copies = book.decode(codes)
                wrong += float(np.square(own.astype(np.float64) - copies).sum())
                counts += np.bincount(codes.ravel(), minlength=len(book))
                self.covered += len(own)
                self.pairs += [one for pair in zip(own, copies) for one in pair][: 2 * SHOWN - len(self.pairs)]
        error = max(wrong / (255**2 * self.covered * pixels[0].size), 1e-10)
        part = counts[counts > 0] / counts.sum()
        c = self.recipe.model
        signature = f"codes:{c.grid}x{c.grid} of {c.codes}|pixels:{c.image}x{c.image}x{c.channels}|split:{split}"
        return [
            Score("PSNR", -10 * math.log10(error), signature),
            Score("codes used", 100 * float((counts > 0).mean()), signature),
            Score("code perplexity", math.exp(-float((part * np.log(part)).sum())), signature),
        ]

    def draw(self, folder: Path, mark: str) -> list[Path]:
        if not self.pairs:
            return []
        out = folder / f"copies{mark}.png"
        told = ["picture", "copy"] * (len(self.pairs) // 2)
        contact_sheet(self.pairs, told, out, "Pictures, and what is left of them after they were codes")
        return [out]

    def predict(
        self, model: DVAE, inputs: Iterable[Any], decode: DecodeConfig, show: Callable[[str], None] | None = None
    ) -> Iterator[Answer]:
        """The codes, row by row; of a clip, of each frame."""
        source, book = iter(inputs), Book(model)
        while several := list(islice(source, 8 * decode.batch)):
            for frames in map(self.frames, several):
                codes = book.encode(self.as_pixels(frames))
                grid = codes.reshape(-1, self.recipe.model.grid)
                text = "\n".join(" ".join(f"{code:{len(str(len(book) - 1))}}" for code in row) for row in grid)
                details = {"codes": codes.tolist() if len(codes) > 1 else codes[0].tolist()}
                yield Answer(text, codes.ravel().tolist(), 0.0, "stop", details=details, picture=book.decode(codes)[0])

    def paint(self, asked: Sequence[tuple[Any, Answer]], out: Path) -> None:
        """Each picture beside its copy."""
        pictures = [one for given, answer in asked for one in (self.as_pixels(self.frames(given))[0], answer.picture)]
        contact_sheet(pictures, ["picture", "copy"] * len(asked), out)

    def table(self, model: DVAE, text: Any, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        raise UserError("a run of the task 'compress' has no likely answers to list")
