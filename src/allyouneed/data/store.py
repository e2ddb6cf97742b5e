"""Tokens on disk: encoded once, streaming, and read back through a memory map."""

from __future__ import annotations

import json
import os
import re
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from allyouneed.data.sources import size
from allyouneed.errors import UserError

BATCH = 1 << 20  # characters that are encoded together; the tokenizer shares them among the cores
TOKENS, OFFSETS, META = "tokens.bin", "offsets.npy", "meta.json"


class Encoder(Protocol):
    """What is needed of a tokenizer."""

    @property
    def fingerprint(self) -> str: ...
    def __len__(self) -> int: ...
    def encode_batch(self, texts: list[str], /) -> list[list[int]]: ...


class Ragged:
    """Rows of tokens, one after the other in `tokens`; row i is tokens[offsets[i] : offsets[i + 1]]."""

    def __init__(self, tokens: np.ndarray, offsets: np.ndarray) -> None:
        self.tokens, self.offsets = tokens, offsets

    @staticmethod
    def of(rows: Iterable[Iterable[int]]) -> Ragged:
        """Made here, of a few rows or of many."""
        tokens, offsets = array("q"), array("q", [0])
        for row in rows:
            tokens.extend(row)
            offsets.append(len(tokens))
        return Ragged(np.asarray(tokens, dtype=np.int64), np.asarray(offsets, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        row = range(len(self))[row]
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Tokens in each row."""
        return np.diff(self.offsets)


def tokenize_rows(texts: Iterable[str], tokenizer: Encoder, path: Path, fingerprint: str) -> Ragged:
    """One row a text, in the folder `path`, which is used again while both fingerprints are the same."""

    def write(writer: _Writer) -> None:
        for batch in _batches(texts):
            for ids in writer.encode(batch):
                writer.add(ids)
                writer.end_row()

    return _stored(path, tokenizer, ["rows", fingerprint], write)


def tokenize_stream(
    documents: Iterable[Iterable[str]], tokenizer: Encoder, path: Path, fingerprint: str, separator: int
) -> Ragged:
    """One row a document, given as chunks, so that `tokens` is the whole stream.

    If there is more than one document, each ends with the separator.
    """

    def write(writer: _Writer) -> None:
        several = False
        for number, document in enumerate(documents):
            if number:
                several = True
                writer.add([separator])
                writer.end_row()
            for batch in _batches(_between_words(document)):
                for ids in writer.encode(batch):
                    writer.add(ids)
        if several:
            writer.add([separator])
        writer.end_row()

    return _stored(path, tokenizer, ["stream", fingerprint, separator], write)


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


class _Writer:
    """Appends tokens to a file and remembers where the rows end."""

    def __init__(self, path: Path, tokenizer: Encoder) -> None:
        self.tokenizer = tokenizer
        self.code = "H" if len(tokenizer) <= 1 << 16 else "I"
        self.file = path.open("wb")
        self.count, self.bytes, self.ends = 0, 0, array("q", [0])

    def encode(self, texts: list[str]) -> Iterator[list[int]]:
        yield from self.tokenizer.encode_batch(texts)
        self.bytes += sum(size(text) for text in texts)

    def add(self, ids: list[int]) -> None:
        array(self.code, ids).tofile(self.file)
        self.count += len(ids)

    def end_row(self) -> None:
        self.ends.append(self.count)

    def close(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()


def _stored(path: Path, tokenizer: Encoder, key: list[Any], write: Callable[[_Writer], None]) -> Ragged:
    """What is there if it is whole and has this key; otherwise written beside it and moved into place."""
    key = [*key, tokenizer.fingerprint]
    found = _open(path, key)
    if found is not None:
        return found
    fresh = path.with_name(f".tmp-{path.name}-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        fresh.mkdir(parents=True)
        writer = _Writer(fresh / TOKENS, tokenizer)
        try:
            write(writer)
        finally:
            writer.close()
        np.save(fresh / OFFSETS, np.asarray(writer.ends, dtype=np.int64))
        meta = {"key": key, "vocab": len(tokenizer), "rows": len(writer.ends) - 1, "tokens": writer.count}
        meta |= {"bytes": writer.bytes, "dtype": "uint16" if writer.code == "H" else "uint32"}
        with (fresh / META).open("w", encoding="utf-8") as out:
            json.dump(meta, out, indent=1)
            out.flush()
            os.fsync(out.fileno())
        if _open(path, key) is None:  # another process may have been faster
            shutil.rmtree(path, ignore_errors=True)
            fresh.rename(path)
    except OSError as error:
        raise UserError(
            f"the tokens cannot be kept in {path.parent}: {error.strerror}; "
            "free space, or let ALLYOUNEED_CACHE name another folder"
        ) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    made = _open(path, key)
    assert made is not None
    return made


def _open(path: Path, key: list[Any]) -> Ragged | None:
    """None: nothing is there, or something else, or something damaged."""
    try:
        meta = json.loads((path / META).read_text(encoding="utf-8"))
        offsets = np.load(path / OFFSETS)
        dtype = np.dtype(meta["dtype"])
        whole = (path / TOKENS).stat().st_size == meta["tokens"] * dtype.itemsize
        if meta["key"] != key or not whole or len(offsets) != meta["rows"] + 1 or offsets[-1] != meta["tokens"]:
            return None
        if not meta["tokens"]:
            return Ragged(np.empty(0, dtype), offsets)
        return Ragged(np.memmap(path / TOKENS, dtype=dtype, mode="r"), offsets)
    except (OSError, ValueError, KeyError, TypeError, EOFError):
        return None
