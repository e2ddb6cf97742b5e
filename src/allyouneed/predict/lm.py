"""lm: a text is continued, or a question of a chat is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from allyouneed.config import DecodeConfig
from allyouneed.models.base import LanguageModel
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Prompt
from allyouneed.predict.base import ALL_HEADS, Guess, Names, Said, Traced, Without, Writing, best_of
from allyouneed.predict.inputs import check_input, check_length, check_numbers, fill_template, unknown_words
from allyouneed.predict.processor import Processor
from allyouneed.text import Tokenizer


class LMProcessor(Processor):
    file = "writing.json"
    ends: tuple[int, ...] = ()  # tokens besides eos that end an answer
    chat: str = ""  # the template of a model that answers
    named: Mapping[str, str] = {}  # the special tokens of the template: {"eos_token": "</s>"}

    def extras(self) -> dict[str, Any]:
        if not self.ends and not self.chat:
            return {}
        return {"ends": self.ends, "chat": self.chat, "named": dict(self.named)}

    def take(self, extras: dict[str, Any]) -> None:
        self.ends, self.chat = tuple(int(id) for id in extras["ends"]), str(extras["chat"])
        self.named = {str(name): str(token) for name, token in extras["named"].items()}

    @property
    def longest(self) -> int:
        """Tokens per window."""
        return int(self.recipe.model.context)

    def build_model(self) -> LanguageModel:
        model: LanguageModel = super().build_model()
        model.known = len(self.tokenizer)
        if self.kind.BodyClass.spelled and model.device.type != "meta":
            model.spell([self.tokenizer.token(id) for id in range(len(self.tokenizer))])
        return model


class LMPredictor(Writing):
    Processor = LMProcessor
    asks = "the beginning of a text"
    processor: LMProcessor
    model: LanguageModel

    def opening(self, text: str) -> str:
        return "" if self.processor.chat else text

    def read(self, given: str, decode: DecodeConfig) -> Prompt:
        if self.processor.chat and decode.chat:
            return self.read_chat([{"role": "user", "content": given}], decode)
        typed = check_input(given, self.tokenizer, "prompt")
        unknown = unknown_words(self.tokenizer, (given, typed))
        return self.read_ids([*self.tokenizer.template.start, *typed], decode, unknown)

    def read_chat(self, messages: Sequence[Mapping[str, str]], decode: DecodeConfig) -> Prompt:
        """The messages of a chat, {"role": "user", "content": …}, in the run's template."""
        said = "\n".join(message["content"] for message in messages)
        typed = check_input(said, self.tokenizer, "prompt")
        filled = fill_template(self.processor.chat, messages, self.tokenizer, self.processor.named)
        unknown = unknown_words(self.tokenizer, (said, typed))
        return self.read_ids(self.tokenizer.encode_written(filled), decode, unknown)

    def read_ids(self, ids: list[int], decode: DecodeConfig, unknown: Sequence[str] = ()) -> Prompt:
        """The tokens of a prompt, by their ids."""
        check_length(self.model, len(ids), "prompt")
        return Prompt(ids, decode.max_new, frozenset(self.processor.ends), unknown)

    @torch.inference_mode()
    def table(self, given: Prompt, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        return guesses(self._run(given.ids), given.ids, self.tokenizer, most)

    @torch.inference_mode()
    def says(self, given: Prompt, decode: DecodeConfig, without: Without = ALL_HEADS) -> list[Said]:
        trace = Trace("logits")
        without.apply(trace)
        with self.lock:
            hidden = self.model.ahead(self._ids(given.ids), trace=trace.at(self.model))
            logits = self.model.choices(hidden[:, -1])  # those of all tokens would take long
        p = check_numbers(logits[0].float()).softmax(-1).cpu()
        return [Said(self.tokenizer.token(given.ids[-1]), p, self.tokenizer.token)]

    def _ids(self, ids: list[int]) -> Tensor:
        return torch.tensor([ids], device=self.model.device)

    def _hidden(self, given: Prompt, tokens: Sequence[int]) -> Tensor:
        hidden: Tensor = self.model.ahead(self._ids([*given.ids, *tokens[:-1]]))[0, len(given.ids) - 1 :]
        return hidden

    def _run(self, ids: list[int], trace: Trace | None = None) -> Tensor:
        with self.lock:
            logits: Tensor = self.model(self._ids(ids), trace=trace)[0]
        return logits

    def _run_traced(self, given: Prompt, decode: DecodeConfig, trace: Trace) -> Names:
        self._search(given, decode, trace)
        self._run(given.ids, trace)
        tokens = [self.tokenizer.token(id) for id in given.ids]
        return lambda path: (tokens, tokens)


def guesses(logits: Tensor, ids: list[int], tokenizer: Tokenizer, most: int) -> list[Guess]:
    """The likely next tokens after each of ids (T), from their logits (T, V)."""
    p = check_numbers(logits[:, : len(tokenizer)].float()).softmax(-1)
    token = tokenizer.token
    return [Guess(token(id), [(token(i), value) for i, value in best_of(row, most)]) for id, row in zip(ids, p)]


def said_of(logits: Traced, tokenizer: Tokenizer) -> list[Said]:
    """What the logits (T, V) of tokens say."""
    p = logits.value[:, : len(tokenizer)].softmax(-1)
    return [Said(token, row, tokenizer.token) for token, row in zip(logits.axes[0].labels, p)]
