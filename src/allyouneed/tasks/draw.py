"""draw: a picture for a caption, code by code."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches import Batch
from allyouneed.data.coded import CaptionedCodes
from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged, store_rows, tokenize_rows, unknown_part
from allyouneed.errors import UserError
from allyouneed.figures import contact_sheet
from allyouneed.metrics import Score, bootstrap_scores, exact_score
from allyouneed.models.dalle import DALLE
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer, Prompt
from allyouneed.predict.writer import Writer
from allyouneed.runtime import pick_device
from allyouneed.tasks.base import Alignment, Carry, Guess, Moment, Say, Task, once, rows_for, traced
from allyouneed.tasks.book import Book
from allyouneed.tasks.checks import check_numbers
from allyouneed.tasks.drawing import check_method, draw_codes, likelihood, read_caption
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.pictures import PictureTask
from allyouneed.text import Tokenizer

SHOWN = 24  # drawings on a contact sheet
RIVALS = 31  # other captions that a test compares with a picture's own
BLOCK = 1024  # pictures that are encoded at once


@dataclass(frozen=True)
class DrawOptions:
    book: str = option("", "a run of the task compress: its codes are what is drawn with")
    caption_weight: float = option(
        0.125, "weight of the loss of the caption; that of the codes has 1", low=0.0, high=100
    )
    hidden: float = option(0.1, "how often training hides the caption; decode.guidance needs it", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        if self.book:  # absolute, so that it is found from any folder
            object.__setattr__(self, "book", os.path.abspath(os.path.expanduser(self.book)))


class Draw(PictureTask[DALLE]):
    """loss = -Σ_i w log p(word_i | words before) - Σ_j log p(code_j | caption, codes before)"""

    Options = DrawOptions
    shape = "captions"
    unit = "code"
    chooses_by = "codes loss"  # captions of other splits may be unlike all of train, and yet well drawn
    asks = "what to draw"
    writes = True
    paints = draws = True
    no_vectors = "it draws, and has no vectors of texts"
    weights: ClassVar[dict[str, float]] = {"captions": 0.125, "codes": 1.0}
    drawn: list[tuple[np.ndarray, str]]  # of the last test: drawings, and what is told of them
    _book: Book | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.drawn = []

    @property
    def loss_weights(self) -> dict[str, float]:
        return {"captions": self.options.caption_weight, "codes": 1.0}

    @property
    def book(self) -> Book:
        """The codes of pictures: a part of the run or, before it is one, of the run task.book."""
        if self._book is None:
            if not self.options.book:
                raise UserError(
                    "task.book is empty: name a run of the task compress, whose codes are what is drawn with; `ayn "
                    "train compress/shapes` makes one"
                )
            self._book = Book.load(self.options.book)
        return self._book

    def check(self) -> None:
        super().check()
        check_method(self.recipe.decode)

    def prepare(self, say: Say) -> Report:
        _ = self.book  # before any data is read
        return super().prepare(say)

    @property
    def picture_shape(self) -> tuple[int, int]:
        return self.book.config.image, self.book.config.channels

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        text = self.recipe.text
        captions = (f"{picture.label}\n" for picture in self.data.splits["train"])
        return {"tokenizer.json": Tokenizer.load(text.path) if text.path else Tokenizer.train(captions, text)}

    def take_tokenizers(self, donor: Task) -> None:
        super().take_tokenizers(donor)
        if isinstance(donor, Draw):
            if os.path.isdir(self.options.book) and self.book.fingerprint != donor.book.fingerprint:
                raise UserError(
                    f"the code book of {self.options.book} is not the one that the run in train.init draws with: set "
                    "task.book= to draw with that, or start from another run"
                )
            self._book = donor.book

    def same_outputs(self, other: Task) -> bool:
        return (
            isinstance(other, Draw) and super().same_outputs(other) and other.book.fingerprint == self.book.fingerprint
        )

    def parts(self) -> dict[str, bytes]:
        return {**super().parts(), **self.book.parts()}

    def read_parts(self, parts: Mapping[str, bytes]) -> None:
        super().read_parts(parts)
        self._book = Book.read(parts)

    def model_config(self) -> Any:
        config, book = self.recipe.model, self.book.config
        for name in ("codes", "grid"):
            own, theirs = getattr(config, name), getattr(book, name)
            if own and own != theirs:
                raise UserError(
                    f"model.{name} = {own}, but the code book has {theirs}: leave model.{name} out, or take another "
                    "task.book"
                )
        vocab = rows_for(self.tokenizer, config.vocab, "vocab")
        return replace(config, vocab=vocab, codes=book.codes, grid=book.grid)

    def build_model(self) -> DALLE:
        model = super().build_model()
        model.body.freeze(self.recipe.model.freeze)
        return model

    @property
    def longest(self) -> int:
        return 1 + int(self.recipe.model.caption) + self.book.config.tokens

    @once
    def captions(self, split: str) -> Ragged:
        texts = (picture.label for picture in self.data.splits[split])
        return tokenize_rows(texts, self.tokenizer, self.token_key(split, "captions"))

    @once
    def codes(self, split: str) -> np.ndarray:
        """(N, codes per picture), from the cache or encoded."""
        pixels = self.pixels(split)
        self.book.model.to(torch.device(pick_device(self.recipe.train.device)))

        def rows() -> Iterator[Sequence[int]]:
            for at in range(0, len(pixels), BLOCK):
                yield from self.book.encode(np.asarray(pixels[at : at + BLOCK])).tolist()

        found = store_rows(rows(), self.book, self.token_key(split, "codes"))
        return found.tokens.reshape(-1, self.book.config.tokens)

    def report(self) -> Report:
        for split in self.data.splits:
            self.codes(split)  # damaged pictures leave the split
        captions = {split: self.captions(split) for split in self.data.splits}
        lengths = {split: rows.lengths for split, rows in captions.items()}
        unknown = {split: [unknown_part(self.tokenizer, [rows])] for split, rows in captions.items()}
        most = self.recipe.model.caption
        report = describe(self.data, lengths, most, "tokens", unknown=unknown, advice=self.unknown_advice)
        c = self.book.config
        report.notes += [
            *self.damaged(),
            f"each picture is {c.grid} x {c.grid} codes, of which there are {c.codes:,}, for squares of {c.patch} x "
            f"{c.patch} pixels",
        ]
        return report

    def examples(self, split: str) -> CaptionedCodes:
        hidden = self.options.hidden if split == "train" else 0.0
        blank = self.model_config().vocab
        most = self.recipe.model.caption
        return CaptionedCodes(self.captions(split), self.codes(split), most=most, blank=blank, hidden=hidden)

    def losses(
        self, model: DALLE, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        tensors = batch.tensors
        captions, codes = model.loss(tensors["ids"], tensors["targets"], tensors["codes"]).unbind()
        return {"captions": captions, "codes": codes}

    def prompt(self, model: DALLE, text: str, decode: DecodeConfig) -> Prompt:
        ids = read_caption(text, self.tokenizer)
        if len(ids) > model.config.caption:
            raise UserError(
                f"the caption has {len(ids)} tokens, and this model reads at most {model.config.caption}: shorten it"
            )
        check_method(decode)
        return Prompt(model.prompt(ids), self.book.config.tokens)

    def predict(
        self, model: DALLE, inputs: Iterable[str], decode: DecodeConfig, show: Callable[[str], None] | None = None
    ) -> Iterator[Answer]:
        source = iter(inputs)
        while several := list(islice(source, max(1, decode.batch // decode.n_best))):
            prompts = [self.prompt(model, text, decode).ids for text in several]
            yield from self._answers(model, prompts, decode)

    def _answers(self, model: DALLE, prompts: Sequence[list[int]], decode: DecodeConfig) -> Iterator[Answer]:
        """For each prompt decode.n_best drawings, the best first: by log p(codes | caption) or, for the rank of the
        caption, by log p(codes | caption) - log p(codes)."""
        each = decode.n_best
        codes = draw_codes(Writer(model), prompts, self.book.config.tokens, decode)  # (prompts · n_best, codes)
        asked = np.repeat(np.asarray(prompts), each, axis=0)
        score = told = likelihood(model, asked, codes)
        if decode.rank == "caption":
            score = told - likelihood(model, np.full_like(asked, model.blank), codes)
        self.book.model.to(model.device)
        pictures = self.book.decode(codes)
        made = []
        for i, (row, picture) in enumerate(zip(codes.tolist(), pictures)):
            logprob, text = float(told[i]), " ".join(map(str, row))
            details = {"seed": decode.seed + i % each, "logprob": round(logprob, 4), "codes": row}
            made.append(Answer(text, row, logprob, "length", float(score[i]), details=details, picture=picture))
        for at in range(0, len(made), each):
            best, *others = sorted(made[at : at + each], key=lambda answer: -answer.score)
            yield replace(best, others=others)

    def paint(self, asked: Sequence[tuple[Any, Answer]], out: Path) -> None:
        """The drawings of each caption, the best first, with their seeds."""
        pictures, told = [], []
        for text, answer in asked:
            for one in (answer, *answer.others):
                pictures.append(one.picture)
                told.append((f"{text}\n" if len(asked) > 1 else "") + f"seed {one.details['seed']}")
        title = asked[0][0] if len(asked) == 1 else ""
        contact_sheet(pictures, told, out, title)

    @torch.inference_mode()
    def test(self, model: DALLE, split: str, decode: DecodeConfig, say: Say, extent: Extent = WHOLE) -> list[Score]:
        """The losses; and if rules can read the drawings, how often they show what the captions say."""
        examples, sums, counts = self.examples(split), np.zeros(2), np.zeros(2)
        captions = [picture.label for picture in self.data.splits[split]]
        checker, right, chosen, self.drawn, self.covered = self.data.checker, [], [], [], 0
        for piece in extent.pieces(len(captions)):
            for numbers in examples.cover(max(self.recipe.train.batch_tokens, 4096), piece):
                batch = examples.collate(numbers).to(model.device)
                losses = self.losses(model, batch)
                sums += [float(losses[name]) for name in ("captions", "codes")]
                counts += [batch.size.counts[name] for name in ("captions", "codes")]
            self.covered += len(piece)
            if checker is None:
                chosen += self._chosen(model, split, piece)
            if checker is None and len(self.drawn) >= SHOWN:
                continue
            prompts = [model.prompt(self.captions(split)[number][: model.config.caption].tolist()) for number in piece]
            most = len(piece) if checker is not None else SHOWN
            prompts = prompts[:most]
            for at in range(0, len(prompts), decode.batch):
                answers = self._answers(model, prompts[at : at + decode.batch], decode)
                for number, answer in zip(piece[at : at + decode.batch], answers):
                    told = captions[number]
                    if checker is not None:
                        found = checker(captions[number], np.asarray(answer.picture))
                        right.append(found)
                        wrong = [name for name, fine in found.items() if not fine]
                        told += "\n" + (f"wrong: {', '.join(wrong)}" if wrong else "right")
                    if len(self.drawn) < SHOWN:
                        self.drawn.append((np.asarray(answer.picture), told))
        if math.isnan(sums.sum()):
            raise UserError("the loss is not a number (NaN): the model's weights are damaged, or too large to use")
        signature = f"codes:{self.book.config.tokens} of {len(self.book)}|split:{split}"
        nats = sums / np.maximum(counts, 1)
        scores = [
            Score("code perplexity", math.exp(min(nats[1], 700)), signature),
            Score("caption perplexity", math.exp(min(nats[0], 700)), signature),
        ]
        if checker is not None:
            how = f"{decode.method}|temperature:{decode.temperature:g}|guidance:{decode.guidance:g}"
            ranked = f" by {decode.rank}" if decode.n_best > 1 else ""
            drawn = f"by rules|{how}|best of:{decode.n_best}{ranked}|seed:{decode.seed}|{signature}"
            every = np.array([(sum(found.values()), len(found)) for found in right])
            share = bootstrap_scores(["attributes"], every, lambda sums: 100 * sums[:, :1] / sums[:, 1:], [drawn])
            scores = [
                *share,
                exact_score("all right", sum(all(found.values()) for found in right), len(right), drawn),
                *scores,
            ]
        elif chosen:
            named = f"own caption before others|of {chosen[0][1]}|by log p(codes given caption)|{signature}"
            scores.insert(0, exact_score("retrieval", sum(fine for fine, _ in chosen), len(chosen), named))
        return scores

    def _chosen(self, model: DALLE, split: str, numbers: Iterable[int]) -> list[tuple[bool, int]]:
        """For each picture: whether its own caption makes its codes likelier than at most RIVALS others of the split
        do, and of how many. Which others is a function of the picture's number."""
        captions, found = self.captions(split), []
        rows = [tuple(captions[at][: model.config.caption].tolist()) for at in range(len(captions))]
        different = list(dict.fromkeys(rows))
        for number in numbers:
            some = np.random.default_rng(number).permutation(len(different))[: RIVALS + 1]
            others = [different[at] for at in some if different[at] != rows[number]][:RIVALS]
            if others:
                words = np.array([model.prompt(row) for row in (rows[number], *others)])
                codes = np.repeat(self.codes(split)[number][None].astype(np.int64), len(words), 0)
                told = likelihood(model, words, codes)
                found.append((bool(told[0] > told[1:].max()), len(words)))
        return found

    def draw(self, folder: Path, mark: str) -> list[Path]:
        """Some drawings of the last test."""
        if not self.drawn:
            return []
        out = folder / f"drawings{mark}.png"
        pictures, told = zip(*self.drawn)
        contact_sheet(pictures, told, out, "Drawings for captions of the test")
        return [out]

    def table(self, model: DALLE, text: str, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The likely next words of the caption: the model has learned to write these too."""
        prompt = self.prompt(model, text, decode).ids
        ids = read_caption(text, self.tokenizer)
        words = torch.tensor([prompt], device=model.device)
        with torch.inference_mode():
            logits, _ = model(words, torch.zeros(1, 1, dtype=torch.long, device=model.device))
        p = check_numbers(logits[0].float()).softmax(-1)
        named = [*(self.tokenizer.token(id) for id in range(len(self.tokenizer))), "(end)"]
        rows = p[1 : 1 + len(ids)].topk(min(most, len(named)))
        return [
            Guess(self.tokenizer.token(id), [(named[i], value) for i, value in zip(best, values)])
            for id, best, values in zip(ids, rows.indices.tolist(), rows.values.tolist())
        ]

    @torch.inference_mode()
    def attention(self, model: DALLE, text: str, decode: DecodeConfig) -> dict[str, Alignment]:
        """While it reads the caption and draws the best picture."""
        prompt = self.prompt(model, text, decode).ids
        answer = next(self._answers(model, [prompt], decode))
        words, codes = (torch.tensor([one], device=model.device) for one in (prompt, answer.tokens))
        model(words, codes, trace=(trace := Trace("weights")))
        ids = read_caption(text, self.tokenizer)
        blank = ["·"] * (model.config.caption - len(ids))
        grid = range(1, self.book.config.grid + 1)
        places = [f"{row}, {column}" for row in grid for column in grid][:-1]
        tokens = ["·", *(self.tokenizer.token(id) for id in ids), *blank, *places]
        return traced(trace, lambda place: (tokens, tokens))
