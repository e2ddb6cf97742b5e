"""The user's own files -> a Dataset. Everything is read and checked once before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from allyouneed.config import DataConfig
from allyouneed.data import reading
from allyouneed.data.compressed import plain_name
from allyouneed.data.conll import TagTable, open_tags
from allyouneed.data.labels import LabelTable, open_labels
from allyouneed.data.pairs import PairTable, open_pairs
from allyouneed.data.paths import existing, table_files, text_files
from allyouneed.data.questions import QuestionFile, open_questions
from allyouneed.data.reading import CHUNK, chunks, encoding
from allyouneed.data.sources import (
    Counts,
    Dataset,
    ExampleSplit,
    Split,
    Text,
    fingerprint,
    is_blank,
    limited,
    part_of,
    shorten,
    split_by_hash,
)
from allyouneed.data.tables import first_line, form_of
from allyouneed.data.watch import WatchedFile
from allyouneed.errors import UserError

Files = dict[str, list[Path]]  # of each split that has files of its own
Examples = PairTable | LabelTable | TagTable | QuestionFile


def open_own(config: DataConfig, shape: str) -> Dataset:
    """The data set that data.path, data.valid_path and data.test_path describe."""
    given = {"train": config.path, "valid": config.valid_path, "test": config.test_path}
    paths = {name: [existing(path) for path in listed] for name, listed in given.items() if listed}
    files = text_files(paths, config.encoding) if shape == "text" else table_files(paths, config.source, config.target)
    watched = {name: [WatchedFile(path) for path in listed] for name, listed in files.items()}
    made, told = _read_text(files, config) if shape == "text" else _read_examples(files, config, shape)
    splits = {name: made[name] for name in given if name in made}
    for name, split in splits.items():
        if not split.bytes:  # this reads the splits that have files of their own
            raise UserError(_nothing(name, paths, config))
    # From here on the files must stay as they were when the first of them was opened.
    contents = {name: [(_ending(file.path), file.digest()) for file in listed] for name, listed in watched.items()}
    for name, split in splits.items():
        split.files = watched.get(name, watched["train"])
    columns = (config.source, config.target, config.second, config.header)
    parts = (config.valid_part, config.test_part, config.limit, *([config.fold] if config.fold else []))
    settings = (*columns, config.encoding, config.reverse, *parts)
    return Dataset(" ".join(config.path), shape, splits, told, fingerprint(shape, contents, settings))


def _ending(path: Path) -> str:
    """It decides how a file is read, so it belongs to the contents; the rest of the path does not."""
    return Path(plain_name(path)).suffix


def _nothing(name: str, paths: Files, config: DataConfig) -> str:
    where = " ".join(str(path) for path in paths.get(name, paths["train"]))
    if name == "train" or name in paths:
        return f"{where} is too small or has no usable example: nothing is left for the {name} split"
    part = config.valid_part if name == "valid" else config.test_part
    return (
        f"{where} is too small: nothing of it is in the {name} split (data.{name}_part = {part:g}); "
        f"give more data, a larger part, or a file of its own (data.{name}_path)"
    )


def _read_examples(files: Files, config: DataConfig, shape: str) -> tuple[dict[str, Split], list[str]]:
    """The splits, and how their files were understood."""
    train = _open_examples(files["train"], config, shape)
    like = train if isinstance(train, LabelTable) else None
    own = {name: _open_examples(listed, config, shape, like) for name, listed in files.items() if name != "train"}
    valid = 0.0 if "valid" in own else config.valid_part
    test = 0.0 if "test" in own else config.test_part
    parts = split_by_hash(train.__iter__, valid, test, config.limit, config.fold)
    counts = {name: Counts() for name in parts}
    for example in train:  # one pass finds every error in the file and counts for all its splits
        counted = counts[part_of(example.inputs[0], valid, test, config.fold)]
        if is_blank(example):
            counted.empty += 1
        else:
            counted.add(example)
    for name, split in parts.items():
        split.total = counts[name].examples
        if not config.limit or split.total <= config.limit:
            split.counted = counts[name]
    splits = {**parts, **{name: ExampleSplit(examples.__iter__, config.limit) for name, examples in own.items()}}
    told = [train.understood(), *(examples.understood() for examples in own.values())]
    if held := _held_out(valid, test):
        what = {"pairs": "source", "labels": "text", "tags": "sentence", "questions": "text"}[shape]
        told.append(f"split by a hash of the {what}, so that no {what} is in two splits: {held}")
    if config.limit:
        told.append(limited(config.limit))
    return dict(splits), told


def _open_examples(paths: list[Path], config: DataConfig, shape: str, like: LabelTable | None = None) -> Examples:
    """The examples in a file, or in two. Columns that neither the user nor the file names are those of `like`."""
    listed = ", ".join(str(path) for path in paths)
    if shape in ("tags", "questions") and len(paths) > 1:
        what = "tagged sentences come from one CoNLL file" if shape == "tags" else "questions come from one file"
        raise UserError(f"{listed}: {what}")
    if shape == "questions":
        return open_questions(paths[0], config.source, config.target, config.second, config.header, config.encoding)
    if shape == "tags":
        return open_tags(paths[0], config.source, config.target, config.encoding)
    if len(paths) > 2 or (len(paths) == 2 and any(form_of(path) for path in paths)):
        what = {"pairs": "pairs come", "labels": "texts and labels come"}[shape]
        raise UserError(f"{listed}: {what} from one TSV, CSV or JSONL file, or from two parallel text files")
    if shape == "labels":
        return open_labels(paths, config.source, config.target, config.second, config.header, like, config.encoding)
    return open_pairs(paths, config.source, config.target, config.reverse, config.header, config.encoding)


def _held_out(valid: float, test: float) -> str:
    return ", ".join(f"{100 * part:g} % for {name}" for name, part in (("valid", valid), ("test", test)) if part)


@dataclass(frozen=True)
class Document:
    """A text file and the length of its text in bytes."""

    path: Path
    code: str  # data.encoding
    bytes: int


def _read_text(files: Files, config: DataConfig) -> tuple[dict[str, Split], list[str]]:
    """The splits, and how their files were understood."""
    splits: dict[str, Split] = {}
    told = []
    valid = 0.0 if "valid" in files else config.valid_part
    test = 0.0 if "test" in files else config.test_part
    for name, listed in files.items():
        documents = _documents(listed, config.encoding)
        total, empty = sum(document.bytes for document in documents), len(listed) - len(documents)
        if name == "train":
            start, middle, end = _cuts(documents, total, valid, test)
            splits["train"] = _part(documents, 0, start, empty)
            if valid:
                splits["valid"] = _part(documents, start, middle)
            if test:
                splits["test"] = _part(documents, middle, end)
        else:
            splits[name] = _part(documents, 0, total, empty)
        many = f"{len(listed):,} files, each a document, in the order of their names"
        dropped = f"; {empty} without text left out" if empty else ""
        first = shorten(next(reading.text(documents[0].path, code=config.encoding), "").strip()[:200])
        codes = " and ".join(sorted({encoding(document.path, document.code) for document in documents}))
        told.append(
            f"{name}: {listed[0].name if len(listed) == 1 else many}{dropped}; {codes} text, {total:,} bytes; "
            f"it begins {first}"
        )
    if held := _held_out(valid, test):
        told.append(f"split in the order of the text, at the beginning of a line if one is near: the last {held}")
    return splits, told


def _documents(files: Sequence[Path], code: str) -> list[Document]:
    """Checks every byte. Files without text are left out; if all are, that is an error."""
    documents = []
    for path in files:
        length, blank = 0, True
        for piece in chunks(path, code):
            length += len(piece)
            blank = blank and not piece.strip()
        if not blank:
            documents.append(Document(path, code, length))
    if not documents:
        first_line(files[0], code)
        raise UserError(f"{files[0]} holds only blank lines")
    return documents


def _cuts(documents: Sequence[Document], total: int, valid: float, test: float) -> tuple[int, int, int]:
    """Where train, valid and test end, in bytes of all documents one after the other."""
    middle = int((1 - test) * total)
    start = min(int((1 - valid - test) * total), middle)
    start = _line_start(documents, start, middle) if valid else middle
    middle = _line_start(documents, middle, total) if test else total
    return (start if valid else middle), middle, total


def _line_start(documents: Sequence[Document], cut: int, stop: int) -> int:
    """Where a line begins, at `cut` or at most a megabyte after it but before `stop`; else where a character begins."""
    before = 0
    for document in documents:
        if before < cut < before + document.bytes:
            high = min(cut + CHUNK, stop) - before
            return before + reading.boundary(document.path, cut - before, high, document.code)
        before += document.bytes
    return cut


def _part(documents: Sequence[Document], start: int, end: int, empty: int = 0) -> Text:
    """The bytes [start, end) of all documents one after the other."""
    pieces, before = [], 0
    for document in documents:
        low, high = max(start - before, 0), min(end - before, document.bytes)
        if low < high:
            pieces.append((document.path, low, high, document.code))
        before += document.bytes
    split = Text(lambda: (reading.text(*piece) for piece in pieces), empty)
    split.counted = Counts(len(pieces), empty, sum(high - low for _, low, high, _ in pieces))
    return split
