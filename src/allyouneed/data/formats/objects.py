"""Objects in JSON files: one per line, or in a list, which may be the only list of an object: {"data": [{…}, …]}.

A list is read object by object, so that a file may be larger than the memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from allyouneed.data.formats.compressed import plain_name
from allyouneed.data.formats.textfile import LONGEST, TextFile
from allyouneed.errors import UserError

LINES = (".jsonl", ".ndjson")  # endings that say: one object per line
BLANKS = re.compile(r"[ \t\n\r]*")
DECODER = json.JSONDecoder()
Found = tuple[str, dict[str, Any] | None]  # where an object stands, and the object; None for a blank line


def json_objects(file: TextFile, listed: bool) -> Iterator[Found]:
    """The objects of a list, or of the lines."""
    if listed:
        yield from _listed(file)
        return
    for number, line in enumerate(file.lines(), 1):
        where = f"{file.path}, line {number}"
        yield where, json_object(file.path, number, line) if line.strip() else None


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
    return _flat(item)


def _flat(item: dict[str, Any]) -> dict[str, Any]:
    inner = item.get("translation")
    return {**item, **inner} if isinstance(inner, dict) else item


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


def is_listed(file: TextFile) -> bool:
    """Whether the objects of a file are in a list, not on lines. The first line of JSONL is an object, and so is the
    second."""
    source = _Source(file)
    if source.next() == "[":
        return True
    if Path(plain_name(file.path)).suffix.lower() in LINES:
        return False
    with suppress(UserError):  # whoever reads the file tells what is wrong with it
        if source.find_list() is None:
            return False
        with suppress(UserError):  # a line that is too long is not one of JSONL
            first, *second = islice((line.strip() for line in file.lines() if line.strip()), 2)
            return not (first.endswith("}") and second and second[0].startswith("{"))
        return True
    return False


def _listed(file: TextFile) -> Iterator[Found]:
    path, source, number = file.path, _Source(file), 0
    inside = source.find_list()
    more = inside is not None and source.next() != "]"
    while more:
        number += 1
        item = source.value()
        if not isinstance(item, dict):
            raise UserError(f"{path}, entry {number} of its list is {json_told(item)}, but an object is expected")
        yield f"{path}, object {number}", _flat(item)
        more = source.next() == ","
        if more:
            source.take(",")
    if inside is None:
        return
    source.take("]")
    if inside:
        if source.next() == ",":
            source.take(",")
        other = source.find_list(begun=True)
        if other is not None:
            raise UserError(
                f"{path} has several lists of objects ('{inside}', '{other}', …): give each in a file of its own"
            )
    if source.next():
        raise UserError(f"{path}, line {source.line} has more after the end of its list: is it one file?")


class _Source:
    """The text of a file, of which only the part that is looked at is held."""

    def __init__(self, file: TextFile) -> None:
        self.path, self.pieces = file.path, file.text()
        self.held, self.at, self.before = "", 0, 1  # before: the line at which `held` begins

    @property
    def line(self) -> int:
        return self.before + self.held.count("\n", 0, self.at)

    def more(self) -> bool:
        """Reads as much again as is left of what is held; so a long value is not read over and over."""
        self.before = self.line
        parts = [self.held[self.at :]]
        wanted = 2 * len(parts[0]) or 1
        while sum(map(len, parts)) < wanted and (piece := next(self.pieces, "")):
            parts.append(piece)
        self.held, self.at = "".join(parts), 0
        return len(parts) > 1

    def next(self) -> str:
        """The next character that is no blank; "" at the end."""
        while True:
            blanks = BLANKS.match(self.held, self.at)
            assert blanks is not None
            self.at = blanks.end()
            if self.at < len(self.held):
                return self.held[self.at]
            if not self.more():
                return ""

    def take(self, mark: str) -> None:
        found = self.next()
        if found != mark:
            told = f"'{found}'" if found else "the end of the file"
            raise UserError(f"{self.path}, line {self.line} is not JSON: '{mark}' is expected, not {told}")
        self.at += 1

    def value(self) -> Any:
        """The next value, which is not longer than about `LONGEST`."""
        self.next()
        while True:
            try:
                found, end = DECODER.raw_decode(self.held, self.at)
            except json.JSONDecodeError as error:
                if len(self.held) - self.at <= LONGEST and self.more():
                    continue
                raise self._mistake(error) from None
            except RecursionError:
                raise UserError(f"{self.path}, line {self.line}: its lists and objects are nested too deeply") from None
            except ValueError:
                raise UserError(
                    f"{self.path}, line {self.line} has a number with too many digits: write it as text"
                ) from None
            if end == len(self.held) and self.more():  # a number may go on
                continue
            if end - self.at > LONGEST:
                raise self._too_long()
            self.at = end
            return found

    def _too_long(self) -> UserError:
        return UserError(
            f"{self.path}, line {self.line}: a value of more than {LONGEST:,} characters begins here, too long "
            "for one example"
        )

    def _mistake(self, error: json.JSONDecodeError) -> UserError:
        unfinished = error.pos >= len(self.held) - 1 or error.msg.startswith("Unterminated")
        if unfinished and len(self.held) - self.at > LONGEST:
            return self._too_long()
        place = f"{self.path}, line {self.before + error.lineno - 1}"
        return UserError(f"{place} is not JSON: {error.msg} (column {error.colno}); is the file complete?")

    def find_list(self, begun: bool = False) -> str | None:
        """Reads up to the first object of a list: the file is a list (""), or an object with a list of objects, whose
        key is returned. None: there is no such list. `begun`: go on with the keys of an object."""
        if not begun:
            if self.next() == "[":
                self.take("[")
                return ""
            self.take("{")
        while self.next() not in ("}", ""):
            key = self.value()
            self.take(":")
            if self.next() == "[":
                self.take("[")
                if self.next() == "{":
                    return str(key)
                self._rest_of_list()
            else:
                self.value()
            if self.next() == ",":
                self.take(",")
        self.take("}")
        return None

    def _rest_of_list(self) -> None:
        while self.next() not in ("]", ""):
            self.value()
            if self.next() == ",":
                self.take(",")
        self.take("]")
