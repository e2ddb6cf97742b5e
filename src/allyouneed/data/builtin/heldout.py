"""Deterministic choice and hold-out for generated data: the place of an example depends on its text alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import chain, count
from typing import TypeVar

Columns = tuple[str, ...]  # the texts of one example
S = TypeVar("S")
T = TypeVar("T")
WORD = re.compile(r" ?\w+| ?[^\w\s]")


def rank(example: Columns, salt: str) -> bytes:
    """A place in a fixed shuffle; another salt is another shuffle."""
    return sha256((salt + "\t" + "\t".join(example)).encode()).digest()


def number_below(limit: int, example: Columns, salt: str) -> int:
    """A random number from 0 to limit - 1 that depends on the example and the salt."""
    return int.from_bytes(rank(example, salt)[:4], "big") % limit


def spread(share: int) -> Iterator[bool]:
    """Without end: true for about one in `share` places, spread evenly."""
    return ((place >> 16) % share == 0 for place in count(0, 2654435761))


def thin_pairs(share: int, firsts: Iterable[S], seconds: Sequence[T]) -> Iterator[tuple[S, list[T]]]:
    """About one in `share` of all pairs: each first item with the second items that are left for it."""
    flags = spread(share)
    return ((first, [second for second, taken in zip(seconds, flags) if taken]) for first in firsts)


def words(example: Columns) -> set[str]:
    """The word forms of an example; those of one column are never those of another."""
    found = set(WORD.findall(example[0]))
    for column, text in enumerate(example[1:], 1):
        found.update(["\t" * column + word for word in WORD.findall(text)])
    return found


def hold_out(
    examples: Iterable[Columns], test: int, valid: int, train: Iterable[Columns] = (), least: int = 8
) -> dict[str, list[Columns]]:
    """Shuffle and split. An example is held out only while `least` training examples are left for each of its words;
    those of `train` never are."""
    never = set(train)
    examples = sorted(examples, key=lambda example: rank(example, "split"))
    known = Counter(chain.from_iterable(map(words, examples)))
    splits: dict[str, list[Columns]] = {"train": [], "valid": [], "test": []}
    for example in examples:
        split = "test" if len(splits["test"]) < test else "valid" if len(splits["valid"]) < valid else "train"
        if split != "train" and example not in never and all(known[word] > least for word in words(example)):
            known.subtract(words(example))
        else:
            split = "train"
        splits[split].append(example)
    splits["train"].sort(key=lambda example: rank(example, "train"))
    return splits
