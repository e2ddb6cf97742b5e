"""translate: a sentence of one language into another."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches import Batch, SentencePairs
from allyouneed.data.examples import SentencePair
from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged, tokenize_rows, unknown_part
from allyouneed.errors import UserError
from allyouneed.metrics import Score, translation_scores
from allyouneed.models.base import Translator
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Prompt, write
from allyouneed.tasks.base import Alignment, Carry, Guess, Moment, Say, Task, once, rows_for, traced
from allyouneed.tasks.checks import check_input, check_length
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.lm import guesses
from allyouneed.tasks.samples import Sample
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


class Translate(Task[Translator]):
    """loss = -Σ_t log p(y_t | y_<t, x)"""

    Options = TranslateOptions
    writes = True
    shape = "pairs"
    weights: ClassVar[dict[str, float]] = {"tokens": 1.0}
    no_vectors = "it translates; train embed/bert on the same pairs"

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        text, train = self.recipe.text, self.data.splits["train"]
        if text.path:
            return {"tokenizer.json": Tokenizer.load(text.path)}
        if text.joint:
            return {"tokenizer.json": Tokenizer.train((side for pair in train for side in pair), text)}
        return {
            "tokenizer.json": Tokenizer.train((pair.source for pair in train), text),
            "tokenizer.target.json": Tokenizer.train((pair.target for pair in train), text),
        }

    @property
    def reader(self) -> Tokenizer:
        """The tokenizer of the source."""
        return self.tokenizers["tokenizer.json"]

    @property
    def _begin(self) -> int:
        return self.tokenizer.need(self.options.start, "to begin a translation")

    def _end(self, tokenizer: Tokenizer) -> int:
        return tokenizer.need("eos", "to end a sentence")

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

    def model_config(self) -> Any:
        model = self.recipe.model
        return replace(
            model,
            vocab=rows_for(self.reader, model.vocab, "vocab"),
            target_vocab=rows_for(self.tokenizer, model.target_vocab, "target_vocab"),
            bos=self._begin,
        )

    def build_model(self) -> Translator:
        model = super().build_model()
        model.known = len(self.tokenizer)
        model.barred = self._begin if self.options.start == "pad" else -1
        model.body.freeze(self.recipe.model.freeze)
        return model

    @once
    def rows(self, split: str) -> tuple[Ragged, Ragged]:
        """The tokens of both sides."""
        pairs = self.data.splits[split]
        sources, targets = (pair.source for pair in pairs), (pair.target for pair in pairs)
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
            source_eos=self._end(self.reader),
            target_bos=self._begin,
            target_eos=self._end(self.tokenizer),
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
        self, model: Translator, split: str, decode: DecodeConfig, say: Say, extent: Extent = WHOLE
    ) -> list[Score]:
        """BLEU, chrF and exact match."""
        pairs, found = list(self.data.splits[split]), dict[int, str]()
        for piece in extent.pieces(len(pairs)):
            prompts = (self._source(model, pairs[number], decode) for number in piece)
            answers = write(model, self.tokenizer, prompts, decode)
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
        self._tested = lambda: (
            {"source": pair.source, "prediction": text, "reference": pair.target} for pair, text in done
        )
        return [replace(score, signature=f"{score.signature}|{search}|split:{split}") for score in scores]

    def _source(self, model: Translator, pair: SentencePair, decode: DecodeConfig) -> Prompt:
        """The prompt of a pair to be scored: unknown words, or a source that is too long and cut, only lower the
        score."""
        room, end = None if model.limit is None else model.limit - 1, self._end(self.reader)
        return self._prompt([*self.reader.encode(pair.source)[:room], end], decode)

    def scoring_seconds(self, model: Translator, decode: DecodeConfig, evaluation: float) -> float:
        """By translating a few sentences, which takes longer than computing their loss."""
        if not (self.has("valid") and self.has("test")):
            return 0.0
        some = list(islice(self.data.splits["valid"], decode.batch))
        prompts = [self._short(model, pair, decode, more=1) for pair in some]
        began = time.monotonic()
        answers = len(list(write(model, self.tokenizer, prompts, decode)))
        return (time.monotonic() - began) / max(1, answers) * self.data.splits["test"].examples

    def samples(self, model: Translator, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        pairs = self.sampled(split)[:most]
        answers = write(
            model,
            self.tokenizer,
            [self._short(model, pair, decode, more=8) for pair in pairs],
            replace(decode, n_best=1, batch=most),
        )
        return [Sample(pair.source, answer.text, pair.target) for pair, answer in zip(pairs, answers)]

    def _short(self, model: Translator, pair: SentencePair, decode: DecodeConfig, more: int) -> Prompt:
        """The prompt of a pair whose answer ends at most so many tokens after the reference does: a model that has
        hardly learned anything does not end by itself."""
        prompt = self._source(model, pair, decode)
        return replace(prompt, max_new=min(prompt.max_new, len(self.tokenizer.encode(pair.target)) + more))

    def prompt(self, model: Translator, text: str, decode: DecodeConfig) -> Prompt:
        ids = [*check_input(text, self.reader, "sentence"), self._end(self.reader)]
        check_length(model, len(ids), "sentence")
        return self._prompt(ids, decode)

    def _prompt(self, ids: list[int], decode: DecodeConfig) -> Prompt:
        # A limit for a translation that does not end: three times the source is more than any language needs.
        most = decode.times_source * len(ids) + 16 if decode.times_source else decode.max_new
        return Prompt(ids, min(decode.max_new, most))

    @torch.inference_mode()
    def table(self, model: Translator, text: str, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        answer = next(self.predict(model, [text], decode))
        written = [self._begin, *answer.tokens][: model.limit]  # learned positions may end before the answer
        source = self.prompt(model, text, decode).ids
        return guesses(model(*self._forced(model, source, written))[0], written, self.tokenizer, most)

    @torch.inference_mode()
    def align(self, model: Translator, text: str, tokens: list[int]) -> Alignment:
        """The attention of the decoder to the source while it wrote these tokens, as `model.alignment` defines it."""
        source = [*self.reader.encode(text), self._end(self.reader)]
        written = [self._begin, *tokens][: model.limit]
        weights, shown = model.alignment(*self._forced(model, source, written))  # (1, T, S)
        ends = [*tokens, self._end(self.tokenizer)][: len(written)]
        return Alignment(_labels(self.reader, source), _labels(self.tokenizer, ends), weights[0].float().cpu(), shown)

    @torch.inference_mode()
    def attention(self, model: Translator, text: str, decode: DecodeConfig) -> dict[str, Alignment]:
        source, trace = self.prompt(model, text, decode).ids, Trace("weights")
        answer = next(self.predict(model, [text], decode))
        written = [self._begin, *answer.tokens][: model.limit]
        model(*self._forced(model, source, written), trace=trace)
        ends = [*answer.tokens, self._end(self.tokenizer)][: len(written)]
        read, inputs, outputs = (
            _labels(tokenizer, ids)
            for tokenizer, ids in ((self.reader, source), (self.tokenizer, written), (self.tokenizer, ends))
        )

        def tokens(place: str) -> tuple[list[str], list[str]]:
            if place.startswith("encoder"):
                return read, read
            return (read, outputs) if place.endswith("cross") else (inputs, inputs)

        return traced(trace, tokens)

    def _forced(self, model: Translator, source: list[int], written: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """A batch of one source and the target written so far, as arguments of the model."""
        return (
            torch.tensor([source], device=model.device),
            torch.tensor([len(source)], device=model.device),
            torch.tensor([written], device=model.device),
        )


def _labels(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Tokens as labels of a picture; whole words without their spaces."""
    tokens = [tokenizer.token(i) for i in ids]
    return [token.strip() or token for token in tokens] if tokenizer.kind == "word" else tokens
