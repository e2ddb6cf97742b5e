"""translate: a sentence of one language into another."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import ClassVar

from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.pairs import SentencePairs
from allyouneed.data.examples import SentencePair
from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged, tokenize_rows, unknown_part
from allyouneed.errors import UserError
from allyouneed.metrics import Score, translation_scores
from allyouneed.models.base import Translator
from allyouneed.predict.answers import Prompt
from allyouneed.predict.base import answered
from allyouneed.predict.translate import TranslatePredictor, TranslateProcessor
from allyouneed.tasks.base import WHOLE, Answering, Carry, Moment, Sample, TestBudget, once
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
        """The tokens of both sides."""
        pairs = self.data.splits[split]
        sources, targets = pairs.texts("source"), pairs.texts("target")
        return (
            tokenize_rows(sources, self.reader, self.token_key(split, "source")),
            tokenize_rows(targets, self.tokenizer, self.token_key(split, "target")),
        )

    def examples(self, split: str) -> SentencePairs:
        source, target = self.rows(split)
        if not len(source):
            raise UserError(f"the {split} split has no sentence pairs; give more data or another data.{split}_part")
        return SentencePairs(
            source,
            target,
            source_eos=self.end_id(self.reader),
            target_bos=self.begin_id,
            target_eos=self.end_id(self.tokenizer),
            max_length=self.longest,
        )

    def report(self) -> Report:
        both = {split: self.rows(split) for split in self.data.splits}
        lengths = {split: (source.lengths, target.lengths) for split, (source, target) in both.items()}
        tokenizers = (self.reader, self.tokenizer)
        unknown = {split: [unknown_part(t, [side]) for t, side in zip(tokenizers, both[split])] for split in both}
        return describe(self.data, lengths, self.longest - 1, unknown=unknown, advice=self.unknown_advice)

    def begin(self, model: Translator, say: Say) -> None:
        first, last = (self.teacher_forcing(Moment(step, 1)) for step in (0, 1))
        if first > last:
            say(f"teacher forcing: p runs from {first:.2f} to {last:.2f}, {self.options.teacher_schedule}")
        elif last < 1:
            say(f"teacher forcing: p is {last:.2f} throughout")

    def losses(
        self, model: Translator, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
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

    def test(
        self, model: Translator, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE
    ) -> list[Score]:
        """BLEU, chrF and exact match."""
        pairs, found, predictor = list(self.data.splits[split]), dict[int, str](), self.predictor(model)
        for piece in budget.pieces(len(pairs)):
            prompts = (predictor.read_cut(pairs[number].source, decode) for number in piece)
            answers = answered(predictor.answers(prompts, decode))
            found |= {int(number): answer.text for number, answer in zip(piece, answers)}
        search = {
            "greedy": "greedy",
            "beam": f"beam:{decode.beam}|{decode.length_penalty}:{decode.alpha:g}",
            "sample": f"sample|t:{decode.temperature:g}|k:{decode.top_k}|p:{decode.top_p:g}|seed:{decode.seed}",
        }[decode.method]
        done = [(pairs[number], found[number]) for number in sorted(found)]
        self.covered = len(done)
        scores = translation_scores(
            [text for _, text in done], [pair.target for pair, _ in done], self.recipe.text.lowercase
        )
        self.tested = lambda: (
            {"source": pair.source, "prediction": text, "reference": pair.target} for pair, text in done
        )
        return [replace(score, signature=f"{score.signature}|{search}|split:{split}") for score in scores]

    def scoring_seconds(self, model: Translator, decode: DecodeConfig, evaluation: float) -> float:
        """By translating a few sentences, which takes longer than computing their loss."""
        if not (self.has("valid") and self.has("test")):
            return 0.0
        some, predictor = list(islice(self.data.splits["valid"], decode.batch)), self.predictor(model)
        prompts = [self._short(predictor, pair, decode, more=1) for pair in some]
        began = time.monotonic()
        answers = len(list(answered(predictor.answers(prompts, decode))))
        return (time.monotonic() - began) / max(1, answers) * self.data.splits["test"].examples

    def samples(self, model: Translator, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        pairs, predictor = self.sampled(split)[:most], self.predictor(model)
        prompts = [self._short(predictor, pair, decode, more=8) for pair in pairs]
        answers = answered(predictor.answers(prompts, replace(decode, n_best=1, batch=most)))
        return [Sample(pair.source, answer.text, pair.target) for pair, answer in zip(pairs, answers)]

    def _short(self, predictor: TranslatePredictor, pair: SentencePair, decode: DecodeConfig, more: int) -> Prompt:
        """The prompt of a pair whose answer ends at most so many tokens after the reference does: a model that has
        hardly learned anything does not end by itself."""
        prompt = predictor.read_cut(pair.source, decode)
        return replace(prompt, max_new=min(prompt.max_new, len(self.tokenizer.encode(pair.target)) + more))
