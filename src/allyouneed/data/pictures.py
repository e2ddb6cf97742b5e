"""Pictures with labels, with captions or with neither: from a folder, a table of paths, or arrays. They are decoded
once, into the cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from allyouneed.config import DataConfig
from allyouneed.data.examples import LabelledPicture, digest
from allyouneed.data.formats.arrays import is_idx
from allyouneed.data.formats.decoding import VERSION, BadPictureError, decode_all
from allyouneed.data.formats.file_paths import existing, form_of, is_folder
from allyouneed.data.formats.pictures import (
    PictureList,
    file_pictures,
    folder_pictures,
    idx_pictures,
    is_picture_name,
    npz_pictures,
    table_pictures,
)
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
    """Yields pictures without their pixels; `stored` gives these. Pictures without a label are dropped; `plain`: the
    labels are, and no picture. `limit`: at most so many, drawn at random."""

    def __init__(self, listed: PictureList, limit: int = 0, plain: bool = False) -> None:
        good = [picture._replace(label="") if plain else picture for picture in listed.pictures if picture.content]
        good = [picture for picture in good if plain or picture.label.strip()]
        self.empty = len(listed.pictures) - len(good)
        if limit:
            good = [picture for picture, use in zip(good, sampled(limit, len(good))) if use]
        self.listed, self.array = replace(listed, pictures=good), listed.array
        self.damaged = 0
        self._use(good)

    def _use(self, pictures: Sequence[LabelledPicture]) -> None:
        self.pictures, self.examples = pictures, len(pictures)
        if self.array is not None:
            self.bytes = len(pictures) * int(np.prod(self.array.shape[1:]))
        else:
            self.bytes = sum(os.path.getsize(p.where) for p in pictures if os.path.exists(p.where))

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
        return self.listed.side, self.listed.channels

    def stored(self, key: TokenKey, side: int, channels: int, config: DataConfig) -> np.ndarray:
        """(N, side, side, channels) bytes of the pictures, from the cache or decoded. The pictures that cannot be
        decoded are an error, or are dropped (data.skip_bad)."""
        made = Squares(self.listed, side, channels, config)
        rows = store_rows(made.rows(), made, key)
        good = [picture for picture, length in zip(self.listed.pictures, rows.lengths) if length]
        self.empty += len(rows) - len(good) - self.damaged  # the pixels may be asked for again
        self.damaged = len(rows) - len(good)
        self._use(good)
        return rows.tokens.reshape(-1, side, side, channels)


@dataclass(frozen=True)
class Squares:
    """Makes the bytes of pictures: a row of the store each, empty for a damaged one that may be left out."""

    listed: PictureList
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
        pictures, array = self.listed.pictures, self.listed.array
        sources = [picture.where if array is None else array[picture.number] for picture in pictures]
        workers = self.config.workers or cores() if array is None else 1
        squares: Iterable[bytes | BadPictureError] = decode_all(sources, self.side, self.channels, workers)
        if len(pictures) >= MANY and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import track

            squares = track(squares, "decoding pictures", len(pictures), console=Console(stderr=True), transient=True)
        for picture, data in zip(pictures, squares):
            if isinstance(data, BadPictureError) and (data.passing or not self.config.skip_bad):
                raise UserError(f"{picture.where}: {data}; remove it, or leave out such files with data.skip_bad=true")
            yield b"" if isinstance(data, BadPictureError) else data


def hash_splits(
    listed: PictureList, by_caption: bool, valid: float, test: float, fold: int = 0
) -> dict[str, PictureList]:
    """train, and valid and test if they have a part: by a hash of the caption or of the picture."""
    keys = (caption_key(picture.label) if by_caption else picture.content for picture in listed.pictures)
    splits: dict[str, list[LabelledPicture]] = {"train": []}
    splits |= {name: [] for name, part in (("valid", valid), ("test", test)) if part}
    for picture, key in zip(listed.pictures, keys):
        splits[part_of(key, valid, test, fold)].append(picture)
    return {name: replace(listed, pictures=pictures) for name, pictures in splits.items()}


@dataclass(frozen=True)
class OwnPictures:
    """The pictures of the user, by the splits that have files of their own."""

    shape: str
    listed: dict[str, PictureList]

    def split(self, config: DataConfig) -> Dataset:
        """Captioned pictures are split by a hash of the caption, others by a hash of the picture."""
        by, listed = "caption" if self.shape == "captions" else "picture", self.listed
        parts = {"valid": config.valid_part, "test": config.test_part}
        parts = {name: 0.0 if name in listed else part for name, part in parts.items()}
        chosen = listed | hash_splits(listed["train"], by == "caption", **parts, fold=config.fold)
        splits: dict[str, Split] = {}
        for name, paths in {"train": config.path, "valid": config.valid_path, "test": config.test_path}.items():
            if name in chosen:
                splits[name] = PictureSplit(chosen[name], config.limit, self.shape == "plain")
                if not splits[name].examples:
                    where = " ".join(paths or config.path)
                    same = ", and all pictures with the same caption are in one split" if by == "caption" else ""
                    raise UserError(
                        f"{where} is too small: no {by} of it is in the {name} split{same}; give more {by}s, "
                        "other parts (data.valid_part, data.test_part), or pictures for each split (data.valid_path, "
                        "data.test_path)"
                    )
        understood = [one.understood for one in listed.values()]
        if held_out := ", ".join(f"{100 * part:g} % for {name}" for name, part in parts.items() if part):
            understood.append(f"split by a hash of the {by}, so that none is in two splits: {held_out}")
        if config.limit:
            understood.append(limited(config.limit))
        contents = {name: [(p.content, p.label) for p in one.pictures] for name, one in listed.items()}
        fold = [config.fold] if config.fold else []
        key = fingerprint(self.shape, contents, config.valid_part, config.test_part, config.limit, *fold)
        return Dataset(" ".join(config.path), self.shape, splits, understood, key)


def read_pictures(config: DataConfig, shape: str) -> OwnPictures:
    """What data.path, data.valid_path and data.test_path describe: pictures of one of the shapes PICTURES."""
    listed: dict[str, PictureList] = {}
    for split, paths in {"train": config.path, "valid": config.valid_path, "test": config.test_path}.items():
        if paths:
            found = _open([existing(path) for path in paths], config, shape)
            if split != "train" and len(found) > 1:
                raise UserError(
                    f"{' '.join(paths)} has several splits ({', '.join(found)}): give the folder of one of them"
                )
            listed |= found if split == "train" else {split: found["train"]}
    return OwnPictures(shape, listed)


def _open(paths: list[Path], config: DataConfig, shape: str) -> dict[str, PictureList]:
    """The pictures by their split; those without one are train."""
    path, *others = paths
    plain, are_files = shape == "plain", not any(map(is_folder, paths))
    if plain and are_files and all(is_picture_name(one.name) for one in paths):
        files = [(one, "") for one in paths]
        return {"train": file_pictures(files, f"{len(paths):,} pictures, each a file of its own")}
    if are_files and len(paths) == 2 and all(map(is_idx, paths)):
        return {"train": idx_pictures(path, None if plain else others[0])}
    if others:
        raise UserError(
            f"{', '.join(map(str, paths))}: pictures come from one folder or one file, or from the two idx files of "
            "pictures and labels, in this order"
        )
    if not are_files:
        return folder_pictures(path, shape)
    if path.suffix.lower() == ".npz" or (plain and path.suffix.lower() == ".npy"):
        return npz_pictures(path, shape)
    if form_of(path):
        return {"train": table_pictures(path, config, shape)}
    if plain and is_idx(path):
        return {"train": idx_pictures(path, None)}
    raise UserError(f"{path} does not look like {EXPECTED[shape]}")
