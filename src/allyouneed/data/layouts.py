"""How the files of public sets of texts are laid out.

A layout is a function from the files of each split to the rows of each split. The rows of running text are documents,
each in pieces of UTF-8. Nothing of an archive is written to disk.
"""

from __future__ import annotations

import random
import re
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from allyouneed.config import DataConfig
from allyouneed.data.formats.compressed import BROKEN, DAMAGED
from allyouneed.data.formats.pairs import open_pairs
from allyouneed.data.formats.squad import open_questions
from allyouneed.data.formats.table import Table
from allyouneed.data.formats.textfile import TextFile
from allyouneed.errors import UserError
from allyouneed.format import human_bytes

Row = Sequence[str]
Files = Mapping[str, Sequence[Path]]
UNPACKED = 1 << 31  # bytes of an archive, at most
REVIEW_BYTES = 1 << 20  # of one review, at most
REVIEW = re.compile(r"aclImdb/((?:train|test)/(?:pos|neg|unsup))/(\d+)_\d+\.txt")


def _each(read: Callable[..., Iterable[Any]]) -> Callable[..., dict[str, Iterable[Any]]]:
    """A layout in which every split has files of its own."""
    return lambda files, **options: {split: read(*paths, **options) for split, paths in files.items()}


def parallel(source: Path, target: Path) -> Iterator[Row]:
    """One sentence per line, and its translation in the other file."""
    return Table((TextFile(source), TextFile(target)), "parallel", ("1", "2")).rows((0, 1))


def pairs(path: Path) -> Iterator[Row]:
    """source<TAB>target; further columns are left out."""
    _check_size(path)
    return open_pairs([TextFile(path)], DataConfig(source="1", target="2", header="false")).rows()


def labels(path: Path, names: Mapping[str, str]) -> Iterator[Row]:
    """text<TAB>label. `names`: better names for some labels."""
    return ((_text(text), names.get(label, label)) for text, label in pairs(path))


def _text(review: str) -> str:
    return review.replace("<br />", "\n")


def trec(path: Path) -> Iterator[Row]:
    """LABEL:fine question, one per line, in Latin-1; the fine part of the label is left out."""
    for line in path.read_text(encoding="latin-1").removesuffix("\n").split("\n"):
        label, _, question = line.partition(" ")
        yield question, label.partition(":")[0]


def conll(path: Path) -> Iterable[Row]:
    """A word and its tag per line."""
    from allyouneed.data.formats.conll import open_tags  # which imports numpy: names of data sets come without it

    return open_tags(TextFile(path), DataConfig()).rows()


def squad(files: Files, titles: Mapping[str, Sequence[str]] | None = None) -> dict[str, Iterable[Row]]:
    """SQuAD's JSON. `titles`: the articles of each split, in their order; without them, all of its file."""
    return {
        split: open_questions(TextFile(path), DataConfig(), (titles or {}).get(split, ())).rows()
        for split, (path,) in files.items()
    }


def text(path: Path) -> list[Iterable[bytes]]:
    """A file is a document."""
    return [TextFile(path).chunks()]


def text_per_line(*paths: Path) -> Iterator[Iterable[bytes]]:
    """A line is a document; a label after a tab is left out."""
    every_line = chain.from_iterable(TextFile(path).iter_lines() for path in paths)
    return ([_text(line.partition("\t")[0]).encode()] for line in every_line)


def aclimdb(files: Files) -> dict[str, list[tuple[str, str]]]:
    """The archive of IMDB: one file per review, in folders of train and test, pos and neg."""
    archive = files["train"][0]
    found = _reviews(archive, [f"{split}/{side}" for split in files for side in ("pos", "neg")])
    return {split: _mixed(found[f"{split}/pos"], found[f"{split}/neg"]) for split in files}


def aclimdb_text(files: Files, labelled: bool) -> dict[str, Iterator[Iterable[bytes]]]:
    """The reviews of the folder unsup as documents. `labelled`: after those of pos and neg."""
    archive = files["train"][0]
    found = _reviews(archive, ["train/unsup", *(["train/pos", "train/neg"] if labelled else [])])
    first = [review for review, _ in _mixed(found["train/pos"], found["train/neg"])] if labelled else []
    return {"train": ([review.encode()] for review in chain(first, found["train/unsup"]))}


def _mixed(positive: Sequence[str], negative: Sequence[str]) -> list[tuple[str, str]]:
    """In a fixed random order: that of the files on which the published scores were measured."""
    rows = [*((review, "positive") for review in positive), *((review, "negative") for review in negative)]
    random.Random(0).shuffle(rows)
    return rows


def _reviews(path: Path, folders: Sequence[str]) -> dict[str, list[str]]:
    """The reviews in some folders of the archive, by the numbers in the names of their files."""
    found: dict[str, list[tuple[int, str]]] = {folder: [] for folder in folders}
    size = 0
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in archive:
                size += member.size
                if size > UNPACKED:
                    raise ValueError(f"it has more than {human_bytes(UNPACKED)} of files")
                name = REVIEW.fullmatch(member.name)
                if name is None or name[1] not in found:
                    continue
                if not member.isreg() or member.size > REVIEW_BYTES:
                    raise ValueError(f"{member.name} is not a file of at most {human_bytes(REVIEW_BYTES)}")
                content = archive.extractfile(member)
                assert content is not None  # it is a file
                found[name[1]].append((int(name[2]), _text(content.read().decode())))
    except (tarfile.TarError, OSError, ValueError, *DAMAGED) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    for folder, reviews in found.items():
        if not reviews:
            raise UserError(f"{path} is damaged: it has no reviews in aclImdb/{folder}")
    return {folder: [review for _, review in sorted(reviews)] for folder, reviews in found.items()}


def _check_size(path: Path) -> None:
    """Raise a UserError if a zip archive would fill the disk."""
    if not zipfile.is_zipfile(path):
        return
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(member.file_size for member in archive.infolist())
    except BROKEN as error:
        raise UserError(f"{path} is damaged: it is not a whole zip archive ({error})") from None
    if size > UNPACKED:
        raise UserError(f"{path} is damaged: it has more than {human_bytes(UNPACKED)} of files")


LAYOUTS: dict[str, Callable[..., Mapping[str, Iterable[Any]]]] = {
    "parallel": _each(parallel),
    "pairs": _each(pairs),
    "labels": _each(labels),
    "trec": _each(trec),
    "conll": _each(conll),
    "squad": squad,
    "text": _each(text),
    "lines": _each(text_per_line),
    "aclimdb": aclimdb,
    "aclimdb-text": aclimdb_text,
}
