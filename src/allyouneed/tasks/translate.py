"""translate: a sentence of one language into another."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.pairs import SentencePairs
from allyouneed.data.examples import SentencePair
from allyouneed.data.store import Ragged, unknown_part
from allyouneed.errors import UserError
from allyouneed.metrics import Score, translation_scores
from allyouneed.models.base import Translator
from allyouneed.predict.base import answered
from allyouneed.predict.translate import TranslateProcessor
from allyouneed.tasks.base import Answering, Answers, Carry, Losses, Moment, Pieces, brief, once
from allyouneed.terminal import Say
from allyouneed.text import Tokenizer


@dataclass(frozen=True)
class TranslateOptions:
    smoothing: float = option(0.1, "label smoothing", low=0.0, high=1.0)
    start: str = option(
        "bos", "the first token of every target: bos, or pad, which is then never written", choices=("bos", "pad")
    )
    teacher_forcing: float = option(1.0, "p: how often the decoder reads the true word, not its own", low=0.0, high=1.0)
    teacher_schedule: str = option(
        "constant", "p over time: constant, or falling from 1 to p", choices=("constant", "linear", "sigmoid")
    )

    def __post_init__(self) -> None:
        if self.teacher_schedule != "constant" and self.teacher_forcing == 1:
            raise UserError(
                f"task.teacher_schedule = {self.teacher_schedule} lowers p from 1 to task.teacher_forcing, which is 1: "
                "set a lower value, for example task.teacher_forcing=0.5"
            )


class Translate(TranslateProcessor, Answering[Translator]):
    """loss = -Σ_t log p(y_t | y_<t, x)"""

    Options = TranslateOptions
    shape = "pairs"
    weights: ClassVar[dict[str, float]] = {"tokens": 1.0}

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        text, train = self.recipe.text, self.data.splits["train"]
        if text.joint or text.path:
            return super().make_tokenizers()
        return {
            "tokenizer.json": Tokenizer.train(train.texts("source"), text),
            "tokenizer.target.json": Tokenizer.train(train.texts("target"), text),
        }

    def training_texts(self) -> Iterator[str]:
        return (side for pair in self.data.splits["train"] for side in pair)

    def check(self) -> None:
        super().check()
        text, model, kind = self.recipe.text, self.recipe.model, self.recipe.model_kind
        if not text.joint and text.path:
            raise UserError("text.path is one tokenizer for both sides: leave text.joint at true")
        if not text.joint and model.share:
            raise UserError("text.joint = false gives two vocabularies, which cannot share: set model.share=false")
        if model.share and model.vocab != model.target_vocab:
            raise UserError(
                f"model.vocab = {model.vocab} and model.target_vocab = {model.target_vocab} differ, but source and "
                "target share one embedding: give both the same value, or set model.share=false"
            )
        if self.options.teacher_forcing < 1 and not self.kind.feeds_itself:
            raise UserError(
                f"task.teacher_forcing = {self.options.teacher_forcing:g} needs a model that decodes step by step in "
                f"training (model.kind = seq2seq); {kind} reads the whole target at once: leave it at 1"
            )

    @once
    def rows(self, split: str) -> tuple[Ragged, Ragged]:
        return self.tokenize(split, "source", tokenizer=self.reader), self.tokenize(split, "target")

    def examples(self, split: str) -> SentencePairs:
        source, target = self.rows(split)
        self.check_examples(split, len(source))
        return SentencePairs(
            source,
            target,
            source_eos=self.end_id(self.reader),
            target_bos=self.begin_id,
            target_eos=self.end_id(self.tokenizer),
            max_length=self.longest,
        )

    @property
    def cut(self) -> int:
        return self.longest - 1

    def unknown_parts(self, split: str) -> list[float | None]:
        sides = zip((self.reader, self.tokenizer), self.rows(split))
        return [unknown_part(tokenizer, [side]) for tokenizer, side in sides]

    def begin(self, model: Translator, say: Say) -> None:
        first, last = (self.teacher_forcing(Moment(0, part)) for part in (0.0, 1.0))
        if first > last:
            say(f"teacher forcing: p runs from {first:.2f} to {last:.2f}, {self.options.teacher_schedule}")
        elif last < 1:
            say(f"teacher forcing: p is {last:.2f} throughout")

    def losses(self, model: Translator, batch: Batch, at: Moment | None = None, carry: Carry | None = None) -> Losses:
        t = batch.tensors
        smoothing = self.options.smoothing if model.training else 0.0
        p = self.teacher_forcing(at)
        taught = {"p": p} if p < 1 else {}
        return {"tokens": model.loss(t["source"], t["lengths"], t["target"], t["targets"], smoothing, **taught)}

    def teacher_forcing(self, at: Moment | None) -> float:
        """p at this step of the training; 1 in evaluation."""
        if at is None:
            return 1.0
        fallen = {"constant": 1.0, "linear": at.part, "sigmoid": 1 / (1 + math.exp(6 - 12 * at.part))}
        return 1.0 - fallen[self.options.teacher_schedule] * (1.0 - self.options.teacher_forcing)

    def answer(self, model: Translator, split: str, decode: DecodeConfig, pieces: Pieces) -> Answers:
        pairs, predictor = list(self.data.splits[split]), self.predictor(model)
        for piece in pieces:
            prompts = (predictor.read_cut(pairs[number].source, decode) for number in piece)
            answers = answered(predictor.answers(prompts, decode))
            yield from ((number, answer.text) for number, answer in zip(piece.tolist(), answers))

    def scores(self, split: str, decode: DecodeConfig, answers: Mapping[int, str]) -> list[Score]:
        """BLEU, chrF and exact match."""
        search = {
            "greedy": "greedy",
            "beam": f"beam:{decode.beam}|{decode.length_penalty}:{decode.alpha:g}",
            "sample": f"sample|t:{decode.temperature:g}|k:{decode.top_k}|p:{decode.top_p:g}|seed:{decode.seed}",
        }[decode.method]
        every = list(self.data.splits[split].texts("target"))
        references = [every[number] for number in answers]
        scores = translation_scores(list(answers.values()), references, self.recipe.text.lowercase)
        return [replace(score, signature=f"{score.signature}|{search}|split:{split}") for score in scores]

    def record(self, example: SentencePair, answer: str) -> dict[str, str]:
        return {"source": example.source, "prediction": answer, "reference": example.target}

    def scoring_seconds(self, model: Translator, decode: DecodeConfig, evaluation: float) -> float:
        """By translating a few sentences, which takes longer than computing their loss."""
        few, began = np.arange(min(decode.batch, self.items("valid"))), time.monotonic()
        answers = len(list(self.answer(model, "valid", brief(decode), iter([few]))))
        return (time.monotonic() - began) / max(1, answers) * self.items("test")
