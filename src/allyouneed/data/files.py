"""The user's own files -> records. Each file is hashed; if the cache has no records of this content, it is read once,
and everything in it is checked."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
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
from allyouneed.data.formats.pairs import open_pairs
from allyouneed.data.formats.squad import open_questions
from allyouneed.data.formats.table import Examples
from allyouneed.data.formats.textfile import CHUNK, TextFile, shorten
from allyouneed.data.records import Records, Writer, store_records
from allyouneed.data.sources import Dataset, Split, Text, fingerprint, limited, split_by_hash
from allyouneed.errors import UserError

Files = Mapping[str, Sequence[Path]]  # of each split that has files of its own
LABEL = 1  # the field of a label


@dataclass(frozen=True)
class OwnFiles:
    """What the files of the user hold."""

    shape: str
    records: Records
    contents: dict[str, list[list[str]]]  # the ending and the hash of each file, by split

    def split(self, config: DataConfig) -> Dataset:
        parts = {"valid": config.valid_part, "test": config.test_part}
        parts = {name: 0.0 if name in self.contents else part for name, part in parts.items()}
        splits: Mapping[str, Split]
        if self.shape == "text":
            splits = _split_text(self.records, **parts)
        else:
            splits = split_by_hash(self.shape, self.records, **parts, limit=config.limit, fold=config.fold)
        splits = {name: splits[name] for name in ("train", "valid", "test") if name in splits}
        for name, split in splits.items():
            if not split.bytes:
                own = {"valid": config.valid_path, "test": config.test_path}.get(name, ())
                raise UserError(
                    f"{' '.join(own or config.path)} is too small or has no usable example: nothing is left for the "
                    f"{name} split; give more data, other parts (data.valid_part, data.test_part), or a file for each "
                    "split (data.valid_path, data.test_path)"
                )
        understood = [*self.records.meta["told"]]
        if held_out := ", ".join(f"{100 * part:g} % for {name}" for name, part in parts.items() if part):
            what = {"pairs": "source", "labels": "text", "tags": "sentence", "questions": "text"}.get(self.shape)
            how = f"split by a hash of the {what}, so that no {what} is in two splits:"
            if what is None:
                how = "split in the order of the text, at the beginning of a line if one is near: the last"
            understood.append(f"{how} {held_out}")
        if config.limit:
            understood.append(limited(config.limit))
        # The names of the files do not matter, but for their endings: these decide how a file is read.
        chosen = (config.valid_part, config.test_part, config.limit, *([config.fold] if config.fold else []))
        key = fingerprint(self.shape, self.contents, (*_reading(config), *chosen))
        return Dataset(" ".join(config.path), self.shape, splits, understood, key)


def read_own(config: DataConfig, shape: str) -> OwnFiles:
    """The data that data.path, data.valid_path and data.test_path describe."""
    given = {"train": config.path, "valid": config.valid_path, "test": config.test_path}
    paths = {name: [existing(path) for path in listed] for name, listed in given.items() if listed}
    files = text_files(paths, config.encoding) if shape == "text" else table_files(paths, config.source, config.target)
    stamps = {path: _stamp(path) for listed in files.values() for path in listed}
    contents = {
        name: [[Path(plain_name(path)).suffix, _digest(path, *stamps[path])] for path in listed]
        for name, listed in files.items()
    }

    def write(writer: Writer) -> dict[str, Any]:
        try:
            if shape == "text":
                understood = [_write_text(writer, name, listed, config) for name, listed in files.items()]
            else:
                understood = _write(writer, files, config, shape)
        finally:  # a file that is being written often looks broken: say what really happened
            for path, stamp in stamps.items():
                if _stamp(path) != stamp:
                    raise UserError(f"{path} changed while it was being read: wait until it is complete, then start")
        return {"told": understood}

    names = {name: [path.name for path in listed] for name, listed in files.items()}
    known = {"shape": shape, "contents": contents, "names": names, "how": _reading(config)}
    return OwnFiles(shape, store_records(shape, known, SHAPES[shape].filled, write), contents)


def _reading(config: DataConfig) -> list[Any]:
    """The settings that decide how files are read."""
    return [config.source, config.target, config.second, config.header, config.encoding, config.reverse]


def _stamp(path: Path) -> tuple[int, ...]:
    """Numbers that change if the contents of a file do."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise UserError(f"{path} is not there any more: put it back and start again") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@lru_cache(maxsize=4096)
def _digest(path: Path, *stamp: int) -> str:
    """A hash of the contents; `stamp` tells a file from a later one of that name."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "blake2b").hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _write(writer: Writer, files: Files, config: DataConfig, shape: str) -> list[str]:
    """Write the rows of the files of each split; returns how they were understood."""
    understood: list[str] = []
    train: LabelTable | None = None
    for name in ("train", "valid", "test"):
        if name not in files:
            continue
        table = _open(files[name], config, shape, train)
        writer.add(name, table.rows())
        if isinstance(table, LabelTable):
            writer.drop(name, LABEL, table.unlabelled)
            train = train or table
        understood.append(table.understood())
    return understood


def _open(paths: Sequence[Path], config: DataConfig, shape: str, like: LabelTable | None) -> Examples | TagTable:
    """The examples in a file, or in two. Columns that neither the user nor the file names are those of `like`."""
    two = shape in ("pairs", "labels") and not any(map(form_of, paths))
    if len(paths) > 1 + two:
        wanted = {
            "tags": "tagged sentences come from one CoNLL file",
            "questions": "questions come from one file",
            "pairs": "pairs come from one TSV, CSV or JSONL file, or from two parallel text files",
            "labels": "texts and labels come from one TSV, CSV or JSONL file, or from two parallel text files",
        }[shape]
        raise UserError(f"{', '.join(map(str, paths))}: {wanted}")
    files = [TextFile(path, config.encoding) for path in paths]
    if shape == "questions":
        return open_questions(files[0], config)
    if shape == "tags":
        return open_tags(files[0], config)
    return open_labels(files, config, like) if shape == "labels" else open_pairs(files, config)


def _write_text(writer: Writer, name: str, paths: Sequence[Path], config: DataConfig) -> str:
    """Write the documents of a split; returns how they were understood."""
    files: list[tuple[str, str]] = []  # the encoding and the beginning of each

    def documents() -> Iterator[Iterator[bytes]]:
        for path in paths:
            file = TextFile(path, config.encoding)
            files.append((file.encoding, next(file.text(), "").strip()[:200]))
            yield file.chunks()

    writer.add_documents(name, documents())
    sizes, _, blank = writer.columns[-1]
    used = [file for file, empty in zip(files, blank) if not empty]
    if not used:
        TextFile(paths[0], config.encoding).first_line()
        raise UserError(f"{paths[0]} holds only blank lines")
    many = f"{len(paths):,} files, each a document, in the order of their names"
    dropped = f"; {len(paths) - len(used)} without text left out" if len(used) < len(paths) else ""
    codes = " and ".join(sorted({code for code, _ in used}))
    return (
        f"{name}: {paths[0].name if len(paths) == 1 else many}{dropped}; {codes} text, {int(sizes[~blank].sum()):,} "
        f"bytes; it begins {shorten(used[0][1])}"
    )


def _split_text(records: Records, valid: float, test: float) -> dict[str, Split]:
    """Splits of the part train in the order of the text: the last parts of it are valid and test."""
    found: dict[str, Split] = {}
    for name, (low, high) in records.parts.items():
        rows = [row for row in range(low, high) if not records.blank[row]]
        documents = [(int(records.ends[row]), int(records.ends[row + 1])) for row in rows]
        bounds = {name: (0, len(records.stream))}
        if name == "train":
            middle, end = _cuts(records, documents, valid, test)
            bounds = {"train": (0, middle)}
            bounds |= {"valid": (middle, end)} if valid else {}
            bounds |= {"test": (end, len(records.stream))} if test else {}
        for split, (first, last) in bounds.items():
            inside = [(max(start, first), min(stop, last)) for start, stop in documents]
            empty = high - low - len(documents) if split == name else 0
            found[split] = Text(records, [(start, stop) for start, stop in inside if start < stop], empty)
    return found


def _cuts(records: Records, documents: Sequence[tuple[int, int]], valid: float, test: float) -> tuple[int, int]:
    """Where train and valid end in the stream: where a line begins within a megabyte, or else a character."""
    total = sum(stop - start for start, stop in documents)
    starts = {start for start, _ in documents}

    def position(size: int) -> int:
        """The position in the stream after so many bytes of the documents."""
        for start, stop in documents:
            if size < stop - start:
                return start + size
            size -= stop - start
        return documents[-1][1]

    def line_start(at: int, stop: int) -> int:
        if at in starts or at == stop:
            return at
        newline = records.stream[at - 1 : min(at + CHUNK, stop) - 1].tobytes().find(b"\n")
        while newline < 0 and records.stream[at] & 0xC0 == 0x80:
            at -= 1
        return at + max(newline, 0)

    last = documents[-1][1]
    end = position(int((1 - test) * total))
    middle = position(int((1 - valid - test) * total))
    cut = line_start(end, last) if test else last
    return (line_start(middle, end) if valid else cut), cut
