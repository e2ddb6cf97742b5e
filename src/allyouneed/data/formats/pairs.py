"""Pairs of sentences in tables: TSV, CSV, JSONL, or two parallel files."""

from __future__ import annotations

from collections.abc import Sequence

from allyouneed.config import DataConfig
from allyouneed.data.formats.columns import Column, Role, by_names, find_columns
from allyouneed.data.formats.table import Examples, open_table
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


def open_pairs(files: Sequence[TextFile], config: DataConfig) -> Examples:
    """Find the format and the two columns."""
    wanted = {"source": config.source, "target": config.target}
    table = open_table(files, wanted.values(), lambda first: bool(_by_names(first)), config.header)
    names = table.names
    if len(names) < 2:
        raise UserError(f"{table.where} has only one column ({names[0]}), but pairs need two")
    found, guessed = find_columns(names, ROLES, wanted, table.where, table.survey, known=_by_names(names))
    left, right = reversed(found.values()) if config.reverse else found.values()
    return Examples(table, {"source": left, "target": right}, guessed if len(names) > 2 else "", "pair")


def _by_names(names: Sequence[str]) -> dict[str, int]:
    """The columns with usual names, or with the names of two languages."""
    plain = [name.strip().lower() for name in names]
    languages = [name for name in plain if name in LANGUAGES]
    both = [(languages[0], languages[1])] if len(languages) == 2 and languages[0] != languages[1] else []
    return by_names(names, ROLES, together=[{"source": left, "target": right} for left, right in (*SIDES, *both)])
