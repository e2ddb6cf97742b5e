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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set, Sized
from functools import partial
from itertools import chain
from numbers import Number
from pathlib import Path
from typing import Any, TypeVar

from allyouneed.data.fetch import cache_folder
from allyouneed.data.formats.columns import Role, find_columns
from allyouneed.data.formats.file_paths import check_name
from allyouneed.data.sources import IMAGES
from allyouneed.errors import UserError, nearest, shortened
from allyouneed.format import human_bytes
from allyouneed.storage.wholefile import put, remove, writing

MOST = 1 << 32  # bytes that examples in memory take as a file; what never ends is stopped there
NO_LIST = (str, bytes, Mapping, Set)
GIVE = "give a list of tuples or dicts, a dict of lists, or a DataFrame"
SPLITS = ("train", "valid", "test")
Names = Sequence[str]
Row = Sequence[Any]
T = TypeVar("T")
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
    """Whether data is a path or a name, or several."""
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


def store_examples(data: Any, shape: str, source: str = "", target: str = "") -> Path:
    """Write the examples to a file named by its contents. `source` and `target` name columns."""
    try:
        return _images(data, shape, source, target) if shape in IMAGES else _texts(data, shape, source, target)
    except UserError:
        raise
    except Exception as error:  # objects of the user may raise anything when they are read
        message = shortened(f"{type(error).__name__}: {error}", 200)
        raise UserError(f"data is {type(data).__name__} and cannot be read ({message}): {GIVE}") from error


def _texts(data: Any, shape: str, source: str, target: str) -> Path:
    names, rows = _table(data, COLUMNS[shape])
    if shape == "tags":
        words, tags = _column(names, source, WORDS, "words"), _column(names, target, TAGS, "tags")
        return _stored(_encoded(_each(rows, lambda row: _conll(row[words], row[tags]))), ".conll")
    if shape == "text":
        at = _column(names, source, TEXTS, "texts")
        return _stored(_encoded(_each(rows, lambda row: _line(row[at]))), ".txt")
    # A question may have no answer; `questions` looks at the rest.
    return _stored(_encoded(_each(rows, lambda row: _json(row, names, shape == "questions"))), ".jsonl")


def _each(rows: Iterable[Any], convert: Callable[[Any], T]) -> Iterator[T]:
    """The rows, converted. An error of `convert` is shown after the number of its row."""
    for number, row in enumerate(rows, 1):
        try:
            yield convert(row)
        except UserError as error:
            raise UserError(f"row {number} of data{error}") from None


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


def _stored(pieces: Iterable[bytes], ending: str) -> Path:
    """A file in the cache with this content."""
    folder = cache_folder() / "given"
    temporary = folder / f".tmp-{os.getpid()}-{time.monotonic_ns()}"
    try:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"in-memory-{put(temporary, pieces)['sha256'][:12]}{ending}"
            if not path.is_file():
                os.replace(temporary, path)
    finally:
        remove(temporary)
    return path


def _images(data: Any, shape: str, source: str, target: str) -> Path:
    """Images, as arrays, PIL images or paths, in rows or columns; beside each its label or its caption, unless
    they are plain. Two arrays in a tuple are two columns."""
    import numpy as np

    from allyouneed.data.formats.images import BESIDE, IMAGE, IMAGES

    word = "caption" if shape == "captions" else "label"
    if isinstance(data, tuple) and len(data) == 2 and _dimensions(data[0]) > 2 >= _dimensions(data[1]):
        data = {"image": data[0], word: data[1]}
    usual: dict[int, Names] = {2: ("image", word)}
    if shape == "plain":
        usual = {1: ("image",), **usual}
        if 0 < _dimensions(data) < 3 and not hasattr(data, "columns"):
            raise UserError(f"data has the shape {data.shape}: give several images, (count, height, width, channels)")
    names, found = _table(data, usual)
    image = _column(names, source, (*IMAGES, *IMAGE.usual), "images")
    rows, size = [], 0
    for row in found:
        rows.append(row)
        size += getattr(row[image], "nbytes", 64)
        if size > MOST:
            raise UserError(f"data has more than {human_bytes(MOST)} of images: give the paths of files instead")
    if not rows:
        raise UserError("data has no rows")
    beside: dict[str, Any] = {}
    if shape != "plain":
        at = _column(names, target, BESIDE[shape], f"{word}s")
        beside[word] = np.array(list(_each(rows, lambda row: _label(row[at], names[at], word))))
    are_paths = {isinstance(row[image], str | os.PathLike) for row in rows}
    if are_paths == {True}:
        columns = {"path": [os.path.abspath(os.path.expanduser(row[image])) for row in rows], **beside}
        for path in columns["path"]:
            check_name(Path(path))
        objects = (dict(zip(columns, map(str, cells))) for cells in zip(*columns.values()))
        return _stored((json.dumps(one).encode() + b"\n" for one in objects), ".jsonl")
    if True in are_paths:
        raise UserError("some images in data are paths and others are not: give all as paths, or none")
    arrays = [_pixels(row[image], number) for number, row in enumerate(rows, 1)]
    if len({array.shape for array in arrays}) > 1:
        raise UserError("the images in data have different sizes or channels: give their paths, or make them alike")
    made = io.BytesIO()
    np.savez(made, images=np.stack(arrays), **beside)
    return _stored([made.getvalue()], ".npz")


def _dimensions(value: Any) -> int:
    """Of an array; 0 for anything else."""
    return getattr(value, "ndim", 0)


def _label(value: Any, name: str, word: str) -> str:
    """The label or the caption of an image as text."""
    import numpy as np

    from allyouneed.data.formats.images import as_label

    try:
        cell = np.asarray(value).squeeze()
    except ValueError:  # lists in lists, of different lengths
        raise UserError(f" has several {word}s for an image: give one {word} for each") from None
    if cell.ndim:
        raise UserError(f" has a {word} of shape {cell.shape}: give one {word} for each image")
    if _is_missing(value):
        raise UserError(f": '{name}' is missing ({value})")
    return as_label(cell[None], 0, f": the {word}")


def _pixels(image: Any, number: int) -> Any:
    """The array of the image in a row; one of Pillow is turned as its EXIF says, and a palette becomes colours."""
    import numpy as np
    from PIL import ImageOps

    from allyouneed.data.formats import pixels

    try:
        if not pixels.is_image(image):
            try:
                array = np.asarray(image)
            except ValueError:
                raise pixels.BadImageError("its rows have different lengths") from None
            pixels.check_form(array.shape, array.dtype)
            return array
        grey = image.mode in ("1", "L", "I", "F") or image.mode.startswith("I;16")
        clear = image.mode in ("LA", "PA", "RGBA") or "transparency" in image.info
        pixels.check(image)
        with pixels.quiet(), pixels.pillow_errors():
            return np.asarray(pixels.plain(ImageOps.exif_transpose(image), 4 if clear else 1 if grey else 3))
    except pixels.BadImageError as error:
        raise UserError(f"the image in row {number} of data: {error}") from None


def _table(data: Any, usual: Mapping[int, Names]) -> tuple[Names, Iterator[Row]]:
    """The names of the columns, and the rows."""
    if hasattr(data, "collect"):  # a LazyFrame of polars, a DataFrame of Spark
        raise UserError(f"data is {type(data).__name__}, which has not computed its rows yet: give data.collect()")
    if hasattr(data, "columns"):  # a DataFrame
        _names(data.columns)
        data = {name: data[name].to_list() for name in data.columns}
    if isinstance(data, Mapping):
        return _columns(data)
    if isinstance(data, Set):
        raise UserError(f"data is {type(data).__name__}, whose rows have no order: give a list")
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise UserError(f"data is {type(data).__name__}; give a path, a list of tuples or dicts, or a DataFrame")
    others = iter(data)
    first = next(others, others)
    if first is others:
        raise UserError("data is empty: there is no row in it")
    rows: Iterator[Any] = chain([first], others)
    if isinstance(first, Mapping):
        return _names(first), _each(rows, partial(_values, keys=list(first)))
    if not isinstance(first, tuple | list) and 1 in usual:
        first, rows = (first,), (row if isinstance(row, tuple | list | Mapping) else (row,) for row in rows)
    if isinstance(first, tuple | list) and len(first) in usual:
        names = usual[len(first)]
        return names, _each(rows, partial(_cells, names=names))
    wanted = " or ".join(f"({', '.join(names)})" for names in usual.values())
    raise UserError(f"row 1 of data is {_shown(first)}; {wanted} is expected, or a dict")


def _shown(value: Any) -> str:
    """A value of the user for a message, also if it is very large or its repr fails."""
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


def _columns(columns: Mapping[Any, Any]) -> tuple[Names, Iterator[Row]]:
    lists = {}
    for name, column in columns.items():
        if not _is_list(column):
            raise UserError(
                f"column '{shortened(name)}' of data is {_shown(column)}, but a list of its cells is expected"
            )
        lists[name] = list(column)
    sizes = set(map(len, lists.values()))
    if len(sizes) > 1:
        listed = shortened(", ".join(f"'{name}' has {len(column):,}" for name, column in lists.items()), 400)
        raise UserError(f"the columns of data have different lengths: {listed}")
    if not any(sizes):
        raise UserError("data has no rows")
    return _names(columns), zip(*lists.values())


def _values(row: Any, keys: Sequence[Any]) -> Row:
    if not isinstance(row, Mapping):
        raise UserError(f" is not a dict as the first one is: {_shown(row)}")
    for key in keys:
        if key not in row:
            raise UserError(f" has no '{shortened(key)}'{nearest(str(key), map(str, row))}")
    return [row[key] for key in keys]


def _cells(row: Any, names: Names) -> Row:
    if not isinstance(row, tuple | list) or len(row) != len(names):
        raise UserError(f" is {_shown(row)}; ({', '.join(names)}) is expected")
    return row


def _column(names: Names, wanted: str, usual: Names, what: str) -> int:
    """The number of a column: the one that the user names, or one with a usual name."""
    role = Role(what, usual=tuple(usual))
    return find_columns(names, [role], {what: wanted}, "data")[0][what]


def _is_missing(value: Any) -> bool:
    """None, or NaN or NA as pandas has them."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, Number) and bool(value != value)


def _json(row: Row, names: Names, may_miss: bool) -> str:
    """A line with one JSON object. `may_miss`: whether a value may be missing; it becomes null."""
    item = dict(zip(names, row))
    for name, value in item.items():
        if _is_missing(value):
            item[name] = None
            if not may_miss:
                raise UserError(f": '{name}' is missing ({value})")
    try:  # a number of numpy becomes one of Python, an array a list
        return json.dumps(item, ensure_ascii=False, default=lambda value: value.tolist()) + "\n"
    except (TypeError, ValueError, AttributeError, RecursionError):
        raise UserError(" holds a value that is neither text nor a number") from None


def _line(text: Any) -> str:
    if not isinstance(text, str):
        raise UserError(f": {_shown(text)} is not text")
    return text if text.endswith("\n") else f"{text}\n"


def _conll(words: Any, tags: Any) -> str:
    """A line per word, and a blank one."""
    for cell in (words, tags):
        if not _is_list(cell):
            raise UserError(f": a list of words and a list of tags are expected, not {_shown(cell)}")
    words, tags = list(words), list(tags)
    if len(words) != len(tags):
        raise UserError(f" has {len(words)} words and {len(tags)} tags: give one tag per word")
    for word, tag in zip(words, tags):
        texts = isinstance(word, str) and isinstance(tag, str)
        if not texts or not word.strip() or set(word) & set("\t\n\r") or len(tag.split()) != 1:
            raise UserError(f": {_shown((word, tag))} is not a word with its tag")
    return "".join(f"{word}\t{tag}\n" for word, tag in zip(words, tags)) + "\n"
