"""Tables in files, and pairs of sentences in tables: TSV, CSV, JSONL, or two parallel files.

What the user does not say is guessed, and the guess is reported.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

from allyouneed.data.examples import SentencePair
from allyouneed.data.reading import lines, plain_name
from allyouneed.data.sources import shorten
from allyouneed.errors import UserError, nearest

FORMS = {".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
SIDES = (("source", "target"), ("src", "tgt"), ("src", "trg"), ("input", "output"), ("question", "answer"))
CODES = (
    "af ar az be bg bn bs ca cs cy da de el en eo es et eu fa fi fr ga gl he hi hr hu hy is it ja ka kk ko la lt lv "
    "mk ml mn mr ms mt nl no pl pt ro ru sk sl sq sr sv sw ta te th tl tr uk ur uz vi zh "
    "ara ces dan deu ell eng epo fin fra heb hun ita jpn kor lat nld nor pol por ron rus spa swe tur ukr zho "
    "arabic chinese czech danish dutch english finnish french german greek hebrew hindi hungarian italian japanese "
    "korean latin norwegian polish portuguese romanian russian spanish swedish turkish ukrainian"
)
LANGUAGES = frozenset(CODES.split())


@dataclass(frozen=True)
class Table:
    """Rows of cells in a file, or in two files with one cell per line each. All rows have the same columns."""

    paths: tuple[Path, ...]
    form: str  # tsv, csv, jsonl or parallel
    names: tuple[str, ...]  # of the columns, or the keys of JSONL; numbers if the file gives no names
    header: bool = False  # whether the first row gives the names
    separator: str = "\t"
    values: tuple[type, ...] = (str,)  # which JSON values are read

    @property
    def where(self) -> str:
        """The files, for an error message."""
        return " and ".join(str(path) for path in self.paths)

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[str, ...]]:
        """The cells of these columns, row by row; the files are read again. A blank line has blank cells."""
        if self.form == "jsonl":
            return _objects(self.paths[0], [self.names[column] for column in columns], self.values)
        if self.form == "parallel":
            rows = _side_by_side(*self.paths)
        else:
            rows = _delimited(self.paths[0], self.form, self.separator, len(self.names))
        if self.header:
            rows = islice(rows, 1, None)
        blank = ("",) * len(columns)
        return (tuple(row[column] for column in columns) if row else blank for row in rows)

    def understood(self, columns: dict[str, int], what: str) -> str:
        """One sentence for the user: the format, the column of each side, and the first example."""
        files = " and ".join(path.name for path in self.paths)
        form = {
            "tsv": "TSV (columns between tabs, no quoting)",
            "csv": f"CSV (columns between '{self.separator}', quoting)",
            "jsonl": "JSONL (one object per line)",
            "parallel": "parallel files (one sentence per line)",
        }[self.form]
        header = (" with a header" if self.header else " without a header") if self.form in ("tsv", "csv") else ""
        place = {"jsonl": "key", "parallel": "file"}.get(self.form, "column")
        of = f" of {len(self.names)}" if len(self.names) > 2 else ""
        told = ", ".join(f"{side} is {place} {self.names[column]}" for side, column in columns.items())
        rows = self.rows(list(columns.values()))
        first = next((row for row in rows if all(cell.strip() for cell in row)), ())
        return (
            f"{files}: {form}{header}, UTF-8; {told}{of}; the first {what} is "
            f"{' → '.join(shorten(cell) for cell in first)}"
        )


@dataclass(frozen=True)
class PairTable:
    """Pairs of sentences in a table. Iterating reads the files again."""

    table: Table
    source: int  # columns, from 0
    target: int

    def __iter__(self) -> Iterator[SentencePair]:
        return (SentencePair(source, target) for source, target in self.table.rows((self.source, self.target)))

    def understood(self) -> str:
        """One sentence for the user, with the first pair."""
        return self.table.understood({"source": self.source, "target": self.target}, "pair")


def open_pairs(paths: Sequence[Path], source: str = "", target: str = "", reverse: bool = False) -> PairTable:
    """Finds the format and the two columns: those that are named, else those whose names are usual, else the first."""
    table = open_table(paths, (source, target), _usual_columns)
    left, right = _columns(table, source, target)
    return PairTable(table, right, left) if reverse else PairTable(table, left, right)


def open_table(
    paths: Sequence[Path],
    wanted: Sequence[str],
    usual_columns: Callable[[Sequence[str]], object],
    values: tuple[type, ...] = (str,),
) -> Table:
    """Finds the format of a file, or of two, from the beginning. The first row is a header if one of the wanted columns
    is given by name, or if `usual_columns` finds names in it. `values`: which JSON values are read."""
    starts = [first_line(path) for path in paths]  # also refuses files without text
    if len(paths) == 2:
        names = tuple(Path(plain_name(path)).suffix[1:] or plain_name(path) for path in paths)
        names = names if names[0] != names[1] else tuple(plain_name(path) for path in paths)
        return Table(tuple(paths), "parallel", names)
    (path,) = paths
    form = form_of(path) or _likely_form(path, starts[0])
    if form == "jsonl":
        return Table((path,), form, tuple(_first_keys(path, values)), values=values)
    separator = "\t" if form == "tsv" else _separator(path)
    first = next((row for row in _delimited(path, form, separator, 0) if row), None)
    if first is None:
        raise UserError(f"{path} holds only blank cells")
    header = any(name and not _is_number(name) for name in wanted) or usual_columns(first) is not None
    names = tuple(cell.strip() for cell in first) if header else tuple(str(i + 1) for i in range(len(first)))
    return Table((path,), form, names, header, separator)


def form_of(path: Path) -> str:
    """tsv, csv or jsonl, as the ending of the name says; "" for any other."""
    return FORMS.get(Path(plain_name(path)).suffix.lower(), "")


def first_line(path: Path) -> str:
    """The first line that is not blank; an error if there is none."""
    blank = 0
    for line in lines(path):
        if line.strip():
            return line
        blank += 1
    raise UserError(f"{path} holds only blank lines" if blank else f"{path} is empty")


def _likely_form(path: Path, line: str) -> str:
    """What the first line looks like."""
    if line.lstrip().startswith("{"):
        return "jsonl"
    if "\t" in line:
        return "tsv"
    raise UserError(
        f"{path} does not look like pairs: its first line {shorten(line)} has no tab and is no JSON object; "
        "give a TSV, CSV or JSONL file, or two parallel files"
    )


def _separator(path: Path) -> str:
    """The mark that cuts the first rows into equally many cells; CSV in many countries is written with semicolons."""
    widths = {mark: _widths(path, mark) for mark in ",;\t"}
    steady = [mark for mark, found in widths.items() if len(set(found)) == 1 and found[0] > 1]
    return steady[0] if steady else max(widths, key=lambda mark: widths[mark][:1])


def _widths(path: Path, mark: str) -> list[int]:
    try:
        return [len(row) for _, row in islice(_csv(path, mark), 20) if row]
    except UserError:  # quotes that make no sense with this mark
        return []


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


def _columns(table: Table, source: str, target: str) -> tuple[int, int]:
    """The columns of source and target."""
    names, where = table.names, table.where
    if len(names) < 2:
        raise UserError(f"{where} has only one column ({names[0]}), but pairs need two")
    usual = _usual_columns(names) or (0, 1)
    left = column_of(table, source) if source else None
    right = column_of(table, target) if target else None
    if left is None:
        left = usual[0] if right != usual[0] else usual[1]
    if right is None:
        right = usual[1] if left != usual[1] else usual[0]
    if left == right:
        raise UserError(f"{where}: source and target are both column {names[left]}; set data.source and data.target")
    return left, right


def column_of(table: Table, wanted: str) -> int:
    """By its name, or by its number from 1."""
    if wanted in table.names:
        return table.names.index(wanted)
    if _is_number(wanted):
        if 1 <= int(wanted) <= len(table.names):
            return int(wanted) - 1
        raise UserError(f"{table.where} has no column {wanted}; it has {len(table.names)}")
    raise UserError(f"{table.where} has no column '{wanted}'{nearest(wanted, table.names)}")


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdecimal() and len(name) < 10


def _delimited(path: Path, form: str, separator: str, width: int) -> Iterator[list[str]]:
    """The rows as cells, all `width` wide (0: any); a blank line is an empty row."""
    rows: Iterator[tuple[int, list[str]]]
    if form == "tsv":
        rows = enumerate((line.split("\t") if line.strip() else [] for line in lines(path)), 1)
    else:
        rows = _csv(path, separator)
    for number, row in rows:
        if width and row and len(row) != width:
            raise UserError(f"{path}, line {number} has {len(row)} columns, but the first row has {width}")
        yield row


def _csv(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((line + "\n" for line in lines(path)), delimiter=separator, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row if any(cell.strip() for cell in row) else []
    except csv.Error as error:
        raise UserError(f"{path}, line {reader.line_num} is not CSV: {error}") from None


def _side_by_side(left: Path, right: Path) -> Iterator[list[str]]:
    one, two = lines(left), lines(right)
    for number, row in enumerate(zip_longest(one, two)):
        if row[0] is None or row[1] is None:
            longer = number + 1 + sum(1 for _ in (two if row[0] is None else one))
            counts = (number, longer) if row[0] is None else (longer, number)
            raise UserError(
                f"parallel files need the same number of lines, but {left} has {counts[0]} and {right} has {counts[1]}"
            )
        yield list(row)


def _objects(path: Path, keys: Sequence[str], values: tuple[type, ...]) -> Iterator[tuple[str, ...]]:
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            yield ("",) * len(keys)
            continue
        item = _object(path, number, line)
        for key in keys:
            if key not in item:
                raise UserError(f"{path}, line {number} has no key '{key}'{nearest(key, item)}")
            if not isinstance(item[key], values) or not _is_unicode(str(item[key])):
                raise UserError(f"{path}, line {number}: '{key}' is {_told(item[key])}, but text is expected")
        yield tuple(item[key] if isinstance(item[key], str) else json.dumps(item[key]) for key in keys)


def _told(value: Any) -> str:
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value)[:40]


def _is_unicode(text: str) -> bool:
    """False for half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _first_keys(path: Path, values: tuple[type, ...]) -> list[str]:
    """The keys of the first object that have a value of these types."""
    found = ((number, line) for number, line in enumerate(lines(path), 1) if line.strip())
    number, line = next(found, (1, ""))
    item = _object(path, number, line)
    keys = [key for key, value in item.items() if isinstance(value, values)]
    if len(keys) < 2:
        raise UserError(f"{path}, line {number} needs two keys with text; it has {', '.join(keys) or 'none'}")
    return keys


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    """The object of a line; the keys inside "translation" are read as keys of the object."""
    try:
        item = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {number} is not JSON: {error.msg} (column {error.colno})") from None
    except RecursionError:
        raise UserError(f"{path}, line {number}: its lists and objects are nested too deeply") from None
    except ValueError:
        raise UserError(f"{path}, line {number} has a number with too many digits: write it as text") from None
    if not isinstance(item, dict):
        raise UserError(f"{path}, line {number} is not a JSON object; JSONL has one {{…}} per line")
    inner = item.get("translation")
    return {**item, **inner} if isinstance(inner, dict) else item
