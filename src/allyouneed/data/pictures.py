"""Pictures with labels, with captions or with neither: from a folder, a table of paths, idx files or an npz file. They
are decoded once and kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from allyouneed.config import DataConfig
from allyouneed.data.examples import LabelledPicture, digest, is_blank
from allyouneed.data.formats.arrays import is_idx
from allyouneed.data.formats.decoding import VERSION, BadPictureError, decode_all, square
from allyouneed.data.formats.file_paths import existing, form_of, is_folder
from allyouneed.data.formats.picture_arrays import Listed, idx_pictures, npz_pictures, to_image
from allyouneed.data.formats.pictures import file_pictures, folder_pictures, is_picture_name, table_pictures
from allyouneed.data.sources import Dataset, Split, caption_key, fingerprint, limited, part_of, sampled
from allyouneed.data.store import TokenKey, store_rows
from allyouneed.errors import UserError
from allyouneed.runtime import cores

EXPECTED = {  # of data.path
    "pictures": "labelled pictures: give a folder with one folder per class, a CSV, TSV or JSONL file with paths and "
    "labels, an .npz file, or two idx files",
    "captions": "captioned pictures: give a CSV, TSV or JSONL file with paths and captions, a folder with one folder "
    "per caption, an .npz file, or two idx files",
    "plain": "pictures: give a folder of pictures, a CSV, TSV or JSONL file with their paths, an .npz file, or an idx "
    "file",
}
MANY = 500  # pictures; the decoding of more shows a bar


class PictureSplit(Split):
    """Yields pictures without their pixels; `stored` gives these. Pictures without a label are dropped, unless `plain`
    says that labels do not matter, and so are damaged ones, if they may be. `array`: the pixels of pictures that have a
    number; `seen`: what `look` gives of files."""

    def __init__(
        self,
        found: Sequence[LabelledPicture],
        array: np.ndarray | None = None,
        limit: int = 0,
        plain: bool = False,
        seen: tuple[int, int] = (0, 3),
    ) -> None:
        good = [picture for picture in found if (picture.content if plain else not is_blank(picture))]
        self.empty_labels, self.damaged, self.seen = len(found) - len(good), 0, seen
        if limit:
            good = [picture for picture, use in zip(good, sampled(limit, len(good))) if use]
        self.listed, self.array = good, array
        self.pictures = good
        self._count()

    def sampled(self, limit: int, plain: bool = False) -> PictureSplit:
        """At most so many, drawn at random (0: all), and, if `plain`, without their labels."""
        listed = [picture._replace(label="") for picture in self.listed] if plain else self.listed
        return PictureSplit(listed, self.array, limit, plain, self.seen)

    def _count(self) -> None:
        self.examples, self.empty = len(self.pictures), self.empty_labels + self.damaged
        if self.array is not None:
            self.bytes = len(self.pictures) * int(np.prod(self.array.shape[1:]))
        else:
            self.bytes = sum(os.path.getsize(p.where) for p in self.pictures if os.path.exists(p.where))

    def __iter__(self) -> Iterator[LabelledPicture]:
        return iter(self.pictures)

    def hashes(self) -> tuple[np.ndarray, np.ndarray]:
        both = ((digest(p.content), digest(f"{p.content}\t{p.label}")) for p in self.pictures)
        found = np.fromiter((one for pair in both for one in pair), np.uint64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def labels(self) -> tuple[list[str], np.ndarray]:
        """The different labels, by their first places, and (N,) which of them each picture has."""
        numbers: dict[str, int] = {}
        kinds = np.array([numbers.setdefault(picture.label, len(numbers)) for picture in self.pictures], np.int64)
        return list(numbers), kinds

    def look(self) -> tuple[int, int]:
        """The usual length of the shorter side, and the values per pixel."""
        if self.array is not None:
            return min(self.array.shape[1:3]), 3 if self.array.shape[3] > 2 else 1
        return self.seen

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


@dataclass(frozen=True)
class OwnPictures:
    """The pictures of the user, by the splits that have files of their own."""

    shape: str
    listed: dict[str, Listed]

    def split(self, config: DataConfig) -> Dataset:
        """Captioned pictures are split by a hash of the caption, others by a hash of the picture."""
        given = {"train": config.path, "valid": config.valid_path, "test": config.test_path}
        by, listed = "caption" if self.shape == "captions" else "picture", self.listed
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
                keys = (caption_key(p.label) if by == "caption" else p.content for p in own)
                own = [p for p, key in zip(own, keys) if part_of(key, held["valid"], held["test"], config.fold) == name]
            splits[name] = PictureSplit(own, of.array, config.limit, self.shape == "plain", of.seen)
            if not splits[name].examples:
                raise UserError(_too_small(" ".join(given[name] or config.path), of, name, by))
        told = [one.told for one in listed.values()]
        if parts := ", ".join(f"{100 * part:g} % for {name}" for name, part in held.items() if part):
            told.append(f"split by a hash of the {by}, so that none is in two splits: {parts}")
        if config.limit:
            told.append(limited(config.limit))
        contents = {name: [(p.content, p.label) for p in one.pictures] for name, one in listed.items()}
        fold = [config.fold] if config.fold else []
        key = fingerprint(self.shape, contents, config.valid_part, config.test_part, config.limit, *fold)
        return Dataset(" ".join(config.path), self.shape, splits, told, key)


def read_pictures(config: DataConfig, shape: str) -> OwnPictures:
    """What data.path, data.valid_path and data.test_path describe: pictures of one of the shapes PICTURES."""
    listed: dict[str, Listed] = {}
    for split, paths in {"train": config.path, "valid": config.valid_path, "test": config.test_path}.items():
        if paths:
            found = _open([existing(path) for path in paths], config, shape)
            listed |= found if split == "train" else {split: _only(found, paths)}
    return OwnPictures(shape, listed)


def _too_small(where: str, of: Listed, split: str, by: str) -> str:
    """For the user."""
    many = ""
    if by == "caption":
        count = len({caption_key(picture.label) for picture in of.pictures} - {""})
        many = f" (it has {count:,} different ones, and all pictures with the same caption are in one split)"
    own = "or a smaller data.valid_part or data.test_part"
    if split != "train":
        own = f"a larger data.{split}_part, or pictures of its own (data.{split}_path)"
    return f"{where} is too small: no {by} of it is in the {split} split{many}; give more {by}s, {own}"


def _only(found: dict[str, Listed], paths: Sequence[str]) -> Listed:
    if len(found) > 1:
        raise UserError(f"{' '.join(paths)} has several splits ({', '.join(found)}): give the folder of one of them")
    return next(iter(found.values()))


def _open(paths: list[Path], config: DataConfig, shape: str) -> dict[str, Listed]:
    """The pictures by their split; those without one are train."""
    path, *others = paths
    plain, files = shape == "plain", [one for one in paths if not is_folder(one)]
    if not files and not others:
        return folder_pictures(path, shape)
    if plain and len(files) == len(paths) and all(is_picture_name(one.name) for one in paths):
        return {"train": file_pictures(dict.fromkeys(paths, ""), f"{len(paths):,} pictures, each a file of its own")}
    if len(files) == len(paths) == 2 and all(map(is_idx, paths)):
        return {"train": idx_pictures(path, None if plain else others[0])}
    if others:
        raise UserError(
            f"{', '.join(map(str, paths))}: pictures come from one folder or one file, or from the two idx files of "
            "pictures and labels, in this order"
        )
    if path.suffix.lower() == ".npz" or (plain and path.suffix.lower() == ".npy"):
        return npz_pictures(path, shape)
    if form_of(path):
        return {"train": table_pictures(path, config, shape)}
    if plain and is_idx(path):
        return {"train": idx_pictures(path, None)}
    raise UserError(f"{path} does not look like {EXPECTED[shape]}")
