"""Objects in JSON files: one per line, or in a list, which may be in an object: {"data": [{…}, …]}.

Lines are read one by one, a list as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from allyouneed.data.formats.compressed import plain_name
from allyouneed.data.formats.textfile import TextFile
from allyouneed.errors import UserError, nearest

ONE_PER_LINE = (".jsonl", ".ndjson")  # endings that say: one object per line
MOST = 1 << 30  # characters of a file that is read as a whole
WHOLE: WeakKeyDictionary[TextFile, Any] = WeakKeyDictionary()  # what such files hold
Found = tuple[str, dict[str, Any] | None]  # where an object stands, and the object; None for a blank line


def json_objects(file: TextFile, listed: bool, key: str = "") -> Iterator[Found]:
    """The objects on the lines, or those of a list. `key`: that of the list, if an object may have several."""
    if listed:
        yield from _listed(file, key)
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
    """Whether the objects of a file are in a list, not on lines. The first line of JSONL is an object; if it is the
    only line, either its keys are `usual` ones or it has no list of objects."""
    start = file.first_line().lstrip()[:1]
    if start != "{" or Path(plain_name(file.path)).suffix.lower() in ONE_PER_LINE:
        return start == "["
    with suppress(UserError):  # it is no object: one on several lines, or a broken one
        first, *more = islice(filter(str.strip, file.iter_lines()), 2)
        if usual(list(_on_line("", first))) or more:
            return False
    with suppress(UserError):  # an error is reported when the file is read
        return any(map(_has_objects, _whole(file).values()))
    return False


def _has_objects(value: Any) -> bool:
    return isinstance(value, list) and value != [] and isinstance(value[0], dict)


def _whole(file: TextFile) -> Any:
    """The list or the object that a file is."""
    if file not in WHOLE:
        text = ""
        for piece in file.text():
            if len(text) > MOST:
                raise UserError(
                    f"{file.path} has more than {MOST:,} characters, too many for a list that is read as a whole: "
                    "write one object per line (JSONL)"
                )
            text += piece
        try:
            WHOLE[file] = json.loads(text)
        except (ValueError, RecursionError) as error:
            line = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
            raise UserError(f"{_not_json(f'{file.path}{line}', error)}; is the file complete?") from None
    return WHOLE[file]


def _listed(file: TextFile, wanted: str) -> Iterator[Found]:
    path, whole = file.path, _whole(file)
    members = {"": whole} if isinstance(whole, list) else whole
    if wanted and wanted not in members:
        raise UserError(f"{path} has no key '{wanted}'{nearest(wanted, members)}")
    if wanted and not isinstance(members[wanted], list):
        raise UserError(f"{path}: '{wanted}' is {json_shown(members[wanted])}, but a list is expected")
    keys = [key for key, value in members.items() if key == wanted or (not wanted and _has_objects(value))]
    if len(keys) > 1:
        raise UserError(
            f"{path} has several lists of objects ('{keys[0]}', '{keys[1]}', …): give each in a file of its own"
        )
    for number, item in enumerate(members[keys[0]] if keys else (), 1):
        if not isinstance(item, dict):
            raise UserError(f"{path}, entry {number} of its list is {json_shown(item)}, but an object is expected")
        yield f"{path}, object {number}", _flat(item)
