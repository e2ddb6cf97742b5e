"""Tables in files: TSV, CSV, JSONL, two parallel files, or lines that begin with their label.

What the user does not say is guessed, and the guess is reported.
"""

from __future__ import annotations

import csv
import json
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile, islice, zip_longest
from pathlib import Path
from typing import Any

from allyouneed.data.columns import LOOKED_AT, Column, are_names, survey, unlike_below
from allyouneed.data.compressed import plain_name
from allyouneed.data.reading import encoding, lines
from allyouneed.data.sources import shorten
from allyouneed.errors import UserError, nearest

FORMS = {".tsv": "tsv", ".tab": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl"}
MARK = "__label__"  # before a label, as fastText writes it


@dataclass(frozen=True)
class Table:
    """Rows of cells in a file, or in two files with one cell per line each. All rows have the same columns."""

    paths: tuple[Path, ...]
    form: str  # tsv, csv, jsonl, parallel, or words: the first word of a line, and the rest
    names: tuple[str, ...]  # of the columns, or the keys of JSONL; numbers if the file gives no names
    header: bool = False  # whether the first row gives the names
    guessed: str = ""  # why that is so, for the user
    separator: str = "\t"
    values: tuple[type, ...] = (str,)  # which JSON values are read

    @property
    def where(self) -> str:
        """The files, for an error message."""
        return " and ".join(str(path) for path in self.paths)

    @property
    def named(self) -> bool:
        """Whether the file gives the names of its columns."""
        return self.header or self.form == "jsonl"

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[str, ...]]:
        """The cells of these columns, row by row; the files are read again. A blank line has blank cells."""
        if self.form == "jsonl":
            return _objects(self.paths[0], [self.names[column] for column in columns], self.values)
        if self.form == "parallel":
            rows = _side_by_side(*self.paths)
        elif self.form == "words":
            rows = _first_words(self.paths[0])
        else:
            rows = _delimited(self.paths[0], self.form, self.separator, len(self.names))
        if self.header:
            rows = islice(dropwhile(operator.not_, rows), 1, None)
        blank = ("",) * len(columns)
        return (tuple(row[column] for column in columns) if row else blank for row in rows)

    def survey(self, most: int | None = LOOKED_AT) -> list[Column]:
        """What the cells of the first rows are like, up to the first row that is wrong; whoever reads on finds it."""

        def rows() -> Iterator[tuple[str, ...]]:
            with suppress(UserError):
                yield from islice(self.rows(range(len(self.names))), most)

        return survey(rows(), len(self.names))

    def understood(self, columns: dict[str, int], what: str, guessed: str = "") -> str:
        """One sentence for the user: the format, the column of each side, what was guessed, and the first example."""
        files = " and ".join(path.name for path in self.paths)
        form = {
            "tsv": "TSV (columns between tabs, no quoting)",
            "csv": f"CSV (columns between '{self.separator}', quoting)",
            "jsonl": "JSONL (one object per line)",
            "parallel": "parallel files (one sentence per line)",
            "words": "lines that begin with their label",
        }[self.form]
        header = (" with a header" if self.header else " without a header") if self.form in ("tsv", "csv") else ""
        place = {"jsonl": "key", "parallel": "file"}.get(self.form, "column")
        of = f" of {len(self.names)}" if len(self.names) > 2 else ""
        told = ", ".join(f"{side} is {place} {self.names[column]}" for side, column in columns.items())
        if self.form == "words":
            told = "label is the first word, text is the rest of the line"
        rows = self.rows(list(columns.values()))
        first = next((row for row in rows if all(cell.strip() for cell in row)), ())
        return (
            f"{files}: {form}{header}{self.guessed}, {encoding(self.paths[0])}; {told}{of}{guessed}; "
            f"the first {what} is {' → '.join(shorten(cell) for cell in first)}"
        )


def open_table(
    paths: Sequence[Path],
    wanted: Sequence[str],
    usual: Callable[[Sequence[str]], bool],
    header: str = "auto",
    values: tuple[type, ...] = (str,),
    least: int = 2,
) -> Table:
    """Finds the format of a file, or of two, and whether the first row is a header (data.header): `columns` has the
    rule. `wanted`: the columns that the user names; `usual`: whether these cells are usual names; `values`: which JSON
    values are read; `least`: how many keys an object needs at least."""
    starts = [first_line(path) for path in paths]  # also refuses files without text
    (path, *other) = paths
    form = "parallel" if other else _form(path, starts[0])
    if header == "true" and form not in ("tsv", "csv"):
        raise UserError(f"data.header = true, but {path} is neither TSV nor CSV and has no header: leave it out")
    if form == "parallel":
        names = tuple(Path(plain_name(path)).suffix[1:] or plain_name(path) for path in paths)
        names = names if names[0] != names[1] else tuple(plain_name(path) for path in paths)
        return Table(tuple(paths), form, names)
    if form == "jsonl":
        return Table((path,), form, tuple(_first_keys(path, values, least)), values=values)
    separator = "\t" if form == "tsv" else _separator(path)
    first, *below = [row for row in islice(_delimited(path, form, separator, 0), LOOKED_AT) if row] or [[]]
    if not first:
        raise UserError(f"{path} holds only blank cells")
    has, why = header == "true", ""
    if header == "auto":
        has = any(name and not is_number(name) for name in wanted) or (are_names(first) and usual(first))
        if not has:
            why = unlike_below(first, below)
            has = bool(why)
            why = f", guessed because {why} (data.header=false if not)" if has else " (data.header=true if it has one)"
    names = header_names(first if has else [""] * len(first))
    return Table((path,), form, names, has, why, separator)


def header_names(first: Sequence[str]) -> tuple[str, ...]:
    """The cells of a header; a column without a name has its number."""
    return tuple(cell.strip() or str(number) for number, cell in enumerate(first, 1))


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


def likely_form(line: str) -> str:
    """What a first line looks like: jsonl, tsv, or "" for neither."""
    return "jsonl" if line.lstrip().startswith("{") else "tsv" if "\t" in line else ""


def _form(path: Path, line: str) -> str:
    if form := form_of(path) or likely_form(line):
        return form
    raise UserError(
        f"{path} does not look like pairs: its first line {shorten(line)} has no tab and is no JSON object; "
        "give a TSV, CSV or JSONL file with that ending, or two parallel files"
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


def column_of(table: Table, wanted: str) -> int:
    """By its name, or by its number from 1."""
    return column_named(table.names, wanted, table.where)


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


def _first_words(path: Path) -> Iterator[list[str]]:
    """The first word of each line, without fastText's mark, and the rest of the line."""
    for number, line in enumerate(lines(path), 1):
        label, _, text = line.strip().partition(" ")
        if text.lstrip().startswith(MARK):
            raise UserError(f"{path}, line {number} has more than one label, but a text has one here: {shorten(line)}")
        yield [label.removeprefix(MARK), text.strip()] if line.strip() else []


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
        item = json_object(path, number, line)
        for key in keys:
            if key not in item:
                raise UserError(f"{path}, line {number} has no key '{key}'{nearest(key, item)}")
            if not isinstance(item[key], values) or not is_unicode(str(item[key])):
                raise UserError(f"{path}, line {number}: '{key}' is {json_told(item[key])}, but text is expected")
        yield tuple(item[key] if isinstance(item[key], str) else json.dumps(item[key]) for key in keys)


def json_told(value: Any) -> str:
    """A value of JSON, for an error message."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value)[:40]


def is_unicode(text: str) -> bool:
    """False for half of a surrogate pair, which JSON can spell and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _first_keys(path: Path, values: tuple[type, ...], least: int) -> list[str]:
    """The keys of the first object that have a value of these types."""
    found = ((number, line) for number, line in enumerate(lines(path), 1) if line.strip())
    number, line = next(found, (1, ""))
    item = json_object(path, number, line)
    keys = [key for key, value in item.items() if isinstance(value, values)]
    if len(keys) < least:
        wanted = "two keys" if least == 2 else "a key"
        raise UserError(f"{path}, line {number} needs {wanted} with text; it has {', '.join(keys) or 'none'}")
    return keys


def json_object(path: Path, number: int, line: str) -> dict[str, Any]:
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
