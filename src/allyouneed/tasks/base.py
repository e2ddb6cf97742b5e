"""Task: what every kind of run shares. A task knows its data, its losses, its scores and how it answers."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from torch import Tensor

from allyouneed import catalog
from allyouneed.config import DecodeConfig
from allyouneed.data.batches.base import Batch, Examples
from allyouneed.data.opening import read_data
from allyouneed.data.report import Report
from allyouneed.data.sources import Dataset, Source
from allyouneed.data.store import TokenKey
from allyouneed.errors import UserError, option_name, shortened
from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.predict.base import Writing
from allyouneed.predict.processor import Processor
from allyouneed.recipe import Recipe
from allyouneed.terminal import Say
from allyouneed.text import Tokenizer

DRAWN = 7  # the seed of the order in which examples are drawn
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
        """The numbers of the examples to score: all in one piece or, if there is a limit or an end, drawn at random
        and always in the same order. The pace of the pieces so far tells how many still fit."""
        if self == WHOLE:
            yield np.arange(total)
            return
        order, at = np.random.default_rng(DRAWN).permutation(total)[: self.limit or total], 0
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
WIDTH = 100  # characters of each text
LINE = 120  # characters; a longer sample takes two lines


@dataclass(frozen=True)
class Sample:
    """What the model read, its answer, and the reference; the text is empty if the answer repeats it."""

    text: str
    answer: str
    reference: str | None = None

    def lines(self) -> list[str]:
        """One line, or two."""
        text, answer = shortened(self.text.strip(), WIDTH), shortened(self.answer.strip(), WIDTH) or "(nothing)"
        told = f" (reference: {shortened(self.reference.strip(), WIDTH)})" if self.reference is not None else ""
        first = f"  sample: {text} → " if text else "  sample: "
        if len(first + answer + told) <= LINE:
            return [first + answer + told]
        return [f"  sample: {text}", f"    → {answer}{told}"] if text else [first + answer, f"   {told}"]


def sample_indices(total: int) -> list[int]:
    """The numbers of the examples that are shown, spread over the beginning of a split."""
    among = min(total, AMONG)
    return sorted({(number + 1) * among // (MOST + 1) for number in range(MOST)} - {among})


T = TypeVar("T", bound="Task[Any]")
M = TypeVar("M", bound=Model)
V = TypeVar("V")
Carry = dict[str, Tensor]  # the recurrent state that one batch passes to the next


@dataclass(frozen=True)
class Moment:
    """The current step of a training, for schedules such as that of teacher forcing."""

    step: int
    total: int
    place: float | None = None  # of the schedule, if that is not the step

    @property
    def part(self) -> float:
        """The fraction of the schedule already done."""
        return (self.step if self.place is None else self.place) / max(1, self.total)


def once(method: Callable[[T, str], V]) -> Callable[[T, str], V]:
    """Cache the result of a method per split, in the task."""

    @wraps(method)
    def kept(self: T, split: str) -> V:
        found, key = self._found, (method.__name__, split)
        if key not in found:
            found[key] = method(self, split)
        value: V = found[key]
        return value

    return kept


class Task(Processor, ABC, Generic[M]):
    """What a run learns, made from a recipe: a Processor that has data. `prepare` reads the data; `read_parts` loads
    the parts of a saved run."""

    Options: ClassVar[type]
    shape: ClassVar[str]  # of the data
    unit: ClassVar[str] = "token"  # what the losses count
    weights: ClassVar[dict[str, float]]  # of the named losses
    eval_share: ClassVar[float] = 0.05  # of the training time, at most, for evaluations with train.eval_every = 0
    reading: ClassVar[float] = 1 / 3  # time to evaluate a batch, as a part of that to learn it
    item_name: ClassVar[str] = "examples"  # what a test scores one by one
    # The best weights have the lowest loss, that is `loss` or one by its name, `codes loss`; or the highest score.
    chooses_by: ClassVar[str] = "loss"

    def __init__(self, recipe: Recipe) -> None:
        super().__init__(recipe)
        self.source: Source | None = None
        self._data: Dataset | None = None
        self._found: dict[tuple[str, str], Any] = {}  # by `once`
        self.covered = 0  # examples, or windows, that the last test has scored

    def predictor(self, model: M) -> Any:
        """What answers with this model: the class that a loaded run of this kind has."""
        return catalog.predictor(self.recipe.task_kind)(self, model)

    @property
    def chooses_by_loss(self) -> bool:
        return self.chooses_by.endswith("loss")

    @property
    def data(self) -> Dataset:
        """The data set of the recipe: a split of `source`, which is read at first use."""
        if self._data is None:
            self.source = self.source or read_data(self.recipe.data, self.shape)
            self._data = self.source.split(self.recipe.data)
        return self._data

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

    def check(self) -> None:
        """Raise a UserError for settings that are wrong or contradict each other; called before any data is read."""
        Tokenizer.check(self.recipe.text)
        if issubclass(catalog.predictor(self.recipe.task_kind), Writing):
            self.recipe.decode.check_writing()
        self.check_model()

    def check_model(self) -> None:
        recipe = self.recipe
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

    @abstractmethod
    def report(self) -> Report:
        """Sizes, lengths, duplicates and classes of the data."""

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
    def losses(self, model: M, batch: Batch, at: Moment | None = None, carry: Carry | None = None) -> dict[str, Tensor]:
        """The sum of each named loss; the batch has their counts. `at` is None in evaluation. `carry` holds the
        recurrent state after the last batch; a recurrent task replaces it by the state after this one."""

    @property
    def loss_weights(self) -> dict[str, float]:
        """The weights of the named losses, if the settings decide them."""
        return self.weights

    def fresh_carry(self, model: M) -> Carry:
        """The carry before the first batch of a recurrent task; the carry of a checkpoint must have its shapes."""
        return {}

    def update(self, model: M, pieces: list[Batch], rate: float, at: Moment) -> dict[str, Tensor] | None:
        """One optimizer step by a gradient kernel of the task; returns the sum of each named loss. None if the task
        has no such kernel: then the trainer backpropagates `losses`."""
        return None

    def items(self, split: str) -> int:
        """How many examples, or windows, a test of the whole split scores."""
        return self.data.splits[split].examples

    @abstractmethod
    def test(self, model: M, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE) -> list[Score]:
        """The scores of the model on a split, or on a part of it, with their signatures; `covered` says how much was
        scored. None if nothing was."""

    def tune(self, model: M, batches: Iterable[Batch]) -> None:
        """Choose what the model leaves to the validation split, by these batches of it."""

    def baselines(self) -> list[Score]:
        """The scores of simple methods on the test split: of the examples that were scored last, or of all."""
        return []

    def scoring_seconds(self, model: M, decode: DecodeConfig, evaluation: float) -> float:
        """About how long `test` will take on the test split, if the loss of the validation split takes `evaluation`."""
        if not (self.has("valid") and self.has("test")):
            return 0.0
        return evaluation * self.data.splits["test"].bytes / max(1, self.data.splits["valid"].bytes)

    @once
    def sampled(self, split: str) -> Any:
        """The examples of a split that `samples` shows; read once, before the training."""
        chosen = sample_indices(self.data.splits[split].examples)
        return [e for i, e in enumerate(islice(self.data.splits[split], max(chosen, default=-1) + 1)) if i in chosen]

    def samples(self, model: M, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        """Up to `most` answers beside their references, always to the same examples; short ones, which cost little."""
        return []


class Answering(Task[M]):
    """A task whose test has an answer to each example. One that scores running text has not."""

    tested: Callable[[], Iterable[dict[str, Any]]] = list

    def predictions(self) -> Iterable[dict[str, Any]]:
        """The answers that the last test has scored, each beside its reference, in the order of the examples."""
        return self.tested()
