"""Labelled pictures: a folder of class folders, a table of paths, idx files or an npz file; decoded once, and kept."""

from __future__ import annotations

import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from allyouneed.config import DataConfig
from allyouneed.data.decoding import VERSION, BadPictureError, decode_all, square
from allyouneed.data.examples import LabelledPicture
from allyouneed.data.labels import open_labels
from allyouneed.data.paths import SPLITS, existing, is_folder
from allyouneed.data.picture_arrays import Listed, idx_pictures, is_idx, npz_pictures, to_image
from allyouneed.data.sources import Counts, Dataset, Split, drawn, fingerprint, is_blank, limited, part_of
from allyouneed.data.store import TokenKey, store_rows
from allyouneed.data.tables import form_of, open_table
from allyouneed.errors import UserError
from allyouneed.runtime import cores

ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm"),
    *(".tga", ".ico", ".avif", ".jp2", ".jfif", ".jpe"),
)
PATHS = ("path", "file", "filename", "file_name", "image", "picture", "image_path", "filepath", "img")
IDX = {"train-images": ("train", "images"), "train-labels": ("train", "labels")}
IDX |= {"t10k-images": ("test", "images"), "t10k-labels": ("test", "labels")}
LOOKED_AT = 100  # pictures
MANY = 500  # pictures; the decoding of more shows a bar


class PictureSplit(Split):
    """Yields pictures without their pixels; `stored` gives these. Pictures without a label are dropped, and so are
    damaged ones, if they may be. `array`: the pixels of pictures that have a number."""

    def __init__(self, found: Sequence[LabelledPicture], array: np.ndarray | None = None, limit: int = 0) -> None:
        super().__init__()
        good = [picture for picture in found if not is_blank(picture)]
        self.empty_labels = len(found) - len(good)
        self.listed, self.array, self.damaged = good, array, 0
        self.pictures = good
        self.restrict(limit)

    def restrict(self, limit: int) -> None:
        if limit:
            used = drawn(limit, len(self.listed))
            self.listed = self.pictures = [picture for picture, use in zip(self.listed, used) if use]
        self._count()

    def _count(self) -> None:
        if self.array is not None:
            size = len(self.pictures) * int(np.prod(self.array.shape[1:]))
        else:
            size = sum(os.path.getsize(p.where) for p in self.pictures if os.path.exists(p.where))
        self.counted = Counts(len(self.pictures), self.empty_labels + self.damaged, size)

    def __iter__(self) -> Iterator[LabelledPicture]:
        return iter(self.pictures)

    def look(self) -> tuple[int, int]:
        """Of some pictures, without decoding them; a damaged one tells nothing."""
        if self.array is not None:
            return min(self.array.shape[1:3]), 3 if self.array.shape[3] > 2 else 1
        from PIL import Image

        sides, grey = [], True
        for picture in self.pictures[:: max(1, len(self.pictures) // LOOKED_AT)]:
            with suppress(Exception), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with Image.open(picture.where) as opened_picture:
                    sides.append(min(opened_picture.size))
                    grey = grey and opened_picture.mode in ("1", "L", "LA", "I", "F", "I;16")
        return sorted(sides)[len(sides) // 2] if sides else 0, 1 if grey and sides else 3

    def stored(self, key: TokenKey, side: int, channels: int, config: DataConfig) -> np.ndarray:
        """(N, side, side, channels) bytes of the pictures, from the cache or decoded. The pictures that cannot be
        decoded are an error, or are dropped (data.skip_bad)."""
        made = Squares(self.listed, self.array, side, channels, config)
        rows = store_rows(made.rows(), made, key)
        good = rows.lengths > 0
        self.damaged = int((~good).sum())
        self.pictures = [picture for picture, keep in zip(self.listed, good) if keep]
        self._count()
        return rows.tokens.reshape(-1, side, side, channels)


@dataclass(frozen=True)
class Squares:
    """Makes the bytes of pictures: a row of the store each, empty for a damaged one that may be left out."""

    pictures: Sequence[LabelledPicture]
    array: np.ndarray | None
    side: int
    channels: int
    config: DataConfig

    @property
    def fingerprint(self) -> str:
        import PIL  # another version may read what this one does not

        return f"pictures {VERSION} {PIL.__version__} {self.side} {self.channels} {self.config.skip_bad}"

    def __len__(self) -> int:
        return 256  # values of a byte

    def rows(self) -> Iterator[bytes]:
        with _progress(len(self.pictures)) as advance:
            for picture, data in zip(self.pictures, self._decoded()):
                if isinstance(data, BadPictureError) and (data.passing or not self.config.skip_bad):
                    raise UserError(
                        f"{picture.where}: {data}; remove it, or leave out such files with data.skip_bad=true"
                    )
                advance()
                yield b"" if isinstance(data, BadPictureError) else data

    def _decoded(self) -> Iterator[bytes | BadPictureError]:
        if self.array is None:
            workers = self.config.workers or cores()
            return decode_all([picture.where for picture in self.pictures], self.side, self.channels, workers)
        return (self._squared(self.array[picture.number]) for picture in self.pictures)

    def _squared(self, pixels: np.ndarray) -> bytes | BadPictureError:
        """(H, W, C) -> the bytes of the square."""
        if pixels.shape == (self.side, self.side, self.channels):
            return pixels.tobytes()
        try:
            return square(to_image(pixels), self.side, self.channels)
        except BadPictureError as error:
            return error


@contextmanager
def _progress(total: int) -> Iterator[Callable[[], None]]:
    """A bar for many pictures, on a terminal."""
    if total < MANY or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("decoding pictures"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        job = bar.add_task("", total=total)
        yield lambda: bar.advance(job)


def open_pictures(config: DataConfig) -> Dataset:
    """The data set that data.path, data.valid_path and data.test_path describe."""
    given = {"train": config.path, "valid": config.valid_path, "test": config.test_path}
    listed: dict[str, Listed] = {}
    for split, paths in given.items():
        if paths:
            found = _open([existing(path) for path in paths], config)
            listed |= found if split == "train" else {split: _only(found, paths)}
    train = listed["train"]
    held = {"valid": config.valid_part, "test": config.test_part}
    held = {name: 0.0 if name in listed else part for name, part in held.items()}
    splits: dict[str, Split] = {}
    for name in given:
        if name != "train" and name not in listed and not held[name]:
            continue
        of = listed.get(name, train)
        own = of.pictures
        if of is train:
            own = [p for p in own if part_of(p.content, held["valid"], held["test"]) == name]
        if not own:
            raise UserError(
                f"{' '.join(given[name] or config.path)} is too small: no picture of it is in the {name} split; give "
                f"more pictures, or a folder of its own (data.{name}_path)"
            )
        splits[name] = PictureSplit(own, of.array, config.limit)
    told = [one.told for one in listed.values()]
    if parts := ", ".join(f"{100 * part:g} % for {name}" for name, part in held.items() if part):
        told.append(f"split by a hash of the picture, so that none is in two splits: {parts}")
    if config.limit:
        told.append(limited(config.limit))
    contents = {name: [(p.content, p.label) for p in one.pictures] for name, one in listed.items()}
    key = fingerprint("pictures", contents, config.valid_part, config.test_part, config.limit)
    return Dataset(" ".join(config.path), "pictures", splits, told, key)


def _only(found: dict[str, Listed], paths: Sequence[str]) -> Listed:
    if len(found) > 1:
        raise UserError(f"{' '.join(paths)} has several splits ({', '.join(found)}): give the folder of one of them")
    return next(iter(found.values()))


def _open(paths: list[Path], config: DataConfig) -> dict[str, Listed]:
    """The pictures by their split; those without one are train."""
    path, *others = paths
    if is_folder(path) and not others:
        return _folder(path)
    if len(paths) == 2 and all(not is_folder(one) and is_idx(one) for one in paths):
        return {"train": idx_pictures(*paths)}
    if others:
        raise UserError(
            f"{', '.join(map(str, paths))}: pictures come from one folder or one file, or from the two idx files of "
            "pictures and labels, in this order"
        )
    if path.suffix.lower() == ".npz":
        return npz_pictures(path)
    if form_of(path):
        return {"train": _table(path, config)}
    raise UserError(
        f"{path} does not look like labelled pictures: give a folder with one folder per class, a CSV, TSV or JSONL "
        "file with paths and labels, an .npz file, or two idx files"
    )


def _folder(folder: Path) -> dict[str, Listed]:
    """Class folders; or folders train, valid and test of class folders; or the idx files of MNIST."""
    entries = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    inside = [path for path in entries if is_folder(path)]
    idx = {IDX[key]: path for path in entries for key in IDX if path.name.startswith(key)}
    if ("train", "images") in idx and ("train", "labels") in idx:
        known = [split for split, kind in idx if kind == "images" and (split, "labels") in idx]
        pairs = {split: (idx[split, "images"], idx[split, "labels"]) for split in known}
        return {split: idx_pictures(*both) for split, both in pairs.items()}
    named = {SPLITS[path.name.lower()]: path for path in inside if path.name.lower() in SPLITS}
    if "train" in named:
        return {split: _classes(path) for split, path in named.items()}
    if not inside:
        own = sum(path.suffix.lower() in ENDINGS for path in entries)
        what = f"{own:,} pictures without a class" if own else "no folders in it"
        raise UserError(f"{folder} has {what}: put the pictures of each class into a folder of its own, with its name")
    return {"train": _classes(folder)}


def _classes(folder: Path) -> Listed:
    found, aside = [], 0
    names = [path for path in sorted(folder.iterdir()) if is_folder(path) and not path.name.startswith(".")]
    if not names:
        raise UserError(f"{folder} has no folders in it: put the pictures of each class into a folder of its own")
    for path in names:
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and not is_hidden(file, path)]
        pictures = [file for file in files if file.suffix.lower() in ENDINGS]
        if not pictures:
            raise UserError(f"the class folder {path} has no picture: add some, or remove the folder")
        aside += len(files) - len(pictures)
        found += [LabelledPicture(str(file), path.name, _content(file)) for file in pictures]
    left = f"; {aside:,} files that are no pictures by their names left out" if aside else ""
    return Listed(found, f"{folder.name}: {len(found):,} pictures in {len(names)} class folders{left}")


def is_hidden(file: Path, folder: Path) -> bool:
    """Whether the file, or a folder on the way to it, begins with a dot."""
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _names_paths(first: Sequence[str]) -> bool:
    return any(cell.strip().lower() in PATHS for cell in first)


def _table(path: Path, config: DataConfig) -> Listed:
    """Paths, from the folder of the table, and labels."""
    source = config.source
    if not source:
        named = open_table([path], (), _names_paths, config.header, values=(str, int, float))
        names = named.names
        source = next((name for usual in PATHS for name in names if name.strip().lower() == usual), "")
    table = open_labels([path], source, config.target, "", config.header)
    found = []
    for number, row in enumerate(table, 1 + table.table.header):
        if not row.text.strip():
            continue
        file = path.parent / os.path.expanduser(row.text.strip())
        if not file.is_file():
            raise UserError(
                f"{path}, row {number}: there is no picture {file}; paths count from the folder of the table"
            )
        found.append(LabelledPicture(str(file), row.label, _content(file)))
    return Listed(found, table.understood())
