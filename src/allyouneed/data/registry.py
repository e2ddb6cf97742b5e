"""Data sets by name: the built-in ones and the public ones, as sets.toml lists them."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import resources
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.config import DataConfig
from allyouneed.data.examples import SHAPES
from allyouneed.data.fetch import File, content_checksum, discard, mirror_folder, obtain
from allyouneed.data.sources import IMAGES, Dataset, Source, Split, Text, fingerprint, limited, split_by_hash
from allyouneed.errors import UserError
from allyouneed.format import human_bytes

if TYPE_CHECKING:  # names of data sets come without numpy
    import numpy as np

    from allyouneed.data.formats.images import ImageList
    from allyouneed.data.records import Records

CHANGES = "; the download has no known checksum and may change"
Span = tuple[int, int]


@dataclass(frozen=True)
class Form:
    """The files that a data set can be read from; a built-in one has none."""

    layout: str  # which function of layouts.py reads them
    files: Mapping[str, Sequence[File]]  # of each split
    notes: Sequence[str] = ()
    options: Mapping[str, Any] = field(default_factory=dict)  # of the layout

    @property
    def every_file(self) -> list[File]:
        return list(dict.fromkeys(chain.from_iterable(self.files.values())))


@dataclass(frozen=True)
class NamedSet:
    """A data set that has a name."""

    name: str
    shape: str
    what: str
    licence: str
    origin: str
    forms: Sequence[Form]  # some sets can be read from different files
    notes: Sequence[str] = ()
    held_out: tuple[float, float] = (0.0, 0.0)  # parts of train for valid and test, by a hash of input or caption
    bytes: Mapping[str, Span] = field(default_factory=dict)  # of one document that each split has
    documents: Mapping[str, Span] = field(default_factory=dict)  # that each split has
    swapped: bool = False  # whether the target comes first in the files

    @property
    def built_in(self) -> bool:
        return not self.forms[0].every_file

    @property
    def download(self) -> Form | None:
        """The form that can be downloaded."""
        return next((form for form in self.forms if all(file.address for file in form.every_file)), None)

    def choose(self, mirror: str = "") -> Form:
        """The first form that the mirror has, else the one that can be downloaded."""
        folder = mirror_folder(mirror)
        if folder is not None:
            for form in self.forms:
                if all(os.path.isfile(folder / file.path) for file in form.every_file):
                    return form
        return self.download or self.forms[0]


def _read_table() -> dict[str, NamedSet]:
    table = tomllib.loads((resources.files("allyouneed") / "data" / "sets.toml").read_text(encoding="utf-8"))
    known = {path: File(path, **about) for path, about in table["files"].items()}

    def form(layout: str, files: Mapping[str, list[str]], notes: Sequence[str] = (), **options: Any) -> Form:
        return Form(layout, {split: [known[path] for path in paths] for split, paths in files.items()}, notes, options)

    return {
        name: NamedSet(name, **{**about, "forms": [form(**one) for one in about["forms"]]})
        for name, about in table["sets"].items()
    }


SETS = _read_table()


def listing() -> list[NamedSet]:
    """Every data set, with the size of its files in `what`, and in `origin` whether they can be downloaded."""
    return [_listed(known) for known in SETS.values()]


def _listed(known: NamedSet) -> NamedSet:
    form = known.download
    files = (form or known.forms[0]).every_file
    total = sum(file.bytes for file in files) if all(file.bytes for file in files) else 0
    source = "; from a mirror only" if form is None else "" if all(file.expected for file in files) else CHANGES
    return replace(known, what=known.what + f" ({human_bytes(total)})" * bool(total), origin=known.origin + source)


@dataclass(frozen=True)
class NamedSource:
    """A data set that has been read. Its splits are fixed; `splits` gives them with at most so many examples each (0:
    all)."""

    dataset: Dataset  # without its splits
    splits: Callable[[int], Mapping[str, Split]]

    def split(self, config: DataConfig) -> Dataset:
        found, understood, key = self.splits(config.limit), self.dataset.understood, self.dataset.fingerprint
        if config.limit:
            understood, key = [*understood, limited(config.limit)], fingerprint(key, config.limit)
        names = [*(name for name in ("train", "valid", "test") if name in found), *found]
        splits = {name: found[name] for name in names}
        return replace(self.dataset, splits=splits, understood=list(understood), fingerprint=key)


def read_named(config: DataConfig, shape: str) -> Source:
    """The data set data.name with this shape, which fits its own."""
    from allyouneed.data.layouts import LAYOUTS, rules  # which imports numpy

    known = SETS[config.name]
    form = known.choose(config.mirror)
    paths = {file: obtain(file, config.mirror) for file in form.every_file}
    files = {split: [paths[file] for file in listed] for split, listed in form.files.items()}
    content = [content_checksum(file, path) for file, path in paths.items()] or [rules()]
    origin = known.origin if known.built_in else f"from {known.origin}"
    understood = [f"{known.name}: {known.what}, {origin}", *known.notes, *form.notes]
    if config.reverse:
        understood.append("source and target are swapped (data.reverse)")
    key = fingerprint(known.name, content, config.reverse)
    dataset = Dataset(known.name, known.shape, {}, understood, key, known.licence)
    read = partial(LAYOUTS[form.layout], files, **form.options)
    if known.shape in IMAGES:
        return _images(dataset, image_lists(known, read()), shape)
    records = _records(known, content, config.reverse, read, paths)
    if known.shape != "text":
        return NamedSource(dataset, lambda limit: split_by_hash(known.shape, records, *known.held_out, limit))
    ranges = _ranges(known, records)
    return NamedSource(dataset, lambda limit: {name: Text(records, some) for name, some in ranges.items()})


def _records(
    known: NamedSet, content: list[str], reverse: bool, read: Callable[[], Any], paths: Mapping[File, Path]
) -> Records:
    """The rows that `read` gives for each split. A download that cannot be read and may change is removed."""
    from allyouneed.data.records import Writer, store_records  # which import numpy

    def write(writer: Writer) -> None:
        add = writer.add_documents if known.shape == "text" else writer.add
        try:
            for split, rows in read().items():
                add(split, (row[::-1] for row in rows) if reverse != known.swapped else rows)
        except UserError as error:
            if [path for file, path in paths.items() if discard(file, path)]:
                raise UserError(f"the download of {known.name} cannot be read, and is removed: {error}") from None
            raise

    made_of = {"set": known.name, "files": content, "reverse": reverse}
    return store_records(known.name, made_of, SHAPES[known.shape].filled, write)


def _ranges(known: NamedSet, records: Records) -> dict[str, list[Span]]:
    """The documents of each split, as bytes of the records; one is cut at the beginning of a character."""
    ends = records.ends.tolist()

    def begin(at: int) -> int:
        while 0 < at < ends[-1] and records.stream[at] & 0xC0 == 0x80:
            at -= 1
        return min(at, ends[-1])

    if known.bytes:
        return {name: [(begin(low), begin(high))] for name, (low, high) in known.bytes.items()}
    documents = (known.documents or records.parts).items()
    return {
        name: [span for span in pairwise(ends[low : high + 1]) if span[0] < span[1]] for name, (low, high) in documents
    }


def image_lists(known: NamedSet, splits: Mapping[str, tuple[np.ndarray, Sequence[str]]]) -> dict[str, ImageList]:
    """Of arrays of images with their labels. What is held out of train is chosen by a hash of the image, or of the
    caption: the same caption is never in two splits."""
    from allyouneed.data.formats.images import from_arrays
    from allyouneed.data.images import hash_splits

    word = "caption" if known.shape == "captions" else "label"
    listed = {split: from_arrays(*arrays, known.name, word) for split, arrays in splits.items()}
    return listed | hash_splits(listed["train"], word == "caption", *known.held_out)


def _images(dataset: Dataset, listed: Mapping[str, ImageList], shape: str) -> Source:
    """Images; those of the shape plain lose their labels."""
    from allyouneed.data.builtin.scenes import check
    from allyouneed.data.images import ImageSplit

    checker = check if dataset.name == "scenes" and shape == "captions" else None
    return NamedSource(
        replace(dataset, shape=shape, checker=checker),
        lambda limit: {name: ImageSplit(one, limit, shape == "plain") for name, one in listed.items()},
    )
