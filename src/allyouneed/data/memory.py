"""Examples in memory -> a file in the cache, so that their run can be resumed and tested like any other.

Rows are tuples or dicts; columns are a dict of lists, or a DataFrame of pandas or polars.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from allyouneed.data.fetch import cache_folder
from allyouneed.data.paths import check_name
from allyouneed.data.sources import PICTURES
from allyouneed.errors import UserError, nearest, shortened
from allyouneed.wholefile import write_bytes

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
        if "train" not in data:
            raise UserError("data needs a split 'train'")
        return {name: data[name] for name in SPLITS if data.get(name) is not None}
    return {"train": data}


def keep(data: Any, shape: str, source: str = "", target: str = "") -> Path:
    """Write the examples to a file named by its contents. `source` and `target` name columns."""
    if shape in PICTURES:
        return _pictures(data, shape, source, target)
    names, rows = _table(data, COLUMNS[shape])
    if shape == "tags":
        pieces = _conll(rows, _column(names, source, WORDS, "words"), _column(names, target, TAGS, "tags"))
    elif shape == "text":
        pieces = _text(rows, _column(names, source, TEXTS, "texts"))
    else:
        # A question may have no answer; `questions` looks at the rest.
        pieces = _jsonl(rows, names, missing=shape == "questions")
    try:
        content = "".join(pieces).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"data holds {error.object[error.start]!a}, half of a pair of code units and no character: remove it"
        ) from None
    if not content.strip():
        raise UserError("data has no rows")
    return _kept(content, {"tags": ".conll", "text": ".txt"}.get(shape, ".jsonl"))


def _kept(content: bytes, ending: str) -> Path:
    """A file in the cache with this content."""
    path = cache_folder() / "given" / f"in-memory-{hashlib.sha256(content).hexdigest()[:12]}{ending}"
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"the cache {cache_folder()} cannot be written: {error.strerror or error}") from None
        write_bytes(path, content)
    return path


def _pictures(data: Any, shape: str, source: str, target: str) -> Path:
    """Pictures, as arrays, images of Pillow or paths, in rows or columns; beside each its label or its caption, unless
    they are plain. Two arrays in a tuple are two columns."""
    import numpy as np

    from allyouneed.data.picture_arrays import BESIDE, IMAGES
    from allyouneed.data.picture_files import PATHS

    word = "caption" if shape == "captions" else "label"
    if isinstance(data, tuple) and len(data) == 2 and _dimensions(data[0]) > 2 >= _dimensions(data[1]):
        data = {"image": data[0], word: data[1]}
    usual: dict[int, Names] = {2: ("image", word)}
    if shape == "plain":
        data, usual = _single_cells(data), {1: ("image",), **usual}
    names, found = _table(data, usual)
    rows = list(found)
    if not rows:
        raise UserError("data has no rows")
    image = _column(names, source, (*IMAGES, *PATHS), "pictures")
    beside: dict[str, Any] = {}
    if shape != "plain":
        beside[word] = _labels(rows, _column(names, target, BESIDE[shape], f"{word}s"), names, word)
    are_paths = {isinstance(row[image], str | os.PathLike) for row in rows}
    if are_paths == {True}:
        columns = {"path": [os.path.abspath(os.path.expanduser(row[image])) for row in rows], **beside}
        for path in columns["path"]:
            check_name(Path(path))
        objects = (dict(zip(columns, map(str, cells))) for cells in zip(*columns.values()))
        return _kept("".join(json.dumps(one) + "\n" for one in objects).encode(), ".jsonl")
    if True in are_paths:
        raise UserError("some pictures in data are paths and others are not: give all as paths, or none")
    arrays = [_pixels(row[image], number) for number, row in enumerate(rows, 1)]
    if len({array.shape for array in arrays}) > 1:
        raise UserError("the pictures in data have different sizes or channels: give their paths, or make them alike")
    made = io.BytesIO()
    np.savez(made, images=np.stack(arrays), **beside)
    return _kept(made.getvalue(), ".npz")


def _dimensions(value: Any) -> int:
    """Of an array; 0 for anything else."""
    return getattr(value, "ndim", 0)


def _single_cells(data: Any) -> Any:
    """Plain pictures in a list or an array as rows of one cell; anything else as it is."""
    if hasattr(data, "columns") or isinstance(data, Mapping):
        return data
    if 0 < _dimensions(data) < 3:
        raise UserError(f"data has the shape {data.shape}: give several pictures, (count, height, width, channels)")
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        return data
    return (one if isinstance(one, Mapping | tuple | list) else (one,) for one in data)


def _labels(rows: Sequence[Row], at: int, names: Names, word: str) -> Any:
    """An array of texts: one label or caption per picture."""
    import numpy as np

    from allyouneed.data.picture_arrays import as_label

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

    from allyouneed.data.decoding import BadPictureError, check, check_form, damage_told, is_image, plain

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
        with damage_told():
            return np.asarray(plain(ImageOps.exif_transpose(picture), 4 if clear else 1 if grey else 3))
    except BadPictureError as error:
        raise UserError(f"the picture in row {number} of data: {error}") from None


def _table(data: Any, usual: Mapping[int, Names]) -> tuple[Names, Iterator[Row]]:
    """The names of the columns, and the rows."""
    if hasattr(data, "columns"):  # a DataFrame
        return _columns({str(name): data[name].to_list() for name in data.columns})
    if isinstance(data, Mapping):
        return _columns({str(name): list(column) for name, column in data.items()})
    if isinstance(data, str | bytes) or not isinstance(data, Iterable):
        raise UserError(f"data is {type(data).__name__}; give a path, a list of tuples or dicts, or a DataFrame")
    rows = iter(data)
    first = next(rows, None)
    if first is None:
        raise UserError("data is empty: there is no row in it")
    if isinstance(first, Mapping):
        keys = tuple(str(name) for name in first)
        return keys, (_values(row, keys, number) for number, row in enumerate(chain([first], rows), 1))
    if isinstance(first, tuple | list) and len(first) in usual:
        names = usual[len(first)]
        return names, (_cells(row, names, number) for number, row in enumerate(chain([first], rows), 1))
    wanted = " or ".join(f"({', '.join(names)})" for names in usual.values())
    raise UserError(f"row 1 of data is {shortened(repr(first))}; {wanted} is expected, or a dict")


def _columns(columns: Mapping[str, list[Any]]) -> tuple[Names, Iterator[Row]]:
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"'{name}' has {size:,}" for name, size in sizes.items())
        raise UserError(f"the columns of data have different lengths: {told}")
    return tuple(columns), zip(*columns.values())


def _values(row: Any, names: Names, number: int) -> Row:
    if not isinstance(row, Mapping):
        raise UserError(f"row {number} of data is not a dict as the first one is: {shortened(repr(row))}")
    for name in names:
        if name not in row:
            raise UserError(f"row {number} of data has no '{name}'{nearest(name, map(str, row))}")
    return [row[name] for name in names]


def _cells(row: Any, names: Names, number: int) -> Row:
    if not isinstance(row, tuple | list) or len(row) != len(names):
        raise UserError(f"row {number} of data is {shortened(repr(row))}; ({', '.join(names)}) is expected")
    return row


def _column(names: Names, wanted: str, usual: Names, what: str) -> int:
    """The number of a column: the one that the user names, or one with a usual name."""
    if wanted:
        if wanted not in names:
            raise UserError(f"data has no column '{wanted}'{nearest(wanted, names)}")
        return names.index(wanted)
    found = next((names.index(name) for name in usual if name in names), None)
    if found is None:
        raise UserError(f"data has no column for the {what}; it has {', '.join(names)}: name one '{usual[0]}'")
    return found


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
        except (TypeError, ValueError, AttributeError):
            raise UserError(f"row {number} of data holds a value that is neither text nor a number") from None


def _is_missing(value: Any) -> bool:
    """None, or NaN or NA as pandas has them."""
    return value is None or (not isinstance(value, str | list | dict) and str(value) in ("nan", "<NA>", "NaT"))


def _plain(value: Any) -> Any:
    """A number of numpy as one of Python, an array as a list."""
    return value.tolist()


def _text(rows: Iterable[Row], at: int) -> Iterator[str]:
    for number, row in enumerate(rows, 1):
        if not isinstance(row[at], str):
            raise UserError(f"row {number} of data: {shortened(repr(row[at]))} is not text")
        yield row[at] if row[at].endswith("\n") else row[at] + "\n"


def _conll(rows: Iterable[Row], words: int, tags: int) -> Iterator[str]:
    for number, row in enumerate(rows, 1):
        if isinstance(row[words], str) or isinstance(row[tags], str):
            raise UserError(f"row {number} of data: a list of words and a list of tags are expected, not text")
        these, marks = list(row[words]), list(row[tags])
        if len(these) != len(marks):
            raise UserError(f"row {number} of data has {len(these)} words and {len(marks)} tags: give one tag per word")
        for word, tag in zip(these, marks):
            if not isinstance(word, str) or not isinstance(tag, str) or not word.strip() or set(word) & set("\t\n\r"):
                raise UserError(f"row {number} of data: {shortened(repr((word, tag)))} is not a word with its tag")
            yield f"{word}\t{tag}\n"
        yield "\n"
