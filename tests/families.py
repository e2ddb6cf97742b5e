"""One small run of every family, made once, with inputs that it answers."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from allyouneed.data.builtin.shapes import Shape, draw
from allyouneed.run import Run, train
from conftest import RUNTIME

SMALL = (*RUNTIME, "train.steps=3", "train.epochs=0", "train.minutes=0", "train.test_limit=-1", "train.warmup=1")
ATTENDS = ("model.width=16", "model.heads=2", "model.layers=2")
TEXTS = ("The dog sleeps", "The old woman", "A child reads a book", "The")
ENGLISH = ("I am tired.", "The dog sleeps.", "She reads a good book.", "We drink the coffee.")
OPINIONS = ("the soup was good", "what a bad film", "the room is small but clean", "I like it")
NAMES = ("Anna lives in Rome", "Mr Berg works for Acme", "we left", "Paris is far from Oslo today")
ASKED = (
    "Where is Anna? ||| Anna is in the garden. Tom is at home.",
    "Who sings? ||| Tom sings in the kitchen.",
    "What is red? ||| The box is red. The ball is blue.",
    "Who is at home? ||| Anna is at home.",
)
HIDDEN = ("the dog [MASK] in the garden", "she [MASK] a book", "a [MASK]", "he sings and [MASK] walks")
CAPTIONS = ("a small red circle", "a large blue square", "a small green triangle", "a large red circle")
BOOK = ("model.width=16", "model.patch=8", "model.digits=3", "model.levels=3")
IMAGES = tuple(
    draw([Shape(form, colour, size, 12.0, 14.0)])
    for form, colour, size in (
        ("circle", "red", "small"),
        ("square", "blue", "large"),
        ("cross", "green", "small"),
        ("ring", "black", "large"),
    )
)
PAIRS = ("I am tired. ||| Io sono stanco.", "The dog ||| il cane", "a book ||| un libro", "we ||| noi")
# By name: the recipe, its settings, and what the run is asked.
FAMILIES: dict[str, tuple[str, tuple[str, ...], tuple[Any, ...]]] = {
    "gpt": ("lm/gpt", (*ATTENDS, "model.context=32", "decode.max_new=6"), TEXTS),
    "rnn": ("lm/rnn", ("model.width=16", "decode.max_new=6"), TEXTS),
    "lstm": ("lm/lstm", ("model.width=16", "decode.max_new=6"), TEXTS),
    "conv": ("lm/conv", ("model.width=16", "model.layers=2", "decode.max_new=6"), TEXTS),
    "elmo": (
        "lm/elmo",
        ("model.width=16", "model.layers=2", "model.filters=2", "model.reader=8", "decode.max_new=6"),
        TEXTS,
    ),
    "bert": ("pretrain/bert", (*ATTENDS, "model.context=32"), HIDDEN),
    "seq2seq": ("translate/rnn", ("model.width=16", "decode.max_new=6"), ENGLISH),
    "attention": ("translate/attention", ("model.width=16", "decode.max_new=6"), ENGLISH),
    "convseq2seq": ("translate/conv", ("model.width=16", "model.layers=2", "decode.max_new=6"), ENGLISH),
    "transformer": ("translate/transformer", (*ATTENDS, "model.hidden=32", "decode.max_new=6"), ENGLISH),
    "classify-rnn": ("classify/rnn", ("model.width=16",), OPINIONS),
    "classify-conv": ("classify/conv", ("model.width=16", "model.layers=2"), OPINIONS),
    "classify-bert": ("classify/bert", (*ATTENDS, "model.context=32"), OPINIONS),
    "tag-lstm": ("tag/lstm", ("model.width=16",), NAMES),
    "tag-elmo": ("tag/elmo", ("model.width=16", "model.layers=2", "model.filters=2", "model.reader=8"), NAMES),
    "tag-bert": ("tag/bert", (*ATTENDS, "model.context=32"), NAMES),
    "answer": ("answer/bert", (*ATTENDS, "model.context=64"), ASKED),
    "embed": ("embed/bert", (*ATTENDS, "model.context=32"), PAIRS),
    "word2vec": ("wordvectors/skipgram", ("model.width=8",), ("king", "man + aunt - uncle", "queen", "aunt")),
    "vit": ("recognize/vit", ATTENDS, IMAGES),
    "dvae": ("compress/shapes", BOOK, IMAGES),
    "dalle": ("draw/shapes", ATTENDS, CAPTIONS),
}


@cache
def made(name: str) -> Run:
    return train_family(name, Path(tempfile.mkdtemp(prefix=f"{name}-")) / "run")


def train_family(name: str, out: Path, *more: str) -> Run:
    recipe, settings, _ = FAMILIES[name]
    book = (f"task.image_tokenizer={made('dvae').folder.path}",) if name == "dalle" else ()
    return train(recipe, *SMALL, *settings, *book, *more, out=out, quiet=True)
