"""draw: an image for a caption, code by code."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.images import CaptionedCodes
from allyouneed.data.report import Report
from allyouneed.data.store import Ragged, store_rows, tokenize_rows
from allyouneed.metrics import Score, exact_score, mean_score
from allyouneed.models.dalle import DALLE
from allyouneed.predict.base import answered
from allyouneed.predict.draw import Caption, DrawProcessor, check_method, likelihood
from allyouneed.predict.inputs import check_numbers
from allyouneed.runtime import pick_device
from allyouneed.tasks.base import WHOLE, Carry, Losses, Moment, TestBudget, once
from allyouneed.tasks.images import ImageTask
from allyouneed.terminal import Say

SHOWN = 24  # drawings on a contact sheet
RIVALS = 31  # other captions that a test compares with an image's own
BLOCK = 1024  # images that are encoded at once


@dataclass(frozen=True)
class DrawOptions:
    image_tokenizer: str = option("", "a run of the task compress: its codes are what is drawn with")
    caption_weight: float = option(
        0.125, "weight of the loss of the caption; that of the codes has 1", low=0.0, high=100
    )
    hidden: float = option(0.1, "how often training hides the caption; decode.guidance needs it", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        if self.image_tokenizer:  # absolute, so that it is found from any folder
            object.__setattr__(self, "image_tokenizer", os.path.abspath(os.path.expanduser(self.image_tokenizer)))


class Draw(DrawProcessor, ImageTask[DALLE]):
    """loss = -Σ_i w log p(word_i | words before) - Σ_j log p(code_j | caption, codes before)"""

    Options = DrawOptions
    shape = "captions"
    unit = "code"
    chooses_by = "codes loss"  # captions of other splits may be unlike all of train, and yet well drawn
    sheet_name, sheet_title = "drawings", "Drawings for captions of the test"

    @property
    def weights(self) -> dict[str, float]:  # type: ignore[override]
        return {"captions": self.options.caption_weight, "codes": 1.0}

    def check(self) -> None:
        super().check()
        check_method(self.recipe.decode)

    def training_texts(self) -> Iterator[str]:
        return (f"{image.label}\n" for image in self.data.splits["train"])

    def prepare(self, say: Say) -> Report:
        _ = self.image_tokenizer  # before any data is read
        return super().prepare(say)

    @property
    def image_shape(self) -> tuple[int, int]:
        return self.image_tokenizer.config.image, self.image_tokenizer.config.channels

    @once
    def captions(self, split: str) -> Ragged:
        texts = (image.label for image in self.data.splits[split])
        return tokenize_rows(texts, self.tokenizer, self.token_key(split, "captions"))

    @once
    def codes(self, split: str) -> np.ndarray:
        """(N, codes per image), from the cache or encoded."""
        pixels = self.pixels(split)
        self.image_tokenizer.model.to(torch.device(pick_device(self.recipe.train.device)))

        def rows() -> Iterator[Sequence[int]]:
            for at in range(0, len(pixels), BLOCK):
                yield from self.image_tokenizer.encode(np.asarray(pixels[at : at + BLOCK])).tolist()

        found = store_rows(rows(), self.image_tokenizer, self.token_key(split, "codes"))
        return found.tokens.reshape(-1, self.image_tokenizer.config.tokens)

    @property
    def cut(self) -> int:
        return int(self.recipe.model.caption)

    def rows(self, split: str) -> list[Ragged]:
        return [self.captions(split)]

    def notes(self) -> list[str]:
        c = self.image_tokenizer.config
        return [
            *super().notes(),
            f"each image is {c.grid} x {c.grid} codes, of which there are {c.codes:,}, for squares of {c.patch} x "
            f"{c.patch} pixels",
        ]

    def examples(self, split: str) -> CaptionedCodes:
        hidden = self.options.hidden if split == "train" else 0.0
        blank = self.model_config().vocab
        return CaptionedCodes(self.captions(split), self.codes(split), most=self.cut, blank=blank, hidden=hidden)

    def losses(self, model: DALLE, batch: Batch, at: Moment | None = None, carry: Carry | None = None) -> Losses:
        found = model.loss(*(batch.tensors[name] for name in ("ids", "targets", "codes")))
        return dict(zip(("captions", "codes"), found))

    @torch.inference_mode()
    def test(self, model: DALLE, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE) -> list[Score]:
        """The losses; and if rules can read the drawings, how often they show what the captions say."""
        examples, sums, counts = self.examples(split), np.zeros(2), np.zeros(2)
        captions = [image.label for image in self.data.splits[split]]
        checker, right, chosen, self.sheet, self.covered = self.data.checker, [], [], [], 0
        predictor, rows = self.predictor(model), self.captions(split)
        for piece in budget.pieces(len(captions)):
            for numbers in examples.cover(self.test_tokens, piece):
                batch = examples.collate(numbers).to(model.device)
                losses = self.losses(model, batch)
                sums += [float(losses[name]) for name in ("captions", "codes")]
                counts += [batch.size.counts[name] for name in ("captions", "codes")]
            self.covered += len(piece)
            if checker is None:
                chosen += self._chosen(model, split, piece)
                piece = piece[: SHOWN - len(self.sheet)]
            asked = [Caption("", rows[number][: model.config.caption].tolist()) for number in piece]
            for number, answer in zip(piece, answered(predictor.answers(asked, decode))):
                text, image = captions[number], np.asarray(answer.image)
                if checker is not None:
                    found = checker(text, image)
                    right.append(found)
                    wrong = ", ".join(name for name, fine in found.items() if not fine)
                    text += f"\nwrong: {wrong}" if wrong else "\nright"
                if len(self.sheet) < SHOWN:
                    self.sheet.append((image, text))
        check_numbers(torch.from_numpy(sums))
        signature = f"codes:{self.image_tokenizer.config.tokens} of {len(self.image_tokenizer)}|split:{split}"
        nats = sums / np.maximum(counts, 1)
        scores = [
            Score("code perplexity", math.exp(min(nats[1], 700)), signature),
            Score("caption perplexity", math.exp(min(nats[0], 700)), signature),
        ]
        if checker is not None:
            how = f"{decode.method}|temperature:{decode.temperature:g}|guidance:{decode.guidance:g}"
            ranked = f" by {decode.rank}" if decode.n_best > 1 else ""
            ruled = f"by rules|{how}|best of:{decode.n_best}{ranked}|seed:{decode.seed}|{signature}"
            fine, every = np.array([(sum(found.values()), len(found)) for found in right]).T
            share = mean_score("attributes", fine, ruled, every)
            scores = [share, exact_score("all right", int((fine == every).sum()), len(right), ruled), *scores]
        elif chosen:
            named = f"own caption before others|of {chosen[0][1]}|by log p(codes given caption)|{signature}"
            scores.insert(0, exact_score("retrieval", sum(fine for fine, _ in chosen), len(chosen), named))
        return scores

    def _chosen(self, model: DALLE, split: str, numbers: Iterable[int]) -> list[tuple[bool, int]]:
        """For each image: whether its codes are more likely for its own caption than for at most RIVALS others of
        the split, and the number of captions. Which others is a function of the image's number."""
        captions, found = self.captions(split), []
        rows = [tuple(captions[at][: model.config.caption].tolist()) for at in range(len(captions))]
        different = list(dict.fromkeys(rows))
        for number in numbers:
            some = np.random.default_rng(number).permutation(len(different))[: RIVALS + 1]
            others = [different[at] for at in some if different[at] != rows[number]][:RIVALS]
            if others:
                words = np.array([model.prompt(row) for row in (rows[number], *others)])
                codes = np.repeat(self.codes(split)[number][None].astype(np.int64), len(words), 0)
                scores = likelihood(model, words, codes)
                found.append((bool(scores[0] > scores[1:].max()), len(words)))
        return found
