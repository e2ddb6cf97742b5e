"""Engine: a run's model in another library. It stands where the model stands, and gives answers and nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby, islice
from typing import Any, ClassVar

import torch

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError, option_name
from allyouneed.predict.answers import Answer, Draft, Outcome, Prompt
from allyouneed.text import Tokenizer

Show = Callable[[str], None]
AHEAD = 1024  # prompts that are read at once, so that those of a batch have about one length


class Engine:
    """What a Predictor calls instead of a model. `outline` is the model without its weights."""

    name: ClassVar[str]  # of the library
    device = torch.device("cpu")  # of the tensors that it takes and gives

    def __init__(self, outline: Any) -> None:
        self.outline, self.limit = outline, outline.limit

    def __getattr__(self, name: str) -> Any:
        """Whatever a model has besides."""
        raise AttributeError(name) if name.startswith("_") else self.lacks()

    def __call__(self, *tensors: Any, trace: Any = None) -> Any:
        """What the model gives for these tensors."""
        raise self.lacks()

    def lacks(self) -> UserError:
        """What is said of everything but answers."""
        return UserError(
            f"{self.name} gives answers, and not what the model computes on the way to them: load the run without "
            f"{option_name('--engine')} for that"
        )


class WritingEngine(Engine, ABC):
    """An engine that writes tokens: whole batches, from the first token to the last."""

    def __init__(self, outline: Any) -> None:
        super().__init__(outline)
        self.prompted = outline.prompted

    def write(
        self, tokenizer: Tokenizer, prompts: Iterable[Prompt], decode: DecodeConfig, show: Show | None = None
    ) -> Iterator[Outcome]:
        """The answer to each prompt, or its error, in order. `show` gets the first one while it is written."""
        self.check(decode)
        source = iter(prompts)
        while several := list(islice(source, max(AHEAD, 8 * decode.batch))):
            found: dict[int, Outcome] = {}
            for batch in self._batches(several, decode.batch, self.alike(decode)):
                first = show if batch[0] == 0 else None
                answers = self._together([several[i] for i in batch], tokenizer, decode, first)
                found |= zip(batch, answers, strict=True)
            yield from (found[i] for i in range(len(several)))
            show = None

    @abstractmethod
    def check(self, decode: DecodeConfig) -> None:
        """Raise a UserError for settings that the library does not have."""

    def alike(self, decode: DecodeConfig) -> bool:
        """Whether all prompts of a batch must have one length and one limit."""
        return True

    @staticmethod
    def _batches(prompts: Sequence[Prompt], most: int, alike: bool) -> Iterator[list[int]]:
        """The numbers of the prompts, the longest first, in batches of at most so many; ascending in each batch."""

        def size(i: int) -> tuple[int, int]:
            return len(prompts[i].ids), prompts[i].max_new

        order = sorted(range(len(prompts)), key=size, reverse=True)
        for _, group in groupby(order, lambda i: size(i) if alike else None):
            while batch := sorted(islice(group, most)):
                yield batch

    def _together(
        self, prompts: Sequence[Prompt], tokenizer: Tokenizer, decode: DecodeConfig, show: Show | None
    ) -> list[Outcome]:
        """If prompts cannot be answered together, each is answered alone, so that an error belongs to its prompt."""
        try:
            return [*self.answers([self.fitted(prompt) for prompt in prompts], tokenizer, decode, show)]
        except Exception as error:
            if len(prompts) == 1:
                return [error]
            return [one for prompt in prompts for one in self._together([prompt], tokenizer, decode, None)]

    def fitted(self, prompt: Prompt) -> Prompt:
        """The prompt, with a limit that the model can reach."""
        if self.limit is None:
            return prompt
        size = len(prompt.ids) if self.prompted else 1
        return replace(prompt, max_new=min(prompt.max_new, self.limit - size + 1))

    @abstractmethod
    def answers(
        self, prompts: Sequence[Prompt], tokenizer: Tokenizer, decode: DecodeConfig, show: Show | None
    ) -> Sequence[Answer]:
        """The answers to a batch; `show` gets the first one while it is written."""

    @staticmethod
    def drafts(count: int, tokenizer: Tokenizer, decode: DecodeConfig, show: Show | None) -> list[Draft]:
        """Answers to be written."""
        return [Draft(tokenizer, decode.stop, None if i else show) for i in range(count)]
