"""The examples of a data set as rows of texts, in one file of the cache, whatever they were read from.

Whoever needs the examples reads this file: a split is an array of the numbers of its rows. A hash of each text is kept
beside it. By these hashes splits are made, and labels, duplicates and repeated texts are found without reading any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np

from allyouneed.data.examples import digest
from allyouneed.data.store import Filled, Stream, stored

PIECE = 1 << 20  # bytes that are decoded at a time
READ, WRITTEN = 4096, 256  # rows at a time; with many more tuples alive, garbage collection takes half of the time
MIX = np.uint64(0x9E3779B97F4A7C15)
Row = Sequence[str]


class Records:
    """Rows of texts. Of those of different files `parts` has the first and the last but one, by the name of the split;
    `meta` is what else was found when they were read."""

    def __init__(self, stream: np.ndarray, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        self.stream, self.meta = stream, meta
        self.ends, self.digests = arrays["ends"], arrays["digests"]
        self.blank = arrays["blank"].view(bool)  # (N,) whether a text that may not be blank is
        self.parts: dict[str, tuple[int, int]] = {name: (low, high) for name, (low, high) in meta["parts"].items()}
        self._view = memoryview(stream)  # type: ignore[arg-type]

    @staticmethod
    def of(parts: Mapping[str, Iterable[Row]], filled: Sequence[int]) -> Records:
        """In memory."""
        pieces: list[bytes] = []
        writer = Writer(pieces.append, filled)
        for name, rows in parts.items():
            writer.add(name, rows)
        meta, arrays = writer.finish()
        return Records(np.frombuffer(b"".join(pieces), np.uint8), arrays, meta)

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def width(self) -> int:
        """Texts in a row."""
        return self.digests.shape[1]

    def texts(self, field: int, rows: Iterable[int]) -> Iterator[str]:
        """One text of each of these rows."""
        numbers = np.asarray(rows)
        for at in range(0, len(numbers), READ):
            some = numbers[at : at + READ] * self.width + field
            starts, stops = self.ends[some], self.ends[some + 1]
            first, last = int(starts.min()), int(stops.max())
            near = last - first <= PIECE + 4 * int((stops - starts).sum())  # not rows from all over the file
            text = str(self._view[first:last], "utf-8", "replace") if near else ""
            if text and len(text) == last - first:  # all of it is ASCII
                yield from [text[low:high] for low, high in zip((starts - first).tolist(), (stops - first).tolist())]
            else:
                yield from [str(self._view[low:high], "utf-8") for low, high in zip(starts.tolist(), stops.tolist())]

    def cells(self, rows: Iterable[int]) -> Iterator[tuple[str, ...]]:
        """All texts of each of these rows."""
        numbers = np.asarray(rows)
        return zip(*(self.texts(field, numbers) for field in range(self.width)))

    def sizes(self, fields: Iterable[int]) -> np.ndarray:
        """(N,) bytes of these texts of each row."""
        return sum(np.diff(self.ends)[field :: self.width] for field in fields)  # type: ignore[return-value]

    def hashes(self, fields: Sequence[int]) -> np.ndarray:
        """(N,) one hash for these texts of each row."""
        found = self.digests[:, fields[0]]
        for field in fields[1:]:
            found = (found ^ (found >> np.uint64(29))) * MIX + self.digests[:, field]
        return found

    def different(self, field: int, rows: np.ndarray) -> tuple[list[str], np.ndarray]:
        """The different texts of a field in these rows, by their first places, and which of them each row has."""
        _, first, kinds = np.unique(self.digests[rows, field], return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return list(self.texts(field, rows[first[order]])), place[kinds]

    def pieces(self, start: int, end: int) -> Iterator[str]:
        """The text between two bytes of the file, in pieces of about a megabyte, which end after a newline if they have
        one, and always between two characters."""
        while start < end:
            stop = min(start + PIECE, end)
            if stop < end:
                newline = bytes(self._view[start:stop]).rfind(b"\n") + 1
                stop = start + newline if newline else stop
                while self.stream[stop] & 0xC0 == 0x80:
                    stop -= 1
            yield str(self._view[start:stop], "utf-8")
            start = stop


class Writer:
    """Writes rows. `filled`: which texts of a row may not be blank."""

    def __init__(self, put: Callable[[bytes], Any], filled: Sequence[int]) -> None:
        self.put, self.filled = put, frozenset(filled)
        self.columns: list[tuple[np.ndarray, ...]] = []  # of each part: bytes of each text, hashes, which are blank
        self.parts: dict[str, tuple[int, int]] = {}
        self.count = 0  # of rows

    def add(self, part: str, rows: Iterable[Row]) -> None:
        """The rows of the files of a split."""
        source, found = iter(rows), []
        while some := list(islice(source, WRITTEN)):
            cells = list(chain.from_iterable(some))
            data = "".join(cells).encode()
            sizes = np.fromiter(map(len, cells), np.int64, len(cells))
            if len(data) != sizes.sum():  # it is not all ASCII
                sizes = np.fromiter((len(cell.encode()) for cell in cells), np.int64, len(cells))
            self.put(data)
            columns = list(zip(*some))
            blank = np.zeros(len(some), bool)
            for field in self.filled:
                if field < len(columns):
                    blank |= _blank(columns[field])
            found.append((sizes, np.stack([_digests(column) for column in columns], axis=1), blank))
        self._append(part, *map(np.concatenate, zip(*found)))

    def add_documents(self, part: str, documents: Iterable[Iterable[bytes]]) -> None:
        """Texts of any length, each in pieces of UTF-8."""
        found = list[tuple[int, int, bool]]()
        for pieces in documents:
            size, state, empty = 0, hashlib.blake2b(digest_size=8), True
            for piece in pieces:
                self.put(piece)
                state.update(piece)
                size += len(piece)
                empty = empty and not piece.strip()
            found.append((size, int.from_bytes(state.digest(), "big"), empty))
        sizes, hashed, blank = zip(*found) if found else ((), (), ())
        self._append(part, np.array(sizes, np.int64), np.array(hashed, np.uint64)[:, None], np.array(blank, bool))

    def _append(self, part: str, *columns: np.ndarray) -> None:
        """The rows of a part, if it has any."""
        first = self.count
        if columns:
            self.columns.append(columns)
            self.count += len(columns[-1])
        self.parts[part] = first, self.count

    def drop(self, part: str, field: int, texts: Iterable[str]) -> None:
        """The rows of `part`, the last that was added, that have one of these texts in a field count as blank."""
        low, high = self.parts[part]
        if low < high:
            _, digests, blank = self.columns[-1]
            blank |= np.isin(digests[:, field], np.array([digest(text) for text in texts], np.uint64))

    def finish(self, meta: Mapping[str, Any] | None = None) -> Filled:
        nothing = np.zeros(0, np.int64), np.zeros((0, 1), np.uint64), np.zeros(0, bool)
        sizes, digests, blank = map(np.concatenate, zip(*(self.columns or [nothing])))
        arrays = {"ends": np.append(0, sizes.cumsum()), "digests": digests, "blank": blank.view(np.uint8)}
        return {**(meta or {}), "parts": {name: list(both) for name, both in self.parts.items()}}, arrays


def _blank(texts: Sequence[str]) -> np.ndarray:
    """(N,) which of the texts are blank."""
    if all(texts) and not any(map(str.isspace, texts)):
        return np.zeros(len(texts), bool)
    return np.fromiter((not text.strip() for text in texts), bool, len(texts))


def _digests(texts: Sequence[str]) -> np.ndarray:
    """(N,) the hash of each text, as `digest` makes it. One that comes again, as labels do, is hashed once."""
    blake = hashlib.blake2b
    different = set(texts)
    if 4 * len(different) < len(texts):
        known = {text: blake(text.encode(), digest_size=8).digest() for text in different}
        found = b"".join(map(known.__getitem__, texts))
    else:
        found = b"".join([blake(text.encode(), digest_size=8).digest() for text in texts])
    return np.frombuffer(found, ">u8").astype(np.uint64)


def store_records(
    name: str, known: Mapping[str, Any], filled: Sequence[int], write: Callable[[Writer], Any]
) -> Records:
    """The records of this key in the cache. If they are not there, `write` makes them, and returns their `meta`."""

    def fill(stream: Stream) -> Filled:
        writer = Writer(stream.put, filled)
        return writer.finish(write(writer))

    return Records(*stored("examples", name, known, fill))
