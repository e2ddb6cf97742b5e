"""Predictor: a loaded run at work. It checks an input, answers it, and shows what the model computes for it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from allyouneed.batch import Tensors
from allyouneed.config import DecodeConfig
from allyouneed.decode import Request
from allyouneed.decode.beam import BeamSearch
from allyouneed.errors import UserError
from allyouneed.nn.recurrent import GATES
from allyouneed.nn.trace import KINDS, Trace, kind_of
from allyouneed.predict.answers import Answer, Drafts, Outcome, Prompt, flagged, request_for, write
from allyouneed.predict.engine import Engine, Show
from allyouneed.predict.inputs import unknown_words
from allyouneed.predict.processor import Processor, store_by_columns
from allyouneed.predict.writer import AfterSource, Writer
from allyouneed.recipe import Recipe
from allyouneed.text import Tokenizer
from allyouneed.text.layout import Tokens
from allyouneed.text.word_boundaries import find_words

Names = Callable[[str], tuple[list[str], list[str]]]  # the sources and the targets of the attention at a path


@dataclass(frozen=True)
class Guess:
    """One token, and the predictions of the model at its position, most likely first."""

    token: str
    likely: list[tuple[str, float]]


class Without(NamedTuple):
    """Heads that are switched off, by the path of their attention, and what a trace of the same input has found with
    all heads: the blocks below the first of them give the same again."""

    off: Mapping[str, list[int]] = {}
    found: Mapping[str, Traced] = {}

    def apply(self, trace: Trace) -> None:
        trace.off |= self.off
        for name, one in self.found.items():
            path, _, kind = name.rpartition(".")
            if path in self.off:
                return
            if kind == "layers":
                trace.known[path] = one.value[None]


ALL_HEADS = Without()


class Said(NamedTuple):
    """What a model says somewhere: the probability of each of what has these names."""

    where: str
    p: Tensor
    name: Callable[[int], str]

    def likely(self, most: int) -> list[tuple[str, float, int]]:
        """The likeliest names, with their probabilities and their indices."""
        return [(self.name(i), value, i) for i, value in best_of(self.p, most)]


@dataclass(frozen=True)
class Alignment:
    """How much each target token attended to each source token: weights (T, S), or (H, T, S), one table per head."""

    source: list[str]
    target: list[str]
    weights: Tensor
    shown: str = ""  # which attention this is
    answer: str = ""  # the text of the target, if the model has written it


class Axis(NamedTuple):
    """What an axis of a value counts, and the label of each index; none if these are only numbers."""

    name: str  # tokens, seen, heads, gates, directions, classes, width, …
    labels: list[str]


class Traced(NamedTuple):
    """A value that a model has computed for one input."""

    value: Tensor
    axes: list[Axis]


class Predictor(ABC):
    """A processor and a model. `read` prepares an input once; the other methods take what it returns."""

    asks: str = "a sentence"  # what to type at a prompt
    table_heading: ClassVar[str] = "likely next (· is a space)"
    makes_image: ClassVar[bool] = False  # an answer is an image, which has to be written to a file
    writes_images: ClassVar[bool] = False  # an answer is an image, or has one beside its text
    full_precision: ClassVar[bool] = False  # it always computes in fp32
    pooling: str = "mean"  # how one vector of a text is made of those of its tokens: see `Embedding`
    pools_specials: bool = False  # the special tokens count in it
    no_vectors: ClassVar[str] = ""  # why there are no vectors of texts, and what there is instead
    processor: Processor
    model: Any

    def __init__(self, processor: Processor, model: Any) -> None:
        self.processor, self.model = processor, model
        self.lock = threading.RLock()  # held while the model computes

    @property
    def recipe(self) -> Recipe:
        return self.processor.recipe

    @property
    def options(self) -> Any:
        return self.processor.options

    @property
    def tokenizer(self) -> Tokenizer:
        return self.processor.tokenizer

    # What an input may be

    def is_single(self, given: Any) -> bool:
        """Whether this is one input, or several of them."""
        return isinstance(given, str)

    def expand(self, text: str) -> list[str]:
        """The inputs that an argument of the command line stands for."""
        return [text]

    def accept(self, given: Any) -> Any:
        """An input that is no text, as `read` takes it: for a tagger the words of one, for others an image."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' reads a text as one string, not as its words")

    def opening(self, text: str) -> str:
        """What is shown before the answer: the text that it continues."""
        return ""

    @abstractmethod
    def read(self, given: Any, decode: DecodeConfig) -> Any:
        """The input of the user as this model reads it; a UserError if it cannot."""

    def size(self, given: Any) -> Hashable:
        """Inputs of one size that were read are computed together without padding; None: each alone."""
        return None

    def unknown(self, given: Any) -> Sequence[str]:
        """The words of an input that was read that are not in the vocabulary, once each, in order; none if the task
        refuses them, or reads no text."""
        return ()

    # Answers

    def answers(self, inputs: Iterable[Any], decode: DecodeConfig, show: Show | None = None) -> Iterator[Outcome]:
        """The answer to each input that was read, or its error, in order. Inputs are taken as they are needed. `show`
        gets the first answer piece by piece. An answer names the unknown words of its input."""
        asked = deque[Any]()

        def taken() -> Iterator[Any]:
            for given in inputs:
                asked.append(given)
                yield given

        for outcome in self._answers(taken(), decode, show):
            yield flagged(outcome, self.unknown(asked.popleft()))

    def _answers(self, inputs: Iterable[Any], decode: DecodeConfig, show: Show | None) -> Iterator[Outcome]:
        source = iter(inputs)
        while several := list(islice(source, 8 * decode.batch)):
            yield from self._each(several, decode)

    def _each(self, inputs: list[Any], decode: DecodeConfig) -> Iterator[Outcome]:
        """If inputs cannot be answered together, each is answered alone, so that an error belongs to its input."""
        found: list[Outcome] = []
        try:
            with self.lock:
                found += self._answer(inputs, decode)
        except Exception as error:
            alone = (one for given in inputs for one in self._each([given], decode))
            found = list(alone) if len(inputs) > 1 else [error]
        yield from found

    @abstractmethod
    def _answer(self, inputs: list[Any], decode: DecodeConfig) -> Iterable[Answer]:
        """The answers to a batch of inputs."""

    def write_images(self, asked: Sequence[tuple[Any, Answer]], out: Path) -> None:
        """Write the images of the answers to these inputs, each with what the user gave, to a file."""
        raise NotImplementedError

    def table(self, given: Any, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The likely predictions of the model at each position, up to `most` of them."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no likely answers to list")

    def says(self, given: Any, decode: DecodeConfig, without: Without = ALL_HEADS) -> list[Said]:
        """What the model says, `without` some heads as in `trace`: of the next word, of the words of each
        [MASK] or of a translation, of labels, or of where an answer begins and ends; nothing of other tasks."""
        return []

    # What is inside

    def align(self, given: Any, decode: DecodeConfig) -> Alignment:
        """The attention of the best answer to the input; only for tasks that have a source."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no source to align with")

    def _run_traced(self, given: Any, decode: DecodeConfig, trace: Trace) -> Names:
        """Run the model on the input and its answer, with a trace; returns the labels of what was read."""
        tensors = self._tensors(given)
        self.model(tensors, trace=trace)
        tokens = self._names(given, tensors)
        return lambda path: (tokens, tokens)

    def _tensors(self, given: Any) -> Tensors:
        """One input as the model takes it; for `_run_traced`."""
        raise NotImplementedError

    def _names(self, given: Any, tensors: Tensors) -> list[str]:
        """What the model reads at each position of an input."""
        return [self.tokenizer.token(id) for id in tensors["ids"][0].tolist()]

    @torch.inference_mode()
    def trace(
        self, given: Any, decode: DecodeConfig, kinds: Sequence[str] = (), without: Without = ALL_HEADS
    ) -> dict[str, Traced]:
        """What the model computes while it reads the input and writes its answer: values of these kinds of a Trace, or
        of all, by the path of their module and their kind: "body.stack.blocks.0.attention.weights". `Without` some
        heads, it reads the answer that it writes with all of them."""
        trace = Trace(*kinds)
        without.apply(trace)
        with self.lock:
            names = self._run_traced(given, decode, trace)
        found = {}
        for name in trace:
            kind = kind_of(name)
            if kind == "beams":
                steps = torch.stack([step[0] for step in trace.recorded[name]]).cpu()
                found[name] = Traced(steps, [Axis("steps", []), Axis("beams", [])][: steps.dim()])
                continue
            seen, tokens = names(name.rpartition(".")[0])
            value, several = trace[name][0].cpu(), {"seen": [seen], "tokens": [tokens], "classes": [self.labels]}
            several["gates"] = [list(names) for names in GATES.values()]
            sizes = zip(KINDS[kind][-value.dim() :], value.shape)
            axes = [Axis(axis, next((s for s in several.get(axis, ()) if len(s) == n), [])) for axis, n in sizes]
            found[name] = Traced(value.float() if value.is_floating_point() else value, axes)
        return found

    def _logits(self, given: Any, decode: DecodeConfig, without: Without) -> Traced:
        return next(iter(self.trace(given, decode, ("logits",), without).values()))

    @property
    def labels(self) -> list[str]:
        """The classes that the logits belong to, if these are not the tokens of a vocabulary."""
        return []

    def attention(self, given: Any, decode: DecodeConfig) -> dict[str, Alignment]:
        """The weights of every head (H, T, S) while the model reads the input and writes its answer, by the path of the
        attention: "body.decoder.blocks.1.cross"."""
        found = self.trace(given, decode, ("weights",))
        if not found:
            raise UserError("this model has no attention to look at")
        return {
            name.removesuffix(".weights"): Alignment(value.axes[2].labels, value.axes[1].labels, value.value)
            for name, value in found.items()
        }

    # Vectors

    def word_spans(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each word of a text."""
        return find_words(text)

    def tokenize_words(self, text: str, spans: Sequence[tuple[int, int]]) -> Tokens:
        """The tokens of a text with words at these spans, as the body reads it."""
        return self.tokenizer.tokenize(text, spans)

    def unknown_among(self, text: str, spans: Sequence[tuple[int, int]], ids: Sequence[int]) -> tuple[str, ...]:
        """The unknown words of a text that `tokenize_words` has read as these ids."""
        return unknown_words(self.tokenizer, (self.tokenizer.prefix + text, ids))


class Writing(Predictor):
    """Answers are written token by token, by the one writer of the run."""

    def __init__(self, processor: Processor, model: Any) -> None:
        super().__init__(processor, model)
        self.writer = Writer(model, self.lock)

    def unknown(self, given: Prompt) -> Sequence[str]:
        return given.unknown

    def make_exact(self) -> None:
        """From now on an answer has the same bits whatever is written beside it: see `Decoder`."""
        store_by_columns(self.model, all=True)
        self.writer.exact = True

    def state_bytes(self, tokens: int) -> int:
        """What is remembered of one row with so many tokens."""
        least, more = self._state_bytes
        return least + more * tokens

    @cached_property
    def _state_bytes(self) -> tuple[int, int]:
        """Of a row without tokens, and of each token."""
        one, two = (sum(t.nbytes for t in self.model.empty(1, size).parts.values()) for size in (16, 32))
        return 2 * one - two, (two - one) // 16

    def request(self, given: Any, decode: DecodeConfig) -> Request:
        """An input that was read, as the writer takes it."""
        return request_for(given, decode, self.tokenizer.eos)

    def drafts(self, given: Any, decode: DecodeConfig, shows: Sequence[Show | None] = ()) -> Drafts:
        """What is written for its request."""
        return Drafts(self.tokenizer, decode, shows)

    def _answers(self, inputs: Iterable[Any], decode: DecodeConfig, show: Show | None) -> Iterator[Outcome]:
        if isinstance(self.model, Engine):
            return self.model.write(self.tokenizer, inputs, decode, show)
        return write(self.writer, self.tokenizer, inputs, decode, show)

    def _answer(self, inputs: list[Any], decode: DecodeConfig) -> Iterable[Answer]:
        return answered(self.answers(inputs, decode))

    @torch.inference_mode()
    def steps(self, given: Any, tokens: Sequence[int]) -> Tensor:
        """The logits (T, V) from which each of these tokens is chosen, one after another, after an input."""
        with self.lock:
            logits: Tensor = self.model.choices(self._hidden(given, tokens))
        return logits.float().cpu()

    def _hidden(self, given: Prompt, tokens: Sequence[int]) -> Tensor:
        """What the head reads (T, D) to choose each of these tokens after an input."""
        raise NotImplementedError

    def write_on(self, given: Any, begun: list[int], decode: DecodeConfig) -> tuple[list[int], str]:
        """The tokens of an answer that begins with these, with the one that ends it, and why it ended."""
        text = self.tokenizer.decode(begun)
        if any(stop in text for stop in decode.stop) or (begun and begun[-1] in {*given.stop, self.tokenizer.eos}):
            return begun, "stop"
        if len(begun) >= given.max_new:
            return begun, "length"
        first = given.ids if self.model.prompted else [self.model.config.bos]
        rest = replace(given, ids=[*first, *begun], max_new=given.max_new - len(begun))
        writer = self.writer if self.model.prompted else Writer(AfterSource(self.model, given.ids), self.lock)
        (found,) = answered(write(writer, self.tokenizer, [rest], decode))
        return [*begun, *found.whole], found.reason

    def _search(self, given: Prompt, decode: DecodeConfig, trace: Trace) -> None:
        """Record the hypotheses of a beam search, if decode.method is beam."""
        if decode.method == "beam" and trace.wants("beams"):
            search = BeamSearch(self.model, 1)
            search.record = trace.record
            search.add(self.request(given, decode))
            while search.busy:
                for event in search.tick():
                    if event.error is not None:
                        raise event.error


def best_of(values: Tensor, most: int) -> list[tuple[int, float]]:
    """The indices of the `most` largest of (N,) values, with these, the largest first."""
    top = values.topk(min(most, len(values)))
    return list(zip(top.indices.tolist(), top.values.tolist()))


def answered(outcomes: Iterable[Outcome]) -> Iterator[Answer]:
    """The answers; the first error is raised."""
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        yield outcome
