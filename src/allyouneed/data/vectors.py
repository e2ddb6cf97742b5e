"""Word vectors in files: the text and binary formats of word2vec, and that of GloVe, which is the text format without
its first line."""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import cast

import numpy as np

from allyouneed.data.formats.compressed import DAMAGED, opened
from allyouneed.data.formats.file_paths import is_file
from allyouneed.errors import UserError
from allyouneed.storage.wholefile import write_pieces

BLOCK = 1 << 15  # bytes that are looked through for the end of a word
LONGEST = 1 << 24  # bytes of a word and its numbers
FLOAT = np.dtype("<f4")


@dataclass(frozen=True)
class Vectors:
    """matrix (V, D): row i is the vector of word i. The files that this library writes begin with the most frequent
    words."""

    words: list[str]
    matrix: np.ndarray


def write_vectors(path: str | Path, vectors: Vectors, binary: bool = False) -> None:
    """In the format of word2vec: a line "V D", then each word with its numbers, in full precision."""
    for word in vectors.words:
        if not word or any(character.isspace() for character in word):
            raise UserError(f"{path}: the word {word!r} holds a space, which ends a word in this format")
    write_pieces(path, _pieces(vectors, binary))


def _pieces(vectors: Vectors, binary: bool) -> Iterator[bytes]:
    matrix = np.asarray(vectors.matrix, dtype=FLOAT)
    yield b"%d %d\n" % matrix.shape
    form = " ".join(["%.9g"] * matrix.shape[1])  # nine digits give a float back exactly
    for word, row in zip(vectors.words, matrix):
        yield word.encode() + b" " + (row.tobytes() if binary else (form % tuple(row.tolist())).encode()) + b"\n"


def read_vectors(path: str | Path, only: Container[str] | None = None) -> Vectors:
    """A file of any of the three formats, compressed or not. `only`: read just these words. If a word comes twice, the
    first counts."""
    path = Path(os.path.expanduser(path))
    if not is_file(path):
        raise UserError(f"there is no file of word vectors {path}")
    rows: dict[str, np.ndarray] = {}
    width = 0
    try:
        with opened(path) as unpacked:
            for word, row in _vectors(BufferedReader(cast(RawIOBase, unpacked), BLOCK), path):
                width = len(row)
                if word not in rows and (only is None or word in only):
                    rows[word] = row
    except (OSError, *DAMAGED) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not width:
        raise UserError(f"{path} holds no word vectors")
    return Vectors(list(rows), np.stack(list(rows.values())) if rows else np.empty((0, width), FLOAT))


def _vectors(stream: BufferedReader, path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Each word with its vector; the beginning of the file tells its format."""
    first, following = _line(stream, path), stream.read(4096)
    mark = len(codecs.BOM_UTF8) if first.startswith(codecs.BOM_UTF8) else 0
    head = re.fullmatch(rb"(\d{1,18})[ \t](\d{1,18})\s*", first[mark:])
    stream.seek(len(first) if head else mark)
    if head is None:
        return _text(stream, path, len(_fields(first[mark:])) - 1, 1, None)
    count, width = int(head[1]), int(head[2])
    return _text(stream, path, width, 2, count) if _is_text(following) else _binary(stream, path, width, count)


def _line(stream: BufferedReader, path: Path) -> bytes:
    line = stream.readline(LONGEST + 1)
    _check_length(len(line), path)
    return line


def _word(stream: BufferedReader, path: Path) -> bytes:
    """The bytes up to the next space, or to the end of the file."""
    found = b""
    while not found.endswith(b" ") and (block := stream.peek()):
        found += stream.read(block.find(b" ") + 1 or len(block))
        _check_length(len(found), path)
    return found


def _check_length(length: int, path: Path) -> None:
    if length > LONGEST:
        raise UserError(f"{path} has a word and a vector of more than {LONGEST:,} bytes: it is damaged")


def _is_text(glance: bytes) -> bool:
    """The bytes of binary numbers are rarely valid text; where they are, they do not read as a number behind a word."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(glance)  # may end inside a character
    except UnicodeDecodeError:
        return False
    numbers = any(map(_is_number, _fields(glance.partition(b"\n")[0])[1:]))
    return numbers and re.search(rb"[\x00-\x08\x0e-\x1f]", glance) is None


def _fields(line: bytes) -> list[str]:
    return line.decode(errors="replace").rstrip(" \t\r\n").replace("\t", " ").split(" ")


def _text(
    stream: BufferedReader, path: Path, width: int, line: int, count: int | None
) -> Iterator[tuple[str, np.ndarray]]:
    """`count` lines, or all; `line` is the number of the first."""
    if width < 1:
        raise UserError(f"{path}, line 1: a word and its numbers, or the two numbers of a word2vec file, are expected")
    seen = 0
    while seen != count and (piece := _line(stream, path)):
        fields = _fields(piece)
        word, numbers = " ".join(fields[:-width]), fields[-width:]
        # The largest file of GloVe has words with spaces, such as ". . ."; a number before the vector is one too many.
        if len(fields) <= width or (len(fields) > width + 1 and _is_number(fields[-width - 1])):
            found = sum(map(_is_number, fields[1:]))
            raise UserError(f"{path}, line {line}: {found} numbers, but the vectors of this file are {width} wide")
        try:
            with np.errstate(over="ignore"):
                row = np.array(numbers, dtype=FLOAT)
        except ValueError:
            wrong = next(field for field in numbers if not _is_number(field))
            raise UserError(f"{path}, line {line}: '{wrong}' is not a number") from None
        if not np.isfinite(row).all():
            wrong = numbers[int(np.isfinite(row).argmin())]
            raise UserError(f"{path}, line {line}: {wrong} is not a finite number of 32 bits")
        yield word, row
        seen, line = seen + 1, line + 1
    if count is not None:
        _check_count(stream, path, count, seen)


def _check_count(stream: BufferedReader, path: Path, count: int, seen: int) -> None:
    """An error if the file has fewer or more vectors than its first line says."""
    if seen < count:
        raise UserError(f"{path} is incomplete: it ends after {seen} of {count} vectors")
    if stream.read(4096).strip():
        raise UserError(
            f"{path} has more than the {count} vectors that its first line, or their width, says: correct it"
        )


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _binary(stream: BufferedReader, path: Path, width: int, count: int) -> Iterator[tuple[str, np.ndarray]]:
    _check_length(4 * width, path)
    for seen in range(count):
        word, row = _word(stream, path), stream.read(4 * width)
        if not word.endswith(b" ") or len(row) < 4 * width:
            raise UserError(f"{path} is incomplete: it ends after {seen} of {count} vectors")
        values = np.frombuffer(row, FLOAT)
        if not np.isfinite(values).all():
            raise UserError(f"{path}: vector {seen + 1} of {count} holds a number that is not finite")
        # Some programs end a vector with a newline, which then comes before the next word.
        yield word[:-1].lstrip(b"\n").decode(errors="replace"), values
    _check_count(stream, path, count, count)
