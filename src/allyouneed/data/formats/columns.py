"""What the cells of a table tell: whether its first row is a header, and which column holds texts, which labels.

A first row is a header if the user says so or asks for a column by its name, or if its cells are usual names. Otherwise
all its cells must look like names: short, all different, and none of them again in the column below. And one of them
must be unlike its column: a word above numbers, a word above labels that is none of them, or a word above whole texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from allyouneed.data.formats.textfile import LONGEST

LOOKED_AT = 1000  # rows
LOOKED_INTO = 10_000  # characters of a cell
FEW = 200  # labels, at most
NAME = re.compile(r"[^\W\d](?:[\w .:/()#&-]{0,98}[\w)])?")
NUMBER = re.compile(r"[-+]?\d*[.,]?\d+(?:[eE][-+]?\d+)?")


@dataclass
class Column:
    """What the cells of a column are like; blank ones do not count."""

    rows: int = 0  # blank cells included
    filled: int = 0
    numbers: int = 0
    words: int = 0
    letters: int = 0
    single: int = 0  # cells of one word
    different: set[str] = field(default_factory=set)  # the first `LOOKED_AT` of them

    def add(self, cell: str) -> None:
        self.rows += 1
        if not cell:
            return
        start = cell[:LOOKED_INTO]
        words = len(start.split())
        self.filled += 1
        self.numbers += len(cell) < 40 and NUMBER.fullmatch(cell) is not None
        self.words += words
        self.letters += len(cell)
        self.single += words == 1
        if len(self.different) < LOOKED_AT:
            self.different.add(cell if len(cell) < LOOKED_INTO else f"{start}{hash(cell)}")

    @property
    def has_numbers(self) -> bool:
        return self.filled == self.numbers > 0

    @property
    def has_ids(self) -> bool:
        """Numbers that are all different."""
        return self.has_numbers and len(self.different) == min(self.filled, LOOKED_AT)

    @property
    def has_labels(self) -> bool:
        """Few short values, which come again and again, in most rows."""
        few = 1 < len(self.different) <= min(FEW, self.filled // 2)
        return few and self.words <= 3 * self.filled and 2 * self.filled > self.rows

    @property
    def has_texts(self) -> bool:
        """More than four words on average, and hardly ever a single one."""
        return self.filled >= 5 and self.words > 4 * self.filled and 100 * self.single <= self.filled


def beginning(rows: Iterable[Any], size: Callable[[Any], int]) -> list[Any]:
    """The first rows of a file: those that are looked at, and fewer if they are very long."""
    found, total = [], 0
    for row in islice(rows, LOOKED_AT):
        found.append(row)
        total += size(row)
        if total > LONGEST:
            break
    return found


def survey(rows: Iterable[Sequence[str]], width: int) -> list[Column]:
    """What each of `width` columns is like."""
    columns = [Column() for _ in range(width)]
    for row in rows:
        for column, cell in zip(columns, row):
            column.add(cell.strip())
    return columns


def is_name(cell: str) -> bool:
    """Whether a cell could be the name of a column."""
    parts = re.split(r"[\W_]+", cell[:200])
    return NAME.fullmatch(cell) is not None and len(cell.split()) <= 4 and max(map(len, parts)) <= 40


def are_names(first: Sequence[str]) -> bool:
    """Whether a first row could be a header; a column may have no name."""
    given = [cell.strip() for cell in first if cell.strip()]
    return len(given) == len(set(given)) > 0 and all(map(is_name, given))


def unlike_below(first: Sequence[str], below: Sequence[Sequence[str]]) -> str:
    """Why the first row looks like a header; "" if it does not."""
    names, columns = [cell.strip() for cell in first], survey(below, len(first))
    named = [(name, column) for name, column in zip(names, columns) if name]
    if not are_names(first) or len(named) < 2 or any(name in column.different for name, column in named):
        return ""
    for name, column in named:
        if column.has_numbers and column.filled > 1:
            return f"'{name}' stands above numbers"
        if column.has_labels:
            return f"'{name}' stands above labels and is none of them"
        if column.has_texts and " " not in name:
            return f"'{name}' stands above whole texts"
    return ""


def text_column(columns: Sequence[Column], free: Iterable[int]) -> int:
    """The column with the most words. Numbers and labels are texts only if there is nothing else; the first of two
    equal columns counts."""

    def rank(at: int) -> tuple[int, ...]:
        column = columns[at]
        return (not column.has_numbers, not column.has_labels, column.words, column.letters, -at)

    return max(free, key=rank)


def label_column(columns: Sequence[Column], free: Iterable[int]) -> int:
    """The column with the fewest different values, but more than one; the last of two equal columns counts."""

    def rank(at: int) -> tuple[int, ...]:
        column = columns[at]
        return (not column.has_labels, column.has_ids, len(column.different) < 2, len(column.different), -at)

    return min(free, key=rank)
