"""Settings that follow the data. The settings of a recipe named after a model fit its small built-in data; with other
data, these rules decide what the user has not set. Each choice is printed with its reason and stored in the run.

What the numbers come from: sweeps over the vocabulary, dropout, batch, learning rate and size of the model on Tatoeba
English-Italian, Python's standard library, SST-2, TREC, IMDB and WNUT 2017, at equal time on two CPU cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from allyouneed import catalog
from allyouneed.config import LENGTHS
from allyouneed.data.facts import Facts
from allyouneed.format import human_bytes
from allyouneed.recipe import Recipe
from allyouneed.runtime import Runtime

REAL = 0.2  # of the different words occur only once: fewer do in generated text, more in text that people wrote
TOKENS_PER_WORD = 1.35  # of bpe
PACE = {"cpu": 2000.0, "cuda": 150_000.0}  # tokens per second that a model of the size chosen here learns, per thread
LEARN = {"cpu": 3_000_000, "cuda": 100_000_000}  # tokens to learn in all, where the data is neither small nor large
# Model sizes: for little text, for the CPU, for a GPU.
SIZES = {
    "gpt": ("nano", "micro", "mini"),
    "rnn": ("nano", "small", "medium"),
    "convnet": ("tiny", "tiny", "small"),
    "elmo": ("nano", "nano", "small"),
    "transformer": ("tiny", "tiny", "small"),
    "seq2seq": ("tiny", "tiny", "small"),
    "convseq2seq": ("tiny", "tiny", "small"),
}
# Learning rates of these sizes.
RATES = {
    "gpt": (3e-3, 3e-3, 2e-3),
    "rnn": (1e-2, 5e-3, 2e-3),
    "convnet": (3e-3, 3e-3, 2e-3),
    "elmo": (1e-2, 1e-2, 2e-3),
    "transformer": (3e-3, 3e-3, 1e-3),
    "seq2seq": (5e-3, 5e-3, 2e-3),
    "convseq2seq": (3e-3, 3e-3, 2e-3),
}


@dataclass(frozen=True)
class Choice:
    """Some settings in words, the reason for them, and their keys and values."""

    what: str
    why: str
    settings: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.what}, because {self.why}"


@dataclass(frozen=True)
class Case:
    """What the rules look at: the data, the recipe so far, and the machine."""

    facts: Facts
    recipe: Recipe
    device: str  # "cpu" or "cuda"; any other GPU counts as the latter
    threads: int

    @property
    def tokens(self) -> float:
        """About how many tokens one pass over the training data has."""
        return max(1.0, self.facts.words * TOKENS_PER_WORD)

    @property
    def little(self) -> bool:
        return self.facts.bytes < 200_000

    @property
    def level(self) -> int:
        """Which of the sizes of a model."""
        return 0 if self.little else 1 if self.device == "cpu" else 2

    def epochs(self, least: float, most: float, learn: float) -> float:
        """Passes over the data: those that fit into train.minutes, or as many as `learn` tokens need."""
        train = self.recipe.train
        if train.minutes:
            speed = PACE[self.device] * (self.threads if self.device == "cpu" else 1)
            return 60 * train.minutes * speed / self.tokens
        if train.epochs and "train.epochs" in (self.recipe.given or ()):
            return train.epochs
        if train.steps and "train.steps" in (self.recipe.given or ()):
            return train.steps * train.batch_tokens / self.tokens
        return min(most, max(least, learn / self.tokens))


def follow(recipe: Recipe, facts: Facts, runtime: Runtime) -> tuple[Recipe, list[str]]:
    """The recipe with the settings that the rules choose for this data, and a line for each choice. What the user has
    set stays as it is."""
    told = []
    device = "cpu" if runtime.device == "cpu" else "cuda"
    for rule in RULES[recipe.task_kind]:
        for choice in rule(Case(facts, recipe, device, runtime.threads)):
            changed = _with(recipe, choice.settings)
            if changed != recipe:
                told.append(str(choice))
                recipe = changed
    return recipe, told


def _with(recipe: Recipe, settings: dict[str, Any]) -> Recipe:
    """The recipe with those of the settings that it has and that the user has not set."""
    values, given = recipe.to_dict(), recipe.given or frozenset()
    if "model.size" in settings:
        of_size = catalog.model(recipe.model_kind).sizes[settings["model.size"]]
        settings = {**{f"model.{name}": value for name, value in of_size.items()}, **settings}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        lengths = {f"train.{length}" for length in LENGTHS}
        if name not in values[section] or key in given or (key in lengths and given & lengths):
            continue
        if key in lengths:
            values["train"] |= dict.fromkeys(LENGTHS, 0)
        values[section][name] = value
    return replace(Recipe.parse(values), given=recipe.given)


def held_out(case: Case) -> Iterator[Choice]:
    """Enough to measure with is enough: the rest is for learning, and evaluations stay quick."""
    facts, task = case.facts, case.recipe.task_kind
    if case.recipe.data.name:
        return
    if task in ("lm", "wordvectors"):
        enough = 500_000 if task == "lm" else 100_000  # bytes; an evaluation of word vectors is slow
        part, what = enough / max(1, facts.bytes), human_bytes(facts.bytes)
    else:
        enough = 2_000 if task == "translate" else 5_000
        part, what = enough / max(1, facts.examples), f"{facts.examples:,} examples"
    if part < 0.05:
        part = float(f"{part:.1g}")
        yield Choice(
            f"held out: {100 * part:g} % each for validation and test",
            f"that is enough of {what}",
            {"data.valid_part": part, "data.test_part": part},
        )


def pieces(case: Case) -> Iterator[Choice]:
    """Text that people wrote has too many rare words for a vocabulary of whole words."""
    facts, task, device = case.facts, case.recipe.task_kind, case.device
    own = {"text.kind", "text.path", "text.vectors"} & (case.recipe.given or set())
    if own or catalog.model(case.recipe.model_kind).BodyClass.spelled or facts.once <= REAL:
        return
    if (
        task == "classify" and facts.types < facts.words / 2
    ):  # a class shows in frequent words; without spaces, it may not
        return
    most = 8000 if device == "cuda" or task != "lm" else 4000  # more rows take a CPU too long
    vocab = _rounded(min(most, max(500, (4 if task == "lm" else 8) * math.sqrt(facts.words))))
    yield Choice(
        f"vocabulary: bpe {vocab:,}",
        f"{100 * facts.once:.0f} % of the words occur only once",
        {"text.kind": "bpe", "text.vocab": vocab},
    )


def _rounded(value: float) -> int:
    return int(float(f"{value:.2g}"))


def size(case: Case) -> Iterator[Choice]:
    """A larger model where there is more to learn, and a machine that can."""
    kind, level = case.recipe.model_kind, case.level
    if {"model.size", "model.width", "model.layers"} & (case.recipe.given or set()):
        return  # the user has chosen
    name, rate = SIZES[kind][level], RATES[kind][level]
    where = "a CPU" if case.device == "cpu" else "a GPU"
    why = f"it is to learn {human_bytes(case.facts.bytes)} of text on {where}"
    values = {"model.size": name, "train.lr": rate, "train.warmup": 100 if level < 2 else 400}
    yield Choice(f"model: size {name}, learning rate {rate:g}", why, values)
    if kind in ("gpt", "transformer"):
        yield Choice("positions: rotary", "real texts are of every length", {"model.positions": "rotary"})


def translation(case: Case) -> Iterator[Choice]:
    pairs, cpu = case.facts.examples, case.device == "cpu"
    epochs = case.epochs(2, 30, 2 * LEARN[case.device])
    told = f"{_shown(epochs)} passes over {pairs:,} pairs"
    yield Choice(f"length: {_shown(epochs)} epochs", f"there are {pairs:,} pairs", {"train.epochs": _two(epochs)})
    yield Choice(
        f"batches: {1024 if cpu else 4096:,} tokens",
        f"there are {pairs:,} pairs",
        {"train.batch_tokens": 1024 if cpu else 4096, "train.beta2": 0.98},
    )
    dropout = 0.0 if epochs < 8 else 0.3 if case.level == 2 or pairs < 10_000 else 0.1
    yield Choice(
        f"dropout {dropout:g}, smoothing {0.1 if dropout else 0.0:g}",
        f"a model {'learns them by heart' if dropout else 'does not learn them by heart'} in {told}",
        {"model.dropout": dropout, "task.smoothing": 0.1 if dropout else 0.0},
    )
    yield Choice(
        "answers: beam search of 4",
        "real sentences have many translations",
        {
            "decode.method": "beam",
            "decode.beam": 4,
            "decode.length_penalty": "gnmt",
            "decode.alpha": 1.0,
            "decode.max_new": 128,
        },
    )


def labelling(case: Case) -> Iterator[Choice]:
    facts, task = case.facts, case.recipe.task_kind
    epochs = case.epochs(2, 20, 1_600_000 if task == "classify" else 3_000_000)
    yield Choice(
        f"length: {_shown(epochs)} epochs", f"there are {facts.examples:,} examples", {"train.epochs": _two(epochs)}
    )
    largest = (2048 if facts.words > 2_000_000 else 1024) if task == "classify" else 512
    batch = largest
    while batch > 128 and epochs * case.tokens / batch < 400:
        batch //= 2
    yield Choice(
        f"batches: {batch:,} tokens", f"an epoch has about {_rounded(case.tokens):,}", {"train.batch_tokens": batch}
    )
    if task == "classify":
        values: dict[str, Any] = {"model.dropout": 0.5}
    else:
        values = {"model.dropout": 0.3}
        if case.recipe.model_kind == "rnn":
            values |= {"model.width": 128, "train.lr": 2e-3, "task.unknown": 0.0}
    told = f"dropout {values['model.dropout']:g}" + (
        f", width {values['model.width']}" if "model.width" in values else ""
    )
    yield Choice(told, f"there are only {facts.examples:,} examples", values)


def running_text(case: Case) -> Iterator[Choice]:
    facts, cpu = case.facts, case.device == "cpu"
    context = 128 if cpu else 256
    yield Choice(
        f"context: {context} tokens", "sentences of real text depend on each other", {"model.context": context}
    )
    one = min(1.0, 10 * LEARN[case.device] / 3 / case.tokens)
    epochs = case.epochs(one, 20, LEARN[case.device])
    yield Choice(
        f"length: {_shown(epochs)} epochs",
        f"there are about {_rounded(case.tokens):,} tokens",
        {"train.epochs": _two(epochs), "train.batch_tokens": 1024 if cpu else 8192},
    )
    dropout = 0.0 if epochs < 5 else 0.1 if epochs < 12 else 0.2
    yield Choice(f"dropout {dropout:g}", f"the text is read {_shown(epochs)} times", {"model.dropout": dropout})
    if facts.lines > 100 and facts.loose < 0.01:
        return  # an answer ends with its line
    yield Choice(
        "answers: 200 tokens, over several lines",
        "the text has blank or indented lines",
        {"decode.stop": (), "decode.max_new": 200},
    )


def vectors(case: Case) -> Iterator[Choice]:
    words = case.facts.words
    epochs = min(20.0, max(3.0, 25_000_000 / max(1, words)))
    yield Choice(
        f"length: {_shown(epochs)} epochs", f"there are {_rounded(words):,} words", {"train.epochs": _two(epochs)}
    )
    if words >= 1_000_000:
        yield Choice("vectors: 100 wide", f"there are {_rounded(words):,} words", {"model.width": 100})


def looks(case: Case) -> Iterator[Choice]:
    yield Choice("evaluations: ten at most", "they may take 5 % of the time", {"train.eval_every": 0})


def _two(value: float) -> float:
    """Two digits."""
    return float(f"{value:.2g}")


def _shown(value: float) -> str:
    return f"{_two(value):g}"


RULES = {
    "lm": (held_out, pieces, size, running_text, looks),
    "translate": (held_out, pieces, size, translation, looks),
    "classify": (held_out, pieces, labelling, looks),
    "tag": (held_out, pieces, labelling, looks),
    "wordvectors": (held_out, vectors, looks),
}
