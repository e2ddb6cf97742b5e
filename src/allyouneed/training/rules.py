"""Settings that follow the data. The settings of a recipe named after a model fit small built-in data; with other
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
from allyouneed.recipe import Recipe, as_overrides, override
from allyouneed.runtime import Runtime
from allyouneed.tasks.labels import WITH_LINEAR

# Pairs of numbers are for a CPU and for a GPU.
SPEED = (2_000.0, 150_000.0)  # tokens per second that the models chosen here learn: per CPU thread, and on a GPU
LEARN = (3_000_000, 100_000_000)  # tokens that they learn if nothing else is asked for: about ten minutes
LABELLED = (1_200_000, 1_200_000)  # tokens of labelled texts, or to tune a body that has learned to read
STEPS = 400  # fewer are too few, whatever the data: then batches are smaller
CAPTION = 32  # tokens: captions that people write are longer than generated ones
CODES = 64  # of an image, as most codebooks have them; the rules do not open them

Settings = dict[str, Any]  # "train.lr" -> its value
Choice = tuple[str, str, Settings]  # what some settings are about, the reason for them, and the settings


@dataclass(frozen=True)
class Training:
    """How long a task learns from other data, and in which batches."""

    things: str  # what the data has, for the reason
    passes: tuple[float, float]  # over the data, at least and at most
    batch: tuple[int, int]  # tokens per step, or images
    learn: tuple[int, int] = LEARN  # tokens, within these passes
    warmup: tuple[int, float] = (100, 0.1)  # so many steps, or this part of all steps if that is less
    dropout: tuple[tuple[int, float], ...] = ()  # (passes, dropout): from so many passes on
    beta2: float = 0.99


IMAGES = Training("images", (2, 60), (32, 128), (4 * LEARN[0], 4 * LEARN[1]))
TRAININGS = {
    "answer": Training("questions", (2, 20), (2_048, 8_192)),
    "compress": IMAGES,
    "draw": replace(IMAGES, dropout=((5, 0.1),)),
    # Pairs are not soon learned by heart: each pass compares them with others.
    "embed": Training("pairs", (2, 40), (2_048, 16_384), dropout=((20, 0.1),)),
    # At least one pass, if that is no more than about half an hour.
    "lm": Training("", (1, 20), (1_024, 8_192), dropout=((5, 0.1), (12, 0.2))),
    # Hidden words are hard to learn: as much as can be read in about twenty minutes.
    "pretrain": Training(
        "", (1, 40), (2_048, 32_768), (2 * LEARN[0], 2 * LEARN[1]), (300, 0.1), ((10, 0.1),), beta2=0.98
    ),
    "recognize": IMAGES,
    "translate": Training("pairs", (2, 30), (512, 4_096), warmup=(500, 0.15), dropout=((8, 0.1),), beta2=0.98),
    # More text needs fewer passes, and has more to say of each word.
    "wordvectors": Training("", (3, 20), (10_000, 10_000), (25_000_000, 25_000_000)),
}


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
            drawing, model = self.recipe.task_kind == "draw", self.recipe.model
            return max(1.0, float(self.facts.examples * (model.limit + CODES if drawing else model.tokens)))
        per_word = {"translate": 1.35 / 2, "classify": 1.0, "wordvectors": 1.0}.get(self.recipe.task_kind, 1.35)
        return max(1.0, self.facts.words * per_word)

    @property
    def tuned(self) -> bool:
        """Whether a body that has learned to read learns a task with labels."""
        task, kind = self.recipe.task_kind, self.recipe.model_kind
        able = task in ("answer", "embed") or (task in ("classify", "tag") and kind in ("bert", "gpt"))
        return able and bool(self.recipe.train.init)

    @property
    def training(self) -> Training:
        task, large = self.recipe.task_kind, self.facts.words > 2_000_000
        if self.tuned:  # few passes and small steps
            least = 6 if task == "tag" else 3
            return Training("examples", (least, 2 * least), (1_024, 1_024), LABELLED)
        if task in ("classify", "tag"):  # labelled data is small: it is read often, and learned by heart soon
            least = 1 if task == "classify" else 2 if large else 8
            batch = 4_096 if large else 1_024 if task == "classify" else 512
            return Training("examples", (least, 20), (batch, batch), LABELLED)
        return TRAININGS[task]

    @property
    def batch(self) -> int:
        """Tokens per step, before the passes are known."""
        batch, model = self.training.batch[self.gpu], self.recipe.model
        if self.training.things != "images":
            return batch
        return batch * (1 + CAPTION + CODES if self.recipe.task_kind == "draw" else model.tokens)

    @property
    def epochs(self) -> float:
        """Passes over the data: as many as the user has asked for, fit into train.minutes, or the tokens to learn take,
        but within those of the task."""
        train, (least, most), learn = self.recipe.train, self.training.passes, self.training.learn[self.gpu]
        if train.minutes:
            found = 60 * train.minutes * (SPEED[1] if self.gpu else SPEED[0] * self.threads) / self.tokens
        elif train.epochs and "train.epochs" in self.given:
            found = train.epochs
        elif train.steps and "train.steps" in self.given:
            found = (
                train.steps * (train.batch_tokens if "train.batch_tokens" in self.given else self.batch) / self.tokens
            )
        else:
            if self.recipe.task_kind == "lm":
                least = min(least, 3 * learn / self.tokens)
            found = min(most, max(least, learn / self.tokens))
        return float(f"{found:.2g}")

    @property
    def dropout(self) -> float:
        """Few passes are not enough to learn the data by heart: dropout would only slow them down."""
        return next((rate for passes, rate in reversed(self.training.dropout) if self.epochs >= passes), 0.0)

    @property
    def seen(self) -> str:
        """A reason."""
        return f"the data is seen {'about ' if self.recipe.train.minutes else ''}{self.epochs:g} times"


def training(case: Case) -> Iterator[Choice]:
    """The passes over the data, smaller batches if there would be too few of them, and the warm-up."""
    own, epochs, batch, facts = case.training, case.epochs, case.batch, case.facts
    while batch > 128 and epochs * case.tokens / batch < STEPS:
        batch //= 2
    steps = epochs * case.tokens / (case.recipe.train.batch_tokens if "train.batch_tokens" in case.given else batch)
    most, part = own.warmup
    settings = {
        "train.epochs": epochs,
        "train.batch_tokens": batch,
        "train.warmup": min(400 if case.gpu else most, math.ceil(part * steps)),
    }
    if own.beta2 != 0.99:
        settings["train.beta2"] = own.beta2
    many = f"{facts.examples:,} {own.things}" if own.things else f"about {_two_digits(case.tokens):,} tokens"
    why = f"there are {many}"
    if own.things == "examples":
        why += f" with {facts.words:,} words"
    yield "training", why, settings


def rate(case: Case) -> Iterator[Choice]:
    """Small steps for a body that has learned to read or see: the wider, the smaller."""
    seeing = case.training is IMAGES
    if not case.recipe.train.init or not (case.tuned or seeing or case.recipe.task_kind == "pretrain"):
        return
    settings: Settings = {"train.lr": float(f"{min(5e-4, 0.1 / case.recipe.model.width):.1g}")}
    if case.tuned:
        settings |= {"train.min_lr": 0.0, "task.unknown": 0.0, "model.dropout": 0.1, "model.attention_dropout": 0.1}
    yield "rate", f"it starts from a run that can {'see' if seeing else 'read'}", settings


def image_size(case: Case) -> Iterator[Choice]:
    """Small images as they are, larger ones scaled to what a machine can learn from; 49 to 196 patches."""
    if case.recipe.train.init:
        return
    sizes = ((28, 4), (32, 4), (64, 8), (96, 8), (128, 16), (224, 16))  # sides in pixels, and their patches
    side, channels = case.facts.side or 32, case.facts.channels
    known = sizes if case.gpu else sizes[:3]
    image, patch = next((row for row in known if side <= row[0]), known[-1])
    why = f"they are {'grey' if channels == 1 else 'colour'}, {side} pixels on the shorter side"
    yield "images", why, {"model.image": image, "model.patch": patch, "model.channels": channels}
    if case.gpu:
        yield "model", "there is a GPU", {"model.layers": 6, "model.width": 256, "train.lr": 1e-3}


def augmentation(case: Case) -> Iterator[Choice]:
    if case.epochs < 5:  # Fashion-MNIST seen twice: 79.7 % with the shift of the recipe, 85.5 % without
        yield "augmentation", case.seen, {"task.shift": 0.0}
        return
    flip = 0.5 if case.facts.channels == 3 else 0.0
    changes = {"task.shift": 0.1, "task.flip": flip, "task.changes": 2, "task.strength": 0.4}
    yield "against overfitting", case.seen, {**changes, "task.smoothing": 0.1, "model.drop_path": 0.1}


def captions(case: Case) -> Iterator[Choice]:
    yield "captions", "people write them", {"model.caption": CAPTION}
    if case.gpu:
        size = {"model.layers": 8, "model.heads": 8, "model.width": 384, "train.lr": 1e-3}
        yield "model", "there is a GPU", size


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
    notes, fixed = [], recipe.given or frozenset()
    lengths = {f"train.{name}" for name in LENGTHS}
    if fixed & lengths:
        fixed |= lengths
    for rule in RULES[recipe.task_kind]:
        for name, why, settings in rule(Case(facts, recipe, runtime.device.startswith("cuda"), runtime.threads)):
            before = {f"{part}.{key}": value for part, own in recipe.to_dict().items() for key, value in own.items()}
            free = {key: value for key, value in settings.items() if key in before and key not in fixed}
            try:
                changed = replace(Recipe.parse(override(recipe.to_dict(), as_overrides(free))), given=recipe.given)
            except UserError:
                continue
            if new := as_overrides({key: value for key, value in free.items() if value != before[key]}):
                notes.append(f"{name}: {', '.join(new)}, because {why}")
            recipe = changed
    return recipe, notes


def held_out(case: Case) -> Iterator[Choice]:
    """A test should leave little uncertainty, and little data should be learned from: a part of it, until there are
    enough examples, and then no more of them. Validation needs fewer: it only chooses."""
    facts, task, data = case.facts, case.recipe.task_kind, case.recipe.data
    if data.name or case.given & {"data.valid_part", "data.test_part"}:
        return
    if task in ("lm", "pretrain", "wordvectors"):
        enough = 100_000 if task == "wordvectors" else 500_000  # bytes; to evaluate word vectors is slow
        valid = test = float(f"{min(data.valid_part, enough / max(1, facts.bytes)):.1g}")
        why = f"that is enough of {human_bytes(facts.bytes)}"
    else:
        usual = min(data.valid_part, (1_000 if task in ("translate", "embed") else 5_000) / max(1, facts.examples))
        valid, test = (
            float(f"{max(usual, min(largest, enough / max(1, facts.examples))):.2g}")
            for largest, enough in ((0.1, 500), (0.2, 1_000))
        )
        why = f"there are {facts.examples:,} examples"
        if "test" not in facts.splits:
            tested = max(1, round(test * facts.examples))
            why += f": an accuracy of 80 % is then known to about ± {196 * math.sqrt(0.16 / tested):.1f}"
    parts = {"valid": valid, "test": test}
    yield "held out", why, {f"data.{name}_part": part for name, part in parts.items() if name not in facts.splits}


def vocabulary(case: Case) -> Iterator[Choice]:
    """Real text has too many rare words for a vocabulary of whole words. But a class shows in the frequent ones, unless
    the text has no spaces between words."""
    facts, task, text = case.facts, case.recipe.task_kind, case.recipe.text
    if case.given & {"text.kind", "text.path", "text.vectors", "text.min_count"} or facts.once <= REAL:
        return
    spelled = catalog.model(case.recipe.model_kind).BodyClass.spelled
    if spelled or ("text.vocab" in case.given and text.vocab < 500):
        return
    settings: Settings = {}
    root = math.sqrt(facts.words)
    if text.kind == "bert":  # whole words are worth more rows: it reads faster than it writes
        settings = {"text.vocab": _two_digits(min(16_000 if case.gpu else 8_000, max(1_000.0, 12 * root)))}
    elif task != "classify" or facts.different >= 0.5:
        most = 8000 if case.gpu or task == "tag" else 4000  # each row takes time, too
        vocab = _two_digits(min(most, max(500.0, (4 if task == "lm" else 8) * root)))
        settings = {"text.kind": "bpe", "text.vocab": vocab}
    elif facts.examples >= 1000:  # and these words teach what to do with unknown ones
        settings = {"text.min_count": 2}
    yield "vocabulary", f"{100 * facts.once:.0f} % of the words occur only once", settings


def size(case: Case) -> Iterator[Choice]:
    """A larger model where there is more to learn, and the machine can."""
    kind, little = case.recipe.model_kind, case.facts.bytes < LITTLE
    if case.given & {"model.size", "model.width", "model.layers", "model.heads"}:
        return  # and the learning rate stays
    name, rate = SIZES[kind][0 if little else 2 if case.gpu else 1]
    own = {f"model.{key}": value for key, value in catalog.model(kind).sizes[name].items() if key != "dropout"}
    why = f"there are {human_bytes(case.facts.bytes)} of text and {'a GPU' if case.gpu else 'no GPU'}"
    yield f"model size {name}", why, own | {"train.lr": rate}
    if kind in ("gpt", "transformer"):
        # Two passes over Tatoeba, two seeds: a translator's validation loss is 2.40 and 2.38 with rotary positions,
        # 2.47 and 2.47 with learned ones, 2.50 and 2.46 with sinusoidal ones.
        why = "real texts are of every length (ayn export --to hf needs model.positions=learned)"
        yield "positions", why, {"model.positions": "rotary"}


def overfitting(case: Case) -> Iterator[Choice]:
    """Dropout, by the passes."""
    rate = case.dropout
    settings: Settings = {"model.dropout": rate}
    if case.recipe.task_kind in ("embed", "pretrain"):
        settings["model.attention_dropout"] = rate
    if not case.tuned:
        yield "against overfitting", case.seen, settings


def translation(case: Case) -> Iterator[Choice]:
    rate = case.dropout and (0.3 if case.gpu or case.facts.examples < 10_000 else 0.1)
    yield "against overfitting", case.seen, {"model.dropout": rate, "task.smoothing": 0.1 if rate else 0.0}
    if not any(key.startswith("decode.") for key in case.given):
        search = {"method": "beam", "beam": 4, "length_penalty": "gnmt", "alpha": 1.0, "max_new": 128}
        found = {f"decode.{key}": value for key, value in search.items()}
        yield "answers", "real sentences have many translations", found


def questions(case: Case) -> Iterator[Choice]:
    yield "answers", "a longer one than that is never found whole", {"task.longest": 0}
    if not case.tuned:
        yield "length", "a longer text is read in windows", {"data.max_length": 384 if case.gpu else 256}


def labels(case: Case) -> Iterator[Choice]:
    classify, kind = case.recipe.task_kind == "classify", case.recipe.model_kind
    if case.tuned:
        return
    against: Settings = {"model.dropout": 0.5, "train.ema": 0.99} if classify else {"model.dropout": 0.2}
    yield "against overfitting", case.seen, against
    if classify and kind in WITH_LINEAR:
        settings = {"task.linear": True, "task.pool": "mean", "text.lowercase": True}
        yield "model", "networks that start at random need more data than that", settings
    if not classify and kind == "rnn" and case.recipe.text.kind == "bpe":
        names = {"model.width": 128, "task.unknown": 0.0, "train.lr": 2e-3}
        yield "model", "names show in the pieces of words", names


def running_text(case: Case) -> Iterator[Choice]:
    context = 256 if case.gpu else 128
    while context > 16 and case.tokens < 16 * context:
        context //= 2
    yield "length", f"there are about {_two_digits(case.tokens):,} tokens", {"model.context": context}
    facts = case.facts
    if facts.lines <= 100 or facts.loose >= 0.01:  # otherwise each line stands for itself, and an answer ends with it
        why = "the text has blank or indented lines" if facts.loose >= 0.01 else "the text has few lines"
        yield "answers", why, {"decode.stop": (), "decode.max_new": 200}


def passages(case: Case) -> Iterator[Choice]:
    yield "length", "most of what a word means stands near it", {"data.max_length": 128}


def vectors(case: Case) -> Iterator[Choice]:
    words = case.facts.words
    settings = {"train.epochs": case.epochs, "model.width": 100 if words >= 1_000_000 else 50}
    yield "training", f"there are {words:,} words", settings


def evaluations(case: Case) -> Iterator[Choice]:
    part = catalog.task(case.recipe.task_kind).eval_share
    yield "evaluations", f"they may take {100 * part:g} % of the time", {"train.eval_every": 0}


def _two_digits(value: float) -> int:
    return int(float(f"{value:.2g}"))


RULES = {
    "answer": (held_out, vocabulary, training, rate, questions, evaluations),
    "lm": (held_out, vocabulary, size, running_text, training, overfitting, evaluations),
    "pretrain": (held_out, vocabulary, size, training, rate, passages, overfitting, evaluations),
    "translate": (held_out, vocabulary, size, training, translation, evaluations),
    "compress": (held_out, image_size, training, rate, augmentation, evaluations),
    "draw": (held_out, vocabulary, training, overfitting, captions, evaluations),
    "recognize": (held_out, image_size, training, rate, augmentation, evaluations),
    "classify": (held_out, vocabulary, training, rate, labels, evaluations),
    "tag": (held_out, vocabulary, training, rate, labels, evaluations),
    "embed": (held_out, vocabulary, size, training, rate, overfitting, evaluations),
    "wordvectors": (held_out, vectors, evaluations),
}
