"""translate: a sentence of one language into another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from allyouneed.config import DecodeConfig
from allyouneed.models.base import Translator
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Prompt
from allyouneed.predict.base import Alignment, Guess, Names, Writing
from allyouneed.predict.inputs import check_input, check_length
from allyouneed.predict.lm import guesses
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
        model.body.freeze(self.recipe.model.freeze)
        return model


class TranslatePredictor(Writing):
    Processor = TranslateProcessor
    no_vectors = "it translates; train embed/bert on the same pairs"
    processor: TranslateProcessor
    model: Translator

    def read(self, given: str, decode: DecodeConfig) -> Prompt:
        ids = [*check_input(given, self.processor.reader, "sentence"), self._end(self.processor.reader)]
        check_length(self.model, len(ids), "sentence")
        return self._prompt(ids, decode, given)

    def read_cut(self, given: str, decode: DecodeConfig) -> Prompt:
        """For scores: unknown words, or a source that is too long and cut, only lower them."""
        room = None if self.model.limit is None else self.model.limit - 1
        ids = self.processor.reader.encode(given)[:room]
        return self._prompt([*ids, self._end(self.processor.reader)], decode, given)

    def _prompt(self, ids: list[int], decode: DecodeConfig, given: str) -> Prompt:
        # A limit for a translation that does not end: three times the source is more than any language needs.
        most = decode.times_source * len(ids) + 16 if decode.times_source else decode.max_new
        return Prompt(ids, min(decode.max_new, most), text=given)

    def _end(self, tokenizer: Tokenizer) -> int:
        return self.processor.end_id(tokenizer)

    def _written(self, given: Prompt, decode: DecodeConfig) -> list[int]:
        """The tokens of the best answer."""
        (answer,) = self._answer([given], decode)
        return answer.tokens

    def _inputs(self, tokens: list[int]) -> list[int]:
        """What the decoder reads while it writes these tokens; learned positions may end before the answer."""
        return [self.processor.begin_id, *tokens][: self.model.limit]

    def _forced(self, source: list[int], written: list[int]) -> tuple[Tensor, Tensor, Tensor]:
        """A batch of one source and the target written so far, as arguments of the model."""
        device = self.model.device
        lengths = torch.tensor([len(source)], device=device)
        return torch.tensor([source], device=device), lengths, torch.tensor([written], device=device)

    @torch.inference_mode()
    def table(self, given: Prompt, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        with self.lock:
            inputs = self._inputs(self._written(given, decode))
            logits = self.model(*self._forced(given.ids, inputs))[0]
        return guesses(logits, inputs, self.tokenizer, most)

    @torch.inference_mode()
    def align(self, given: Prompt, decode: DecodeConfig) -> Alignment:
        """The attention of the decoder to the source while it wrote its answer, as `model.alignment` defines it."""
        with self.lock:
            (answer,) = self._answer([given], decode)
            inputs = self._inputs(answer.tokens)
            weights, shown = self.model.alignment(*self._forced(given.ids, inputs))  # (1, T, S)
        ends = [*answer.tokens, self._end(self.tokenizer)][: len(inputs)]
        names = _labels(self.processor.reader, given.ids), _labels(self.tokenizer, ends)
        return Alignment(*names, weights[0].float().cpu(), shown, answer.text)

    def _look(self, given: Prompt, decode: DecodeConfig, trace: Trace) -> Names:
        self._search(given, decode, trace)
        tokens = self._written(given, decode)
        written = self._inputs(tokens)
        self.model(*self._forced(given.ids, written), trace=trace)
        ends = [*tokens, self._end(self.tokenizer)][: len(written)]
        read = _labels(self.processor.reader, given.ids)
        inputs, outputs = _labels(self.tokenizer, written), _labels(self.tokenizer, ends)

        def names(place: str) -> tuple[list[str], list[str]]:
            if place.startswith(("body.encoder", "body.source")):
                return read, read
            return (read, outputs) if place.endswith(("cross", "score")) else (inputs, inputs)

        return names


def _labels(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """Tokens as labels of a picture; whole words without their spaces."""
    tokens = [tokenizer.token(i) for i in ids]
    return [token.strip() or token for token in tokens] if tokenizer.kind == "word" else tokens
