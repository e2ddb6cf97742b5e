"""Task: what every kind of run shares. A task knows its data, its losses, its scores and how it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, cast

from torch import Tensor

from allyouneed import catalog
from allyouneed.config import DecodeConfig
from allyouneed.data.batches import Batch, Examples
from allyouneed.data.opening import open_data
from allyouneed.data.report import Report
from allyouneed.data.sources import Dataset
from allyouneed.data.store import TokenKey
from allyouneed.decode import Stepper
from allyouneed.errors import UserError
from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.nn.trace import Trace
from allyouneed.recipe import Recipe
from allyouneed.tasks.answers import Answer, Prompt, write
from allyouneed.text import Tokenizer

T = TypeVar("T", bound="Task[Any]")
M = TypeVar("M", bound=Model)
V = TypeVar("V")
Say = Callable[[str], None]
Carry = dict[str, Tensor]  # what a recurrent model takes from one batch to the next


@dataclass(frozen=True)
class Moment:
    """Where the training stands: what changes with time (teacher forcing, temperatures) is a function of it."""

    step: int
    total: int

    @property
    def part(self) -> float:
        """0 at the first step, towards 1 at the last."""
        return self.step / max(1, self.total)


@dataclass(frozen=True)
class Guess:
    """At one position: the token that stands there, and what the model expected, most likely first."""

    token: str
    likely: list[tuple[str, float]]


@dataclass(frozen=True)
class Alignment:
    """Which source tokens each target token looked at: weights (T, S), or (H, T, S), one table per head."""

    source: list[str]
    target: list[str]
    weights: Tensor


def once(method: Callable[[T, str], V]) -> Callable[[T, str], V]:
    """What a method finds of a split is found once; the task keeps it, and it goes with the task."""

    @wraps(method)
    def kept(self: T, split: str) -> V:
        found, key = self._found, (method.__name__, split)
        if key not in found:
            found[key] = method(self, split)
        value: V = found[key]
        return value

    return kept


class Task(ABC, Generic[M]):
    """One kind of run. Made from a recipe; `prepare` reads the data, a loaded run brings its tokenizers."""

    Options: ClassVar[type]
    shape: ClassVar[str]  # of the data
    asks: ClassVar[str] = "a sentence"  # of a person at a prompt
    expects: ClassVar[str] = "likely next (· is a space)"  # what `table` shows
    unit: ClassVar[str] = "token"  # what the losses count
    weights: ClassVar[dict[str, float]]  # of the named losses
    full_precision: ClassVar[bool] = False  # a loaded run always computes in fp32
    chooses_by: ClassVar[str] = "loss"  # the least, or a score of `test`, the largest: which weights are the best

    def __init__(self, recipe: Recipe, tokenizers: dict[str, Tokenizer] | None = None) -> None:
        self.recipe = recipe
        self.options = recipe.task
        self.tokenizers = tokenizers or {}  # by the name of their file in the run
        self._data: Dataset | None = None
        self._found: dict[tuple[str, str], Any] = {}  # by `once`

    @property
    def data(self) -> Dataset:
        """Opened when first asked for."""
        if self._data is None:
            self._data = open_data(self.recipe.data, self.shape)
        return self._data

    @property
    def tokenizer(self) -> Tokenizer:
        """The one that answers are written with."""
        return self.tokenizers.get("tokenizer.target.json") or self.tokenizers["tokenizer.json"]

    @property
    def origin(self) -> str:
        """The data in a signature; own files by their names alone."""
        return "data:" + (" ".join(Path(path).name for path in self.recipe.data.path) or self.data.name)

    def on(self, recipe: Recipe) -> Task:
        """The same task on the data of this recipe."""
        other = type(self)(recipe)
        other.read_parts(self.parts())
        return other

    def has(self, split: str) -> bool:
        return split in self.data.splits

    def token_key(self, split: str, side: str, prefix: str = "") -> TokenKey:
        """What the tokens of one side of a split depend on, besides the tokenizer."""
        return TokenKey(self.data.fingerprint, split, side, prefix)

    @property
    def kind(self) -> Any:
        """The class of the model, a `models.base.Model`."""
        return catalog.model(self.recipe.model_kind)

    def check(self) -> None:
        """Complains, before any data is read, of settings that cannot be, or not together."""
        Tokenizer.check(self.recipe.text)
        self.check_model()

    def check_model(self) -> None:
        recipe = self.recipe
        self.kind.check(recipe.model, recipe.task_kind)
        if self.kind.body_fields() and recipe.model.freeze and not recipe.train.init:
            raise UserError(
                f"model.freeze = {recipe.model.freeze} would freeze a body that has learned nothing: start from a run "
                "with --init, or leave it out"
            )

    def prepare(self, say: Say) -> Report:
        """Read the data, train the tokenizers that are not given, tokenize; say what was understood."""
        for line in self.data.understood:  # at once: tokenizing may take its time
            say(line)
        if not self.tokenizers:
            self.tokenizers = self.make_tokenizers()
        report = self.report()
        for line in [*report.lines()[len(self.data.understood) :], ""]:
            say(line)
        return report

    def take_tokenizers(self, donor: Task) -> None:
        """Of the run that this one starts from: its body reads their tokens."""
        self.tokenizers = dict(donor.tokenizers)

    def build_model(self) -> M:
        model: M = self.kind(self.model_config())
        return model

    def model_config(self) -> Any:
        """The recipe's, with what the tokenizer decides filled in."""
        return replace(self.recipe.model, vocab=rows_for(self.tokenizer, self.recipe.model.vocab, "vocab"))

    @abstractmethod
    def make_tokenizers(self) -> dict[str, Tokenizer]:
        """From the training data, or from the file that the recipe names."""

    @property
    @abstractmethod
    def longest(self) -> int:
        """Tokens of an example at most."""

    @abstractmethod
    def examples(self, split: str) -> Examples:
        """A split ready for the loop."""

    @abstractmethod
    def report(self) -> Report:
        """What was understood of the data."""

    def parts(self) -> dict[str, bytes]:
        """The files without which the run cannot be used, by name; a task adds its own to the tokenizers."""
        return {name: tokenizer.to_json().encode("utf-8") for name, tokenizer in self.tokenizers.items()}

    def read_parts(self, parts: Mapping[str, bytes]) -> None:
        """The inverse of `parts`; called before anything else is asked of the task of a run on disk."""
        for name, data in parts.items():
            if name.startswith("tokenizer") and name.endswith(".json"):
                self.tokenizers[name] = Tokenizer.parse(data, name)

    def export(self, model: M, folder: Path, say: Say) -> list[Path]:
        """Write files that a finished run has besides its model, for other programs; returns their paths."""
        return []

    def draw(self, folder: Path, split: str) -> list[Path]:
        """Pictures of what the last test, on this split, has found; their files in the folder."""
        return []

    def begin(self, model: M, say: Say) -> None:
        """What a model needs of its data before it is trained, afresh or further."""

    def same_outputs(self, other: Task) -> bool:
        """Whether the outputs of another run of this task mean what they mean here."""
        return other.tokenizer.fingerprint == self.tokenizer.fingerprint

    @abstractmethod
    def losses(self, model: M, batch: Batch, at: Moment | None = None, carry: Carry | None = None) -> dict[str, Tensor]:
        """Named sums; the batch has their counts. `at` is None when nothing is learned from the batch. `carry` is
        what the last batch left here; a recurrent task puts in what the next one shall find."""

    def fresh_carry(self, model: M) -> Carry:
        """What a recurrent task takes into its first batch; that of a checkpoint must have the same shapes."""
        return {}

    def update(self, model: M, pieces: list[Batch], rate: float, at: Moment) -> dict[str, Tensor] | None:
        """A task whose gradients have a kernel of their own does the whole step here and returns the named sums;
        None: the loop backpropagates `losses`."""
        return None

    @abstractmethod
    def test(self, model: M, split: str, decode: DecodeConfig, say: Say) -> list[Score]:
        """Scores with their signatures."""

    @abstractmethod
    def prompt(self, model: M, text: str, decode: DecodeConfig) -> Prompt:
        """What a person typed, as decoding takes it; complains of what the model cannot take."""

    def predict(
        self, model: M, inputs: Iterable[str], decode: DecodeConfig, show: Callable[[str], None] | None = None
    ) -> Iterator[Answer]:
        """Answers in order, streamed; inputs are drawn as needed. `show` gets the pieces of the first answer."""
        prompts = (self.prompt(model, text, decode) for text in inputs)
        return write(cast(Stepper, model), self.tokenizer, prompts, decode, show)

    @abstractmethod
    def table(self, model: M, text: str, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """What the model expects at each position."""

    def align(self, model: M, text: str, tokens: list[int]) -> Alignment:
        """Only tasks with a source have one."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no source to align with")

    def attention(self, model: M, text: str, decode: DecodeConfig) -> dict[str, Alignment]:
        """The weights of every head (H, T, S) while the model reads the text and writes its answer, by their place in
        the model: "decoder.1.cross"."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no attention to look at")


def traced(trace: Trace, tokens: Callable[[str], tuple[list[str], list[str]]]) -> dict[str, Alignment]:
    """The attention weights in a trace of one text. `tokens` names the sources and the targets at a place."""
    if not trace.recorded:
        raise UserError("this model has no attention to look at")
    return {
        place: Alignment(*tokens(place), trace[f"{place}.weights"][0].float().cpu())
        for place in (name.removesuffix(".weights") for name in trace)
    }


def rows_for(tokenizer: Tokenizer, wanted: int, key: str) -> int:
    """Rows of an embedding or of an output matrix: as many as the tokenizer has tokens, or more where that was set."""
    if wanted and wanted < len(tokenizer):
        raise UserError(f"model.{key} = {wanted} is less than the {len(tokenizer)} tokens of the tokenizer: raise it")
    return wanted or len(tokenizer)


def check_length(model: Model, tokens: int, what: str) -> None:
    """Complains of a text that is longer than the model can read."""
    if model.limit is not None and tokens > model.limit:
        raise UserError(f"the {what} has {tokens} tokens, this model's positions end at {model.limit}: shorten it")


def check_input(text: str, tokenizer: Tokenizer | None, what: str) -> list[int]:
    """The ids of what a person typed; complains of an empty text, and of one that is mostly unknown. Without a
    tokenizer nothing is unknown."""
    if not text.strip():
        raise UserError(f"the {what} is empty: give it some text")
    if tokenizer is None:
        return []
    ids = tokenizer.encode(text)
    unknown = 0 if tokenizer.unk is None else ids.count(tokenizer.unk)
    if unknown * 2 > len(ids):
        strange = ", ".join(repr(unit.strip() or unit) for unit in tokenizer.unknown(text)[:8])
        raise UserError(f"most of the {what} is unknown to this model's vocabulary: {strange}")
    return ids
