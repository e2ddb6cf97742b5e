"""The size of a training split and of its vocabulary, before it is tokenized."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from allyouneed.data.examples import SentencePair
from allyouneed.data.sources import Split, Text

WORD = re.compile(r"\w+|[^\w\s]")
LOOSE = re.compile(r"\n(?=[ \t\n])")
SAMPLE = 5_000_000  # characters whose words are counted; more would hardly change what follows from them


@dataclass(frozen=True)
class Facts:
    """Words are those of all texts that a model reads or writes, with punctuation marks as words of their own."""

    examples: int  # documents, if it is running text
    bytes: int
    words: int  # running words; if only a part was counted, in proportion
    types: int  # different words, of the part that was counted
    once: float  # part of the types that occur only once
    length: int  # words that 90 % of the texts do not exceed
    lines: int
    loose: float  # part of the lines that are blank or indented


def gather(split: Split) -> Facts:
    """Reads the split once."""
    counts: Counter[str] = Counter()
    lengths: list[int] = []
    seen = counted = lines = loose = 0
    for text in _texts(split):
        if seen < SAMPLE:
            words = WORD.findall(text[: SAMPLE - seen])
            counts.update(words)
            lengths.append(len(words))
            counted = min(SAMPLE, seen + len(text))
        seen += len(text)
        lines += text.count("\n")
        loose += len(LOOSE.findall(text))
    lengths.sort()
    return Facts(
        examples=split.examples,
        bytes=split.bytes,
        words=round(sum(lengths) * seen / max(1, counted)),
        types=len(counts),
        once=sum(count == 1 for count in counts.values()) / max(1, len(counts)),
        length=lengths[len(lengths) * 9 // 10] if lengths else 0,
        lines=lines,
        loose=loose / max(1, lines),
    )


def _texts(split: Split) -> Iterator[str]:
    for example in split:
        if isinstance(split, Text):
            yield example
        else:
            yield from example if isinstance(example, SentencePair) else example.inputs
