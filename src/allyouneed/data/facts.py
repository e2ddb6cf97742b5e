"""The size of the training data and of its vocabulary, before it is tokenized."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from allyouneed.data.examples import Question
from allyouneed.data.sources import IMAGES, Dataset, ExampleSplit, Split, Text

WORD = re.compile(r"\w+|[^\w\s]")
LOOSE = re.compile(r"\n(?=[ \t\n])")
SAMPLE = 5_000_000  # characters whose words are counted; more would hardly change what follows from them


@dataclass(frozen=True)
class Facts:
    """Words are those of all texts that a model reads or writes, with punctuation marks as words of their own."""

    splits: tuple[str, ...]  # that the data has
    examples: int  # documents, if it is running text
    bytes: int
    words: int  # running words; if only a part was counted, in proportion
    different: float  # different words, as a part of the running words that were counted
    once: float  # words that occur only once, as a part of the different words
    lines: int
    loose: float  # part of the lines that are blank or indented
    side: int = 0  # pixels of the shorter side of an image, the median of some
    channels: int = 0  # values per pixel: 1 or 3, of the images that have the most


def gather(data: Dataset) -> Facts:
    """Of the training split; the words are those of its first texts. Of images those of the captions, if they have
    any."""
    split, counts = data.splits["train"], Counter[str]()
    side, channels = split.look() if data.shape in IMAGES else (0, 0)
    seen = counted = read = lines = loose = 0
    for text, again in () if data.shape in ("images", "plain") else _texts(split):
        if counted < SAMPLE and not again:
            counts.update(WORD.findall(text[: SAMPLE - counted]))
            counted = min(SAMPLE, counted + len(text))
        seen += len(text)
        if isinstance(split, Text):
            lines += text.count("\n")
            loose += len(LOOSE.findall(text))
        elif isinstance(split, ExampleSplit):
            read += len(text) if text.isascii() else len(text.encode())
            if counted == SAMPLE:
                seen = round(seen * int(split.records.sizes(split.written)[split.rows].sum()) / read)
                break
    words = sum(counts.values())
    return Facts(
        splits=tuple(data.splits),
        examples=split.examples,
        bytes=split.bytes,
        words=round(words * seen / max(1, counted)),
        different=len(counts) / max(1, words),
        once=sum(count == 1 for count in counts.values()) / max(1, len(counts)),
        lines=lines,
        loose=loose / max(1, lines),
        side=side,
        channels=channels,
    )


def _texts(split: Split) -> Iterator[tuple[str, bool]]:
    """Each text that a model reads or writes, and whether it is the one before again: the questions about a text follow
    each other."""
    rows: Iterable[tuple[str, ...]] = ((example if isinstance(split, Text) else example.label,) for example in split)
    if isinstance(split, ExampleSplit):
        rows = zip(*(split.records.texts(field, split.rows) for field in split.written))
    before = None
    for first, *others in rows:
        yield first, first == before
        yield from ((text, False) for text in others)
        before = first if isinstance(split, ExampleSplit) and split.shape.kind is Question else None
