"""Pictures with labels, with captions or with neither: from a folder, a table of paths, idx files or an npz file. They
are decoded once and kept."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from allyouneed.config import DataConfig
from allyouneed.data.array_files import is_idx
from allyouneed.data.decoding import VERSION, BadPictureError, damage_told, decode_all, open_picture, square
from allyouneed.data.examples import LabelledPicture
from allyouneed.data.paths import existing, is_folder
from allyouneed.data.picture_arrays import Listed, idx_pictures, npz_pictures, to_image
from allyouneed.data.picture_files import folder_pictures, is_picture_name, table_pictures, unlabelled
from allyouneed.data.sources import Counts, Dataset, Split, caption_key, drawn, fingerprint, is_blank, limited, part_of
from allyouneed.data.store import TokenKey, store_rows
from allyouneed.data.tables import form_of
from allyouneed.errors import UserError
from allyouneed.runtime import cores

LOOKED_AT = 100  # pictures
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
    number."""

    def __init__(
        self,
        found: Sequence[LabelledPicture],
        array: np.ndarray | None = None,
        limit: int = 0,
        plain: bool = False,
    ) -> None:
        super().__init__()
        good = [picture for picture in found if (picture.content if plain else not is_blank(picture))]
        self.empty_labels = len(found) - len(good)
        self.listed, self.array, self.damaged = good, array, 0
        self.pictures = good
        self.restrict(limit)

    def drop_labels(self) -> None:
        """From now on these are plain pictures."""
        self.listed = self.pictures = [picture._replace(label="") for picture in self.listed]

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
        sides, grey = [], True
        for picture in self.pictures[:: max(1, len(self.pictures) // LOOKED_AT)]:
            with suppress(BadPictureError), damage_told(), open_picture(picture.where) as opened_picture:
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


def open_pictures(config: DataConfig, shape: str) -> Dataset:
    """The data set that data.path, data.valid_path and data.test_path describe: pictures of one of the shapes PICTURES.
    Captioned ones are split by a hash of the caption, others by a hash of the picture."""
    given = {"train": config.path, "valid": config.valid_path, "test": config.test_path}
    listed: dict[str, Listed] = {}
    for split, paths in given.items():
        if paths:
            found = _open([existing(path) for path in paths], config, shape)
            listed |= found if split == "train" else {split: _only(found, paths)}
    by = "caption" if shape == "captions" else "picture"
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
        splits[name] = PictureSplit(own, of.array, config.limit, plain=shape == "plain")
        if not splits[name].examples:
            raise UserError(_too_small(" ".join(given[name] or config.path), of, name, by))
    told = [one.told for one in listed.values()]
    if parts := ", ".join(f"{100 * part:g} % for {name}" for name, part in held.items() if part):
        told.append(f"split by a hash of the {by}, so that none is in two splits: {parts}")
    if config.limit:
        told.append(limited(config.limit))
    contents = {name: [(p.content, p.label) for p in one.pictures] for name, one in listed.items()}
    key = fingerprint(
        shape, contents, config.valid_part, config.test_part, config.limit, *([config.fold] if config.fold else [])
    )
    return Dataset(" ".join(config.path), shape, splits, told, key)


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
        return {"train": Listed(unlabelled(paths), f"{len(paths):,} pictures, each a file of its own")}
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
