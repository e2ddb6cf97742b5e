"""How the files of public sets are laid out, and how built-in sets are made.

A layout is a function from the files of each split to its rows or, of images, to an array and the label or caption of
each. The rows of running text are documents, each in pieces of UTF-8. Nothing of an archive is written to disk. All
files with a checksum have been verified: what an archive holds is not checked again.
"""

from __future__ import annotations

import math
import random
import re
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.config import DataConfig
from allyouneed.data.examples import digest, to_cells
from allyouneed.data.formats.arrays import read_array
from allyouneed.data.formats.compressed import BROKEN
from allyouneed.data.formats.conll import open_tags
from allyouneed.data.formats.pairs import open_pairs
from allyouneed.data.formats.squad import open_questions
from allyouneed.data.formats.table import Table
from allyouneed.data.formats.textfile import TextFile
from allyouneed.data.store import Filled, Stream, stored
from allyouneed.errors import UserError
from allyouneed.format import human_bytes

Row = Sequence[str]
Files = Mapping[str, Sequence[Path]]
Images = tuple[np.ndarray, Sequence[str]]  # (N, H, W) or (N, H, W, C), and the label or caption of each
UNPACKED = 1 << 31  # bytes of an archive, at most
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
    found = _reviews(files["train"][0])
    return {split: _mixed(found[f"{split}/pos"], found[f"{split}/neg"]) for split in files}


def aclimdb_text(files: Files, labelled: bool) -> dict[str, Iterator[Iterable[bytes]]]:
    """The reviews of the folder unsup as documents. `labelled`: after those of pos and neg."""
    found = _reviews(files["train"][0])
    first = [review for review, _ in _mixed(found["train/pos"], found["train/neg"])] if labelled else []
    return {"train": ([review.encode()] for review in chain(first, found["train/unsup"]))}


def _mixed(positive: Sequence[str], negative: Sequence[str]) -> list[tuple[str, str]]:
    """In a fixed random order: that of the files on which the published scores were measured."""
    rows = [*((review, "positive") for review in positive), *((review, "negative") for review in negative)]
    random.Random(0).shuffle(rows)
    return rows


def _reviews(path: Path) -> dict[str, list[str]]:
    """The reviews in each folder of the archive, by the numbers in the names of their files."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name, content in _members(path):
        if about := REVIEW.fullmatch(name):
            found[about[1]].append((int(about[2]), _text(content.decode())))
    return {folder: [review for _, review in sorted(reviews)] for folder, reviews in found.items()}


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """The name and the content of each file of a tar.gz whose checksum is known."""
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if (file := archive.extractfile(member)) is not None:
                yield member.name, file.read()


def idx(files: Files, labels: Sequence[str]) -> dict[str, Images]:
    """Images and the numbers of their labels, as MNIST has them."""
    arrays = {split: [read_array(path) for path in paths] for split, paths in files.items()}
    return {split: (pixels, [labels[i] for i in numbers]) for split, (pixels, numbers) in arrays.items()}


def cifar10(files: Files, labels: Sequence[str]) -> dict[str, Images]:
    """An archive of files of records: a label, and the red, green and blue of 32 x 32 pixels."""
    found: dict[str, list[np.ndarray]] = {split: [] for split in files}
    for name, content in sorted(_members(files["train"][0])):
        if name.endswith(".bin"):
            part = "test" if Path(name).name.startswith("test") else "train"
            found[part].append(np.frombuffer(content, np.uint8).reshape(-1, 3073))
    every = {split: np.concatenate(records) for split, records in found.items()}
    return {
        split: (
            np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)),
            [labels[i] for i in records[:, 0]],
        )
        for split, records in every.items()
    }


def emoji(files: Files) -> dict[str, Images]:
    """An array (N, 32, 32, 3) of bytes, and one line per image: the style in which it is drawn, and its caption."""
    images, texts = files["train"]
    return {"train": (read_array(images), [line.split("\t")[1].lower() for line in TextFile(texts).iter_lines()])}


def written(files: Files, name: str) -> dict[str, Iterable[Any]]:
    """The texts that the function NAME of builtin/NAME.py writes by rules."""
    found: dict[str, Iterable[Any]] = {}
    for split, examples in _generated(name).items():
        if isinstance(examples, str):
            found[split] = [[examples.encode()]]
        elif isinstance(examples[0], str):
            found[split] = [[f"{text}\n".encode()] for text in examples]
        else:
            found[split] = map(to_cells, examples)
    return found


def draw_set(files: Files, name: str) -> dict[str, Images]:
    """The images that the function NAME of builtin/NAME.py draws by rules, from the cache or drawn."""

    def write(stream: Stream) -> Filled:
        splits = _generated(name)
        for pixels, *_ in splits.values():
            stream.put(pixels.tobytes())
        return {"splits": {split: (pixels.shape, words) for split, (pixels, words, *_) in splits.items()}}, {}

    cached, found, at = stored("built-in", name, {"rules": rules()}, write), {}, 0
    for split, (shape, words) in cached.meta["splits"].items():
        found[split] = cached.stream[at : at + math.prod(shape)].reshape(shape), words
        at += math.prod(shape)
    return found


def _generated(name: str) -> Mapping[str, Any]:
    splits: Mapping[str, Any] = getattr(import_module(f"allyouneed.data.builtin.{name}"), name)()
    return splits


def rules() -> str:
    """A hash of the rules and the words of all built-in sets."""
    folder = Path(__file__).with_name("builtin")
    paths = [path for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".txt")]
    return str(digest("".join(path.read_text("utf-8") for path in paths)))


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


LAYOUTS: dict[str, Callable[..., Mapping[str, Any]]] = {
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
    "idx": idx,
    "cifar10": cifar10,
    "emoji": emoji,
    "written": written,
    "draw_set": draw_set,
}
