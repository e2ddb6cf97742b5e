"""Where examples come from: a Dataset is named splits, and each pass over a Split reads it anew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

# (source, target); of labels (text, label) or (text, label, second text); of tags (words, tags), each between spaces
Pair = tuple[str, ...]


@dataclass
class Counts:
    """What one whole pass over a split saw; `bytes` is the UTF-8 length of the text that was kept."""

    examples: int = 0
    empty: int = 0
    bytes: int = 0

    def add(self, pair: Pair) -> bool:
        """Counts a pair. False: one side is blank, so that the pair is dropped."""
        if not all(side.strip() for side in pair):
            self.empty += 1
            return False
        self.examples += 1
        self.bytes += sum(size(side) for side in pair)
        return True


class Split:
    """Examples that can be read any number of times, streaming. The counts are those of the last whole pass."""

    def __init__(self) -> None:
        self.counted: Counts | None = None

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    @property
    def counts(self) -> Counts:
        """Reads the split once if nobody has yet."""
        if self.counted is None:
            for _ in self:
                pass
        assert self.counted is not None
        return self.counted

    @property
    def examples(self) -> int:
        """Pairs that are yielded, or documents."""
        return self.counts.examples

    @property
    def empty(self) -> int:
        """Pairs with a blank side, or blank documents: dropped."""
        return self.counts.empty

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of the text, for bits per byte."""
        return self.counts.bytes


class Pairs(Split):
    """Yields each Pair. `read` starts a new pass over the raw pairs; those with a blank side are dropped."""

    def __init__(self, read: Callable[[], Iterable[Pair]], limit: int = 0) -> None:
        super().__init__()
        self.read, self.limit = read, limit

    def __iter__(self) -> Iterator[Pair]:
        counts = Counts()
        for pair in self.read():
            if self.limit and counts.examples == self.limit:
                break
            if counts.add(pair):
                yield pair
        self.counted = counts


class Text(Split):
    """Yields chunks of about a megabyte, which joined are exactly the text.

    `documents()` gives the same chunks document by document; `read` starts a new pass over the documents.
    """

    def __init__(self, read: Callable[[], Iterable[Iterable[str]]], empty: int = 0) -> None:
        super().__init__()
        self.read, self.dropped = read, empty

    def __iter__(self) -> Iterator[str]:
        for document in self.documents():
            yield from document

    def documents(self) -> Iterator[Iterator[str]]:
        """One iterator of chunks a document. What is left unread of one is skipped when the next is asked for."""
        counts = Counts(empty=self.dropped)
        for chunks in self.read():
            document = _weighed(chunks, counts)
            counts.examples += 1
            yield document
            for _ in document:  # the counts are always those of the whole
                pass
        self.counted = counts


def _weighed(chunks: Iterable[str], counts: Counts) -> Iterator[str]:
    for chunk in chunks:
        counts.bytes += size(chunk)
        yield chunk


@dataclass
class Dataset:
    """Named splits of one shape, and in `understood` what was made of them, told to a person."""

    name: str
    shape: str  # "text", "pairs", "labels" or "tags"
    splits: dict[str, Split]  # train, and where they are wanted valid and test; some sets have more
    understood: list[str] = field(default_factory=list)
    fingerprint: str = ""  # changes when the examples may have changed
    licence: str = ""


def hashed(read: Callable[[], Iterable[Pair]], valid: float, test: float, limit: int = 0) -> dict[str, Pairs]:
    """Splits by a hash of the source sentence: the same source never lies in two of them."""

    def part(wanted: str) -> Callable[[], Iterator[Pair]]:
        return lambda: (pair for pair in read() if part_of(pair[0], valid, test) == wanted)

    wanted = ["train"] + ["valid"] * (valid > 0) + ["test"] * (test > 0)
    return {name: Pairs(part(name), limit if name == "train" else 0) for name in wanted}


def part_of(source: str, valid: float, test: float) -> str:
    """The split of a source sentence; it depends on nothing but the sentence and the two parts."""
    place = digest(source) / 2**64
    return "valid" if place < valid else "test" if place < valid + test else "train"


def digest(text: str) -> int:
    """A 64-bit hash, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def fingerprint(*parts: Any) -> str:
    """A short hash of plain values."""
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=16).hexdigest()


def size(text: str) -> int:
    """UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def shorten(text: str, width: int = 50) -> str:
    """The beginning of a text, in quotes."""
    line = " ".join(text.split())
    return f"“{line}”" if len(line) <= width else f"“{line[: width - 1]}…”"
