"""translate: a sentence of one language into another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allyouneed.config import DecodeConfig
from allyouneed.models.base import Translator
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer, Prompt
from allyouneed.predict.base import ALL_HEADS, Alignment, Guess, Names, Said, Without, Writing
from allyouneed.predict.inputs import check_input, check_length, unknown_words
from allyouneed.predict.lm import guesses, said_of
from allyouneed.predict.processor import Processor, rows_for
from allyouneed.text import Tokenizer


class TranslateProcessor(Processor):
    @property
    def reader(self) -> Tokenizer:
        """The tokenizer of the source."""
        return self.tokenizers["tokenizer.json"]

    @property
    def begin_id(self) -> int:
        """The first token of every target."""
        return self.tokenizer.need(self.options.start, "to begin a translation")

    def end_id(self, tokenizer: Tokenizer) -> int:
        return tokenizer.need("eos", "to end a sentence")

    def model_config(self) -> Any:
        model = self.recipe.model
        return replace(
            model,
            vocab=rows_for(self.reader, model.vocab, "vocab"),
            target_vocab=rows_for(self.tokenizer, model.target_vocab, "target_vocab"),
            bos=self.begin_id,
        )

    def build_model(self) -> Translator:
        model: Translator = super().build_model()
        model.known = len(self.tokenizer)
        model.barred = self.begin_id if self.options.start == "pad" else -1
        return model


class Written(NamedTuple):
    """The best answer, with the inputs and the outputs of the decoder at each step."""

    answer: Answer
    inputs: list[int]
    outputs: list[int]
    batch: list[Tensor]  # the source, its length and the inputs, as arguments of the model


class TranslatePredictor(Writing):
    Processor = TranslateProcessor
    no_vectors = "it translates; train embed/bert on the same pairs"
    processor: TranslateProcessor
    model: Translator

    def read(self, given: str, decode: DecodeConfig) -> Prompt:
        reader = self.processor.reader
        typed = check_input(given, reader, "sentence")
        ids = [*typed, self.processor.end_id(reader)]
        check_length(self.model, len(ids), "sentence")
        return replace(self._prompt(ids, decode), unknown=unknown_words(reader, (given, typed)))

    def read_cut(self, given: str, decode: DecodeConfig) -> Prompt:
        """For scores: unknown words, or a source that is too long and cut, only lower them."""
        room, reader = None if self.model.limit is None else self.model.limit - 1, self.processor.reader
        return self._prompt([*reader.encode(given)[:room], self.processor.end_id(reader)], decode)

    def _prompt(self, ids: list[int], decode: DecodeConfig) -> Prompt:
        # A limit for a translation that does not end: three times the source is more than any language needs.
        most = decode.times_source * len(ids) + 16 if decode.times_source else decode.max_new
        return Prompt(ids, min(decode.max_new, most))

    def _write(self, given: Prompt, decode: DecodeConfig) -> Written:
        (answer,) = self._answer([given], decode)
        # Learned positions may end before the answer.
        inputs = [self.processor.begin_id, *answer.tokens][: self.model.limit]
        outputs = [*answer.tokens, self.processor.end_id(self.tokenizer)][: len(inputs)]
        arguments = [given.ids], [len(given.ids)], [inputs]
        batch = [torch.tensor(values, device=self.model.device) for values in arguments]
        return Written(answer, inputs, outputs, batch)

    @torch.inference_mode()
    def table(self, given: Prompt, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        with self.lock:
            written = self._write(given, decode)
            logits = self.model(*written.batch)[0]
        return guesses(logits, written.inputs, self.tokenizer, most)

    def says(self, given: Prompt, decode: DecodeConfig, without: Without = ALL_HEADS) -> list[Said]:
        return said_of(self._logits(given, decode, without), self.tokenizer)

    @torch.inference_mode()
    def align(self, given: Prompt, decode: DecodeConfig) -> Alignment:
        """The attention of the decoder to the source while it wrote its answer, as `model.alignment` defines it."""
        with self.lock:
            written = self._write(given, decode)
            weights, shown = self.model.alignment(*written.batch)  # (1, T, S)
        names = _labels(self.processor.reader, given.ids), _labels(self.tokenizer, written.outputs)
        return Alignment(*names, weights[0].float().cpu(), shown, written.answer.text)

    def _hidden(self, given: Prompt, tokens: Sequence[int]) -> Tensor:
        arguments = [given.ids], [len(given.ids)], [[self.processor.begin_id, *tokens[:-1]]]
        hidden: Tensor = self.model.body(*(torch.tensor(values, device=self.model.device) for values in arguments))[0]
        return hidden

    def _run_traced(self, given: Prompt, decode: DecodeConfig, trace: Trace) -> Names:
        self._search(given, decode, trace)
        written = self._write(given, decode)
        self.model(*written.batch, trace=trace)
        source = _labels(self.processor.reader, given.ids)
        inputs, outputs = (_labels(self.tokenizer, ids) for ids in (written.inputs, written.outputs))

        def names(path: str) -> tuple[list[str], list[str]]:
            if path.startswith(("body.encoder", "body.source")):
                return source, source
            return (source, outputs) if path.endswith(("cross", "score")) else (inputs, inputs)

        return names


def _labels(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Tokens as labels of an image; whole words without their spaces."""
    tokens = [tokenizer.token(i) for i in ids]
    return [token.strip() or token for token in tokens] if tokenizer.kind == "word" else tokens
