"""Examples in memory -> a file in the cache, so that their run can be resumed and tested like any other.

Rows are tuples or dicts; columns are a dict of lists, or a DataFrame of pandas or polars.
"""

from __future__ import annotations

import io
import json
import os
import reprlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set, Sized
from itertools import chain
from numbers import Number
from pathlib import Path
from typing import Any

from allyouneed.data.fetch import cache_folder
from allyouneed.data.formats.file_paths import check_name
from allyouneed.data.formats.roles import Role, find_columns
from allyouneed.data.sources import PICTURES
from allyouneed.errors import UserError, nearest, shortened
from allyouneed.format import human_bytes
from allyouneed.storage.wholefile import put, remove, writing

MOST = 1 << 32  # bytes that examples in memory take as a file; what never ends is stopped there
NO_LIST = (str, bytes, Mapping, Set)
GIVE = "give a list of tuples or dicts, a dict of lists, or a DataFrame"
SPLITS = ("train", "valid", "test")
Names = Sequence[str]
Row = Sequence[Any]
COLUMNS: dict[str, dict[int, Names]] = {  # of tuples, by their length
    "text": {1: ("text",)},
    "pairs": {2: ("source", "target")},
    "labels": {2: ("text", "label"), 3: ("text", "second", "label")},
    "tags": {2: ("words", "tags")},
    "questions": {3: ("question", "context", "answer")},
}
WORDS, TAGS = ("words", "tokens", "word", "token"), ("tags", "ner_tags", "labels", "tag", "label", "ner")
TEXTS = ("text", "content", "document", "body")


def is_path(data: Any) -> bool:
    """Whether data is given by its place: a path or a name, or several."""
    if isinstance(data, str | os.PathLike):
        return True
    return isinstance(data, list | tuple) and all(isinstance(item, str | os.PathLike) for item in data)


def splits(data: Any) -> dict[str, Any]:
    """{"train": …, "valid": …, "test": …} as it is; anything else is all in train."""
    if isinstance(data, Mapping) and data.keys() & set(SPLITS):
        for name in data:
            if name not in SPLITS:
                raise UserError(f"data has no split '{shortened(name)}'{nearest(str(name), SPLITS)}")
        if data.get("train") is None:
            raise UserError("data needs a split 'train'")
        return {name: data[name] for name in SPLITS if data.get(name) is not None}
    return {"train": data}


def wanted_rows(shape: str) -> str:
    """What a row of this shape is, for the user."""
    return " or ".join(f"({', '.join(names)})" for names in COLUMNS.get(shape, {2: ("image", "label")}).values())


def keep(data: Any, shape: str, source: str = "", target: str = "") -> Path:
    """Write the examples to a file named by its contents. `source` and `target` name columns."""
    try:
        return _pictures(data, shape, source, target) if shape in PICTURES else _texts(data, shape, source, target)
    except UserError:
        raise
    except Exception as error:  # objects of the user may raise anything when they are read
        told = shortened(f"{type(error).__name__}: {error}", 200)
        raise UserError(f"data is {type(data).__name__} and cannot be read ({told}): {GIVE}") from error


def _texts(data: Any, shape: str, source: str, target: str) -> Path:
    names, rows = _table(data, COLUMNS[shape])
    if shape == "tags":
        pieces = _conll(rows, _column(names, source, WORDS, "words"), _column(names, target, TAGS, "tags"))
    elif shape == "text":
        pieces = _text(rows, _column(names, source, TEXTS, "texts"))
    else:
        # A question may have no answer; `questions` looks at the rest.
        pieces = _jsonl(rows, names, missing=shape == "questions")
    return _kept(_encoded(pieces), {"tags": ".conll", "text": ".txt"}.get(shape, ".jsonl"))


def _encoded(pieces: Iterable[str]) -> Iterator[bytes]:
    """The rows, each one piece, as they are written to the file."""
    size, blank = 0, True
    for number, piece in enumerate(pieces, 1):
        try:
            written = piece.encode()
        except UnicodeEncodeError:
            written = b"\0"
        if b"\0" in written:
            raise UserError(
                f"row {number} of data has a zero character or half of a surrogate pair, which no text file can hold: "
                f"{shortened(ascii(piece))}; remove it"
            )
        size, blank = size + len(written), blank and not piece.strip()
        if size > MOST:
            raise UserError(
                f"data has more than {human_bytes(MOST)} after {number:,} rows; if it ever ends, write it to a file "
                "and give the path"
            )
        yield written
    if blank:
        raise UserError("data has no rows")


def _kept(pieces: Iterable[bytes], ending: str) -> Path:
    """A file in the cache with this content."""
    folder = cache_folder() / "given"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"the cache {cache_folder()} cannot be written: {error.strerror or error}") from None
    temporary = folder / f".tmp-{os.getpid()}-{time.monotonic_ns()}"
    try:
        with writing(folder):
            path = folder / f"in-memory-{put(temporary, pieces)['sha256'][:12]}{ending}"
            if not path.is_file():
                os.replace(temporary, path)
    finally:
        remove(temporary)
    return path


def _pictures(data: Any, shape: str, source: str, target: str) -> Path:
    """Pictures, as arrays, images of Pillow or paths, in rows or columns; beside each its label or its caption, unless
    they are plain. Two arrays in a tuple are two columns."""
    import numpy as np

    from allyouneed.data.formats.pictures import BESIDE, IMAGES, PICTURE

    word = "caption" if shape == "captions" else "label"
    if isinstance(data, tuple) and len(data) == 2 and _dimensions(data[0]) > 2 >= _dimensions(data[1]):
        data = {"image": data[0], word: data[1]}
    usual: dict[int, Names] = {2: ("image", word)}
    if shape == "plain":
        data, usual = _single_cells(data), {1: ("image",), **usual}
    names, found = _table(data, usual)
    image = _column(names, source, (*IMAGES, *PICTURE.usual), "pictures")
    rows, size = [], 0
    for row in found:
        rows.append(row)
        size += getattr(row[image], "nbytes", 64)
        if size > MOST:
            raise UserError(f"data has more than {human_bytes(MOST)} of pictures: give the paths of files instead")
    if not rows:
        raise UserError("data has no rows")
    beside: dict[str, Any] = {}
    if shape != "plain":
        beside[word] = _labels(rows, _column(names, target, BESIDE[shape], f"{word}s"), names, word)
    are_paths = {isinstance(row[image], str | os.PathLike) for row in rows}
    if are_paths == {True}:
        columns = {"path": [os.path.abspath(os.path.expanduser(row[image])) for row in rows], **beside}
        for path in columns["path"]:
            check_name(Path(path))
        objects = (dict(zip(columns, map(str, cells))) for cells in zip(*columns.values()))
        return _kept((json.dumps(one).encode() + b"\n" for one in objects), ".jsonl")
    if True in are_paths:
        raise UserError("some pictures in data are paths and others are not: give all as paths, or none")
    arrays = [_pixels(row[image], number) for number, row in enumerate(rows, 1)]
    if len({array.shape for array in arrays}) > 1:
        raise UserError("the pictures in data have different sizes or channels: give their paths, or make them alike")
    made = io.BytesIO()
    np.savez(made, images=np.stack(arrays), **beside)
    return _kept([made.getvalue()], ".npz")


def _dimensions(value: Any) -> int:
    """Of an array; 0 for anything else."""
    return getattr(value, "ndim", 0)


def _single_cells(data: Any) -> Any:
    """Plain pictures in a list or an array as rows of one cell; anything else as it is."""
    if hasattr(data, "columns") or isinstance(data, Mapping):
        return data
    if 0 < _dimensions(data) < 3:
        raise UserError(f"data has the shape {data.shape}: give several pictures, (count, height, width, channels)")
    if isinstance(data, str | bytes | Set) or not isinstance(data, Iterable):
        return data
    return (one if isinstance(one, Mapping | tuple | list) else (one,) for one in data)


def _labels(rows: Sequence[Row], at: int, names: Names, word: str) -> Any:
    """An array of texts: one label or caption per picture."""
    import numpy as np

    from allyouneed.data.formats.pictures import as_label

    try:
        cells = [np.asarray(row[at]).squeeze() for row in rows]
    except ValueError:  # lists in lists, of different lengths
        raise UserError(f"data has several {word}s for a picture: give one {word} for each") from None
    for number, (row, cell) in enumerate(zip(rows, cells), 1):
        if cell.ndim:
            raise UserError(
                f"row {number} of data has a {word} of shape {cell.shape}: give one {word} for each picture"
            )
        if _is_missing(row[at]):
            raise UserError(f"row {number} of data: '{names[at]}' is missing ({row[at]})")
    return np.array([as_label(cell[None], 0, f"row {n} of data: the {word}") for n, cell in enumerate(cells, 1)])


def _pixels(picture: Any, number: int) -> Any:
    """The array of the picture in a row; one of Pillow is turned as its EXIF says, and a palette becomes colours."""
    import numpy as np
    from PIL import ImageOps

    from allyouneed.data.formats.decoding import BadPictureError, check, check_form, is_image, pillow_errors, plain

    try:
        if not is_image(picture):
            try:
                pixels = np.asarray(picture)
            except ValueError:
                raise BadPictureError("its rows have different lengths") from None
            check_form(pixels.shape, pixels.dtype)
            return pixels
        grey = picture.mode in ("1", "L", "I", "F") or picture.mode.startswith("I;16")
        clear = picture.mode in ("LA", "PA", "RGBA") or "transparency" in picture.info
        check(picture)
        with pillow_errors():
            return np.asarray(plain(ImageOps.exif_transpose(picture), 4 if clear else 1 if grey else 3))
    except BadPictureError as error:
        raise UserError(f"the picture in row {number} of data: {error}") from None


def _table(data: Any, usual: Mapping[int, Names]) -> tuple[Names, Iterator[Row]]:
    """The names of the columns, and the rows."""
    if hasattr(data, "collect"):  # a LazyFrame of polars, a DataFrame of Spark
        raise UserError(f"data is {type(data).__name__}, which has not computed its rows yet: give data.collect()")
    if hasattr(data, "columns"):  # a DataFrame
        _names(data.columns)
        return _columns({name: data[name].to_list() for name in data.columns})
    if isinstance(data, Mapping):
        return _columns({name: _listed(name, column) for name, column in data.items()})
    if isinstance(data, Set):
        raise UserError(f"data is {type(data).__name__}, whose rows have no order: give a list")
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise UserError(f"data is {type(data).__name__}; give a path, a list of tuples or dicts, or a DataFrame")
    rows = iter(data)
    first = next(rows, rows)
    if first is rows:
        raise UserError("data is empty: there is no row in it")
    if isinstance(first, Mapping):
        names, keys = _names(first), list(first)
        return names, (_values(row, keys, number) for number, row in enumerate(chain([first], rows), 1))
    if isinstance(first, tuple | list) and len(first) in usual:
        names = usual[len(first)]
        return names, (_cells(row, names, number) for number, row in enumerate(chain([first], rows), 1))
    if isinstance(first, str) and 1 in usual:
        return usual[1], ((row,) for row in chain([first], rows))
    wanted = " or ".join(f"({', '.join(names)})" for names in usual.values())
    raise UserError(f"row 1 of data is {_shown(first)}; {wanted} is expected, or a dict")


def _shown(value: Any) -> str:
    """A value of the user for a message, also if it is very large or cannot show itself."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 60
    return shortened(short.repr(value))


def _names(keys: Iterable[Any]) -> Names:
    """The names of columns, which may be numbers."""
    names = Counter(map(str, keys))
    for name, count in names.items():
        if count > 1:
            raise UserError(f"data has {count} columns called '{shortened(name)}': rename all but one")
    return tuple(names)


def _is_list(value: Any) -> bool:
    """Whether it has several values, in order, and an end."""
    return isinstance(value, Sized) and isinstance(value, Iterable) and not isinstance(value, NO_LIST)


def _listed(name: Any, column: Any) -> list[Any]:
    """A column in a dict of columns."""
    if not _is_list(column):
        raise UserError(f"column '{shortened(name)}' of data is {_shown(column)}, but a list of its cells is expected")
    return list(column)


def _columns(columns: Mapping[Any, list[Any]]) -> tuple[Names, Iterator[Row]]:
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        told = shortened(", ".join(f"'{name}' has {size:,}" for name, size in sizes.items()), 400)
        raise UserError(f"the columns of data have different lengths: {told}")
    if not any(sizes.values()):
        raise UserError("data has no rows")
    return _names(columns), zip(*columns.values())


def _values(row: Any, keys: Sequence[Any], number: int) -> Row:
    if not isinstance(row, Mapping):
        raise UserError(f"row {number} of data is not a dict as the first one is: {_shown(row)}")
    for key in keys:
        if key not in row:
            raise UserError(f"row {number} of data has no '{shortened(key)}'{nearest(str(key), map(str, row))}")
    return [row[key] for key in keys]


def _cells(row: Any, names: Names, number: int) -> Row:
    if not isinstance(row, tuple | list) or len(row) != len(names):
        raise UserError(f"row {number} of data is {_shown(row)}; ({', '.join(names)}) is expected")
    return row


def _column(names: Names, wanted: str, usual: Names, what: str) -> int:
    """The number of a column: the one that the user names, or one with a usual name."""
    role = Role(what, usual=tuple(usual))
    return find_columns(names, [role], {what: wanted}, "data").columns[what]


def _jsonl(rows: Iterable[Row], names: Names, missing: bool) -> Iterator[str]:
    """One JSON object per row. `missing`: whether a value may be missing; it becomes null."""
    for number, row in enumerate(rows, 1):
        item = dict(zip(names, row))
        for name, value in item.items():
            if _is_missing(value) and not missing:
                raise UserError(f"row {number} of data: '{name}' is missing ({value})")
        item = {name: None if _is_missing(value) else value for name, value in item.items()}
        try:
            yield json.dumps(item, ensure_ascii=False, default=_plain) + "\n"
        except (TypeError, ValueError, AttributeError, RecursionError):
            raise UserError(f"row {number} of data holds a value that is neither text nor a number") from None


def _is_missing(value: Any) -> bool:
    """None, or NaN or NA as pandas has them."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, Number) and bool(value != value)


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python, an array as a list."""
    return value.tolist()


def _text(rows: Iterable[Row], at: int) -> Iterator[str]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row[at], str):
            raise UserError(f"row {number} of data: {_shown(row[at])} is not text")
        yield row[at] if row[at].endswith("\n") else row[at] + "\n"


def _conll(rows: Iterable[Row], words: int, tags: int) -> Iterator[str]:
    for number, row in enumerate(rows, 1):
        for cell in (row[words], row[tags]):
            if not _is_list(cell):
                raise UserError(
                    f"row {number} of data: a list of words and a list of tags are expected, not {_shown(cell)}"
                )
        these, marks = list(row[words]), list(row[tags])
        if len(these) != len(marks):
            raise UserError(f"row {number} of data has {len(these)} words and {len(marks)} tags: give one tag per word")
        for word, tag in zip(these, marks):
            texts = isinstance(word, str) and isinstance(tag, str)
            if not texts or not word.strip() or set(word) & set("\t\n\r") or len(tag.split()) != 1:
                raise UserError(f"row {number} of data: {_shown((word, tag))} is not a word with its tag")
        yield "".join(f"{word}\t{tag}\n" for word, tag in zip(these, marks)) + "\n"
