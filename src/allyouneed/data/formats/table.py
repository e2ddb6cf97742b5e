"""Tables in files: TSV, CSV, JSONL, a list of objects in JSON, two parallel files, or lines that begin with a label.

What the user does not say is guessed, and the guess is reported.
"""

from __future__ import annotations

import csv
import io
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import dropwhile, islice, zip_longest
from pathlib import Path
from typing import Any

from allyouneed.data.formats.columns import LOOKED_AT, Column, are_names, beginning, is_number, survey, unlike_below
from allyouneed.data.formats.compressed import plain_name
from allyouneed.data.formats.file_paths import form_of
from allyouneed.data.formats.objects import Found, is_listed, is_unicode, json_objects, json_shown
from allyouneed.data.formats.textfile import LONGEST, TextFile, shorten
from allyouneed.errors import UserError, nearest

JSON = ("jsonl", "json")
OTHER_FORMS = {  # besides tables
    "pairs": "two parallel files",
    "questions": "SQuAD's JSON, with questions, contexts and answers",
}
MARK = "__label__"  # before a label, as fastText writes it
MOST_COLUMNS = 4096
CELLS = 1_000_000  # that are looked at, at most


FORMS = {  # of a table -> how it is described, and what its columns are called
    "tsv": ("TSV (columns between tabs, no quoting)", "column"),
    "csv": ("CSV (columns between '{}', quoting)", "column"),
    "jsonl": ("JSONL (one object per line)", "key"),
    "json": ("JSON (a list of objects)", "key"),
    "squad": ("SQuAD's JSON", "key"),
    "parallel": ("parallel files (one sentence per line)", "file"),
    "words": ("lines that begin with their label; label is the first word, text is the rest of the line", "column"),
}


@dataclass(frozen=True)
class Table:
    """Rows of cells in a file, or in two files with one cell per line each. All rows have the same columns."""

    files: tuple[TextFile, ...]
    form: str  # one of FORMS; words: the first word of a line, and the rest
    names: tuple[str, ...]  # of the columns, or the keys of JSON; numbers if the file gives no names
    header: bool = False  # whether the first row gives the names
    guessed: str = ""  # why that is so, for the user
    separator: str = "\t"
    values: tuple[type, ...] = (str,)  # which JSON values are read
    lists: tuple[str, ...] = ()  # JSON keys that have lists

    @property
    def where(self) -> str:
        """The files, for an error message."""
        return " and ".join(str(file.path) for file in self.files)

    @property
    def named(self) -> bool:
        """Whether the file gives the names of its columns."""
        return self.header or self.form in JSON

    def rows(self, columns: Sequence[int]) -> Iterator[tuple[str, ...]]:
        """The cells of these columns, row by row. A blank line has blank cells."""
        if self.form in JSON:
            return self._cells_of_objects([self.names[column] for column in columns])
        if self.form == "parallel":
            rows = _side_by_side(*self.files)
        elif self.form == "words":
            rows = _first_words(self.files[0])
        else:
            rows = _delimited(self.files[0], self.form, self.separator, len(self.names))
        if self.header:
            rows = islice(dropwhile(lambda row: not any(row), rows), 1, None)
        if len(columns) == 1:
            return ((row[columns[0]],) for row in rows)
        return map(operator.itemgetter(*columns), rows)

    def records(self) -> Iterator[Found]:
        """Where each row is in the file, and its values by the names of the columns; those of JSON have any type."""
        if self.form in JSON:
            return json_objects(self.files[0], self.form == "json")
        rows = enumerate(self.rows(range(len(self.names))), 1 + self.header)  # as a spreadsheet numbers them
        return ((f"{self.where}, row {number}", dict(zip(self.names, cells))) for number, cells in rows)

    def _cells_of_objects(self, keys: Sequence[str]) -> Iterator[tuple[str, ...]]:
        for where, item in self.records():
            if item is None:
                yield ("",) * len(keys)
                continue
            for key in keys:
                if key not in item:
                    raise UserError(f"{where} has no key '{key}'{nearest(key, item)}")
                if not isinstance(item[key], self.values) or not is_unicode(str(item[key])):
                    raise UserError(f"{where}: '{key}' is {json_shown(item[key])}, but text is expected")
                if isinstance(item[key], str) and len(item[key]) > LONGEST:
                    raise UserError(f"{where}: '{key}' has more than {LONGEST:,} characters, too long for one example")
            values = (item[key] for key in keys)  # nothing is a blank cell
            yield tuple(json.dumps(v) if not isinstance(v, str | None) else v or "" for v in values)

    def survey(self, most: int | None = LOOKED_AT) -> list[Column]:
        """What the cells of the first rows are like."""
        width = len(self.names)
        return survey(islice(self.rows(range(width)), most and max(20, min(most, CELLS // width))), width)


@dataclass
class Examples:
    """The columns of a table that have the parts of an example."""

    table: Table
    columns: dict[str, int]  # of each part
    guessed: str = ""  # what was guessed, for the user
    what: str = "example"

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The parts of each example."""
        return self.table.rows(list(self.columns.values()))

    def understood(self) -> str:
        """One sentence for the user: the format, the column of each part, what was guessed, and the first example."""
        table, names = self.table, self.table.names
        described, place = FORMS[table.form]
        header = (" with a header" if table.header else " without a header") if table.form in ("tsv", "csv") else ""
        codes = " and ".join(dict.fromkeys(file.encoding for file in table.files))
        parts = [f"{described.format(table.separator)}{header}{table.guessed}, {codes}"]
        if table.form not in ("words", "squad"):
            sides = ", ".join(f"{part} is {place} {names[column]}" for part, column in self.columns.items())
            parts.append(sides + (f" of {len(names)}" if len(names) > 2 else ""))
        return (
            f"{' and '.join(file.path.name for file in table.files)}: {'; '.join(parts)}{self.guessed}; "
            f"the first {self.what} is {' → '.join(map(shorten, self._first()))}"
        )

    def _first(self) -> Sequence[str]:
        """The parts of the first example in which none is blank."""
        rows = self.table.rows(list(self.columns.values()))
        return next((row for row in rows if all(cell.strip() for cell in row)), ())


def open_table(
    files: Sequence[TextFile],
    wanted: Iterable[str],
    usual: Callable[[Sequence[str]], bool],
    header: str = "auto",
    values: tuple[type, ...] = (str,),
    form: str = "",
    what: str = "pairs",
) -> Table:
    """Find the format of a file, or of two, and whether the first row is a header (data.header): `columns` has the
    rule. `wanted`: the columns that the user names; `usual`: whether these cells are usual names; `values`: which JSON
    values are read; `form`: the format if it is known; `what`: what is expected, for the user."""
    starts = [file.first_line() for file in files]  # also refuses files without text
    (file, *other) = files
    path = file.path
    form = form or ("parallel" if other else form_of(path) or likely_form(starts[0]))
    if not form:
        raise UserError(
            f"{path} does not look like {what}: its first line {shorten(starts[0])} has no tab and is no JSON object; "
            f"give a TSV, CSV or JSONL file with that ending, or {OTHER_FORMS[what]}"
        )
    if header == "true" and form not in ("tsv", "csv"):
        raise UserError(f"data.header = true, but {path} is neither TSV nor CSV and has no header: leave it out")
    if form == "parallel":
        plain = [plain_name(file.path) for file in files]
        names = tuple(Path(name).suffix[1:] or name for name in plain)
        return Table(tuple(files), form, names if names[0] != names[1] else tuple(plain))
    if form == "squad":
        return Table((file,), form, ("context", "question", "answers"))
    if form == "jsonl":
        return _table_of_objects(file, is_listed(file, usual), values)
    separator = "\t" if form == "tsv" else _separator(file)
    head = beginning(_delimited(file, form, separator, 0), lambda row: sum(map(len, row)))
    first, *below = [row for row in head if row] or [[]]
    if not first:
        raise UserError(f"{path} holds only blank cells")
    check_width(f"{path}: its first row", len(first), "columns")
    has, why = header == "true", ""
    if header == "auto":
        has = any(name and not is_number(name) for name in wanted) or (are_names(first) and usual(first))
        if not has:
            why = unlike_below(first, below)
            has = bool(why)
            why = f", guessed because {why} (data.header=false if not)" if has else " (data.header=true if it has one)"
    names = header_names(first if has else [""] * len(first))
    return Table((file,), form, names, has, why, separator)


def _table_of_objects(file: TextFile, listed: bool, values: tuple[type, ...]) -> Table:
    """The columns are the keys of the first object that have a value of these types."""
    item: dict[str, Any] | None
    where, item = next((found for found in json_objects(file, listed) if found[1] is not None), ("", None))
    if item is None:
        raise UserError(f"{file.path} has no object in its list")
    names = tuple(key for key, value in item.items() if isinstance(value, values))
    if not names:
        raise UserError(f"{where} has no key with text")
    check_width(f"{file.path}: its first object", len(names), "keys")
    lists = tuple(key for key, value in item.items() if isinstance(value, list) and key not in names)
    return Table((file,), "json" if listed else "jsonl", names, values=values, lists=lists)


def header_names(first: Sequence[str]) -> tuple[str, ...]:
    """The cells of a header; a column without a name has its number."""
    return tuple(cell.strip() or str(number) for number, cell in enumerate(first, 1))


def likely_form(line: str) -> str:
    """What a first line looks like: jsonl, or a list of such objects, tsv, or "" for neither."""
    return "jsonl" if re.match(r"\s*(\{|\[\s*(\{|$))", line) else "tsv" if "\t" in line else ""


def _separator(file: TextFile) -> str:
    """The separator that gives the first rows equally many cells; in many countries, CSV is written with semicolons."""
    widths: dict[str, list[int]] = {}
    for mark in ",;\t":
        widths[mark] = []
        with suppress(UserError):  # quotes that make no sense with this mark
            widths[mark] = [len(row) for _, row in islice(_csv(file, mark), 20) if any(map(str.strip, row))]
    steady = [mark for mark, found in widths.items() if len(set(found)) == 1 and found[0] > 1]
    return steady[0] if steady else max(widths, key=lambda mark: widths[mark][:1])


def _delimited(file: TextFile, form: str, separator: str, width: int) -> Iterator[list[str]]:
    """The rows as cells, all `width` wide (0: any). A blank row has blank cells, or none if any width will do."""
    tabs = ((number, line.split("\t")) for number, line in enumerate(file.iter_lines(), 1))
    for number, row in _csv(file, separator) if form == "csv" else tabs:
        if len(row) == width > 0 and row[0].strip():  # nearly all rows
            yield row
        elif not any(map(str.strip, row)):
            yield [""] * width
        elif width in (0, len(row)):
            yield row
        else:
            where = f"{file.path}, line {number}"
            check_width(where, len(row), "columns")
            raise UserError(f"{where} has {len(row)} columns, but the first row has {width}")


def check_width(where: str, width: int, what: str) -> None:
    """Raise a UserError for a row of very many columns: a survey of each would take very long."""
    if width > MOST_COLUMNS:
        raise UserError(f"{where} has {width:,} {what}, but a table has at most {MOST_COLUMNS:,}: leave some out")


def _csv(file: TextFile, separator: str) -> Iterator[tuple[int, list[str]]]:
    """The rows, each with the number of its last line."""
    csv.field_size_limit(max(csv.field_size_limit(), 2 * LONGEST))
    begun, size = 1, 0  # the first line of a row, and the characters that were read since

    def fed() -> Iterator[str]:
        nonlocal size
        for block in file.blocks_of_lines():
            if size > LONGEST:
                raise UserError(
                    f"{file.path}: the row that begins at line {begun} has more than {LONGEST:,} characters, which is "
                    'too long for one example: does it open a quote (") and never close it?'
                )
            size += len(block)
            yield from io.StringIO(block, newline="\n")

    reader = csv.reader(fed(), delimiter=separator, strict=True)
    try:
        for row in reader:
            yield reader.line_num, row
            begun, size = reader.line_num + 1, 0
    except csv.Error as error:
        raise UserError(f"{file.path}, line {reader.line_num} is not CSV: {error}") from None


def _first_words(file: TextFile) -> Iterator[list[str]]:
    """The first word of each line, without fastText's mark, and the rest of the line."""
    for number, line in enumerate(file.iter_lines(), 1):
        label, _, text = line.strip().partition(" ")
        if text.lstrip().startswith(MARK):
            raise UserError(
                f"{file.path}, line {number} has more than one label, but a text has one here: {shorten(line)}"
            )
        yield [label.removeprefix(MARK), text.strip()]


def _side_by_side(left: TextFile, right: TextFile) -> Iterator[list[str]]:
    one, two = left.iter_lines(), right.iter_lines()
    for number, row in enumerate(zip_longest(one, two)):
        if None in row:
            counts = [number + (line is not None) + sum(1 for _ in rest) for line, rest in zip(row, (one, two))]
            raise UserError(
                f"parallel files need the same number of lines, but {left.path} has {counts[0]} and {right.path} has "
                f"{counts[1]}"
            )
        yield list(row)
