"""Word vectors in files: the text and binary formats of word2vec, and that of GloVe, which is the text format without
its first line."""

from __future__ import annotations

import codecs
import math
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
            for word, row in _vectors(BufferedReader(cast(RawIOBase, unpacked), BLOCK)):
                width = len(row)
                if word not in rows and (only is None or word in only):
                    rows[word] = row
    except (OSError, *DAMAGED) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None
    if not width:
        raise UserError(f"{path} holds no word vectors")
    return Vectors(list(rows), np.stack(list(rows.values())) if rows else np.empty((0, width), FLOAT))


def _vectors(stream: BufferedReader) -> Iterator[tuple[str, np.ndarray]]:
    """Each word with its vector; the beginning of the file tells its format. A ValueError says what is wrong, and in
    which line or vector."""
    first, following = stream.readline(LONGEST), stream.read(4096)
    mark = len(codecs.BOM_UTF8) if first.startswith(codecs.BOM_UTF8) else 0
    head = re.fullmatch(rb"(\d{1,18})[ \t](\d{1,18})\s*", first[mark:])
    stream.seek(len(first) if head else mark)
    count, width = (int(head[1]), int(head[2])) if head else (None, len(_fields(first)) - 1)
    text, seen = head is None or _is_text(following), 0
    while seen != count:
        where = f"line {seen + 1 + (head is not None)}" if text else f"vector {seen + 1} of {count}"
        try:
            found = (_text_row if text else _binary_row)(stream, width)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if found is None:
            break
        yield found
        seen += 1
    if count is not None and seen < count:
        raise ValueError(f"it ends after {seen} of {count} vectors: it is incomplete")
    if count is not None and stream.read(4096).strip():
        raise ValueError(f"it has more than the {count} vectors that its first line, or their width, says: correct it")


def _is_text(following: bytes) -> bool:
    """The bytes of binary numbers are rarely valid text; where they are, they do not read as a number behind a word."""
    try:
        codecs.getincrementaldecoder("utf-8")().decode(following)  # may end inside a character
    except UnicodeDecodeError:
        return False
    numbers = any(map(is_number, _fields(following.partition(b"\n")[0])[1:]))
    return numbers and re.search(rb"[\x00-\x08\x0e-\x1f]", following) is None


def _fields(line: bytes) -> list[str]:
    return line.decode(errors="replace").rstrip(" \t\r\n").replace("\t", " ").split(" ")


def _text_row(stream: BufferedReader, width: int) -> tuple[str, np.ndarray] | None:
    """A word and its numbers; None at the end of the file."""
    line = stream.readline(LONGEST + 1)
    _check_length(len(line))
    if not line:
        return None
    fields = _fields(line)
    word, numbers = " ".join(fields[:-width]), fields[-width:]
    if width < 1:
        raise ValueError("a word and its numbers, or the two numbers of a word2vec file, are expected")
    # The largest file of GloVe has words with spaces, such as ". . ."; a number before the vector is one too many.
    if len(fields) <= width or (len(fields) > width + 1 and is_number(fields[-width - 1])):
        found = sum(map(is_number, fields[1:]))
        raise ValueError(f"{found} numbers, but the vectors of this file are {width} wide")
    try:
        with np.errstate(over="ignore"):
            row = np.array(numbers, dtype=FLOAT)
    except ValueError:
        wrong = next(field for field in numbers if not is_number(field))
        raise ValueError(f"'{wrong}' is not a number") from None
    if not np.isfinite(row).all():
        raise ValueError(f"{numbers[int(np.isfinite(row).argmin())]} is not a finite number of 32 bits")
    return word, row


def is_number(field: str) -> bool:
    """Whether it is a finite number."""
    try:
        return math.isfinite(float(field))
    except ValueError:
        return False


def _binary_row(stream: BufferedReader, width: int) -> tuple[str, np.ndarray] | None:
    """A word, a space and the bytes of its numbers; None at the end of the file."""
    word = b""
    _check_length(FLOAT.itemsize * width)
    while not word.endswith(b" ") and (block := stream.peek()):
        word += stream.read(block.find(b" ") + 1 or len(block))
        _check_length(len(word))
    numbers = stream.read(FLOAT.itemsize * width)
    if not word.endswith(b" ") or len(numbers) < FLOAT.itemsize * width:
        return None
    row = np.frombuffer(numbers, FLOAT)
    if not np.isfinite(row).all():
        raise ValueError("a number is not finite")
    # Some programs end a vector with a newline, which then comes before the next word.
    return word[:-1].lstrip(b"\n").decode(errors="replace"), row


def _check_length(size: int) -> None:
    if size > LONGEST:
        raise ValueError(f"a word and its vector have more than {LONGEST:,} bytes: the file is damaged")
