"""Which column of a table has which role: the one that the user names, one with a usual name, or one by its cells. And
whether the first row is a header.

A first row is a header if the user says so or asks for a column by its name, or if its cells are usual names. Otherwise
all its cells must look like names: short, all different, and none of them again in the column below. And one of them
must be unlike its column: a word above numbers, a word above labels that is none of them, or a word above whole texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from allyouneed.data.formats.textfile import LONGEST
from allyouneed.errors import UserError, nearest, shortened

LOOKED_AT = 1000  # rows
LOOKED_INTO = 10_000  # characters of a cell
FEW = 200  # labels, at most
NAME = re.compile(r"[^\W\d](?:[\w .:/()#&-]{0,98}[\w)])?")
NUMBER = re.compile(r"[-+]?\d*[.,]?\d+(?:[eE][-+]?\d+)?")
NUMBERED = {"id", "ids", "idx"}  # in names of columns that are never guessed by a part of their name


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
        """More than four words on average, and single words in at most 1 % of the cells."""
        return self.filled >= 5 and self.words > 4 * self.filled and 100 * self.single <= self.filled


def beginning(rows: Iterable[Any], size: Callable[[Any], int]) -> list[Any]:
    """The first `LOOKED_AT` rows of a file, or fewer if they are very long."""
    found, total = [], 0
    for row in islice(rows, LOOKED_AT):
        found.append(row)
        total += size(row)
        if total > LONGEST:
            break
    return found


def survey(rows: Iterable[Sequence[str]], width: int) -> list[Column]:
    """What each of `width` columns is like, up to the first broken row, which is an error later."""
    columns = [Column() for _ in range(width)]
    with suppress(UserError):
        for row in rows:
            for column, cell in zip(columns, row):
                column.add(cell.strip())
    return columns


def are_names(first: Sequence[str]) -> bool:
    """Whether a first row could be a header; a column may have no name."""
    given = [cell.strip() for cell in first if cell.strip()]
    if not given or len(given) > len(set(given)) or not all(map(NAME.fullmatch, given)):
        return False
    longest = max(len(part) for cell in given for part in re.split(r"[\W_]+", cell))
    return longest <= 40 and max(len(cell.split()) for cell in given) <= 4


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


def first_that(fits: Callable[[Column], bool]) -> Choose:
    """The first column whose cells fit."""
    return lambda columns, free: next((at for at in free if fits(columns[at])), None)


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


Choose = Callable[[Sequence[Column], Sequence[int]], int | None]  # of these columns the one whose cells fit; None: none
Survey = Callable[[], Sequence[Column]]  # what the cells of each column are like


@dataclass(frozen=True)
class Role:
    """What a column is for. `by_cells`: how it is found if no column has a usual name; None: not at all."""

    name: str
    setting: str = ""  # with which the user names the column
    usual: tuple[str, ...] = ()  # names, the most usual first
    parts: bool = False  # a name that has a usual one as a part is usual, too: tweet_text, reviewText
    among: Choose | None = None  # of the columns with usual names; None: the first
    by_cells: Choose | None = None
    optional: bool = False


def find_columns(
    names: Sequence[str],
    roles: Sequence[Role],
    wanted: Mapping[str, str],
    where: str,
    survey: Survey | None = None,
    known: Mapping[str, int] | None = None,
) -> tuple[dict[str, int], str]:
    """The columns of the roles, by the order in which they are looked for, and which were guessed, for the user.
    `wanted`: the names or numbers that the user gives; `known`: columns that are known otherwise, in the place of usual
    names."""
    found = {role.name: column_named(names, wanted[role.name], where) for role in roles if wanted.get(role.name)}
    _each_its_own(found, roles, names, where)
    if known is None:
        known = by_names(names, roles, found, survey)
    for role in roles:
        at = known.get(role.name)
        if role.name not in found and at is not None and at not in found.values():
            found[role.name] = at
    spare = [at for at in known.values() if at not in found.values()]
    guessed = []
    for role in roles:
        if role.name in found or role.optional:
            continue
        at = spare.pop(0) if spare else None
        if at is None and role.by_cells is not None and survey is not None:
            columns = survey()
            free = [at for at in range(len(names)) if at not in found.values()]
            free = [at for at in free if columns[at].filled] or free
            at = role.by_cells(columns, free) if free else None
            guessed.append(role)
        if at is None:
            raise UserError(
                f"{where} has no column for the {role.name}; it has {shortened(', '.join(names), 300) or 'none'}: name "
                f"one '{role.usual[0]}'{role.setting and f', or choose it with {role.setting}'}"
            )
        found[role.name] = at
    chosen = {role.name: found[role.name] for role in roles if role.name in found}
    which, settings = (" and ".join(getattr(role, key) for role in guessed) for key in ("name", "setting"))
    return chosen, f"; {which} guessed from the cells (choose others with {settings})" if guessed else ""


def by_names(
    names: Sequence[str],
    roles: Sequence[Role],
    taken: Mapping[str, int] | None = None,
    survey: Survey | None = None,
    together: Iterable[Mapping[str, str]] = (),
) -> dict[str, int]:
    """The columns with usual names. A column has one role: the first in the order of the roles that it could have.
    `together`: names that belong together, by their roles."""
    plain = [name.strip().lower() for name in names]
    group = next((group for group in together if all(name in plain for name in group.values())), {})
    found = {role: plain.index(name) for role, name in group.items()}
    taken = taken or {}
    for role in roles:
        if role.name in found or role.name in taken:
            continue
        free = [at for at in with_usual_names(names, role) if at not in (*found.values(), *taken.values())]
        chosen: int | None = free[0] if free else None
        if free and role.among is not None and survey is not None:
            chosen = role.among(survey(), free)
        if chosen is not None:
            found[role.name] = chosen
    return found


def with_usual_names(names: Sequence[str], role: Role) -> list[int]:
    """The columns with one of the usual names, then those with one as a part."""
    plain = [name.strip().lower() for name in names]
    parts = [set(re.split(r"[\W_]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())) for name in names]
    whole = [at for name in role.usual for at, own in enumerate(plain) if own == name]
    partly = [at for name in role.usual for at, own in enumerate(parts) if name in own and not own & NUMBERED]
    return list(dict.fromkeys(whole + partly * role.parts))


def column_named(names: Sequence[str], wanted: str, where: str) -> int:
    """The column with this name, or this number from 1."""
    if wanted in names:
        return names.index(wanted)
    if is_number(wanted):
        if 1 <= int(wanted) <= len(names):
            return int(wanted) - 1
        raise UserError(f"{where} has no column {wanted}; it has {len(names)}")
    raise UserError(f"{where} has no column '{wanted}'{nearest(wanted, names)}")


def is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


def _each_its_own(found: Mapping[str, int], roles: Sequence[Role], names: Sequence[str], where: str) -> None:
    for role in roles:
        same = [one for one in roles if one.name in found and found[one.name] == found.get(role.name)]
        if len(same) > 1:
            raise UserError(
                f"{where}: {' and '.join(one.name for one in same)} are both column {names[found[role.name]]}; each "
                f"needs a column of its own ({', '.join(one.setting for one in roles if one.setting)})"
            )
