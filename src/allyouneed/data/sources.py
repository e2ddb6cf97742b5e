"""Where examples come from: a Dataset is named splits, and each pass over a Split reads it again."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any

from allyouneed.data.examples import Example
from allyouneed.data.watch import WatchedFile
from allyouneed.errors import UserError
from allyouneed.randomness import WORD, make_key

if TYPE_CHECKING:  # names of data sets come without numpy
    import numpy as np

READING = 3  # raise it whenever the same files give other examples or other text than before
DRAWN = 7  # the key of the random numbers that draw examples
KEPT, KEPT_BYTES = 100_000, 2**24  # examples, and UTF-8 bytes of text, that are kept in memory
PICTURES = ("pictures", "captions", "plain")  # shapes of data: pictures with labels, with captions, with neither


@dataclass
class Counts:
    """What one whole pass over a split saw; `bytes` is the UTF-8 length of the text that is used."""

    examples: int = 0
    empty: int = 0
    bytes: int = 0

    def add(self, example: Example) -> None:
        """Counts an example that is used."""
        self.examples += 1
        self.bytes += sum(size(text) for text in example.texts)


class Split:
    """Examples that can be read any number of times, streaming. The counts are those of the last whole pass.

    `files` are those that it reads; each pass looks before and after whether they are still the same.
    """

    def __init__(self) -> None:
        self.files: Sequence[WatchedFile] = ()
        self.counted: Counts | None = None

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Around a pass: an error if the files have changed before it or during it."""
        self._check_files()
        try:
            yield
        except UserError:  # a file that is being written often looks broken: say what really happened
            self._check_files()
            raise
        self._check_files()

    def _check_files(self) -> None:
        for file in self.files:
            file.check()

    def restrict(self, limit: int) -> None:
        """Yield at most so many examples, drawn at random; a text has none."""

    def look(self) -> tuple[int, int]:
        """Of pictures: the usual length of the shorter side, and the values per pixel."""
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
        """How many examples there are, or documents."""
        return self.counts.examples

    @property
    def empty(self) -> int:
        """Examples with a blank part, or blank documents: dropped."""
        return self.counts.empty

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of the text, for bits per byte."""
        return self.counts.bytes


class ExampleSplit(Split):
    """Yields examples; those with a blank part are dropped. `limit`: at most so many, drawn at random (0: all). `read`
    starts a new pass; `total` is how many examples it gives, if that is known. Small ones are kept in memory: a run
    reads them dozens of times before it trains."""

    def __init__(self, read: Callable[[], Iterable[Example]], limit: int = 0) -> None:
        super().__init__()
        self.read, self.limit = read, limit
        self.total: int | None = None
        self.kept: list[Example] | None = None

    def restrict(self, limit: int) -> None:
        self.limit, self.kept = limit, None

    def __iter__(self) -> Iterator[Any]:
        counts, kept, small = Counts(), [], True
        with self.unchanged():
            if self.kept is not None:
                yield from self.kept
                return
            if self.limit and self.total is None:
                self.total = sum(not is_blank(example) for example in self.read())
            used = drawn(self.limit, self.total) if self.limit and self.total is not None else repeat(True)
            for example in self.read():
                if is_blank(example):
                    counts.empty += 1
                elif next(used, False):
                    counts.add(example)
                    small = small and counts.examples <= KEPT and counts.bytes <= KEPT_BYTES
                    if small:
                        kept.append(example)
                    else:
                        kept.clear()
                    yield example
        self.counted, self.kept = counts, kept if small else None


def is_blank(example: Example) -> bool:
    """Whether some part of it is blank, so that it is dropped."""
    return not all(text.strip() for text in example.texts)


def drawn(limit: int, total: int) -> Iterator[bool]:
    """For each of `total` examples whether it is one of `limit` that are drawn at random: those with the smallest
    random numbers. So they are always the same, and a smaller limit draws a part of what a larger one draws."""
    last = _largest_drawn(limit, total) if limit < total else WORD
    return (make_key(DRAWN, place) <= last for place in range(total))


@lru_cache
def _largest_drawn(limit: int, total: int) -> int:
    return heapq.nsmallest(limit, (make_key(DRAWN, place) for place in range(total)))[-1]


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
        """One iterator of chunks per document. The unread rest of a document is skipped when the next is asked for."""
        counts = Counts(empty=self.dropped)
        with self.unchanged():
            for chunks in self.read():
                document = _counted(chunks, counts)
                counts.examples += 1
                yield document
                for _ in document:  # the counts are always those of the whole document
                    pass
        self.counted = counts


def _counted(chunks: Iterable[str], counts: Counts) -> Iterator[str]:
    for chunk in chunks:
        counts.bytes += size(chunk)
        yield chunk


@dataclass
class Dataset:
    """Named splits of one shape. `understood`: how the files were read, in sentences for the user."""

    name: str
    shape: str  # "text", "pairs", "labels", "tags", "questions", or one of PICTURES
    splits: dict[str, Split]  # train, and if there are any valid and test; some sets have more
    understood: list[str] = field(default_factory=list)
    fingerprint: str = ""  # changes when the examples may have changed
    licence: str = ""
    # What a drawing shows of what its caption says, by name of the attribute; None if there are no rules.
    checker: Callable[[str, np.ndarray], dict[str, bool]] | None = None


def split_by_hash(
    read: Callable[[], Iterable[Example]], valid: float, test: float, limit: int = 0, fold: int = 0
) -> dict[str, ExampleSplit]:
    """Splits by a hash of the first input: the same sentence is never in two of them. `limit`: of each."""

    def part(wanted: str) -> Callable[[], Iterator[Example]]:
        return lambda: (example for example in read() if part_of(example.inputs[0], valid, test, fold) == wanted)

    wanted = ["train"] + ["valid"] * (valid > 0) + ["test"] * (test > 0)
    return {name: ExampleSplit(part(name), limit) for name in wanted}


def limited(limit: int) -> str:
    """For the user."""
    return f"at most {limit:,} examples of each split are used, drawn at random and always the same (data.limit)"


def part_of(text: str, valid: float, test: float, fold: int = 0) -> str:
    """The split of a text; it depends on nothing but the text and these numbers. Each fold has other tests."""
    place = (digest(text) / 2**64 + max(0, fold - 1) * test) % 1.0
    return "valid" if place < valid else "test" if place < valid + test else "train"


def caption_key(caption: str) -> str:
    """In lower case with single spaces: what makes two captions the same. Splits by captions use a hash of it."""
    return " ".join(caption.lower().split())


def digest(text: str) -> int:
    """A 64-bit hash, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def fingerprint(*parts: Any) -> str:
    """A short hash of plain values, and of how this version of the library reads data."""
    return hashlib.blake2b(json.dumps([READING, *parts]).encode(), digest_size=16).hexdigest()


def size(text: str) -> int:
    """UTF-8 bytes."""
    return len(text) if text.isascii() else len(text.encode())


def shorten(text: str, width: int = 50) -> str:
    """The beginning of a text, in quotes."""
    most = 20 * width  # a text may be very long
    line = " ".join(text[:most].split())
    return f"“{line}”" if len(line) <= width and len(text) <= most else f"“{line[: width - 1]}…”"
