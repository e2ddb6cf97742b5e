"""Predictor: what a loaded run is asked for. It checks an input, answers it, and shows how it came to the answer."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.figures import heads
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer, Outcome, write
from allyouneed.predict.processor import Processor
from allyouneed.predict.wordmap import WordMap
from allyouneed.predict.writer import Writer
from allyouneed.recipe import Recipe
from allyouneed.text import Tokenizer
from allyouneed.text.layout import Tokens
from allyouneed.text.words import find_words

Show = Callable[[str], None]
Names = Callable[[str], tuple[list[str], list[str]]]  # the sources and the targets of the attention at a place


@dataclass(frozen=True)
class Guess:
    """One token, and the predictions of the model at its position, most likely first."""

    token: str
    likely: list[tuple[str, float]]


@dataclass(frozen=True)
class Alignment:
    """How much each target token attended to each source token: weights (T, S), or (H, T, S), one table per head."""

    source: list[str]
    target: list[str]
    weights: Tensor
    shown: str = ""  # which attention this is
    answer: str = ""  # the text of the target, if the model has written it


class Predictor(ABC):
    """A processor and a model. An input is read once, by `read`; every other method takes what that returns."""

    asks: str = "a sentence"  # what to type at a prompt
    expects: ClassVar[str] = "likely next (· is a space)"  # the heading of `table`
    full_precision: ClassVar[bool] = False  # it always computes in fp32
    pooling: str = "mean"  # how one vector of a text is made of those of its tokens: see `Embedding`
    pools_specials: bool = False  # the special tokens count in it
    no_vectors: ClassVar[str] = ""  # why there are no vectors of texts, and what there is instead
    processor: Any
    model: Any

    def __init__(self, processor: Processor, model: Any) -> None:
        self.processor, self.model = processor, model
        self.lock = threading.RLock()  # held while the model computes

    @property
    def recipe(self) -> Recipe:
        recipe: Recipe = self.processor.recipe
        return recipe

    @property
    def options(self) -> Any:
        return self.processor.options

    @property
    def tokenizer(self) -> Tokenizer:
        tokenizer: Tokenizer = self.processor.tokenizer
        return tokenizer

    # What an input may be

    def single(self, given: Any) -> bool:
        """Whether this is one input, or several of them."""
        return isinstance(given, str)

    def listed(self, text: str) -> list[str]:
        """The inputs that an argument of the command line stands for."""
        return [text]

    def joined(self, words: Sequence[str]) -> str:
        """A text that is given as its words; only for tasks that read word by word."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' reads a text as one string, not as its words")

    def opening(self, text: str) -> str:
        """What is shown before the answer: the text that it continues."""
        return ""

    @abstractmethod
    def read(self, given: Any, decode: DecodeConfig) -> Any:
        """The input of the user as this model reads it; a UserError if it cannot."""

    def read_whole(self, given: Any, decode: DecodeConfig) -> Any:
        """The same for `table` and `attention`, for which nothing needs to be asked."""
        return self.read(given, decode)

    # Answers

    def answers(self, inputs: Iterable[Any], decode: DecodeConfig, show: Show | None = None) -> Iterator[Outcome]:
        """The answer to each input that was read, or its error, in order. Inputs are taken as they are needed. `show`
        gets the first answer piece by piece."""
        source = iter(inputs)
        while several := list(islice(source, self.together(decode))):
            yield from self._each(several, decode)

    def together(self, decode: DecodeConfig) -> int:
        """How many inputs are answered at a time."""
        return 8 * decode.batch

    def _each(self, inputs: list[Any], decode: DecodeConfig) -> Iterator[Outcome]:
        """If several cannot be answered together, each alone: an error belongs to its input."""
        found: list[Outcome] = []
        try:
            with self.lock:
                found += self.answer(inputs, decode)
        except Exception as error:
            alone = (one for given in inputs for one in self._each([given], decode))
            found = list(alone) if len(inputs) > 1 else [error]
        yield from found

    @abstractmethod
    def answer(self, inputs: list[Any], decode: DecodeConfig) -> Iterable[Answer]:
        """The answers to inputs that are read together."""

    def table(self, given: Any, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The likely predictions of the model at each position, up to `most` of them."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no likely answers to list")

    # What is inside

    def align(self, given: Any, decode: DecodeConfig) -> Alignment:
        """The attention of the best answer to the input; only for tasks that have a source."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no source to align with")

    def look(self, given: Any, decode: DecodeConfig, trace: Trace) -> Names:
        """Let the model read the input and write its answer, with a trace; returns the names of what was read."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no attention to look at")

    @torch.inference_mode()
    def attention(self, given: Any, decode: DecodeConfig) -> dict[str, Alignment]:
        """The weights of every head (H, T, S) while the model reads the input and writes its answer, by their place in
        the model: "decoder.1.cross"."""
        trace = Trace("weights")
        with self.lock:
            names = self.look(given, decode, trace)
        if not trace.recorded:
            raise UserError("this model has no attention to look at")
        places = [name.removesuffix(".weights") for name in trace]
        return {place: Alignment(*names(place), trace[f"{place}.weights"][0].float().cpu()) for place in places}

    def draw_heads(self, found: dict[str, Alignment], given: Any, place: str, out: Path) -> str:
        """Draw one heat map per head at a place of the `attention` to this input; at the last one if the place is "".
        Returns what was drawn."""
        place = place or list(found)[-1]
        chosen = found[place]
        heads(chosen.weights.numpy(), chosen.source, chosen.target, out, title=place)
        return place

    # Vectors

    def places(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each word of a text."""
        return find_words(text)

    def cut(self, text: str, places: Sequence[tuple[int, int]]) -> Tokens:
        """The tokens of a text with words at these places, as the body reads it."""
        return self.tokenizer.tokenize(text, places)

    def map_words(self, words: Sequence[str]) -> WordMap:
        """These words, or usual ones if there are none, with their vectors; only for tasks that have word vectors."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no word vectors to map")


class Writing(Predictor):
    """Answers are written token by token, by the one writer of the run."""

    def __init__(self, processor: Processor, model: Any) -> None:
        super().__init__(processor, model)
        self.writer = Writer(model, self.lock)

    def answers(self, inputs: Iterable[Any], decode: DecodeConfig, show: Show | None = None) -> Iterator[Outcome]:
        return write(self.writer, self.tokenizer, inputs, decode, show)

    def answer(self, inputs: list[Any], decode: DecodeConfig) -> Iterable[Answer]:
        return answered(self.answers(inputs, decode))


class Painting(ABC):
    """Answers with pictures."""

    @abstractmethod
    def paint(self, asked: Sequence[tuple[Any, Answer]], out: Path) -> None:
        """Write the pictures of the answers to these inputs, each with what the user gave, to a file."""


def answered(outcomes: Iterable[Outcome]) -> Iterator[Answer]:
    """The answers; the first error is raised."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome
