"""The user's own files -> a Dataset. Everything is read once, and checked, before it is handed on."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allyouneed.config import DataConfig
from allyouneed.data import reading
from allyouneed.data.conll import TagTable, open_tags
from allyouneed.data.labels import open_labels
from allyouneed.data.reading import CHUNK, chunks, is_text, plain_name
from allyouneed.data.sources import Counts, Dataset, Pairs, Split, Text, fingerprint, hashed, part_of, shorten
from allyouneed.data.tables import FORMS, Table, first_line, open_table
from allyouneed.errors import UserError, nearest

SPLITS = {"train": "train", "valid": "valid", "val": "valid", "dev": "valid", "test": "test"}
PROSE = (".txt", ".md", ".text")


def own(config: DataConfig, shape: str) -> Dataset:
    """The data set that data.path, data.valid_path and data.test_path describe."""
    given = {"train": config.path, "valid": config.valid_path, "test": config.test_path}
    paths = {name: [existing(path) for path in listed] for name, listed in given.items() if listed}
    made, used, told = _text(paths, config) if shape == "text" else _pairs(paths, config, shape)
    splits = {name: made[name] for name in dict.fromkeys(SPLITS.values()) if name in made}
    for name, split in splits.items():
        if not split.bytes:  # this reads the splits that have files of their own
            raise UserError(_nothing(name, paths, config))
    contents = {name: [_content(path) for path in files] for name, files in used.items()}
    columns = (config.source, config.target, *([config.second] if config.second else []))
    settings = (*columns, config.reverse, config.valid_part, config.test_part, config.limit)
    return Dataset(" ".join(config.path), shape, splits, told, fingerprint(shape, contents, settings))


def _content(path: Path) -> tuple[str, str]:
    """The ending, which tells how a file is read, and a hash of its bytes: wherever the file lies, it is the same."""
    with path.open("rb") as file:
        return Path(plain_name(path)).suffix, hashlib.file_digest(file, "blake2b").hexdigest()


def existing(given: str) -> Path:
    """A path that is there; otherwise an error with the nearest name."""
    path = Path(given).expanduser()
    if path.exists():
        return path
    if not path.parent.is_dir():
        raise UserError(f"there is no {given}: the folder {path.parent} does not exist")
    hint = nearest(path.name, (entry.name for entry in path.parent.iterdir()))
    raise UserError(f"there is no {given}{hint if 'did you mean' in hint else ''}")


def _nothing(name: str, paths: dict[str, list[Path]], config: DataConfig) -> str:
    where = " ".join(str(path) for path in paths.get(name, paths["train"]))
    if name == "train" or name in paths:
        return f"{where} is too small or has no usable example: nothing is left for the {name} split"
    part = config.valid_part if name == "valid" else config.test_part
    return (
        f"{where} is too small: nothing of it fell into the {name} split (data.{name}_part = {part:g}); "
        f"give more data, a larger part, or a file of its own (data.{name}_path)"
    )


Made = tuple[dict[str, Split], dict[str, list[Path]], list[str]]  # splits, the files of each, what was understood


def _open(group: list[Path], config: DataConfig, shape: str, train: Any = None) -> Table | TagTable:
    """The table in a file, or in two; columns that nothing else tells are those of the training file."""
    if shape == "tags":
        if len(group) > 1:
            raise UserError(f"{', '.join(map(str, group))}: tagged sentences come from one CoNLL file")
        if config.source or config.target or config.second:
            raise UserError(
                "data.source, data.target and data.second are not for CoNLL files: their word is the first column, "
                "their tag the last"
            )
        return open_tags(group[0])
    if len(group) > 2 or (len(group) == 2 and any(_form(path) for path in group)):
        what = {"pairs": "pairs come", "labels": "texts and labels come"}[shape]
        listed = ", ".join(str(path) for path in group)
        raise UserError(f"{listed}: {what} from one TSV, CSV or JSONL file, or from two parallel text files")
    if shape == "labels":
        return open_labels(group, config.source, config.target, config.second, train)
    return open_table(group, config.source, config.target, config.reverse)


def _pairs(paths: dict[str, list[Path]], config: DataConfig, shape: str) -> Made:
    groups = dict(paths)
    if len(paths["train"]) == 1 and paths["train"][0].is_dir():
        groups = {**_split_folder(paths["train"][0], config), **{k: v for k, v in paths.items() if k != "train"}}
    tables: dict[str, Table | TagTable] = {}
    for name, group in sorted(groups.items(), key=lambda item: item[0] != "train"):
        folder = next((path for path in group if path.is_dir()), None)
        if folder:
            raise UserError(f"{folder} is a folder, but a file is expected here")
        tables[name] = _open(group, config, shape, tables.get("train"))
    valid = 0.0 if "valid" in tables else config.valid_part
    test = 0.0 if "test" in tables else config.test_part
    train = tables["train"]
    splits: dict[str, Split] = dict(hashed(train.__iter__, valid, test, config.limit))
    counts = {name: Counts() for name in splits}
    for pair in train:  # one pass meets every mistake in the file and counts for all its splits
        name = part_of(pair[0], valid, test)
        if not (name == "train" and config.limit and counts["train"].examples == config.limit):
            counts[name].add(pair)
    for name, split in splits.items():
        split.counted = counts[name]
    splits |= {name: Pairs(table.__iter__) for name, table in tables.items() if name != "train"}
    told = [table.understood() for table in tables.values()]
    held = [f"{part:.0%} for {name}" for name, part in (("valid", valid), ("test", test)) if part]
    if held:
        what = {"pairs": "source", "labels": "text", "tags": "sentence"}[shape]
        told.append(f"split by a hash of the {what}, so that no {what} is in two splits: {', '.join(held)}")
    if config.limit:
        what = "pairs" if shape == "pairs" else "examples"
        told.append(f"only the first {config.limit:,} training {what} are used (data.limit)")
    return splits, {name: list(table.paths) for name, table in tables.items()}, told


def _form(path: Path) -> str:
    """tsv, csv or jsonl, as the ending says; "" for any other."""
    return FORMS.get(Path(plain_name(path)).suffix.lower(), "")


def _named_splits(folder: Path) -> dict[str, list[Path]]:
    """The files of a folder that are called after a split: train.tsv, val.en.gz, …"""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.iterdir()):
        stem, dot, _ = plain_name(path).partition(".")
        if dot and path.is_file() and stem.lower() in SPLITS:
            found.setdefault(SPLITS[stem.lower()], []).append(path)
    return found


def _split_folder(folder: Path, config: DataConfig) -> dict[str, list[Path]]:
    found = _named_splits(folder)
    if "train" not in found:
        names = ", ".join(sorted(entry.name for entry in folder.iterdir())[:10]) or "nothing"
        raise UserError(
            f"the folder {folder} has no train.* file (it has {names}); the files of a folder are train.tsv, or "
            "train.en and train.de, and the same for valid and test; or give the file itself"
        )
    return {name: _one_or_two(paths, folder, name, config) for name, paths in found.items()}


def _one_or_two(paths: list[Path], folder: Path, split: str, config: DataConfig) -> list[Path]:
    """A table, or the two files of the wanted languages."""
    tables = [path for path in paths if _form(path)]
    chosen = tables or paths
    if not tables and len(paths) > 2:
        ends = {plain_name(path).partition(".")[2]: path for path in paths}
        chosen = [ends[side] for side in (config.source, config.target) if side in ends]
        if len(chosen) != 2:
            raise UserError(
                f"{folder} has {', '.join(sorted(ends))} for {split}; choose with data.source and data.target"
            )
    if len(tables) > 1:
        raise UserError(f"{folder} has more than one table for {split}: {', '.join(path.name for path in tables)}")
    return chosen


@dataclass(frozen=True)
class Document:
    """A text file and the length of its text in bytes."""

    path: Path
    bytes: int


def _text(paths: dict[str, list[Path]], config: DataConfig) -> Made:
    groups, told = dict(paths), []
    if len(paths["train"]) == 1 and paths["train"][0].is_dir():
        named = _named_splits(paths["train"][0])
        if "train" in named and len(named) > 1:
            groups = {**named, **{k: v for k, v in paths.items() if k != "train"}}
    listed = {name: [file for path in group for file in _prose(path)] for name, group in groups.items()}
    splits: dict[str, Split] = {}
    valid = 0.0 if "valid" in listed else config.valid_part
    test = 0.0 if "test" in listed else config.test_part
    for name, files in listed.items():
        documents = _documents(files)
        total, empty = sum(document.bytes for document in documents), len(files) - len(documents)
        if name == "train":
            start, middle, end = _cuts(documents, total, valid, test)
            splits["train"] = _part(documents, 0, start, empty)
            if valid:
                splits["valid"] = _part(documents, start, middle)
            if test:
                splits["test"] = _part(documents, middle, end)
        else:
            splits[name] = _part(documents, 0, total, empty)
        what = (
            files[0].name if len(files) == 1 else f"{len(files):,} files, each a document, in the order of their names"
        )
        dropped = f"; {empty} without text left out" if empty else ""
        first = next(reading.text(documents[0].path))
        told.append(f"{name}: {what}{dropped}; UTF-8 text, {total:,} bytes; it begins {shorten(first.strip()[:200])}")
    held = [f"{part:.0%} for {name}" for name, part in (("valid", valid), ("test", test)) if part]
    if held:
        told.append(
            f"split in the order of the text, at the beginning of a line where one is near: the last {', '.join(held)}"
        )
    return splits, listed, told


def _prose(path: Path) -> list[Path]:
    """The text files of a folder and the folders inside it, sorted; of a file, itself."""
    if not path.is_dir():
        return [path]
    inside = sorted(p for p in path.rglob("*") if p.is_file() and not _hidden(p.relative_to(path)))
    found = [p for p in inside if Path(plain_name(p)).suffix.lower() in PROSE] or [p for p in inside if is_text(p)]
    if not found:
        raise UserError(f"the folder {path} has no text file (it has {len(inside)} files that are not hidden)")
    return found


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _documents(files: Sequence[Path]) -> list[Document]:
    """Checks every byte. Files without text are left out; if all are, that is an error."""
    documents = []
    for path in files:
        length, blank = 0, True
        for piece in chunks(path):
            length += len(piece)
            blank = blank and not piece.strip()
        if not blank:
            documents.append(Document(path, length))
    if not documents:
        first_line(files[0])
        raise UserError(f"{files[0]} holds only blank lines")
    return documents


def _cuts(documents: Sequence[Document], total: int, valid: float, test: float) -> tuple[int, int, int]:
    """Where train and valid end, in bytes of all documents one after the other."""
    middle = int((1 - test) * total)
    start = min(int((1 - valid - test) * total), middle)
    start = _line_start(documents, start, middle) if valid else middle
    middle = _line_start(documents, middle, total) if test else total
    return (start if valid else middle), middle, total


def _line_start(documents: Sequence[Document], cut: int, stop: int) -> int:
    """The beginning of a line at `cut` or at most a megabyte after it, before `stop`; else that of a character."""
    before = 0
    for document in documents:
        if before < cut < before + document.bytes:
            return before + reading.boundary(document.path, cut - before, min(cut + CHUNK, stop) - before)
        before += document.bytes
    return cut


def _part(documents: Sequence[Document], start: int, end: int, empty: int = 0) -> Text:
    """The bytes [start, end) of all documents one after the other."""
    pieces, before = [], 0
    for document in documents:
        low, high = max(start - before, 0), min(end - before, document.bytes)
        if low < high:
            pieces.append((document.path, low, high))
        before += document.bytes
    split = Text(lambda: (reading.text(*piece) for piece in pieces), empty)
    split.counted = Counts(len(pieces), empty, sum(high - low for _, low, high in pieces))
    return split
