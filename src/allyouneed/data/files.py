"""The user's own files -> records. Each file is hashed; if the cache has no records of this content, it is read once,
and everything in it is checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from allyouneed.config import DataConfig
from allyouneed.data.examples import SHAPES
from allyouneed.data.formats.compressed import plain_name
from allyouneed.data.formats.conll import TagTable, open_tags
from allyouneed.data.formats.file_paths import existing, form_of, table_files, text_files
from allyouneed.data.formats.labels import LabelTable, open_labels
from allyouneed.data.formats.pairs import PairTable, open_pairs
from allyouneed.data.formats.squad import QuestionFile, open_questions
from allyouneed.data.formats.textfile import CHUNK, TextFile, shorten
from allyouneed.data.records import Records, Writer, store_records
from allyouneed.data.sources import Dataset, Split, Text, fingerprint, limited, split_by_hash
from allyouneed.errors import UserError

Files = Mapping[str, Sequence[Path]]  # of each split that has files of its own
Table = PairTable | LabelTable | TagTable | QuestionFile
LABEL = 1  # the field of a label


@dataclass(frozen=True)
class OwnFiles:
    """What the files of the user hold."""

    shape: str
    records: Records
    contents: dict[str, list[tuple[str, str]]]  # the ending and the hash of each file, by split

    def split(self, config: DataConfig) -> Dataset:
        valid, test = (
            0.0 if name in self.contents else part
            for name, part in (("valid", config.valid_part), ("test", config.test_part))
        )
        splits: Mapping[str, Split]
        if self.shape == "text":
            splits = _ranges(self.records, valid, test)
        else:
            splits = split_by_hash(self.shape, self.records, valid, test, config.limit, config.fold)
        splits = {name: splits[name] for name in ("train", "valid", "test") if name in splits}
        for name, split in splits.items():
            if not split.bytes:
                raise UserError(self._nothing(name, config))
        told = [*self.records.meta["told"], *self._held_out(valid, test)]
        if config.limit:
            told.append(limited(config.limit))
        return Dataset(" ".join(config.path), self.shape, splits, told, self._fingerprint(config))

    def _fingerprint(self, config: DataConfig) -> str:
        """The names of the files do not matter, but for their endings: these decide how a file is read."""
        parts = (config.valid_part, config.test_part, config.limit, *([config.fold] if config.fold else []))
        return fingerprint(self.shape, self.contents, (*_reading(config), *parts))

    def _held_out(self, valid: float, test: float) -> Iterator[str]:
        """For the user."""
        held = ", ".join(f"{100 * part:g} % for {name}" for name, part in (("valid", valid), ("test", test)) if part)
        what = {"pairs": "source", "labels": "text", "tags": "sentence", "questions": "text"}.get(self.shape)
        if held and what:
            yield f"split by a hash of the {what}, so that no {what} is in two splits: {held}"
        elif held:
            yield f"split in the order of the text, at the beginning of a line if one is near: the last {held}"

    def _nothing(self, name: str, config: DataConfig) -> str:
        own = {"train": config.path, "valid": config.valid_path, "test": config.test_path}
        where = " ".join(own[name] or config.path)
        if name == "train" or name in self.contents:
            return f"{where} is too small or has no usable example: nothing is left for the {name} split"
        part = config.valid_part if name == "valid" else config.test_part
        return (
            f"{where} is too small: nothing of it is in the {name} split (data.{name}_part = {part:g}); "
            f"give more data, a larger part, or a file of its own (data.{name}_path)"
        )


def read_own(config: DataConfig, shape: str) -> OwnFiles:
    """The data that data.path, data.valid_path and data.test_path describe."""
    given = {"train": config.path, "valid": config.valid_path, "test": config.test_path}
    paths = {name: [existing(path) for path in listed] for name, listed in given.items() if listed}
    files = text_files(paths, config.encoding) if shape == "text" else table_files(paths, config.source, config.target)
    stamps = {path: _stamp(path) for listed in files.values() for path in listed}
    contents = {
        name: [(Path(plain_name(path)).suffix, _digest(path, *stamps[path])) for path in listed]
        for name, listed in files.items()
    }

    def write(writer: Writer) -> dict[str, Any]:
        try:
            told = _write_text(writer, files, config) if shape == "text" else _write(writer, files, config, shape)
        except UserError:  # a file that is being written often looks broken: say what really happened
            _check_unchanged(stamps)
            raise
        _check_unchanged(stamps)
        return {"told": told}

    names = {name: [path.name for path in listed] for name, listed in files.items()}
    known = {"shape": shape, "contents": contents, "names": names, "how": _reading(config)}
    return OwnFiles(shape, store_records(shape, _plain(known), SHAPES[shape].filled, write), contents)


def _plain(known: dict[str, Any]) -> dict[str, Any]:
    """With lists in the place of tuples, as JSON has them."""
    contents = {name: [list(one) for one in listed] for name, listed in known["contents"].items()}
    return {**known, "contents": contents, "how": list(known["how"])}


def _reading(config: DataConfig) -> tuple[Any, ...]:
    """The settings that decide how files are read."""
    columns = (config.source, config.target, config.second, config.header)
    return (*columns, config.encoding, config.reverse)


def _stamp(path: Path) -> tuple[int, ...]:
    """It changes with the contents of a file."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise UserError(f"{path} is not there any more: put it back and start again") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _check_unchanged(stamps: Mapping[Path, tuple[int, ...]]) -> None:
    for path, stamp in stamps.items():
        if _stamp(path) != stamp:
            raise UserError(f"{path} changed while it was being read: wait until it is complete, then start")


@lru_cache(maxsize=4096)
def _digest(path: Path, *stamp: int) -> str:
    """A hash of the contents; `stamp` tells a file from a later one of that name."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


# Examples


def _write(writer: Writer, files: Files, config: DataConfig, shape: str) -> list[str]:
    """Write the rows of the files of each split; returns how they were understood."""
    told: list[str] = []
    train: Table | None = None
    for name in ("train", "valid", "test"):
        if name not in files:
            continue
        table = _open(files[name], config, shape, train if isinstance(train, LabelTable) else None)
        writer.add(name, table.rows())
        if isinstance(table, LabelTable):
            writer.drop(name, LABEL, table.unlabelled)
        told.append(table.understood())
        train = train or table
    return told


def _open(paths: Sequence[Path], config: DataConfig, shape: str, like: LabelTable | None) -> Table:
    """The examples in a file, or in two. Columns that neither the user nor the file names are those of `like`."""
    listed = ", ".join(str(path) for path in paths)
    if shape in ("tags", "questions") and len(paths) > 1:
        what = "tagged sentences come from one CoNLL file" if shape == "tags" else "questions come from one file"
        raise UserError(f"{listed}: {what}")
    if shape in ("pairs", "labels") and (len(paths) > 2 or (len(paths) == 2 and any(map(form_of, paths)))):
        what = {"pairs": "pairs come", "labels": "texts and labels come"}[shape]
        raise UserError(f"{listed}: {what} from one TSV, CSV or JSONL file, or from two parallel text files")
    files = [TextFile(path, config.encoding) for path in paths]
    if shape == "questions":
        return open_questions(files[0], config.source, config.target, config.second, config.header)
    if shape == "tags":
        return open_tags(files[0], config.source, config.target)
    if shape == "labels":
        return open_labels(files, config.source, config.target, config.second, config.header, like)
    return open_pairs(files, config.source, config.target, config.reverse, config.header)


# Running text


def _write_text(writer: Writer, files: Files, config: DataConfig) -> list[str]:
    """Write the documents of each split; returns how they were understood."""
    told = []
    for name, listed in files.items():
        codes: dict[str, None] = {}
        begins: list[str] = []

        def documents(listed: Sequence[Path] = listed, codes: dict = codes, begins: list = begins) -> Iterator[Any]:
            for path in listed:
                file = TextFile(path, config.encoding)
                first = next(file.text(), "").strip()[:200]
                if first or any(piece.strip() for piece in file.chunks()):
                    codes[file.encoding] = None
                    begins.append(first)
                yield file.chunks()

        writer.add_documents(name, documents())
        sizes, _, blank = writer.columns[-1]
        empty = int(blank.sum())
        if empty == len(listed):
            TextFile(listed[0], config.encoding).first_line()
            raise UserError(f"{listed[0]} holds only blank lines")
        many = f"{len(listed):,} files, each a document, in the order of their names"
        dropped = f"; {empty} without text left out" if empty else ""
        total = int(sizes[~blank].sum())
        told.append(
            f"{name}: {listed[0].name if len(listed) == 1 else many}{dropped}; {' and '.join(sorted(codes))} text, "
            f"{total:,} bytes; it begins {shorten(begins[0])}"
        )
    return told


def _ranges(records: Records, valid: float, test: float) -> dict[str, Split]:
    """Splits of the part train in the order of the text: the last parts of it are valid and test."""
    found: dict[str, Split] = {}
    for name, (low, high) in records.parts.items():
        bounds = zip(range(low, high), records.ends[low:high].tolist(), records.ends[low + 1 : high + 1].tolist())
        documents = [(start, end) for row, start, end in bounds if not records.blank[row]]
        empty, total = high - low - len(documents), sum(end - start for start, end in documents)
        if name != "train":
            found[name] = Text(records, documents, empty)
            continue
        start, middle = _cuts(records, documents, total, valid, test)
        found["train"] = Text(records, list(_between(documents, 0, start)), empty)
        if valid:
            found["valid"] = Text(records, list(_between(documents, start, middle)))
        if test:
            found["test"] = Text(records, list(_between(documents, middle, total)))
    return found


def _cuts(
    records: Records, documents: Sequence[tuple[int, int]], total: int, valid: float, test: float
) -> tuple[int, int]:
    """Where train and valid end, in bytes of all documents one after the other."""
    middle = int((1 - test) * total)
    start = min(int((1 - valid - test) * total), middle)
    start = _line_start(records, documents, start, middle) if valid else middle
    middle = _line_start(records, documents, middle, total) if test else total
    return (start if valid else middle), middle


def _line_start(records: Records, documents: Sequence[tuple[int, int]], cut: int, stop: int) -> int:
    """Where a line begins, at `cut` or at most a megabyte after it but before `stop`; else where a character begins."""
    before = 0
    for start, end in documents:
        if before < cut < before + end - start:
            shift = start - before
            high = min(cut + CHUNK, stop) + shift
            text = records.stream[cut - 1 + shift : high - 1].tobytes()
            newline = text.find(b"\n")
            if newline >= 0:
                return cut + newline
            while records.stream[cut + shift] & 0xC0 == 0x80:
                cut -= 1
            return cut
        before += end - start
    return cut


def _between(documents: Iterable[tuple[int, int]], low: int, high: int) -> Iterator[tuple[int, int]]:
    """The bytes [low, high) of all documents one after the other, as ranges of the records."""
    before = 0
    for start, end in documents:
        first, last = max(low - before, 0), min(high - before, end - start)
        if first < last:
            yield start + first, start + last
        before += end - start
