"""Deterministic choice and hold-out for generated data: the place of an example depends on its text alone."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TypeVar

Columns = tuple[str, ...]  # the texts of one example
T = TypeVar("T")
WORD = re.compile(r" ?\w+| ?[^\w\s]")


def rank(example: Columns, salt: str) -> bytes:
    """A place in a fixed shuffle; another salt is another shuffle."""
    return hashlib.sha256("\t".join((salt, *example)).encode()).digest()


def choose(examples: Iterable[Columns], limit: int) -> list[Columns]:
    """At most `limit` of the examples, each as likely as the next."""
    return sorted(set(examples), key=lambda example: rank(example, "choose"))[:limit]


def thin(share: int, items: Iterable[T]) -> Iterator[T]:
    """About one in `share` items, spread evenly, if all of them would take too long to write out."""
    return (item for place, item in enumerate(items) if (place * 2654435761 >> 16) % share == 0)


def words(example: Columns) -> set[str]:
    """The word forms of an example; those of one column are never those of another."""
    return {"\t" * column + word for column, text in enumerate(example) for word in WORD.findall(text)}


def hold_out(
    examples: Sequence[Columns], sizes: Mapping[str, int], keep: Iterable[Columns] = (), least: int = 8
) -> dict[str, list[Columns]]:
    """Shuffle and split. An example is held out only while `least` training examples are left for each of its words."""
    kept = set(keep)
    seen = Counter(chain.from_iterable(map(words, examples)))
    splits: dict[str, list[Columns]] = {"train": [], **{name: [] for name in sizes}}
    for example in sorted(examples, key=lambda example: rank(example, "split")):
        open_to = next((name for name, size in sizes.items() if len(splits[name]) < size), "train")
        if open_to == "train" or example in kept or any(seen[word] <= least for word in words(example)):
            splits["train"].append(example)
            continue
        splits[open_to].append(example)
        seen.subtract(words(example))
    splits["train"].sort(key=lambda example: rank(example, "train"))
    return splits
