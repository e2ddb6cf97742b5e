"""Settings: dataclass fields with a range and one line of help, and the sections that every recipe has."""

from __future__ import annotations

import codecs
import math
import tomllib
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from encodings.aliases import aliases
from typing import Any

from allyouneed.errors import UserError, nearest, shortened

PRECISIONS = ("auto", "fp32", "tf32", "bf16")  # of a training and of a loaded run
ENGINES = ("torch", "compiled", "onnx", "ct2")  # what computes the answers of a loaded run


def option(
    default: Any,
    help: str,
    *,
    choices: Sequence[str] = (),
    low: float | None = None,
    high: float | None = None,
    derived: bool = False,
) -> Any:
    """A dataclass field that knows its range and its one-line explanation. `derived`: the value comes from the
    tokenizer, a recipe cannot set it. Upper bounds are far above any real use: they stop a typing error before it
    fills the memory."""
    known = {"choices": tuple(choices), "low": low, "high": high, "derived": derived}
    return field(default=default, metadata={"help": help, **known})


STEPS = 10**12  # the most steps a run may have
LENGTHS = ("steps", "epochs", "minutes")  # of a training: one of them is given


@dataclass(frozen=True)
class BodyConfig:
    """[model]: what every model with a body can be asked for; its own settings stand beside it."""

    freeze: str = option("", "what does not learn: body, or how many of its lowest layers, with the embeddings")

    def __post_init__(self) -> None:
        if self.freeze not in ("", "body") and not self.freeze.isdecimal():
            raise UserError(f"model.freeze = '{self.freeze}' is neither body nor a number of layers")

    @property
    def limit(self) -> int | None:
        """Tokens that can be read at most."""
        return None


@dataclass(frozen=True)
class TextConfig:
    """[text]: how text becomes numbers."""

    kind: str = option("bpe", "tokenizer", choices=("char", "word", "terms", "bpe", "wordpiece", "bert"))
    vocab: int = option(8000, "largest size of the vocabulary; 260 with bpe: plain bytes", low=5, high=2**24)
    joint: bool = option(True, "one vocabulary for source and target")
    lowercase: bool = option(False, "turn all text into lower case first; bert: also drop accents")
    min_count: int = option(1, "word, terms: rarer words become <unk>", low=1, high=10**12)
    path: str = option("", "an existing tokenizer.json instead of a new one")
    vectors: str = option("", "a file of word vectors that the token embeddings start from")
    freeze: bool = option(False, "these word vectors are not trained")

    def __post_init__(self) -> None:
        if self.freeze and not self.vectors:
            raise UserError("text.freeze = true keeps the vectors of a file as they are: name it with text.vectors")


READ_BY = ("source", "target", "second", "header", "encoding")  # keys of [data] that say how own files are read


@dataclass(frozen=True)
class DataConfig:
    """[data]: which examples. `name` is a built-in or registered set; `path` are the user's own files."""

    name: str = option("", "a name of `ayn list data`")
    path: tuple[str, ...] = option((), "own files: a file, a folder, or two parallel files")
    valid_path: tuple[str, ...] = option((), "own validation file(s); otherwise a part of the training data")
    test_path: tuple[str, ...] = option((), "own test file(s); otherwise a part of the training data")
    valid_part: float = option(0.05, "part held out for validation if no file is given", low=0.0, high=0.5)
    test_part: float = option(0.05, "part held out for the test if no file is given", low=0.0, high=0.5)
    fold: int = option(0, "own files: which part of this size is the test: 1, 2, … (0: the first)", low=0, high=1000)
    source: str = option("", "column of the source, text, word, context or image: its name or its number from 1")
    target: str = option("", "column of the target, label, tag, answer or caption: its name or its number from 1")
    second: str = option("", "classify: column of the second text of a pair; answer: of the question")
    header: str = option("auto", "CSV, TSV: whether the first row names the columns", choices=("auto", "true", "false"))
    encoding: str = option("", "encoding of own text files, such as cp1251 (otherwise found by their bytes)")
    reverse: bool = option(False, "swap source and target")
    max_length: int = option(256, "longer examples are cut to this many tokens; not in lm", low=2, high=10**7)
    limit: int = option(0, "use at most this many examples of each split, drawn at random (0: all)", low=0, high=10**12)
    follow: bool = option(True, "other data than the recipe's decides the settings that are not given")
    skip_bad: bool = option(False, "leave out image files that are damaged, instead of an error")
    workers: int = option(0, "threads that decode images (0: one per core)", low=0, high=1024)
    mirror: str = option("", "folder with copies of the public data sets")

    def __post_init__(self) -> None:
        if not self.encoding:
            return
        try:
            "".encode(self.encoding)  # an error for what is known, but makes no text
            codecs.getincrementaldecoder(self.encoding)
        except (LookupError, ValueError):
            usual = "; usual ones are utf-8, latin-1, cp1252, cp1251, utf-16, gb18030"
            hint = nearest(self.encoding, {*aliases, *aliases.values()}, otherwise=usual)
            raise UserError(f"data.encoding = '{shortened(self.encoding)}' is no encoding of text{hint}") from None


@dataclass(frozen=True)
class TrainConfig:
    """[train]: the loop."""

    steps: int = option(0, "optimizer steps (0: by epochs or minutes)", low=0, high=STEPS)
    epochs: float = option(0.0, "passes over the training data (0: by steps or minutes)", low=0.0, high=1e9)
    minutes: float = option(
        0.0, "time of the whole command; it plans the steps (0: by steps or epochs)", low=0.0, high=1e6
    )
    batch_tokens: int = option(4096, "tokens per optimizer step, padding included", low=1, high=2**27)
    accumulate: int = option(1, "micro-batches per step; the gradient stays the same", low=1, high=2**16)
    optimizer: str = option("adamw", "optimizer", choices=("adamw", "sgd"))
    lr: float = option(1e-3, "peak learning rate", low=0.0, high=1e6)
    beta1: float = option(0.9, "adamw: decay of the mean of the gradients", low=0.0, high=0.999999)
    beta2: float = option(0.99, "adamw: decay of the mean of their squares", low=0.0, high=0.999999)
    eps: float = option(1e-8, "adamw: added to the denominator", low=0.0, high=1.0)
    momentum: float = option(0.9, "sgd: momentum", low=0.0, high=1.0)
    weight_decay: float = option(0.1, "decay of matrices; never of biases, norms or embeddings", low=0.0, high=1e4)
    layer_decay: float = option(
        1.0, "learning rate of a layer of the body, as a part of that of the layer above", low=0.0, high=1.0
    )
    schedule: str = option("cosine", "learning rate over time", choices=("constant", "linear", "cosine", "noam"))
    warmup: int = option(100, "steps of linear warm-up", low=0, high=STEPS)
    min_lr: float = option(0.1, "final rate of linear and cosine, as a part of lr", low=0.0, high=1.0)
    clip: float = option(1.0, "largest gradient norm (0: no limit)", low=0.0, high=1e9)
    ema: float = option(0.0, "decay of the exponential moving average of the weights (0: none)", low=0.0, high=0.999999)
    average: int = option(0, "result: the mean of the last k evaluated checkpoints (0: the best)", low=0, high=10**4)
    eval_every: int = option(
        250, "steps between evaluations on the whole validation split (0: ten per run, or fewer)", low=0, high=STEPS
    )
    test_limit: int = option(
        0, "score at most this many examples, or windows, in the final test (0: all, -1: no test)", low=-1, high=10**12
    )
    folds: int = option(0, "score by cross-validation with so many trainings (0: by one test)", low=0, high=100)
    save_every: int = option(0, "steps between checkpoints (0: at each evaluation)", low=0, high=STEPS)
    checkpoints: int = option(2, "how many of the last checkpoints stay on disk", low=1, high=10**6)
    keep: int = option(0, "models kept along the way, spread evenly over the steps, for `ayn look`", low=0, high=1000)
    patience: int = option(0, "stop after this many evaluations without a new best (0: never)", low=0, high=STEPS)
    log_every: int = option(10, "steps between lines of metrics.jsonl", low=1, high=10**5)
    seed: int = option(1, "seed of all random numbers", low=0, high=2**63 - 1)
    deterministic: bool = option(False, "refuse kernels whose results differ between runs")
    device: str = option("auto", "where to compute", choices=("auto", "cpu", "cuda", "mps"))
    precision: str = option("auto", "arithmetic; auto: bf16 on a CUDA GPU that has it, else fp32", choices=PRECISIONS)
    compile: str = option("auto", "torch.compile", choices=("auto", "on", "off"))
    threads: int = option(0, "CPU threads (0: one per core, or with minutes the fastest number)", low=0, high=4096)
    tensorboard: bool = option(False, "also write TensorBoard event files")
    init: str = option("", "a run to start from: its body is loaded, all other parts start anew")

    def __post_init__(self) -> None:
        if self.ema and self.average:
            raise UserError("train.ema and train.average both average the weights: choose one of them")
        if len(given := [f"train.{name} = {getattr(self, name):g}" for name in LENGTHS if getattr(self, name)]) > 1:
            raise UserError(f"{' and '.join(given)} both say how long to train: give one of them")


@dataclass(frozen=True)
class DecodeConfig:
    """[decode]: how answers are searched for."""

    method: str = option("greedy", "search", choices=("greedy", "sample", "beam"))
    beam: int = option(5, "beam: hypotheses per sentence", low=1, high=2**16)
    n_best: int = option(1, "answers per text; a text that is written needs beam or sample", low=1, high=2**16)
    length_penalty: str = option("gnmt", "beam: ((5+n)/6)^alpha or n^alpha", choices=("gnmt", "power"))
    alpha: float = option(0.6, "beam: strength of the length penalty (0: none)", low=0.0, high=10.0)
    temperature: float = option(1.0, "sample: below 1 sharper, above 1 flatter", low=0.0, high=1e6)
    top_k: int = option(0, "sample: only the k most likely tokens (0: all)", low=0, high=2**31)
    top_p: float = option(1.0, "sample: only the smallest set of tokens with this probability", low=0.0, high=1.0)
    seed: int = option(1, "sample: seed of the first answer to a text; the next has seed + 1", low=0, high=2**62)
    guidance: float = option(1.0, "draw: how strongly the caption decides (1: as learned)", low=0.0, high=100.0)
    rank: str = option("codes", "draw: what the first of n_best makes likeliest", choices=("codes", "caption"))
    max_new: int = option(256, "largest number of new tokens", low=1, high=10**7)
    times_source: int = option(
        3, "a translation has at most so many times the tokens of its source, and 16 (0: no limit)", low=0, high=1000
    )
    chat: bool = option(True, "put a text into the run's chat template, if it has one")
    stop: tuple[str, ...] = option((), 'strings that end the answer, such as ["\\n"]; [] for none')
    batch: int = option(32, "rows decoded together", low=1, high=2**16)

    def __post_init__(self) -> None:
        if self.n_best > self.beam and self.method == "beam":
            raise UserError(f"decode.n_best = {self.n_best} is more than decode.beam = {self.beam}")

    def check_writing(self) -> None:
        """Complains of several answers to one text where each token is the likeliest one."""
        if self.n_best > 1 and self.method == "greedy":
            raise UserError(f"decode.n_best = {self.n_best} needs decode.method = beam or sample")


SECTIONS: dict[str, type] = {"text": TextConfig, "data": DataConfig, "train": TrainConfig, "decode": DecodeConfig}


def build(cls: type, values: Mapping[str, Any], section: str) -> Any:
    """A checked instance of the dataclass `cls`; every complaint names section and key."""
    known = {f.name: f for f in fields(cls)}
    hints = typing.get_type_hints(cls)
    for key in values:
        if key not in known:
            raise UserError(f"[{section}] has no key '{shortened(key)}'{nearest(key, known)}")
    for f in known.values():
        if f.default is MISSING and f.default_factory is MISSING and f.name not in values:
            raise UserError(f"[{section}] needs a value for '{f.name}'")
    checked = {key: _check(known[key], hints[key], value, f"{section}.{key}") for key, value in values.items()}
    return cls(**checked)


def _check(f: Any, kind: Any, value: Any, where: str) -> Any:
    choices, low, high = (f.metadata.get(k) for k in ("choices", "low", "high"))
    if choices and isinstance(value, bool):  # TOML's true is the choice "true"
        value = str(value).lower()
    value = _convert(kind, value, where)
    if f.metadata.get("derived") and value != f.default:
        raise UserError(
            f"{where} = {shortened(value)} cannot be set: it comes from the tokenizer, see [text]; leave it out"
        )
    if choices and value not in choices:
        hint = nearest(shortened(value), choices, otherwise="")
        raise UserError(f"{where} = '{shortened(value)}' is not one of {', '.join(choices)}{hint}")
    if isinstance(value, int | float) and not isinstance(value, bool):
        if isinstance(value, float) and not math.isfinite(value):
            raise UserError(f"{where} = {value} is not a finite number")
        if low is not None and value < low:
            raise UserError(f"{where} = {shortened(value)} is too small; the smallest is {_bound(low)}")
        if high is not None and value > high:
            raise UserError(f"{where} = {shortened(value)} is too large; the largest is {_bound(high)}")
    return value


def _bound(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,.15g}"


def _convert(kind: Any, value: Any, where: str) -> Any:
    """Accepts what TOML gives, and the strings of the command line."""
    try:
        if kind is bool:
            return value if isinstance(value, bool) else {"true": True, "false": False}[value.lower()]
        if isinstance(value, bool):
            raise TypeError
        if kind is int:
            number = float(value) if isinstance(value, str) and not value.lstrip("+-").isdecimal() else value
            if isinstance(number, float) and number != int(number):  # 1e4 is a whole number, 1.5 is not
                raise ValueError
            return int(number)
        if kind is float:
            return float(value)
        if kind is str:
            return _text(value, where)
        items = _list(value, where) if isinstance(value, str) else value
        if not isinstance(items, list | tuple):
            raise TypeError
        return tuple(_text(item, where) for item in items if item != "")
    except (ValueError, TypeError, OverflowError, KeyError, AttributeError):
        shown = f"'{shortened(value)}'" if isinstance(value, str) else shortened(value)
        named = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise UserError(f"{where} = {shown} is not {named.get(kind, 'a list of texts')}") from None


def _text(value: Any, where: str) -> str:
    """The value as text, if a file can hold it: it is stored with the run, and is often a path."""
    if not isinstance(value, str | int | float) or isinstance(value, bool):
        raise TypeError
    text = str(value)
    if not is_storable(text):
        raise UserError(f"{where} = {shortened(ascii(text))} is not valid text: it has a zero byte, or is not UTF-8")
    return text


def is_storable(text: str) -> bool:
    """Whether a file can hold the text, and the system takes it as a path."""
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)


def _list(text: str, where: str) -> Any:
    """["a", "b"] as TOML writes it, or a,b"""
    if not text.startswith("["):
        return text.split(",")
    try:
        parsed = tomllib.loads(f"x = {text}")
    except (tomllib.TOMLDecodeError, RecursionError):
        parsed = {}
    if parsed.keys() != {"x"}:  # not TOML, or more lines of it
        raise UserError(f'{where} = {shortened(text)} is not a list: write it as ["a", "b"], as a,b, or as [] for none')
    return parsed["x"]
