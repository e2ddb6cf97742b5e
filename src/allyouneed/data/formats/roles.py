"""Which column of a table has which role: the one that the user names, one with a usual name, or one by its cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from allyouneed.data.formats.columns import Column
from allyouneed.errors import UserError, nearest, shortened

Choose = Callable[[Sequence[Column], Sequence[int]], int | None]  # of these columns the one whose cells fit; None: none
Survey = Callable[[], Sequence[Column]]  # what the cells of each column are like
NUMBERED = {"id", "ids", "idx"}  # in names of columns that are never guessed by a part of their name


@dataclass(frozen=True)
class Role:
    """What a column is for. `by_cells`: how it is found if no column has a usual name; None: not at all."""

    name: str
    setting: str = ""  # with which the user names the column
    usual: tuple[str, ...] = ()  # names, the most usual first
    parts: bool = False  # a name that has a usual one as a part is usual, too: tweet_text, reviewText
    among: Choose | None = None  # of several columns with usual names; None: the first
    by_cells: Choose | None = None
    optional: bool = False


class Found(NamedTuple):
    """The column of each role, and which were found by their cells."""

    columns: dict[str, int]
    by_cells: list[Role]

    @property
    def guessed(self) -> str:
        """For the user."""
        names, settings = (" and ".join(getattr(r, key) for r in self.by_cells) for key in ("name", "setting"))
        return f"; {names} guessed from the cells (choose others with {settings})" if self.by_cells else ""


def find_columns(
    names: Sequence[str],
    roles: Sequence[Role],
    wanted: Mapping[str, str],
    where: str,
    survey: Survey | None = None,
    known: Mapping[str, int] | None = None,
    kind: str = "column",
) -> Found:
    """The columns of the roles, by the order in which they are looked for. `wanted`: the names or numbers that the user
    gives; `known`: columns that are known otherwise, in the place of usual names."""
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
            if at is None:
                taken = role.by_cells(columns, range(len(names)))
                asked = {name: column for name, column in found.items() if wanted.get(name)}
                _each_its_own(asked if taken is None else {**asked, role.name: taken}, roles, names, where)
            guessed.append(role)
        if at is None:
            raise UserError(
                f"{where} has no {kind} for the {role.name}; it has {shortened(', '.join(names), 300) or 'none'}: name "
                f"one '{role.usual[0]}'{role.setting and f', or choose it with {role.setting}'}"
            )
        found[role.name] = at
    return Found({role.name: found[role.name] for role in roles if role.name in found}, guessed)


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
        if len(free) > 1 and role.among is not None and survey is not None:
            chosen = role.among(survey(), free)
            free = free if chosen is None else [chosen]
        if free:
            found[role.name] = free[0]
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
