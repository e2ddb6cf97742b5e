"""Task: what every kind of run shares. A task knows its data, its losses, its scores and how it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from itertools import islice
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
from allyouneed.errors import UserError, told
from allyouneed.figures import heads
from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer, Prompt, write
from allyouneed.recipe import Recipe
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.samples import Sample, places
from allyouneed.tasks.wordmap import WordMap
from allyouneed.text import Tokenizer
from allyouneed.text.layout import Tokens
from allyouneed.text.words import find_words

T = TypeVar("T", bound="Task[Any]")
M = TypeVar("M", bound=Model)
V = TypeVar("V")
Say = Callable[[str], None]
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


class Task(ABC, Generic[M]):
    """One kind of run, made from a recipe. `prepare` reads the data; `read_parts` loads the parts of a saved run."""

    Options: ClassVar[type]
    shape: ClassVar[str]  # of the data
    asks: ClassVar[str] = "a sentence"  # what to type at a prompt
    expects: ClassVar[str] = "likely next (· is a space)"  # the heading of `table`
    unit: ClassVar[str] = "token"  # what the losses count
    weights: ClassVar[dict[str, float]]  # of the named losses
    writes: ClassVar[bool] = False  # an answer is written token by token
    continues: ClassVar[bool] = False  # an answer is the rest of its text
    paints: ClassVar[bool] = False  # an answer has a picture, which `paint` writes
    draws: ClassVar[bool] = False  # an answer is nothing but a picture
    passes: int = 1  # of a batch through the model, in a step of training
    looking: ClassVar[float] = 0.05  # of the training time, at most, for evaluations with train.eval_every = 0
    reading: ClassVar[float] = 1 / 3  # time to evaluate a batch, as a part of that to learn it
    full_precision: ClassVar[bool] = False  # a loaded run always computes in fp32
    item_name: ClassVar[str] = "examples"  # what a test scores one by one
    predicts: ClassVar[bool] = True  # a test has an answer to each example, and `predictions` gives them
    pooling: ClassVar[str] = "mean"  # how one vector of a text is made of those of its tokens: see `Embedding`
    pools_specials: ClassVar[bool] = False  # the special tokens count in it
    no_vectors: ClassVar[str] = ""  # why a run has no vectors of texts, and what it has instead
    # The best weights have the lowest loss, that is `loss` or one by its name, `codes loss`; or the highest score.
    chooses_by: ClassVar[str] = "loss"

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.options = recipe.task
        self.tokenizers: dict[str, Tokenizer] = {}  # by the name of their file in the run
        self._data: Dataset | None = None
        self._found: dict[tuple[str, str], Any] = {}  # by `once`
        self._tested: Callable[[], Iterable[dict[str, Any]]] = list  # what `predictions` gives
        self.covered = 0  # examples, or windows, that the last test has scored

    @property
    def chooses_by_loss(self) -> bool:
        return self.chooses_by.endswith("loss")

    @property
    def data(self) -> Dataset:
        """The data set of the recipe, opened at first use."""
        if self._data is None:
            self._data = open_data(self.recipe.data, self.shape)
        return self._data

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the answers."""
        return self.tokenizers.get("tokenizer.target.json") or self.tokenizers["tokenizer.json"]

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

    @property
    def kind(self) -> Any:
        """The class of the model, a `models.base.Model`."""
        return catalog.model(self.recipe.model_kind)

    def check(self) -> None:
        """Raise a UserError for settings that are wrong or contradict each other; called before any data is read."""
        Tokenizer.check(self.recipe.text)
        if self.writes:
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
                f"with {told('--init')}, or leave it out"
            )

    def prepare(self, say: Say) -> Report:
        """Read the data, train the tokenizers that are not given, tokenize, and say what the data holds."""
        for line in self.data.understood:  # before tokenizing, which may take long
            say(line)
        if not self.tokenizers:
            self.tokenizers = self.make_tokenizers()
        report = self.report()
        for line in [*report.lines()[len(self.data.understood) :], ""]:
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

    def take_tokenizers(self, donor: Task) -> None:
        """Use the tokenizers of the run that this one starts from: its body reads their tokens."""
        self.tokenizers = dict(donor.tokenizers)

    def build_model(self) -> M:
        model: M = self.kind(self.model_config())
        return model

    def model_config(self) -> Any:
        """The model settings of the recipe, with the sizes that the tokenizer decides."""
        return replace(self.recipe.model, vocab=rows_for(self.tokenizer, self.recipe.model.vocab, "vocab"))

    @abstractmethod
    def make_tokenizers(self) -> dict[str, Tokenizer]:
        """Train tokenizers on the training data, or load the file that the recipe names; by the name of their file."""

    @property
    def longest(self) -> int:
        """The most tokens per example, with the special ones."""
        limit = self.recipe.model.limit
        return self.recipe.data.max_length if limit is None else min(self.recipe.data.max_length, limit)

    @abstractmethod
    def examples(self, split: str) -> Examples:
        """The tokenized examples of a split, to be batched."""

    @abstractmethod
    def report(self) -> Report:
        """Sizes, lengths, duplicates and classes of the data."""

    def parts(self) -> dict[str, bytes]:
        """The files that a run needs besides its weights, by name: the tokenizers, and what a task adds."""
        return {name: tokenizer.to_json().encode("utf-8") for name, tokenizer in self.tokenizers.items()}

    def read_parts(self, parts: Mapping[str, bytes]) -> None:
        """Load the files that `parts` has written; the first call on the task of a saved run."""
        for name, data in parts.items():
            if name.startswith("tokenizer") and name.endswith(".json"):
                self.tokenizers[name] = Tokenizer.parse(data, name)

    def export(self, model: M, folder: Path, say: Say) -> list[Path]:
        """Write files for other programs when the training has finished; returns their paths."""
        return []

    def draw(self, folder: Path, mark: str) -> list[Path]:
        """Draw the results of the last test into the folder; returns the paths. Their names end in `mark`, which tells
        apart the tests of different data."""
        return []

    def begin(self, model: M, say: Say) -> None:
        """Give a model what it needs from the data, before its training starts or resumes."""

    def same_outputs(self, other: Task) -> bool:
        """Whether another run of this task has the same outputs: the same tokens or labels in the same order."""
        return other.tokenizer.fingerprint == self.tokenizer.fingerprint

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
    def test(self, model: M, split: str, decode: DecodeConfig, say: Say, extent: Extent = WHOLE) -> list[Score]:
        """The scores of the model on a split, or on a part of it, with their signatures; `covered` says how much was
        scored. None if nothing was."""

    def tune(self, model: M, batches: Iterable[Batch]) -> None:
        """Choose what the model leaves to the validation split, by these batches of it."""

    def baselines(self) -> list[Score]:
        """The scores of simple methods on the test split: of the examples that were scored last, or of all."""
        return []

    def predictions(self) -> Iterator[dict[str, Any]]:
        """The answers that the last test has scored, each beside its reference, in the order of the examples."""
        yield from self._tested()

    def scoring_seconds(self, model: M, decode: DecodeConfig, evaluation: float) -> float:
        """About how long `test` will take on the test split, if the loss of the validation split takes `evaluation`."""
        if not (self.has("valid") and self.has("test")):
            return 0.0
        return evaluation * self.data.splits["test"].bytes / max(1, self.data.splits["valid"].bytes)

    def single(self, given: Any) -> bool:
        """Whether this is one input, or several of them."""
        return isinstance(given, str)

    def listed(self, text: str) -> list[str]:
        """The inputs that an argument of the command line stands for."""
        return [text]

    def joined(self, words: Sequence[str]) -> str:
        """A text that is given as its words; only for tasks that read word by word."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' reads a text as one string, not as its words")

    def places(self, text: str) -> list[tuple[int, int]]:
        """Start and end of each word of a text."""
        return find_words(text)

    def cut(self, text: str, places: Sequence[tuple[int, int]]) -> Tokens:
        """The tokens of a text with words at these places, as the body reads it."""
        return self.tokenizer.tokenize(text, places)

    @abstractmethod
    def prompt(self, model: M, text: str, decode: DecodeConfig) -> Prompt:
        """The input of the user as ids for decoding; a UserError if the model cannot read it."""

    def predict(
        self, model: M, inputs: Iterable[str], decode: DecodeConfig, show: Callable[[str], None] | None = None
    ) -> Iterator[Answer]:
        """The answers in order. Inputs are read as they are needed. `show` gets the first answer piece by piece."""
        prompts = (self.prompt(model, text, decode) for text in inputs)
        return write(cast(Stepper, model), self.tokenizer, prompts, decode, show)

    @once
    def sampled(self, split: str) -> Any:
        """The examples of a split that `samples` shows; read once, before the training."""
        chosen = places(self.data.splits[split].examples)
        return [e for i, e in enumerate(islice(self.data.splits[split], max(chosen, default=-1) + 1)) if i in chosen]

    def samples(self, model: M, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        """Up to `most` answers beside their references, always to the same examples; short ones, which cost little."""
        return []

    @abstractmethod
    def table(self, model: M, text: str, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The likely predictions of the model at each position, up to `most` of them."""

    def align(self, model: M, text: str, tokens: list[int]) -> Alignment:
        """The attention of the answer `tokens` to the source `text`; only for tasks that have a source."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no source to align with")

    def attention(self, model: M, text: str, decode: DecodeConfig) -> dict[str, Alignment]:
        """The weights of every head (H, T, S) while the model reads the text and writes its answer, by their place in
        the model: "decoder.1.cross"."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no attention to look at")

    def draw_heads(self, found: dict[str, Alignment], text: str, place: str, out: Path) -> str:
        """Draw one heat map per head at a place of the `attention` to this text; at the last one if the place is "".
        Returns what was drawn."""
        place = place or list(found)[-1]
        chosen = found[place]
        heads(chosen.weights.numpy(), chosen.source, chosen.target, out, title=place)
        return place

    def paint(self, asked: Sequence[tuple[Any, Answer]], out: Path) -> None:
        """Write the pictures of the answers to these inputs to a file."""
        raise NotImplementedError

    def map_words(self, model: M, words: Sequence[str]) -> WordMap:
        """These words, or usual ones if there are none, with their vectors; only for tasks that have word vectors."""
        raise UserError(f"a run of the task '{self.recipe.task_kind}' has no word vectors to map")


def traced(trace: Trace, tokens: Callable[[str], tuple[list[str], list[str]]]) -> dict[str, Alignment]:
    """The attention weights in a trace of one text. `tokens` names the sources and the targets at a place."""
    if not trace.recorded:
        raise UserError("this model has no attention to look at")
    return {
        place: Alignment(*tokens(place), trace[f"{place}.weights"][0].float().cpu())
        for place in (name.removesuffix(".weights") for name in trace)
    }


def rows_for(tokenizer: Tokenizer, wanted: int, key: str) -> int:
    """Rows of an embedding or output matrix: `wanted`, or one per token of the tokenizer if that is 0."""
    if wanted and wanted < len(tokenizer):
        raise UserError(f"model.{key} = {wanted} is less than the {len(tokenizer)} tokens of the tokenizer: raise it")
    return wanted or len(tokenizer)
