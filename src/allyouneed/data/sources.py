"""Where examples come from: a Source is read once, and gives a Dataset: named splits of it."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from allyouneed.data.examples import READING, SHAPES, SentencePair, digest
from allyouneed.randomness import make_key

if TYPE_CHECKING:  # names of data sets come without numpy
    import numpy as np

    from allyouneed.config import DataConfig
    from allyouneed.data.records import Records

SAMPLED = 7  # the key of the random numbers that draw examples
IMAGES = ("images", "captions", "plain")  # shapes of data: images with labels, with captions, with neither


class Split:
    """Examples that can be read any number of times."""

    examples: int = 0  # how many there are, or documents
    empty: int = 0  # examples with a blank part, or blank documents: dropped
    bytes: int = 0  # of the text that is used, in UTF-8

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError

    def hashes(self) -> tuple[np.ndarray, np.ndarray]:
        """(N,) one number for the input of each example, and (N,) one for the whole example."""
        raise NotImplementedError


class ExampleSplit(Split):
    """Some rows of the records of a data set, by their numbers `rows` (N,)."""

    def __init__(self, shape: str, records: Records, rows: np.ndarray, empty: int = 0) -> None:
        self.shape, self.records, self.rows = SHAPES[shape], records, rows
        self.examples, self.empty = len(rows), empty
        self._inputs, self._filled = ([f for f in some if f < records.width] for some in self.shape[1:])
        self.written = self._filled if self.shape.kind is SentencePair else self._inputs  # as text: not labels and tags
        self.bytes = int(records.sizes(self._filled)[rows].sum())

    def __iter__(self) -> Iterator[Any]:
        return map(self.shape.example, self.records.cells(self.rows))

    def inputs(self) -> Iterator[tuple[str, ...]]:
        """The texts that a model reads."""
        return zip(*(self.records.texts(field, self.rows) for field in self._inputs))

    def texts(self, field: str) -> Iterator[str]:
        """One field of each example."""
        return self.records.texts(self.shape.kind._fields.index(field), self.rows)

    def hashes(self) -> tuple[np.ndarray, np.ndarray]:
        return self.records.hashes(self._inputs)[self.rows], self.records.hashes(self._filled)[self.rows]

    def labels(self) -> tuple[list[str], np.ndarray]:
        """The different labels, by their first places, and (N,) which of them each example has."""
        return self.records.different(self.shape.kind._fields.index("label"), self.rows)


class Text(Split):
    """Yields chunks of about a megabyte, which joined are exactly the text. A document is a range of bytes of the
    records."""

    def __init__(self, records: Records, ranges: Sequence[tuple[int, int]], empty: int = 0) -> None:
        self.records, self.ranges = records, ranges
        self.examples, self.empty = len(ranges), empty
        self.bytes = sum(end - start for start, end in ranges)

    def __iter__(self) -> Iterator[str]:
        for document in self.documents():
            yield from document

    def documents(self) -> Iterator[Iterator[str]]:
        """The chunks of each document."""
        return (self.records.pieces(start, end) for start, end in self.ranges)

    def hashes(self) -> tuple[np.ndarray, np.ndarray]:
        import numpy as np

        view = memoryview(self.records.stream)  # type: ignore[arg-type]
        states = (hashlib.blake2b(view[start:end], digest_size=8).digest() for start, end in self.ranges)
        found = np.fromiter((int.from_bytes(state, "big") for state in states), np.uint64)
        return found, found


@dataclass
class Dataset:
    """Named splits of one shape. `understood`: how the files were read, in sentences for the user."""

    name: str
    shape: str  # "text", "pairs", "labels", "tags", "questions", or one of IMAGES
    splits: Mapping[str, Any]  # Splits of this shape: train, valid and test if there are any; some sets have more
    understood: list[str] = field(default_factory=list)
    fingerprint: str = ""  # changes when the examples may have changed
    licence: str = ""
    # What a drawing shows of what its caption says, by name of the attribute; None if there are no rules.
    checker: Callable[[str, np.ndarray], dict[str, bool]] | None = None


class Source(Protocol):
    """Data that has been read. Nothing of what it was read from is needed any more."""

    def split(self, config: DataConfig) -> Dataset:
        """As the settings of [data] want it: what is held out, and how much of it is used."""
        ...


def split_by_hash(
    shape: str, records: Records, valid: float, test: float, limit: int = 0, fold: int = 0
) -> dict[str, ExampleSplit]:
    """Splits of the part train by a hash of the first input: the same sentence is never in two of them; the other parts
    of the records are splits of their own. `limit`: of each split."""
    import numpy as np

    found = {}
    for name, (low, high) in records.parts.items():
        rows, blank = np.arange(low, high), records.blank[low:high]
        parts = {name: np.ones(len(rows), bool)}
        if name == "train":
            place = _place(records.digests[low:high, SHAPES[shape].inputs[0]], test, fold)
            held_out = place < valid + test
            parts = {"train": ~held_out, "valid": place < valid, "test": held_out & (place >= valid)}
            parts = {split: parts[split] for split, size in (("train", 1), ("valid", valid), ("test", test)) if size}
        for split, mine in parts.items():
            used = rows[mine & ~blank]
            if limit and limit < len(used):
                used = used[sampled(limit, len(used))]
            found[split] = ExampleSplit(shape, records, used, int((mine & blank).sum()))
    return found


def part_of(text: str, valid: float, test: float, fold: int = 0) -> str:
    """The split of a text; it depends on nothing but the text and these numbers. Each fold has other tests."""
    place = _place(digest(text), test, fold)
    return "valid" if place < valid else "test" if place < valid + test else "train"


def _place(hashed: Any, test: float, fold: int) -> Any:
    """From 0 to 1, of one 64-bit hash or of many: train, valid and test are parts of this range."""
    return (hashed / 2**64 + max(0, fold - 1) * test) % 1.0


def sampled(limit: int, total: int) -> list[bool]:
    """For each of `total` examples whether it is one of `limit` that are drawn at random: those with the smallest
    random numbers. So they are always the same, and a smaller limit draws a part of what a larger one draws."""
    if limit >= total:
        return [True] * total
    numbers = [make_key(SAMPLED, i) for i in range(total)]
    last = heapq.nsmallest(limit, numbers)[-1]
    return [number <= last for number in numbers]


def limited(limit: int) -> str:
    """For the user."""
    return f"at most {limit:,} examples of each split are used, drawn at random and always the same (data.limit)"


def caption_key(caption: str) -> str:
    """In lower case with single spaces: what makes two captions the same. Splits by captions use a hash of it."""
    return " ".join(caption.lower().split())


def fingerprint(*parts: Any) -> str:
    """A short hash of plain values, and of how this version of the library reads data."""
    return hashlib.blake2b(json.dumps([READING, *parts]).encode(), digest_size=16).hexdigest()
