"""Settings that follow the data. The settings of a recipe named after a model fit its small built-in data; with other
data, these rules decide what the user has not set. Each choice is printed with its reason and stored in the run.

The numbers come from trainings on Tatoeba English-Italian, Python's standard library, SST-2, TREC, IMDB and WNUT 2017,
with other vocabularies, sizes, rates, batches and dropout in the same time on two CPU cores.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Any

from allyouneed import catalog
from allyouneed.config import LENGTHS
from allyouneed.data.facts import Facts
from allyouneed.errors import UserError
from allyouneed.format import human_bytes
from allyouneed.recipe import Recipe
from allyouneed.runtime import Runtime
from allyouneed.tasks.labels import WITH_LINEAR

SPEED = (2_000.0, 150_000.0)  # tokens per second that the models chosen here learn: per CPU thread, and on a GPU
LEARN = (3_000_000, 100_000_000)  # tokens that they learn if nothing else is asked for: about ten minutes
LABELLED = 1_200_000  # tokens of labelled texts, or to tune a body that has learned to read
STEPS = 400  # fewer are too few, whatever the data: then batches are smaller
CODES = 64  # of a picture, as most codebooks have them; the rules do not open them
Values = dict[str, tuple[Any, str]]


@dataclass(frozen=True)
class Choice:
    """Some settings, `name`: what they are about, and the reason for them. By the key of each setting: its value, and
    the value in words; "" if it is not worth any."""

    name: str
    why: str
    values: Values


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
        if self.recipe.task_kind in ("recognize", "compress", "draw"):
            grid = CODES if self.recipe.task_kind == "draw" else 0
            return max(1.0, float(self.facts.examples * (self.recipe.model.tokens + grid)))
        per_word = {"translate": 1.35 / 2, "classify": 1.0, "wordvectors": 1.0}.get(self.recipe.task_kind, 1.35)
        return max(1.0, self.facts.words * per_word)

    def training(
        self,
        why: str,
        passes: tuple[float, float],
        learn: float,
        batch: int,
        warmup: tuple[int, float] = (100, 0.1),
        also: Values | None = None,
    ) -> Generator[Choice, None, float]:
        """The passes over the data, smaller batches if there would be too few of them, and the warm-up: so many steps,
        or this part of the steps if that is less. Returns the passes."""
        epochs = self.epochs(passes, learn, batch)
        while batch > 128 and epochs * self.tokens / batch < STEPS:
            batch //= 2
        steps = epochs * self.tokens / self._batch(batch)
        values: Values = {
            "train.epochs": (epochs, f"{epochs:g} epochs"),
            "train.batch_tokens": (batch, f"{batch:,} tokens per step"),
            "train.warmup": (min(400 if self.gpu else warmup[0], math.ceil(warmup[1] * steps)), ""),
        }
        yield Choice("training", why, values | (also or {}))
        return epochs

    def epochs(self, passes: tuple[float, float], learn: float, batch: int) -> float:
        """Passes over the data: as many as the user has asked for, fit into train.minutes, or `learn` tokens take, but
        at least and at most `passes`. `batch`: tokens per step."""
        train = self.recipe.train
        if train.minutes:
            found = 60 * train.minutes * (SPEED[1] if self.gpu else SPEED[0] * self.threads) / self.tokens
        elif train.epochs and "train.epochs" in self.given:
            found = train.epochs
        elif train.steps and "train.steps" in self.given:
            found = train.steps * self._batch(batch) / self.tokens
        else:
            found = min(passes[1], max(passes[0], learn / self.tokens))
        return float(f"{found:.2g}")

    def _batch(self, batch: int) -> int:
        return self.recipe.train.batch_tokens if "train.batch_tokens" in self.given else batch

    def seen(self, epochs: float) -> str:
        """A reason."""
        return f"the data is seen {'about ' if self.recipe.train.minutes else ''}{epochs:g} times"

    def careful_rate(self, able: str = "read") -> Choice:
        """Of a body that has learned to read or see: the wider, the smaller."""
        rate = float(f"{min(5e-4, 0.1 / self.recipe.model.width):.1g}")
        return Choice("rate", f"it starts from a run that can {able}", _rate(rate))


def _rate(rate: float) -> Values:
    return {"train.lr": (rate, f"learning rate {rate:g}")}


def _dropout(rate: float) -> Values:
    return {"model.dropout": (rate, f"dropout {rate:g}")}


PICTURES = ((28, 4), (32, 4), (64, 8), (96, 8), (128, 16), (224, 16))  # sides in pixels, and their patches


def picture_size(case: Case) -> Iterator[Choice]:
    """Small pictures as they are, larger ones scaled to what a machine can learn from; 49 to 196 patches."""
    side, channels = case.facts.side or 32, case.facts.channels
    known = PICTURES if case.gpu else PICTURES[:3]
    image, patch = next((row for row in known if side <= row[0]), known[-1])
    if not case.recipe.train.init:
        kind = "grey" if channels == 1 else "colour"
        values: Values = {
            "model.image": (image, f"{image} x {image} pixels"),
            "model.patch": (patch, f"patches of {patch} x {patch}"),
            "model.channels": (channels, kind),
        }
        yield Choice("pictures", f"they are {kind}, {side} pixels on the shorter side", values)
        if case.gpu:
            values = {"model.layers": (6, "6 layers"), "model.width": (256, "256 wide"), "train.lr": (1e-3, "")}
            yield Choice("model", "there is a GPU", values)


def picture_training(case: Case) -> Iterator[Choice]:
    """After the pictures have their size."""
    batch, why = (128 if case.gpu else 32) * case.recipe.model.tokens, f"there are {case.facts.examples:,} pictures"
    epochs = yield from case.training(why, (2, 60), LEARN[case.gpu] * 4, batch)
    if case.recipe.train.init:
        yield case.careful_rate("see")
    if epochs < 5:  # Fashion-MNIST seen twice: 79.7 % with the shift of the recipe, 85.5 % without
        yield Choice("augmentation", case.seen(epochs), {"task.shift": (0.0, "none")})
    else:
        flip = 0.5 if case.facts.channels == 3 else 0.0
        values = {
            "task.shift": (0.1, "shifted"),
            "task.flip": (flip, "flipped (task.flip=0 if left and right matter)" if flip else ""),
            "task.changes": (2, "changed in colour and shape"),
            "task.strength": (0.4, ""),
            "task.smoothing": (0.1, ""),
            "model.drop_path": (0.1, ""),
        }
        yield Choice("against overfitting", case.seen(epochs), values)


def drawing(case: Case) -> Iterator[Choice]:
    """Captions that people write are longer than generated ones."""
    caption = 32
    yield Choice("captions", "people write them", {"model.caption": (caption, f"up to {caption} tokens")})
    if case.gpu:
        values: Values = {"model.layers": (8, "8 layers"), "model.heads": (8, ""), "model.width": (384, "384 wide")}
        values["train.lr"] = (1e-3, "")
        yield Choice("model", "there is a GPU", values)
    batch, why = (128 if case.gpu else 32) * (1 + caption + CODES), f"there are {case.facts.examples:,} pictures"
    epochs = yield from case.training(why, (2, 60), LEARN[case.gpu] * 4, batch)
    yield Choice("against overfitting", case.seen(epochs), _dropout(0.0 if epochs < 5 else 0.1))


SPLITS = {"valid": "for validation", "test": "for the test"}
HELD_OUT = {"valid": (0.1, 500), "test": (0.2, 1_000)}  # the largest part, and as many examples as are enough
REAL = 0.2  # part of the different words that occur only once; smaller in generated text, larger in real text
LITTLE = 200_000  # bytes of training text
# The size and the learning rate of a model: for little text, for a CPU, for a GPU.
SIZES = {
    "bert": (("tiny", 1e-3), ("tiny", 1e-3), ("small", 5e-4)),
    "gpt": (("nano", 3e-3), ("micro", 3e-3), ("mini", 2e-3)),
    "rnn": (("nano", 1e-2), ("small", 5e-3), ("medium", 2e-3)),
    "convnet": (("tiny", 3e-3), ("tiny", 3e-3), ("small", 2e-3)),
    "elmo": (("nano", 1e-2), ("nano", 1e-2), ("small", 2e-3)),
    "transformer": (("tiny", 3e-3), ("tiny", 4e-3), ("small", 1e-3)),
    "seq2seq": (("tiny", 5e-3), ("tiny", 5e-3), ("small", 2e-3)),
    "convseq2seq": (("tiny", 3e-3), ("tiny", 3e-3), ("small", 2e-3)),
}


def follow(recipe: Recipe, facts: Facts, runtime: Runtime) -> tuple[Recipe, list[str]]:
    """The recipe with the settings that the rules choose for this data, and a line for each choice. What the user has
    set stays as it is, and a choice that contradicts it is left out."""
    notes = []
    gpu = runtime.device.startswith("cuda")
    for rule in RULES[recipe.task_kind]:
        for choice in rule(Case(facts, recipe, gpu, runtime.threads)):
            free = _free(recipe, choice.values)
            try:
                changed = _with(recipe, {key: value for key, (value, _) in free.items()})
            except UserError:
                continue
            words = [word for _, word in free.values() if word]
            if changed != recipe and words:
                notes.append(f"{choice.name}: {', '.join(words)}, because {choice.why}")
            recipe = changed
    return recipe, notes


def _free(recipe: Recipe, values: Values) -> Values:
    """Those of the settings that the recipe has and that the user has not set."""
    sections, given = recipe.to_dict(), recipe.given or frozenset()
    lengths = {f"train.{name}" for name in LENGTHS}
    fixed = given | lengths if given & lengths else given
    return {
        key: value
        for key, value in values.items()
        if key not in fixed and key.partition(".")[2] in sections[key.partition(".")[0]]
    }


def _with(recipe: Recipe, settings: dict[str, Any]) -> Recipe:
    values = recipe.to_dict()
    for key, value in settings.items():
        section, _, name = key.partition(".")
        if section == "train" and name in LENGTHS:
            values["train"] |= dict.fromkeys(LENGTHS, 0)
        values[section][name] = value
    return replace(Recipe.parse(values), given=recipe.given)


def held_out(case: Case) -> Iterator[Choice]:
    """A test should leave little uncertainty, and little data should be learned from: a part of it, until there are
    enough examples, and then no more of them. Validation needs fewer: it only chooses."""
    facts, task, data = case.facts, case.recipe.task_kind, case.recipe.data
    if data.name or case.given & {"data.valid_part", "data.test_part"}:
        return
    certainty = ""
    if task in ("lm", "pretrain", "wordvectors"):
        enough = 100_000 if task == "wordvectors" else 500_000  # bytes; to evaluate word vectors is slow
        part = float(f"{min(data.valid_part, enough / max(1, facts.bytes)):.1g}")
        parts, why = dict.fromkeys(SPLITS, part), f"that is enough of {human_bytes(facts.bytes)}"
    else:
        most = 1_000 if task in ("translate", "embed") else 5_000
        parts = {name: _part(facts.examples, data.valid_part, *HELD_OUT[name], most) for name in SPLITS}
        tested = max(1, round(parts["test"] * facts.examples))
        certainty = f", which tells an accuracy of 80 % to about ± {196 * math.sqrt(0.16 / tested):.1f}"
        why = f"there are {facts.examples:,} examples"
    words = {name: f"{100 * part:g} % {SPLITS[name]}" for name, part in parts.items()}
    words["test"] += certainty
    values = {f"data.{name}_part": (parts[name], words[name]) for name in SPLITS if name not in facts.splits}
    yield Choice("held out", why, values)


def _part(examples: int, usual: float, largest: float, enough: int, most: int) -> float:
    """`enough` examples, but no more than the part `largest`; of much data the `usual` part, up to `most` examples."""
    few, many = min(largest, enough / max(1, examples)), min(usual, most / max(1, examples))
    return float(f"{max(few, many):.2g}")


def vocabulary(case: Case) -> Iterator[Choice]:
    """Real text has too many rare words for a vocabulary of whole words. But a class shows in the frequent ones, unless
    the text has no spaces between words."""
    facts, task, text = case.facts, case.recipe.task_kind, case.recipe.text
    if case.given & {"text.kind", "text.path", "text.vectors", "text.min_count"} or facts.once <= REAL:
        return
    spelled = catalog.model(case.recipe.model_kind).BodyClass.spelled
    if spelled or ("text.vocab" in case.given and text.vocab < 500):
        return
    values: Values = {}
    if text.kind == "bert":  # whole words are worth more rows: it reads faster than it writes
        vocab = _two_digits(min(16_000 if case.gpu else 8_000, max(1_000.0, 12 * math.sqrt(facts.words))))
        values = {"text.vocab": (vocab, f"{vocab:,} pieces of words")}
    elif task != "classify" or facts.different >= 0.5:
        most = 8000 if case.gpu or task == "tag" else 4000  # each row takes time, too
        vocab = _two_digits(min(most, max(500.0, (4 if task == "lm" else 8) * math.sqrt(facts.words))))
        values = {"text.kind": ("bpe", "bpe"), "text.vocab": (vocab, f"{vocab:,} tokens")}
    elif facts.examples >= 1000:  # and these words teach what to do with unknown ones
        values = {"text.min_count": (2, "words that occur twice")}
    yield Choice("vocabulary", f"{100 * facts.once:.0f} % of the words occur only once", values)


def size(case: Case) -> Iterator[Choice]:
    """A larger model where there is more to learn, and the machine can."""
    kind, little = case.recipe.model_kind, case.facts.bytes < LITTLE
    if case.given & {"model.size", "model.width", "model.layers", "model.heads"}:
        return  # and the learning rate stays
    name, rate = SIZES[kind][0 if little else 2 if case.gpu else 1]
    sizes = {f"model.{key}": value for key, value in catalog.model(kind).sizes[name].items() if key != "dropout"}
    values: Values = {key: (value, "") for key, value in sizes.items()}
    values["model.width"] = (sizes["model.width"], f"size {name}")
    why = f"there are {human_bytes(case.facts.bytes)} of text and {'a GPU' if case.gpu else 'no GPU'}"
    yield Choice("model", why, values | _rate(rate))
    if kind in ("gpt", "transformer"):
        # Two passes over Tatoeba, two seeds: a translator's validation loss is 2.40 and 2.38 with rotary positions,
        # 2.47 and 2.47 with learned ones, 2.50 and 2.46 with sinusoidal ones.
        words = "rotary (for ayn export --to hf, train with model.positions=learned)"
        yield Choice("positions", "real texts are of every length", {"model.positions": ("rotary", words)})


def translation(case: Case) -> Iterator[Choice]:
    """Few passes are not enough to learn the sentences by heart: dropout would only slow them down."""
    pairs, batch = case.facts.examples, 4096 if case.gpu else 512
    beta2: Values = {"train.beta2": (0.98, "")}
    why = f"there are {pairs:,} pairs"
    epochs = yield from case.training(why, (2, 30), LEARN[case.gpu], batch, (500, 0.15), beta2)
    dropout = 0.0 if epochs < 8 else 0.3 if case.gpu or pairs < 10_000 else 0.1
    smoothing = 0.1 if dropout else 0.0
    values = _dropout(dropout) | {"task.smoothing": (smoothing, f"label smoothing {smoothing:g}")}
    yield Choice("against overfitting", case.seen(epochs), values)
    if not any(key.startswith("decode.") for key in case.given):
        search = {"method": "beam", "beam": 4, "length_penalty": "gnmt", "alpha": 1.0, "max_new": 128}
        found = {f"decode.{key}": (value, "a beam of 4" if key == "beam" else "") for key, value in search.items()}
        yield Choice("answers", "real sentences have many translations", found)


def fine_tuning(case: Case) -> Iterator[Choice]:
    """A body that has learned to read needs few passes and small steps."""
    least = 6 if case.recipe.task_kind == "tag" else 3
    why = f"it starts from a run that can read, with {case.facts.words:,} words to learn from"
    values: Values = {"train.min_lr": (0.0, ""), "model.attention_dropout": (0.1, ""), "task.unknown": (0.0, "")}
    values |= _dropout(0.1) | case.careful_rate().values
    yield from case.training(why, (least, 2 * least), LABELLED, 1024, also=values)


def questions(case: Case) -> Iterator[Choice]:
    """Texts with their questions."""
    values: Values = {"task.longest": (0, "as long as the training data has them")}
    yield Choice("answers", "a longer one than that is never found whole", values)
    if case.recipe.train.init:
        yield from fine_tuning(case)
        return
    why, batch = f"there are {case.facts.examples:,} questions", 8192 if case.gpu else 2048
    yield from case.training(why, (2, 20), LEARN[case.gpu], batch)
    length = 384 if case.gpu else 256
    yield Choice("length", "a longer text is read in windows", {"data.max_length": (length, f"{length} tokens")})


def labels(case: Case) -> Iterator[Choice]:
    """Labelled data is small: it is read often, and learned by heart soon."""
    if case.recipe.train.init and case.recipe.model_kind in ("bert", "gpt"):
        yield from fine_tuning(case)
        return
    facts, classify = case.facts, case.recipe.task_kind == "classify"
    large = facts.words > 2_000_000
    batch = 4096 if large else 1024 if classify else 512
    least = 1 if classify else 2 if large else 8
    why = f"there are {facts.examples:,} examples with {facts.words:,} words"
    epochs = yield from case.training(why, (least, 20), LABELLED, batch)
    values = _dropout(0.5 if classify else 0.2)
    if classify:
        values["train.ema"] = (0.99, "a mean of the weights")
    yield Choice("against overfitting", case.seen(epochs), values)
    if classify and case.recipe.model_kind in WITH_LINEAR:
        values = {
            "task.linear": (True, "a linear model over words and pairs of words beside the network"),
            "task.pool": ("mean", "the mean over the words"),
            "text.lowercase": (True, "in lower case"),
        }
        yield Choice("model", "networks that start at random need more data than that", values)
    if not classify and case.recipe.model_kind == "rnn" and case.recipe.text.kind == "bpe":
        values = {
            "model.width": (128, "128 wide"),
            "task.unknown": (0.0, "no words hidden in training"),
            **_rate(2e-3),
        }
        yield Choice("model", "names show in the pieces of words", values)


def running_text(case: Case) -> Iterator[Choice]:
    """At least one pass, if that is no more than about half an hour."""
    facts, learn, batch = case.facts, LEARN[case.gpu], 8192 if case.gpu else 1024
    context = 256 if case.gpu else 128
    while context > 16 and case.tokens < 16 * context:
        context //= 2
    windows: Values = {"model.context": (context, f"windows of {context}")}
    why = f"there are about {_two_digits(case.tokens):,} tokens"
    epochs = yield from case.training(why, (min(1.0, 3 * learn / case.tokens), 20), learn, batch, also=windows)
    dropout = 0.0 if epochs < 5 else 0.1 if epochs < 12 else 0.2
    yield Choice("against overfitting", case.seen(epochs), _dropout(dropout))
    if facts.lines <= 100 or facts.loose >= 0.01:  # otherwise each line stands for itself, and an answer ends with it
        why = "the text has blank or indented lines" if facts.loose >= 0.01 else "the text has few lines"
        yield Choice("answers", why, {"decode.stop": ((), "over several lines"), "decode.max_new": (200, "200 tokens")})


def passages(case: Case) -> Iterator[Choice]:
    """Hidden words are hard to learn: as much as can be read in about twenty minutes."""
    learn, batch = LEARN[case.gpu] * 2, 32_768 if case.gpu else 2_048
    beta2: Values = {"train.beta2": (0.98, "")}
    why = f"there are about {_two_digits(case.tokens):,} tokens"
    epochs = yield from case.training(why, (1, 40), learn, batch, (300, 0.1), beta2)
    yield Choice("length", "most of what a word means stands near it", {"data.max_length": (128, "128 tokens")})
    dropout = 0.0 if epochs < 10 else 0.1
    values = _dropout(dropout) | {"model.attention_dropout": (dropout, "")}
    yield Choice("against overfitting", case.seen(epochs), values)
    if case.recipe.train.init:
        yield case.careful_rate()


def matching(case: Case) -> Iterator[Choice]:
    """Pairs are not soon learned by heart: each pass compares them with others."""
    if case.recipe.train.init:
        yield from fine_tuning(case)
        return
    why, batch = f"there are {case.facts.examples:,} pairs", 16_384 if case.gpu else 2_048
    epochs = yield from case.training(why, (2, 40), LEARN[case.gpu], batch)
    dropout = 0.0 if epochs < 20 else 0.1
    values = _dropout(dropout) | {"model.attention_dropout": (dropout, "")}
    yield Choice("against overfitting", case.seen(epochs), values)


def vectors(case: Case) -> Iterator[Choice]:
    """More text needs fewer passes, and has more to say of each word."""
    words = case.facts.words
    epochs, width = case.epochs((3, 20), 25_000_000, 10_000), 100 if words >= 1_000_000 else 50
    values = {"train.epochs": (epochs, f"{epochs:g} epochs"), "model.width": (width, f"vectors {width} wide")}
    yield Choice("training", f"there are {words:,} words", values)


def evaluations(case: Case) -> Iterator[Choice]:
    part = catalog.task(case.recipe.task_kind).eval_share
    why = f"they may take {100 * part:g} % of the time"
    yield Choice("evaluations", why, {"train.eval_every": (0, "ten at most")})


def _two_digits(value: float) -> int:
    return int(float(f"{value:.2g}"))


RULES = {
    "answer": (held_out, vocabulary, questions, evaluations),
    "lm": (held_out, vocabulary, size, running_text, evaluations),
    "pretrain": (held_out, vocabulary, size, passages, evaluations),
    "translate": (held_out, vocabulary, size, translation, evaluations),
    "compress": (held_out, picture_size, picture_training, evaluations),
    "draw": (held_out, vocabulary, drawing, evaluations),
    "recognize": (held_out, picture_size, picture_training, evaluations),
    "classify": (held_out, vocabulary, labels, evaluations),
    "tag": (held_out, vocabulary, labels, evaluations),
    "embed": (held_out, vocabulary, size, matching, evaluations),
    "wordvectors": (held_out, vectors, evaluations),
}
