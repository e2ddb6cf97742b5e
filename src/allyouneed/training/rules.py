"""Settings that follow the data. The settings of a recipe named after a model fit its small built-in data; with other
data, these rules decide what the user has not set. Each choice is printed with its reason and stored in the run.

The numbers come from trainings on Tatoeba English-Italian, Python's standard library, SST-2, TREC, IMDB and WNUT 2017,
with other vocabularies, sizes, rates, batches and dropout in the same time on two CPU cores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from allyouneed import catalog
from allyouneed.config import LENGTHS
from allyouneed.data.facts import Facts
from allyouneed.errors import UserError
from allyouneed.format import human_bytes
from allyouneed.recipe import Recipe
from allyouneed.runtime import Runtime

REAL = 0.2  # part of the different words that occur only once; smaller in generated text, larger in real text
LITTLE = 200_000  # bytes of training text
SPEED = (2_000.0, 150_000.0)  # tokens per second that the models chosen here learn: per CPU thread, and on a GPU
LEARN = (3_000_000, 100_000_000)  # tokens that they learn if nothing else is asked for: about ten minutes
# The size and the learning rate of a model: for little text, for a CPU, for a GPU.
SIZES = {
    "gpt": (("nano", 3e-3), ("micro", 3e-3), ("mini", 2e-3)),
    "rnn": (("nano", 1e-2), ("small", 5e-3), ("medium", 2e-3)),
    "convnet": (("tiny", 3e-3), ("tiny", 3e-3), ("small", 2e-3)),
    "elmo": (("nano", 1e-2), ("nano", 1e-2), ("small", 2e-3)),
    "transformer": (("tiny", 3e-3), ("tiny", 3e-3), ("small", 1e-3)),
    "seq2seq": (("tiny", 5e-3), ("tiny", 5e-3), ("small", 2e-3)),
    "convseq2seq": (("tiny", 3e-3), ("tiny", 3e-3), ("small", 2e-3)),
}


@dataclass(frozen=True)
class Choice:
    """Some settings in words, the reason for them, and their keys and values."""

    what: str
    why: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Case:
    """What the rules look at: the training data, the recipe so far, and the machine."""

    facts: Facts
    recipe: Recipe
    gpu: bool
    threads: int

    @property
    def given(self) -> frozenset[str]:
        return self.recipe.given or frozenset()

    @property
    def tokens(self) -> float:
        """About how many tokens an epoch has; of a translation, those of the target. A word has about 1.35 pieces."""
        per_word = {"translate": 1.35 / 2, "classify": 1.0, "wordvectors": 1.0}.get(self.recipe.task_kind, 1.35)
        return max(1.0, self.facts.words * per_word)

    def epochs(self, least: float, most: float, learn: float) -> float:
        """Passes over the data: as many as the user has asked for, fit into train.minutes, or `learn` tokens take."""
        train = self.recipe.train
        if "train.epochs" in self.given:
            found = train.epochs
        elif "train.steps" in self.given:
            found = train.steps * train.batch_tokens / self.tokens
        elif train.minutes:
            found = 60 * train.minutes * (SPEED[1] if self.gpu else SPEED[0] * self.threads) / self.tokens
        else:
            found = min(most, max(least, learn / self.tokens))
        return float(f"{found:.2g}")

    def passes(self, epochs: float) -> str:
        return f"{'about ' if self.recipe.train.minutes else ''}{epochs:g} epochs"


def follow(recipe: Recipe, facts: Facts, runtime: Runtime) -> tuple[Recipe, list[str]]:
    """The recipe with the settings that the rules choose for this data, and a line for each choice. What the user has
    set stays as it is, and a choice that contradicts it is left out."""
    told = []
    for rule in RULES[recipe.task_kind]:
        for choice in rule(Case(facts, recipe, runtime.device != "cpu", runtime.threads)):
            try:
                changed = _with(recipe, choice.settings)
            except UserError:
                continue
            if changed != recipe:
                told.append(f"{choice.what}, because {choice.why}")
                recipe = changed
    return recipe, told


def _with(recipe: Recipe, settings: dict[str, Any]) -> Recipe:
    """The recipe with those of the settings that it has and that the user has not set."""
    values, given = recipe.to_dict(), recipe.given or frozenset()
    lengths = {f"train.{name}" for name in LENGTHS}
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if name not in values[section] or key in given or (key in lengths and given & lengths):
            continue
        if key in lengths:
            values["train"] |= dict.fromkeys(LENGTHS, 0)
        values[section][name] = value
    return replace(Recipe.parse(values), given=recipe.given)


def held_out(case: Case) -> Iterator[Choice]:
    """Of much data a small part is enough to measure with, and evaluations stay quick; of little data it is not."""
    facts, task, data = case.facts, case.recipe.task_kind, case.recipe.data
    if data.name or (data.valid_path and data.test_path):
        return
    usual = data.valid_part
    if task in ("lm", "wordvectors"):
        enough = 500_000 if task == "lm" else 100_000  # bytes; to evaluate word vectors is slow
        part, of = min(usual, enough / max(1, facts.bytes)), human_bytes(facts.bytes)
    else:
        enough = 1_000 if task == "translate" else 5_000
        needed = 0.2 if facts.examples < 100 else 0.1 if facts.examples < 1000 else usual
        part, of = min(needed, enough / max(1, facts.examples)), f"{facts.examples:,} examples"
    part = float(f"{part:.1g}")
    if part != usual:
        why = f"that is enough of {of}" if part < usual else f"there are only {of}"
        values = {"data.valid_part": part, "data.test_part": part}
        yield Choice(f"held out: {100 * part:g} % each for validation and test", why, values)


def vocabulary(case: Case) -> Iterator[Choice]:
    """Real text has too many rare words for a vocabulary of whole words. But a class shows in the frequent ones, unless
    the text has no spaces between words."""
    facts, task = case.facts, case.recipe.task_kind
    if case.given & {"text.kind", "text.path", "text.vectors"} or facts.once <= REAL:
        return
    if catalog.model(case.recipe.model_kind).BodyClass.spelled or (
        task == "classify" and facts.types < facts.words / 2
    ):
        return
    most = 4000 if task == "lm" and not case.gpu else 8000  # each row takes time, too
    vocab = _two_digits(min(most, max(500.0, (4 if task == "lm" else 8) * math.sqrt(facts.words))))
    why = f"{100 * facts.once:.0f} % of the words occur only once"
    yield Choice(f"vocabulary: bpe {vocab:,}", why, {"text.kind": "bpe", "text.vocab": vocab})


def size(case: Case) -> Iterator[Choice]:
    """A larger model where there is more to learn, and the machine can."""
    kind, little = case.recipe.model_kind, case.facts.bytes < LITTLE
    if case.given & {"model.size", "model.width", "model.layers", "model.heads"}:
        return  # and the learning rate stays
    name, rate = SIZES[kind][0 if little else 2 if case.gpu else 1]
    values = {f"model.{key}": value for key, value in catalog.model(kind).sizes[name].items() if key != "dropout"}
    values |= {"train.lr": rate, "train.warmup": 400 if case.gpu else 100}
    why = f"there are {human_bytes(case.facts.bytes)} of text and {'a GPU' if case.gpu else 'no GPU'}"
    yield Choice(f"model: size {name}, learning rate {rate:g}", why, values)
    if kind in ("gpt", "transformer"):
        yield Choice("positions: rotary", "real texts are of every length", {"model.positions": "rotary"})


def translation(case: Case) -> Iterator[Choice]:
    """Few passes are not enough to learn the sentences by heart: dropout would only slow them down."""
    pairs, epochs = case.facts.examples, case.epochs(2, 30, LEARN[case.gpu])
    batch, why = 4096 if case.gpu else 1024, f"there are {pairs:,} pairs"
    values = {"train.epochs": epochs, "train.batch_tokens": batch, "train.beta2": 0.98}
    yield Choice(f"training: {case.passes(epochs)}, {batch:,} tokens per step", why, values)
    dropout = 0.0 if epochs < 8 else 0.3 if case.gpu or pairs < 10_000 else 0.1
    smoothing = 0.1 if dropout else 0.0
    why = f"the training has {case.passes(epochs)}"
    regular = {"model.dropout": dropout, "task.smoothing": smoothing}
    yield Choice(f"dropout {dropout:g}, label smoothing {smoothing:g}", why, regular)
    if not any(key.startswith("decode.") for key in case.given):
        search = {"decode.method": "beam", "decode.beam": 4, "decode.length_penalty": "gnmt", "decode.alpha": 1.0}
        yield Choice("answers: a beam of 4", "real sentences have many translations", {**search, "decode.max_new": 128})


def labels(case: Case) -> Iterator[Choice]:
    """Labelled data is small: it is read often, and learned by heart soon."""
    facts, classify = case.facts, case.recipe.task_kind == "classify"
    epochs = case.epochs(2, 20, 1_200_000 if classify else 3_000_000)
    batch = 2048 if facts.words > 2_000_000 else 1024 if classify else 512
    while batch > 128 and epochs * case.tokens / batch < 400:
        batch //= 2
    why = f"there are {facts.examples:,} examples with {facts.words:,} words"
    values = {"train.epochs": epochs, "train.batch_tokens": batch}
    yield Choice(f"training: {case.passes(epochs)}, {batch:,} tokens per step", why, values)
    dropout = 0.5 if classify else 0.2
    yield Choice(f"dropout {dropout:g}", why, {"model.dropout": dropout})
    if not classify and case.recipe.model_kind == "rnn" and "model.width" not in case.given:
        values = {"model.width": 128, "train.lr": 2e-3, "task.unknown": 0.0}
        yield Choice("model: 128 wide, learning rate 0.002, no <unk>", "names show in the pieces of words", values)


def running_text(case: Case) -> Iterator[Choice]:
    """At least one pass, if that is no more than about half an hour."""
    facts, learn = case.facts, LEARN[case.gpu]
    context, batch = (256, 8192) if case.gpu else (128, 1024)
    epochs = case.epochs(min(1.0, 3 * learn / case.tokens), 20, learn)
    why = f"there are about {_two_digits(case.tokens):,} tokens"
    values = {"train.epochs": epochs, "train.batch_tokens": batch, "model.context": context}
    yield Choice(f"training: {case.passes(epochs)}, {batch:,} tokens per step, windows of {context}", why, values)
    dropout = 0.0 if epochs < 5 else 0.1 if epochs < 12 else 0.2
    yield Choice(f"dropout {dropout:g}", f"the training has {case.passes(epochs)}", {"model.dropout": dropout})
    if facts.lines <= 100 or facts.loose >= 0.01:  # otherwise each line stands for itself, and an answer ends with it
        why = "the text has blank or indented lines" if facts.loose >= 0.01 else "the text has few lines"
        longer = {"decode.stop": (), "decode.max_new": 200}
        yield Choice("answers: 200 tokens, over the ends of lines", why, longer)


def vectors(case: Case) -> Iterator[Choice]:
    """More text needs fewer passes, and has more to say of each word."""
    words, epochs = case.facts.words, case.epochs(3, 20, 25_000_000)
    width = 100 if words >= 1_000_000 else 50
    why = f"there are {words:,} words"
    yield Choice(f"training: {case.passes(epochs)}", why, {"train.epochs": epochs})
    yield Choice(f"vectors: {width} wide", why, {"model.width": width})


def evaluations(case: Case) -> Iterator[Choice]:
    yield Choice("evaluations: ten, or fewer", "they may take 5 % of the time", {"train.eval_every": 0})


def _two_digits(value: float) -> int:
    return int(float(f"{value:.2g}"))


RULES = {
    "lm": (held_out, vocabulary, size, running_text, evaluations),
    "translate": (held_out, vocabulary, size, translation, evaluations),
    "classify": (held_out, vocabulary, labels, evaluations),
    "tag": (held_out, vocabulary, labels, evaluations),
    "wordvectors": (held_out, vectors, evaluations),
}
