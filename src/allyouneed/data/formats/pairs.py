"""Pairs of sentences in tables: TSV, CSV, JSONL, or two parallel files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from allyouneed.data.formats.columns import Column
from allyouneed.data.formats.roles import Role, by_names, find_columns
from allyouneed.data.formats.table import Table, open_table
from allyouneed.data.formats.textfile import TextFile
from allyouneed.errors import UserError

SIDES = (
    *(("source", "target"), ("src", "tgt"), ("src", "trg"), ("input", "output"), ("question", "answer")),
    *(("source_text", "target_text"), ("sentence", "translation"), ("text", "translation")),
    *(("original", "translation"), ("document", "summary"), ("text", "summary"), ("article", "summary")),
    *(("article", "highlights"), ("prompt", "response"), ("instruction", "output")),
)
CODES = (
    "af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl he hi hr hu hy is it ja ka kk ko la lt lv "
    "mk ml mn mr ms mt nl no pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh "
    "ara ces dan deu ell eng epo fin fra heb hun ita jpn kor lat nld nor pol por ron rus spa swe tur ukr zho "
    "arabic chinese czech danish dutch english finnish french german greek hebrew hindi hungarian italian japanese "
    "korean latin norwegian polish portuguese romanian russian spanish swedish turkish ukrainian"
)
LANGUAGES = frozenset(CODES.split())


def _first_text(columns: Sequence[Column], free: Sequence[int]) -> int:
    """The first column that is not numbers, or else the first."""
    return next((at for at in free if not columns[at].has_numbers), free[0])


ROLES = (
    Role("source", "data.source", by_cells=_first_text),
    Role("target", "data.target", by_cells=_first_text),
)


@dataclass(frozen=True)
class PairTable:
    """Pairs of sentences in a table."""

    table: Table
    source: int  # columns, from 0
    target: int
    guessed: str = ""  # what was guessed, for the user

    def rows(self) -> Iterator[tuple[str, ...]]:
        return self.table.rows((self.source, self.target))

    def understood(self) -> str:
        """One sentence for the user, with the first pair."""
        return self.table.understood({"source": self.source, "target": self.target}, "pair", self.guessed)


def open_pairs(
    files: Sequence[TextFile], source: str = "", target: str = "", reverse: bool = False, header: str = "auto"
) -> PairTable:
    """Finds the format and the two columns."""
    table = open_table(files, (source, target), lambda first: bool(_usual(first)), header)
    names = table.names
    if len(names) < 2:
        raise UserError(f"{table.where} has only one column ({names[0]}), but pairs need two")
    found = find_columns(names, ROLES, {"source": source, "target": target}, table.where, table.survey, _named(names))
    left, right = found.columns["source"], found.columns["target"]
    told = found.told() if len(names) > 2 else ""
    return PairTable(table, right, left, told) if reverse else PairTable(table, left, right, told)


def _usual(names: Sequence[str]) -> dict[str, int]:
    return by_names(names, ROLES, together=_named(names))


def _named(names: Sequence[str]) -> list[dict[str, str]]:
    """The names that source and target may have in this table."""
    plain = [name.strip().lower() for name in names]
    languages = [name for name in plain if name in LANGUAGES]
    both = [tuple(languages)] if len(languages) == 2 and languages[0] != languages[1] else []
    return [dict(zip(("source", "target"), sides)) for sides in (*SIDES, *both)]
