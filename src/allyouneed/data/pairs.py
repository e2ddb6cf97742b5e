"""Pairs of sentences in tables: TSV, CSV, JSONL, or two parallel files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from allyouneed.data.examples import SentencePair
from allyouneed.data.tables import Table, column_of, open_table
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


@dataclass(frozen=True)
class PairTable:
    """Pairs of sentences in a table. Iterating reads the files again."""

    table: Table
    source: int  # columns, from 0
    target: int
    guessed: str = ""  # what was guessed, for the user

    def __iter__(self) -> Iterator[SentencePair]:
        return (SentencePair(source, target) for source, target in self.table.rows((self.source, self.target)))

    def understood(self) -> str:
        """One sentence for the user, with the first pair."""
        return self.table.understood({"source": self.source, "target": self.target}, "pair", self.guessed)


def open_pairs(
    paths: Sequence[Path],
    source: str = "",
    target: str = "",
    reverse: bool = False,
    header: str = "auto",
    code: str = "",
) -> PairTable:
    """Finds the format and the two columns: those that are named, else those whose names are usual, else the first two
    that are not numbers."""
    table = open_table(paths, (source, target), lambda first: _usual_columns(first) is not None, header, code=code)
    if len(table.names) < 2:
        raise UserError(f"{table.where} has only one column ({table.names[0]}), but pairs need two")
    usual, guessed = _usual_columns(table.names), ""
    if usual is None:
        usual = _first_texts(table) if len(table.names) > 2 else (0, 1)
        if len(table.names) > 2 and not (source and target):
            guessed = "; the columns are guessed, choose others with data.source and data.target"
    left, right = _columns(table, source, target, usual)
    return PairTable(table, right, left, guessed) if reverse else PairTable(table, left, right, guessed)


def _first_texts(table: Table) -> tuple[int, int]:
    """The first two columns that are not numbers."""
    texts = [at for at, column in enumerate(table.survey()) if column.filled and not column.has_numbers]
    return (texts[0], texts[1]) if len(texts) > 1 else (0, 1)


def _usual_columns(names: Sequence[str]) -> tuple[int, int] | None:
    """The columns of source and target, if they have usual names."""
    plain = [name.strip().lower() for name in names]
    for pair in SIDES:
        if all(side in plain for side in pair):
            return plain.index(pair[0]), plain.index(pair[1])
    languages = [column for column, name in enumerate(plain) if name in LANGUAGES]
    if len(languages) != 2 or plain[languages[0]] == plain[languages[1]]:
        return None
    return languages[0], languages[1]


def _columns(table: Table, source: str, target: str, usual: tuple[int, int]) -> tuple[int, int]:
    """The columns of source and target: those that the user names, and `usual` for the others."""
    left = column_of(table, source) if source else None
    right = column_of(table, target) if target else None
    if left is None:
        left = usual[0] if right != usual[0] else usual[1]
    if right is None:
        right = usual[1] if left != usual[1] else usual[0]
    if left == right:
        name = table.names[left]
        raise UserError(f"{table.where}: source and target are both column {name}; set data.source and data.target")
    return left, right
