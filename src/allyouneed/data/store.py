"""Files in the cache: a stream of bytes that is written once and read through a memory map, with arrays beside it.

A file holds the stream, the arrays, a JSON object with all that they depend on and their checksum, and the length of
that object. It is written under another name and renamed when it is complete, so that any number of processes may read
and write the same file at once. Examples are kept in such files, and tokens.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import time
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import numpy as np

from allyouneed.data.examples import READING
from allyouneed.data.fetch import cache_folder
from allyouneed.errors import UserError
from allyouneed.text import Tokenizer

BLOCK = 1 << 24  # tokens that are counted at once
VERSION = 3  # raise it whenever this file writes other tokens, or writes them in another way
BATCH = 1 << 20  # characters that are encoded together; the tokenizer shares them among the cores
QUIET = 86400  # seconds without a write after which a file is abandoned
LENGTH = 8  # bytes of the last number in a file
TEMPORARY = ".tmp-"


class Stored(NamedTuple):
    """What a file of the cache holds."""

    stream: np.ndarray  # bytes, through a memory map
    arrays: dict[str, np.ndarray]
    meta: dict[str, Any]


class Stream:
    """Appends bytes to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.size, self.checksum = file, 0, 0

    def put(self, data: bytes) -> None:
        self.file.write(data)
        self.size += len(data)
        self.checksum = zlib.crc32(data, self.checksum)

    def finish(self, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """What comes after the stream; then everything is on the disk."""
        size, packed = self.size, io.BytesIO()
        np.savez(packed, **arrays)  # type: ignore[arg-type]
        self.put(packed.getvalue())
        text = json.dumps({**meta, "size": size, "crc32": self.checksum}).encode()
        self.file.write(text + len(text).to_bytes(LENGTH, "little"))
        self.file.flush()
        os.fsync(self.file.fileno())


Filled = tuple[Mapping[str, Any], Mapping[str, np.ndarray]]  # what is known of a stream that was written, and arrays


def stored(folder: str, name: str, known: Mapping[str, Any], write: Callable[[Stream], Filled]) -> Stored:
    """The file of this key in a folder of the cache if it is complete; otherwise it is written."""
    known = {**known, "version": VERSION, "reading": READING}
    key = hashlib.blake2b(json.dumps(known, sort_keys=True).encode(), digest_size=16).hexdigest()
    path = cache_folder() / folder / f"{name}-{key}"
    with suppress(OSError), path.open("rb") as file:
        if (found := _read(file, known)) is not None:
            return found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(path.parent)
        with _temporary(path) as (file, fresh):
            stream = Stream(file)
            meta, arrays = write(stream)
            stream.finish({**meta, **known}, arrays)
            made = _read(file, known)
            with suppress(FileNotFoundError):  # if it was taken for abandoned, the next run writes it again
                os.replace(fresh, path)  # or another process has put the same there: either file will do
    except OSError as error:
        raise UserError(
            f"the prepared data cannot be kept in {path.parent}: {error.strerror or error}; "
            "free space, or let ALLYOUNEED_CACHE name another folder"
        ) from error
    if made is None:
        raise UserError(f"the prepared data in {path.parent} is not what was written there: the disk may be damaged")
    return made


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """A file beside `path`, removed unless it is renamed."""
    fresh = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{time.time_ns()}")
    with fresh.open("x+b") as file:
        try:
            yield file, fresh
        finally:
            fresh.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove files whose writer was killed."""
    for path in folder.glob(f"{TEMPORARY}*"):
        with suppress(OSError):  # another process may be quicker
            if time.time() - path.stat().st_mtime > QUIET:
                path.unlink()


def _read(file: BinaryIO, known: Mapping[str, Any]) -> Stored | None:
    """What a file holds; None if it is damaged. The checksum is always compared: 100 MB take 0.06 seconds."""
    try:
        length = os.fstat(file.fileno()).st_size - LENGTH
        file.seek(length)
        end = length - int.from_bytes(file.read(LENGTH), "little")
        file.seek(end)
        meta = json.loads(file.read(length - end))
        if any(meta.get(name) != value for name, value in known.items()):
            return None
        data = np.memmap(file, dtype=np.uint8, mode="r", shape=(end,))
        if zlib.crc32(data.data) != meta["crc32"]:
            return None
        size = meta["size"]
        return Stored(data[:size], dict(np.load(io.BytesIO(data[size:].tobytes()))), meta)
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return None


# Tokens


class Maker(Protocol):
    """What makes tokens: how it does so, and how many different ones there are."""

    @property
    def fingerprint(self) -> str: ...
    def __len__(self) -> int: ...


@dataclass(frozen=True)
class TokenKey:
    """All that the tokens of one side of a split depend on, besides the tokenizer."""

    data: str  # the fingerprint of the Dataset
    split: str
    side: str  # which text of an example, for example "source"
    prefix: str = ""  # before each text: a space makes a word the same token at the beginning and inside


class Ragged:
    """Rows of tokens, one after the other in `tokens`; row i is tokens[offsets[i] : offsets[i + 1]]."""

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray) -> None:
        self.tokens, self.offsets = tokens, offsets

    @staticmethod
    def of(rows: Iterable[Iterable[int]]) -> Ragged:
        """Made in memory."""
        listed = list(map(list, rows))
        tokens = np.fromiter(chain.from_iterable(listed), np.int64)
        return Ragged(tokens, np.cumsum([0, *map(len, listed)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        row = range(len(self))[row]
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each row."""
        return np.diff(self.offsets)


def unknown_part(tokenizer: Tokenizer, sides: Iterable[Ragged]) -> float | None:
    """The fraction of these tokens that are unknown; None if the tokenizer knows every text."""
    if tokenizer.knows_all:
        return None
    found = total = 0
    for tokens in (side.tokens for side in sides):
        blocks = range(0, len(tokens), BLOCK)  # of a memory map that may be larger than the memory
        found += sum(int(np.count_nonzero(tokens[start : start + BLOCK] == tokenizer.unk)) for start in blocks)
        total += len(tokens)
    return found / max(1, total)


def tokenize_rows(texts: Iterable[str], tokenizer: Tokenizer, key: TokenKey) -> Ragged:
    """One row per text, each after `key.prefix`. The texts are read only if their tokens are not in the cache."""
    encoded = map(tokenizer.encode_batch, _batches(key.prefix + text for text in texts))
    return _tokens(tokenizer, key, "rows", ([ids] for batch in encoded for ids in batch))


def tokenize_stream(documents: Iterable[Iterable[str]], tokenizer: Tokenizer, key: TokenKey, separator: int) -> Ragged:
    """One row per document, given as chunks, so that `tokens` is the whole stream.

    If there is more than one document, each ends with the separator. A stream has no prefix.
    """
    if key.prefix:
        raise ValueError("a stream is tokenized as it is: its key has no prefix")

    def rows() -> Iterator[Iterable[Sequence[int]]]:
        rest = iter(documents)
        first = list(islice(rest, 2)) or [[]]
        for document in chain(first, rest):
            encoded = map(tokenizer.encode_batch, _batches(_between_words(document)))
            yield chain(chain.from_iterable(encoded), [[separator]] if len(first) > 1 else [])

    return _tokens(tokenizer, key, f"stream {separator}", rows())


def store_rows(rows: Iterable[Sequence[int]], maker: Maker, key: TokenKey) -> Ragged:
    """Rows that are made as they are needed, unless they are in the cache."""
    return _tokens(maker, key, "made", ([row] for row in rows))


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    room = BATCH
    for text in texts:
        batch.append(text)
        room -= len(text)
        if room <= 0:
            yield batch
            batch, room = [], BATCH
    if batch:
        yield batch


WORD_END = re.compile(r"(?s:.*)\S(?=[ \n])")


def _between_words(chunks: Iterable[str]) -> Iterator[str]:
    """The same text cut only after the end of a word, where no token crosses: it is encoded as if it were one piece."""
    rest = ""
    for chunk in chunks:
        text = rest + chunk
        found = WORD_END.match(text)
        end = found.end() if found else len(text) if len(text) > BATCH else 0
        rest = text[end:]
        if end:
            yield text[:end]
    if rest:
        yield rest


def _tokens(maker: Maker, key: TokenKey, layout: str, rows: Iterable[Iterable[Sequence[int]]]) -> Ragged:
    """The tokens in the cache, or else written there; each row comes in pieces."""

    dtype = np.min_scalar_type(len(maker) - 1)

    def write(stream: Stream) -> Filled:
        buffer, count, ends = array(dtype.char), 0, array("q", [0])
        for row in rows:
            for piece in row:
                buffer += array(dtype.char, piece)
                if len(buffer) >= BATCH:
                    stream.put(buffer.tobytes())
                    count, buffer = count + len(buffer), array(dtype.char)
            ends.append(count + len(buffer))
        stream.put(buffer.tobytes())
        return {}, {"offsets": np.asarray(ends)}

    known = {**asdict(key), "layout": layout, "tokenizer": maker.fingerprint}
    found = stored("tokens", f"{key.split}-{key.side}", known, write)
    return Ragged(found.stream.view(dtype), found.arrays["offsets"])
