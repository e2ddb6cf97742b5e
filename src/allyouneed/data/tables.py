"""Pairs in files: TSV, CSV, JSONL, or two parallel files. What is not said is guessed, and the guess is told."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, ClassVar

from allyouneed.data.reading import lines, plain_name
from allyouneed.data.sources import Pair, shorten
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
    """Where the sides of each example stand. Iterating reads the files anew; a blank line gives ("", "")."""

    paths: tuple[Path, ...]
    form: str  # tsv, csv, jsonl or parallel
    source: int  # columns, from 0
    target: int
    names: tuple[str, ...]  # of the columns; of the keys of JSONL; numbers where the file gives no names
    header: bool = False
    separator: str = "\t"
    kinds: ClassVar[Any] = str  # what the values of an object may be

    @property
    def sides(self) -> dict[str, int]:
        """Their columns, in the order of an example."""
        return {"source": self.source, "target": self.target}

    def __iter__(self) -> Iterator[Pair]:
        columns = tuple(self.sides.values())
        if self.form == "jsonl":
            return _objects(self.paths[0], [self.names[column] for column in columns], self.kinds)
        return (tuple(row[column] for column in columns) if row else ("", "") for row in self.rows())

    def rows(self) -> Iterator[list[str]]:
        """All cells, without the header."""
        if self.form == "parallel":
            rows = _side_by_side(*self.paths)
        else:
            rows = _delimited(self.paths[0], self.form, self.separator, len(self.names))
        return islice(rows, 1, None) if self.header else rows

    def understood(self) -> str:
        """One sentence for a person, with the first example."""
        files = " and ".join(path.name for path in self.paths)
        form = {
            "tsv": "TSV (columns between tabs, no quoting)",
            "csv": f"CSV (columns between '{self.separator}', quoting)",
            "jsonl": "JSONL (an object a line)",
            "parallel": "parallel files (a sentence a line)",
        }[self.form]
        header = (
            {True: " with a header", False: " without a header"}[self.header] if self.form in ("tsv", "csv") else ""
        )
        what = {"jsonl": "key", "parallel": "file"}.get(self.form, "column")
        of = f" of {len(self.names)}" if len(self.names) > 2 else ""
        told = ", ".join(f"{side} is {what} {self.names[column]}" for side, column in self.sides.items())
        first = next((pair for pair in self if all(side.strip() for side in pair)), ("", ""))
        return (
            f"{files}: {form}{header}, UTF-8; {told}{of}; "
            f"the first {'pair' if 'target' in self.sides else 'example'} is {' → '.join(map(shorten, first))}"
        )


def open_table(paths: Sequence[Path], source: str = "", target: str = "", reverse: bool = False) -> Table:
    """Look at the beginning of the file, or of the two files, and settle format and columns."""
    form, names, header, separator = settle(paths, (source, target), _guess, Table.kinds)
    left, right = _columns(names, source, target, " and ".join(str(path) for path in paths))
    if reverse:
        left, right = right, left
    return Table(tuple(paths), form, left, right, names, header, separator)


def settle(
    paths: Sequence[Path], wanted: Sequence[str], guess: Callable[[Sequence[str]], object], kinds: Any
) -> tuple[str, tuple[str, ...], bool, str]:
    """Format, names of the columns, whether the first row gives them, and the mark between cells. It does when a wanted
    column is named, or when `guess` makes something of it. `kinds`: what the values of an object may be."""
    separator, header = "\t", False
    starts = [first_line(path) for path in paths]
    if len(paths) == 2:
        form = "parallel"
        names = tuple(Path(plain_name(path)).suffix[1:] or plain_name(path) for path in paths)
        names = names if names[0] != names[1] else tuple(plain_name(path) for path in paths)
    else:
        form = _form(paths[0], starts[0])
        if form == "jsonl":
            names = tuple(_first_object(paths[0], kinds))
        else:
            separator = "\t" if form == "tsv" else _separator(paths[0])
            first = next((row for row in _delimited(paths[0], form, separator, 0) if row), None)
            if first is None:
                raise UserError(f"{paths[0]} holds only blank cells")
            named = [name for name in wanted if name and not name.isdigit()]
            header = bool(named) or guess(first) is not None
            names = tuple(cell.strip() for cell in first) if header else tuple(str(i + 1) for i in range(len(first)))
    return form, names, header, separator


def first_line(path: Path) -> str:
    """The first line that is not blank; an error if there is none."""
    blank = 0
    for line in lines(path):
        if line.strip():
            return line
        blank += 1
    raise UserError(f"{path} holds only blank lines" if blank else f"{path} is empty")


def _form(path: Path, line: str) -> str:
    ending = Path(plain_name(path)).suffix.lower()
    if ending in FORMS:
        return FORMS[ending]
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


def _guess(names: Sequence[str]) -> tuple[int, int] | None:
    """The columns of source and target, if their names tell."""
    plain = [name.strip().lower() for name in names]
    for pair in SIDES:
        if all(side in plain for side in pair):
            return plain.index(pair[0]), plain.index(pair[1])
    languages = [column for column, name in enumerate(plain) if name in LANGUAGES]
    if len(languages) != 2 or plain[languages[0]] == plain[languages[1]]:
        return None
    return languages[0], languages[1]


def _columns(names: Sequence[str], source: str, target: str, where: str) -> tuple[int, int]:
    if len(names) < 2:
        raise UserError(f"{where} has only one column ({names[0]}), but pairs need two")
    guess = _guess(names) or (0, 1)
    left = column_of(names, source, where) if source else None
    right = column_of(names, target, where) if target else None
    if left is None:
        left = guess[0] if right != guess[0] else guess[1]
    if right is None:
        right = guess[1] if left != guess[1] else guess[0]
    if left == right:
        raise UserError(f"{where}: source and target are both column {names[left]}; set data.source and data.target")
    return left, right


def column_of(names: Sequence[str], wanted: str, where: str) -> int:
    """By its name, or by its number from 1."""
    if wanted in names:
        return names.index(wanted)
    if wanted.isdigit():
        if 1 <= int(wanted) <= len(names):
            return int(wanted) - 1
        raise UserError(f"{where} has no column {wanted}; it has {len(names)}")
    raise UserError(f"{where} has no column '{wanted}'{nearest(wanted, names)}")


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


def _objects(path: Path, keys: Sequence[str], kinds: Any) -> Iterator[Pair]:
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            yield "", ""
            continue
        item = _object(path, number, line)
        for key in keys:
            if key not in item:
                raise UserError(f"{path}, line {number} has no key '{key}'{nearest(key, item)}")
            if not isinstance(item[key], kinds) or not _is_unicode(str(item[key])):
                raise UserError(f"{path}, line {number}: '{key}' is {json.dumps(item[key])[:40]}, but text is expected")
        yield tuple(item[key] if isinstance(item[key], str) else json.dumps(item[key]) for key in keys)


def _is_unicode(text: str) -> bool:
    """False for half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


def _first_object(path: Path, kinds: Any) -> list[str]:
    """The keys of the first object whose values can be used."""
    number, line = next((number, line) for number, line in enumerate(lines(path), 1) if line.strip())
    item = _object(path, number, line)
    keys = [key for key, value in item.items() if isinstance(value, kinds)]
    if len(keys) < 2:
        raise UserError(f"{path}, line {number} needs two keys with text; it has {', '.join(keys) or 'none'}")
    return keys


def _object(path: Path, number: int, line: str) -> dict[str, Any]:
    """The object of a line; what stands inside "translation" is lifted out."""
    try:
        item = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{path}, line {number} is not JSON: {error.msg} (column {error.colno})") from None
    if not isinstance(item, dict):
        raise UserError(f"{path}, line {number} is not a JSON object; JSONL has one {{…}} a line")
    inner = item.get("translation")
    return {**item, **inner} if isinstance(inner, dict) else item
