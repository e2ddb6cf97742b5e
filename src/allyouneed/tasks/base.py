"""Task: what every kind of run shares. A task knows its data, its losses, its scores and how it answers."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import numpy as np
from torch import Tensor

from allyouneed import catalog
from allyouneed.config import DecodeConfig
from allyouneed.data.batches.base import Batch, Examples
from allyouneed.data.opening import read_data
from allyouneed.data.report import Lengths, Report, describe
from allyouneed.data.sources import Dataset, Source
from allyouneed.data.store import Ragged, TokenKey, tokenize_rows, unknown_part
from allyouneed.errors import UserError, option_name, shortened
from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.predict.base import Writing
from allyouneed.predict.inputs import BETWEEN
from allyouneed.predict.processor import Processor
from allyouneed.recipe import Recipe
from allyouneed.terminal import Say
from allyouneed.text import Tokenizer

SEED = 7  # of the random order in which examples are scored
FIRST, LEAST = 16, 4  # examples of the first piece, which is always scored, and of the smallest other one
PART = 0.25  # of the time that is left, for the next piece: the machine may become slower


@dataclass(frozen=True)
class TestBudget:
    """At most `limit` examples or windows (0: all). `until`: when to end, a time.monotonic()."""

    limit: int = 0
    until: float = math.inf

    def over(self) -> bool:
        return time.monotonic() >= self.until

    def pieces(self, total: int) -> Iterator[np.ndarray]:
        """The numbers of the examples to score: all in one piece or, if there is a limit or an end, in a random order
        that is always the same. The pace of the pieces so far tells how many still fit."""
        if self == WHOLE:
            yield np.arange(total)
            return
        order, at = np.random.default_rng(SEED).permutation(total)[: self.limit or total], 0
        size = FIRST if self.until < math.inf else len(order)
        while at < len(order) and (size >= LEAST or not at):
            began = time.monotonic()
            piece = order[at : at + size]
            yield np.sort(piece)
            now, at = time.monotonic(), at + len(piece)
            each = max(1e-9, now - began) / len(piece)
            size = min(2 * len(piece), int(PART * max(0.0, min(self.until - now, 1e9)) / each))


WHOLE = TestBudget()


MOST = 3  # samples of a split
AMONG = 1000  # they are taken from so many examples at its beginning
BRIEF = 64  # new tokens of a sample: a model that has hardly learned anything does not end by itself
WIDTH = 100  # characters of each text
LINE = 120  # characters; a longer sample takes two lines


@dataclass(frozen=True)
class Sample:
    """What the model read, its answer, and the reference; the text is empty if the answer repeats it."""

    text: str
    answer: str
    reference: str | None = None

    def to_lines(self) -> list[str]:
        """For the terminal: one line, or two."""
        text, answer = shortened(self.text.strip(), WIDTH), shortened(self.answer.strip(), WIDTH) or "(nothing)"
        reference = f" (reference: {shortened(self.reference.strip(), WIDTH)})" if self.reference is not None else ""
        first = f"  sample: {text} → " if text else "  sample: "
        if len(first + answer + reference) <= LINE:
            return [first + answer + reference]
        return [f"  sample: {text}", f"    → {answer}{reference}"] if text else [first + answer, f"   {reference}"]


def brief(decode: DecodeConfig) -> DecodeConfig:
    """For answers that cost little."""
    return replace(decode, n_best=1, max_new=min(decode.max_new, BRIEF))


def sample_indices(total: int) -> list[int]:
    """The numbers of the examples that are shown, spread over the beginning of a split."""
    among = min(total, AMONG)
    return sorted({(number + 1) * among // (MOST + 1) for number in range(MOST)} - {among})


T = TypeVar("T", bound="Task[Any]")
M = TypeVar("M", bound=Model)
V = TypeVar("V")
Pieces = Iterator[np.ndarray]  # numbers of examples
Answers = Iterable[tuple[int, Any]]  # numbers of examples, each with the answer to it
Losses = dict[str, Tensor]  # the sum of each named loss over a batch
Carry = dict[str, Tensor]  # the recurrent state that one batch passes to the next


class Moment(NamedTuple):
    """The current step of a training, and the part of the schedules done before it, as of teacher forcing."""

    step: int
    part: float


def once(method: Callable[[T, str], V]) -> Callable[[T, str], V]:
    """Cache the result of a method per split, in the task."""

    @wraps(method)
    def cached(self: T, split: str) -> V:
        key = method.__name__, split
        if key not in self.cache:
            self.cache[key] = method(self, split)
        return cast(V, self.cache[key])

    return cached


class Task(Processor, ABC, Generic[M]):
    """What a run learns, made from a recipe: a Processor that has data. `prepare` reads the data; `read_parts` loads
    the parts of a saved run."""

    Options: ClassVar[type]
    shape: ClassVar[str]  # of the data
    unit: ClassVar[str] = "token"  # what the losses count
    weights: ClassVar[dict[str, float]]  # of the named losses
    eval_share: ClassVar[float] = 0.05  # of the training time, at most, for evaluations with train.eval_every = 0
    eval_cost: ClassVar[float] = 1 / 3  # time to evaluate a batch, as a part of that to learn it
    length_unit: str = "tokens"  # of `lengths`
    item_name: ClassVar[str] = "examples"  # what a test scores one by one
    predicts: ClassVar[bool] = False  # a test has an answer to each example: see `predictions`
    # The best weights have the lowest loss, that is `loss` or one by its name, `codes loss`; or the highest score.
    chooses_by: ClassVar[str] = "loss"

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.source: Source | None = None
        self.cache: dict[tuple[str, str], Any] = {}  # by `once`
        self.covered = 0  # examples, or windows, that the last test has scored

    def predictor(self, model: M) -> Any:
        """What answers with this model: the class that a loaded run of this kind has."""
        return catalog.predictor(self.recipe.task_kind)(self, model)

    @property
    def chooses_by_loss(self) -> bool:
        return self.chooses_by.endswith("loss")

    @cached_property
    def data(self) -> Dataset:
        """The data set of the recipe: a split of `source`, which is read at first use."""
        self.source = self.source or read_data(self.recipe.data, self.shape)
        return self.source.split(self.recipe.data)

    def origin(self, split: str) -> str:
        """The name of the data of a split: a data set, or the files, without their folders."""
        data = self.recipe.data
        files = {"valid": data.valid_path, "test": data.test_path}.get(split) or data.path
        return " ".join(Path(path).name for path in files) or self.data.name

    def on(self, recipe: Recipe) -> Task:
        """The same task on the data of this recipe."""
        other = type(self)(recipe)
        other.read_parts(self.parts())
        return other

    def has(self, split: str) -> bool:
        return split in self.data.splits

    def token_key(self, split: str, side: str, prefix: str = "") -> TokenKey:
        """The cache key of the tokens of one side of a split."""
        return TokenKey(self.data.fingerprint, split, side, prefix)

    def tokenize(self, split: str, side: str, prefix: str = "", tokenizer: Tokenizer | None = None) -> Ragged:
        """The tokens of one text of each example, after a prefix."""
        texts, key = self.data.splits[split].texts(side), self.token_key(split, side, prefix)
        return tokenize_rows(texts, tokenizer or self.tokenizer, key)

    @property
    def test_tokens(self) -> int:
        """The most tokens of a batch in a test."""
        return max(self.recipe.train.batch_tokens, 4096)

    def check(self) -> None:
        """Raise a UserError for settings that are wrong or contradict each other; called before any data is read."""
        recipe = self.recipe
        Tokenizer.check(recipe.text)
        if issubclass(catalog.predictor(recipe.task_kind), Writing):
            recipe.decode.check_writing()
        self.kind.check(recipe.model, recipe.task_kind)
        if not self.kind.body_fields() and recipe.train.layer_decay != 1:
            raise UserError(
                f"train.layer_decay = {recipe.train.layer_decay:g}: this model has no layers; leave it at 1"
            )
        if self.kind.body_fields() and recipe.model.freeze and not recipe.train.init:
            raise UserError(
                f"model.freeze = {recipe.model.freeze} would freeze a body that has learned nothing: start from a run "
                f"with {option_name('--init')}, or leave it out"
            )

    def prepare(self, say: Say) -> Report:
        """Read the data, train the tokenizers that are not given, tokenize, and say what the data holds."""
        for line in self.data.understood:  # before tokenizing, which may take long
            say(line)
        if not self.tokenizers:
            self.tokenizers = self.make_tokenizers()
        report = self.report()
        for line in [*report.to_lines()[len(self.data.understood) :], ""]:
            say(line)
        return report

    @property
    def unknown_advice(self) -> str:
        """What to try if many tokens of the data are unknown; nothing, if the vocabulary follows from the data."""
        given = self.recipe.given
        if self.recipe.train.init:
            return "start from a run whose tokenizer knows these texts"
        if self.recipe.text.path:
            return "try another tokenizer in text.path"
        follows = given is not None and not any(key.startswith("text.") for key in given)
        return "" if follows else "try text.kind=bpe, which knows every text"

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        """Load the tokenizer that the recipe names, or train one on the texts of the training data; by its file."""
        text = self.recipe.text
        made = Tokenizer.load(text.path) if text.path else Tokenizer.train(self.training_texts(), text)
        return {"tokenizer.json": made}

    def training_texts(self) -> Iterable[str]:
        """What a tokenizer is trained on."""
        return self.data.splits["train"]

    @abstractmethod
    def examples(self, split: str) -> Examples:
        """The tokenized examples of a split, to be batched."""

    def rows(self, split: str) -> Sequence[Ragged]:
        """The tokens of a split: one row per example or document, and two sides if an example is two texts."""
        raise NotImplementedError

    def check_examples(self, split: str, count: int, least: int = 1) -> None:
        """Raise a UserError if a split has too few examples."""
        if count < least:
            raise UserError(
                f"the {split} split has {count} examples; at least {least} are needed: give more data or another "
                f"data.{split}_part"
            )

    def check_rows(self, split: str, sides: Sequence[Ragged], least: int = 1) -> None:
        """The same, and for a text without tokens."""
        self.check_examples(split, len(sides[0]), least)
        if not all(side.lengths.all() for side in sides):
            raise UserError(f"the {split} split has texts that the tokenizer gives no tokens: use another text.path")

    def lengths(self, split: str) -> Lengths | tuple[Lengths, ...]:
        """Tokens per example or, for pairs, per source and per target; () if examples have no length."""
        return tuple(side.lengths for side in self.rows(split))

    def classes(self, split: str) -> Mapping[str, int] | None:
        """How often each class occurs in a split; None if there are no classes."""
        return None

    def unknown_parts(self, split: str) -> list[float | None]:
        """The fraction of unknown tokens: of all sides together, or of each if they have lengths of their own."""
        sides = self.rows(split)
        apart = [[side] for side in sides] if isinstance(self.lengths(split), tuple) else [sides]
        return [unknown_part(self.tokenizer, some) for some in apart]

    @property
    def cut(self) -> int | None:
        """Longer examples are cut."""
        return None

    def study(self) -> None:
        """Take from the training data what the run needs besides tokenizers, and check all of the data."""

    def notes(self) -> Iterable[str]:
        """What there is to say of the data besides numbers."""
        return []

    def report(self) -> Report:
        """Sizes, lengths, duplicates and classes of the data."""
        self.study()
        lengths = {split: self.lengths(split) for split in self.data.splits}
        unknown = {split: self.unknown_parts(split) for split in lengths}
        classes = {split: found for split in lengths if (found := self.classes(split)) is not None}
        made = describe(self.data, lengths, self.cut, self.length_unit, classes, unknown, self.unknown_advice)
        made.notes += self.notes()
        return made

    def export(self, model: M, folder: Path, say: Say) -> list[Path]:
        """Write files for other programs when the training has finished; returns their paths."""
        return []

    def write_figures(self, folder: Path, mark: str) -> list[Path]:
        """Draw the results of the last test into the folder; returns the paths. Their names end in `mark`, which tells
        apart the tests of different data."""
        return []

    def begin(self, model: M, say: Say) -> None:
        """Give a model what it needs from the data, before its training starts or resumes."""

    @abstractmethod
    def losses(self, model: M, batch: Batch, at: Moment | None = None, carry: Carry | None = None) -> Losses:
        """The sum of each named loss; the batch has their counts. `at` is None in evaluation. `carry` holds the
        recurrent state after the last batch; a recurrent task replaces it by the state after this one."""

    def fresh_carry(self, model: M) -> Carry:
        """The carry before the first batch of a recurrent task; the carry of a checkpoint must have its shapes."""
        return {}

    def update(self, model: M, pieces: list[Batch], rate: float, at: Moment) -> Losses | None:
        """One optimizer step by a gradient kernel of the task; returns the sum of each named loss. None if the task
        has no such kernel: then the trainer backpropagates `losses`."""
        return None

    def items(self, split: str) -> int:
        """How many examples, or windows, a test of the whole split scores."""
        return self.data.splits[split].examples

    @abstractmethod
    def test(self, model: M, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE) -> list[Score]:
        """The scores of the model on a split, or on a part of it, with their signatures; `covered` says how much was
        scored."""

    def tune(self, model: M, batches: Iterable[Batch]) -> None:
        """Choose what the model leaves to the validation split, by these batches of it."""

    def predictions(self) -> Iterable[dict[str, Any]]:
        """The answers that the last test has scored, each beside its reference, in the order of the examples."""
        raise NotImplementedError

    def baselines(self) -> list[Score]:
        """The scores of simple methods on the test split: of the examples that were scored last, or of all."""
        return []

    def scoring_seconds(self, model: M, decode: DecodeConfig, evaluation: float) -> float:
        """About how long `test` will take on the test split, if the loss of the validation split takes `evaluation`."""
        return evaluation * self.data.splits["test"].bytes / max(1, self.data.splits["valid"].bytes)

    def samples(self, model: M, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        """Up to `most` answers beside their references, always to the same examples; none if there are no answers."""
        return []


class Answering(Task[M]):
    """A task whose test has an answer to each example. One that scores running text has not."""

    predicts = True
    tested: str = ""  # the split of the last test
    answers: Mapping[int, Any] = MappingProxyType({})  # of the last test, by the number of their example, in order

    @abstractmethod
    def answer(self, model: M, split: str, decode: DecodeConfig, pieces: Pieces) -> Answers:
        """The number and the answer of each example of these pieces of a split."""

    @abstractmethod
    def scores(self, split: str, decode: DecodeConfig, answers: Mapping[int, Any]) -> list[Score]:
        """The scores of some answers, by the number of their example."""

    def test(self, model: M, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE) -> list[Score]:
        found = dict(self.answer(model, split, decode, budget.pieces(self.items(split))))
        self.tested, self.answers, self.covered = split, dict(sorted(found.items())), len(found)
        return self.scores(split, decode, self.answers)

    def predictions(self) -> Iterator[dict[str, Any]]:
        for number, example in enumerate(self.data.splits[self.tested]):
            if number in self.answers:
                yield self.record(example, self.answers[number])

    @abstractmethod
    def record(self, example: Any, answer: Any) -> dict[str, Any]:
        """An example beside its answer, in plain values."""

    def samples(self, model: M, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        numbers = sample_indices(self.items(split))[:most]
        found = dict(self.answer(model, split, brief(decode), iter([np.array(numbers)])))
        examples = enumerate(islice(self.data.splits[split], numbers[-1] + 1))
        return [self.sample(example, found[number]) for number, example in examples if number in found]

    def sample(self, example: Any, answer: Any) -> Sample:
        """What the model read, its answer and the reference, from their record."""
        row = self.record(example, answer)
        texts = list(row.values())[: list(row).index("prediction")]
        return Sample(f" {BETWEEN} ".join(texts), row["prediction"], row["reference"])
