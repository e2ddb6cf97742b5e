"""Objects in JSON files: one per line, or in a list, which may be in an object: {"data": [{…}, …]}.

A list is read object by object, so that a file may be larger than the memory.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from allyouneed.data.formats.compressed import plain_name
from allyouneed.data.formats.textfile import LONGEST, TextFile
from allyouneed.errors import UserError, nearest

ONE_PER_LINE = (".jsonl", ".ndjson")  # endings that say: one object per line
NOT_BLANK = re.compile(r"[^ \t\n\r]")
DECODER = json.JSONDecoder()
Found = tuple[str, dict[str, Any] | None]  # where an object stands, and the object; None for a blank line


def json_objects(file: TextFile, listed: bool, key: str = "", most: int = LONGEST) -> Iterator[Found]:
    """The objects on the lines, or those of a list. `key`: that of the list, if an object may have several; `most`:
    characters of an object."""
    if listed:
        yield from _listed(file, key, most)
        return
    for number, line in enumerate(file.iter_lines(), 1):
        where = f"{file.path}, line {number}"
        yield where, _on_line(where, line) if line.strip() else None


def _on_line(where: str, line: str) -> dict[str, Any]:
    """The object of a line; the keys inside "translation" are read as keys of the object."""
    try:
        item = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _not_json(where, error) from None
    if not isinstance(item, dict):
        raise UserError(f"{where} is not a JSON object; JSONL has one {{…}} per line")
    return _flat(item)


def _not_json(where: str, error: Exception) -> UserError:
    if isinstance(error, RecursionError):
        return UserError(f"{where}: its lists and objects are nested too deeply")
    if isinstance(error, json.JSONDecodeError):
        return UserError(f"{where} is not JSON: {error.msg} (column {error.colno})")
    return UserError(f"{where} has a number with too many digits: write it as text")


def _flat(item: dict[str, Any]) -> dict[str, Any]:
    inner = item.get("translation")
    return {**item, **inner} if isinstance(inner, dict) else item


def json_shown(value: Any) -> str:
    """A value of JSON, for an error message."""
    if isinstance(value, list | dict):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value)[:40]


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold a text: JSON can also have half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_listed(file: TextFile, usual: Callable[[Sequence[str]], bool]) -> bool:
    """Whether the objects of a file are in a list, not on lines. The first line of JSONL is an object, and so is the
    second; if it is the only line, its keys are `usual` ones."""
    source = _Source(file)
    if source.next() == "[":
        return True
    if Path(plain_name(file.path)).suffix.lower() in ONE_PER_LINE:
        return False
    with suppress(UserError):  # an error is reported when the file is read
        if not any(isinstance(value, Iterator) and source.next() == "{" for _, value in source.members()):
            return False
        with suppress(UserError):  # a line that is too long is not one of JSONL
            first, *second = islice((line.strip() for line in file.iter_lines() if line.strip()), 2)
            whole = first.endswith("}")
            return not (whole and (second[0].startswith("{") if second else usual(list(_on_line("", first)))))
        return True
    return False


def _listed(file: TextFile, wanted: str, most: int) -> Iterator[Found]:
    path, source, keys = file.path, _Source(file, most), list[str]()
    found: str | None = None
    for key, value in source.members():
        keys.append(key)
        if not isinstance(value, Iterator):
            if key == wanted:
                raise UserError(f"{path}: '{key}' is {json_shown(value)}, but a list is expected")
            continue
        if source.next() == "]" or (key and (wanted not in ("", key) or source.next() != "{")):
            continue
        if found is not None:
            raise UserError(
                f"{path} has several lists of objects ('{found}', '{key}', …): give each in a file of its own"
            )
        found = key
        for number, item in enumerate(value, 1):
            if not isinstance(item, dict):
                raise UserError(f"{path}, entry {number} of its list is {json_shown(item)}, but an object is expected")
            yield f"{path}, object {number}", _flat(item)
    if wanted and wanted not in keys:
        raise UserError(f"{path} has no key '{wanted}'{nearest(wanted, keys)}")


class _Source:
    """The text of a file, of which only the part that is being read is in memory."""

    def __init__(self, file: TextFile, most: int = LONGEST) -> None:
        self.path, self.pieces, self.most = file.path, file.text(), most
        self.buffer, self.at, self.before = "", 0, 1  # before: the line at which `buffer` begins

    @property
    def line(self) -> int:
        return self.before + self.buffer.count("\n", 0, self.at)

    def more(self) -> bool:
        """Read on, at least as much as is left in the buffer, so that a long value is decoded only a few times."""
        parts = [self.buffer[self.at :]]
        wanted = 2 * len(parts[0]) or 1
        while sum(map(len, parts)) < wanted and (piece := next(self.pieces, "")):
            parts.append(piece)
        if len(parts) > 1:
            self.before, self.buffer, self.at = self.line, "".join(parts), 0
        return len(parts) > 1

    def next(self) -> str:
        """The next character that is no blank; "" at the end."""
        while (found := NOT_BLANK.search(self.buffer, self.at)) is None:
            self.at = len(self.buffer)
            if not self.more():
                return ""
        self.at = found.start()
        return found[0]

    def take(self, mark: str) -> None:
        found = self.next()
        if found != mark:
            found = f"'{found}'" if found else "the end of the file"
            raise UserError(f"{self.path}, line {self.line} is not JSON: '{mark}' is expected, not {found}")
        self.at += 1

    def _skip_comma(self) -> bool:
        """Whether there was one."""
        found = self.next() == ","
        self.at += found
        return found

    def value(self) -> Any:
        """The next value, which is not longer than about `most`."""
        self.next()
        while True:
            try:
                found, end = DECODER.raw_decode(self.buffer, self.at)
            except json.JSONDecodeError as error:
                long = len(self.buffer) - self.at > self.most
                if not long and self.more():
                    continue
                if long and (error.pos >= len(self.buffer) - 1 or error.msg.startswith("Unterminated")):
                    raise self._too_long() from None
                found = _not_json(f"{self.path}, line {self.before + error.lineno - 1}", error)
                raise UserError(f"{found}; is the file complete?") from None
            except (ValueError, RecursionError) as error:
                raise _not_json(f"{self.path}, line {self.line}", error) from None
            if end == len(self.buffer) and self.more():  # a number may go on
                continue
            if end - self.at > self.most:
                raise self._too_long()
            self.at = end
            return found

    def _too_long(self) -> UserError:
        return UserError(
            f"{self.path}, line {self.line}: a value of more than {self.most:,} characters begins here, too long "
            "for one example"
        )

    def members(self) -> Iterator[tuple[str, Any]]:
        """The values of the object that the file is, with their keys; or a list, with "". A list comes as an iterator
        over its values."""
        if self.next() == "[":
            yield from self._member("")
        else:
            self.take("{")
            while self.next() not in ("}", ""):
                key = str(self.value())
                self.take(":")
                yield from self._member(key)
                self._skip_comma()
            self.take("}")
        if self.next():
            raise UserError(f"{self.path}, line {self.line} has more after the end of its list: is it one file?")

    def _member(self, key: str) -> Iterator[tuple[str, Any]]:
        if self.next() != "[":
            yield key, self.value()
            return
        self.take("[")
        items = self._items()
        yield key, items
        deque(items, maxlen=0)  # those that nobody has read

    def _items(self) -> Iterator[Any]:
        more = self.next() != "]"
        while more:
            yield self.value()
            more = self._skip_comma()
        self.take("]")
