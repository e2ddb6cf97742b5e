"""Images with labels, with captions or with neither: from a folder, a table of paths, or arrays. They are decoded
once, into the cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from allyouneed.config import DataConfig
from allyouneed.data.examples import LabelledImage, digest
from allyouneed.data.formats.arrays import is_idx
from allyouneed.data.formats.file_paths import existing, form_of, is_folder
from allyouneed.data.formats.images import (
    ImageList,
    file_images,
    folder_images,
    idx_images,
    is_image_name,
    npz_images,
    table_images,
)
from allyouneed.data.formats.pixels import VERSION, BadImageError, decode_all
from allyouneed.data.sources import Dataset, Split, caption_key, fingerprint, limited, part_of, sampled
from allyouneed.data.store import TokenKey, store_rows
from allyouneed.errors import UserError
from allyouneed.runtime import cores

EXPECTED = {  # of data.path
    "images": "labelled images: give a folder with one folder per class, a CSV, TSV or JSONL file with paths and "
    "labels, an .npz file, or two idx files",
    "captions": "captioned images: give a CSV, TSV or JSONL file with paths and captions, a folder with one folder "
    "per caption, an .npz file, or two idx files",
    "plain": "images: give a folder of images, a CSV, TSV or JSONL file with their paths, an .npz file, or an idx file",
}
MANY = 500  # images; the decoding of more shows a bar


class ImageSplit(Split):
    """Yields images without their pixels; `stored` gives these. Images without a label are dropped; `plain`: the
    labels are, and no image. `limit`: at most so many, drawn at random."""

    def __init__(self, listed: ImageList, limit: int = 0, plain: bool = False) -> None:
        good = [image._replace(label="") if plain else image for image in listed.images if image.content]
        good = [image for image in good if plain or image.label.strip()]
        self.empty = len(listed.images) - len(good)
        if limit:
            good = [image for image, use in zip(good, sampled(limit, len(good))) if use]
        self.listed, self.array = replace(listed, images=good), listed.array
        self.damaged = 0
        self._use(good)

    def _use(self, images: Sequence[LabelledImage]) -> None:
        self.images, self.examples = images, len(images)
        if self.array is not None:
            self.bytes = len(images) * int(np.prod(self.array.shape[1:]))
        else:
            self.bytes = sum(os.path.getsize(p.where) for p in images if os.path.exists(p.where))

    def __iter__(self) -> Iterator[LabelledImage]:
        return iter(self.images)

    def hashes(self) -> tuple[np.ndarray, np.ndarray]:
        both = ((digest(p.content), digest(f"{p.content}\t{p.label}")) for p in self.images)
        found = np.fromiter((one for pair in both for one in pair), np.uint64).reshape(-1, 2)
        return found[:, 0], found[:, 1]

    def labels(self) -> tuple[list[str], np.ndarray]:
        """The different labels, by their first places, and (N,) which of them each image has."""
        numbers: dict[str, int] = {}
        kinds = np.array([numbers.setdefault(image.label, len(numbers)) for image in self.images], np.int64)
        return list(numbers), kinds

    def look(self) -> tuple[int, int]:
        """The usual length of the shorter side, and the values per pixel."""
        return self.listed.side, self.listed.channels

    def stored(self, key: TokenKey, side: int, channels: int, config: DataConfig) -> np.ndarray:
        """(N, side, side, channels) bytes of the images, from the cache or decoded. The images that cannot be
        decoded are an error, or are dropped (data.skip_bad)."""
        made = Squares(self.listed, side, channels, config)
        rows = store_rows(made.rows(), made, key)
        good = [image for image, length in zip(self.listed.images, rows.lengths) if length]
        self.empty += len(rows) - len(good) - self.damaged  # the pixels may be asked for again
        self.damaged = len(rows) - len(good)
        self._use(good)
        return rows.tokens.reshape(-1, side, side, channels)


@dataclass(frozen=True)
class Squares:
    """Makes the bytes of images: a row of the store each, empty for a damaged one that may be left out."""

    listed: ImageList
    side: int
    channels: int
    config: DataConfig

    @property
    def fingerprint(self) -> str:
        import PIL  # another version may read what this one does not

        return f"images {VERSION} {PIL.__version__} {self.side} {self.channels} {self.config.skip_bad}"

    def __len__(self) -> int:
        return 256  # values of a byte

    def rows(self) -> Iterator[bytes]:
        images, array = self.listed.images, self.listed.array
        sources = [image.where if array is None else array[image.number] for image in images]
        workers = self.config.workers or cores() if array is None else 1
        squares: Iterable[bytes | BadImageError] = decode_all(sources, self.side, self.channels, workers)
        if len(images) >= MANY and sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import track

            squares = track(squares, "decoding images", len(images), console=Console(stderr=True), transient=True)
        for image, data in zip(images, squares):
            if isinstance(data, BadImageError) and (data.passing or not self.config.skip_bad):
                raise UserError(f"{image.where}: {data}; remove it, or leave out such files with data.skip_bad=true")
            yield b"" if isinstance(data, BadImageError) else data


def hash_splits(listed: ImageList, by_caption: bool, valid: float, test: float, fold: int = 0) -> dict[str, ImageList]:
    """train, and valid and test if they have a part: by a hash of the caption or of the image."""
    keys = (caption_key(image.label) if by_caption else image.content for image in listed.images)
    splits: dict[str, list[LabelledImage]] = {"train": []}
    splits |= {name: [] for name, part in (("valid", valid), ("test", test)) if part}
    for image, key in zip(listed.images, keys):
        splits[part_of(key, valid, test, fold)].append(image)
    return {name: replace(listed, images=images) for name, images in splits.items()}


@dataclass(frozen=True)
class OwnImages:
    """The images of the user, by the splits that have files of their own."""

    shape: str
    listed: dict[str, ImageList]

    def split(self, config: DataConfig) -> Dataset:
        """Captioned images are split by a hash of the caption, others by a hash of the image."""
        by, listed = "caption" if self.shape == "captions" else "image", self.listed
        parts = {"valid": config.valid_part, "test": config.test_part}
        parts = {name: 0.0 if name in listed else part for name, part in parts.items()}
        chosen = listed | hash_splits(listed["train"], by == "caption", **parts, fold=config.fold)
        splits: dict[str, Split] = {}
        for name, paths in {"train": config.path, "valid": config.valid_path, "test": config.test_path}.items():
            if name in chosen:
                splits[name] = ImageSplit(chosen[name], config.limit, self.shape == "plain")
                if not splits[name].examples:
                    where = " ".join(paths or config.path)
                    same = ", and all images with the same caption are in one split" if by == "caption" else ""
                    raise UserError(
                        f"{where} is too small: no {by} of it is in the {name} split{same}; give more {by}s, "
                        "other parts (data.valid_part, data.test_part), or images for each split (data.valid_path, "
                        "data.test_path)"
                    )
        understood = [one.understood for one in listed.values()]
        if held_out := ", ".join(f"{100 * part:g} % for {name}" for name, part in parts.items() if part):
            understood.append(f"split by a hash of the {by}, so that none is in two splits: {held_out}")
        if config.limit:
            understood.append(limited(config.limit))
        contents = {name: [(p.content, p.label) for p in one.images] for name, one in listed.items()}
        fold = [config.fold] if config.fold else []
        key = fingerprint(self.shape, contents, config.valid_part, config.test_part, config.limit, *fold)
        return Dataset(" ".join(config.path), self.shape, splits, understood, key)


def read_images(config: DataConfig, shape: str) -> OwnImages:
    """What data.path, data.valid_path and data.test_path describe: images of one of the shapes IMAGES."""
    listed: dict[str, ImageList] = {}
    for split, paths in {"train": config.path, "valid": config.valid_path, "test": config.test_path}.items():
        if paths:
            found = _open([existing(path) for path in paths], config, shape)
            if split != "train" and len(found) > 1:
                raise UserError(
                    f"{' '.join(paths)} has several splits ({', '.join(found)}): give the folder of one of them"
                )
            listed |= found if split == "train" else {split: found["train"]}
    return OwnImages(shape, listed)


def _open(paths: list[Path], config: DataConfig, shape: str) -> dict[str, ImageList]:
    """The images by their split; those without one are train."""
    path, *others = paths
    plain, are_files = shape == "plain", not any(map(is_folder, paths))
    if plain and are_files and all(is_image_name(one.name) for one in paths):
        files = [(one, "") for one in paths]
        return {"train": file_images(files, f"{len(paths):,} images, each a file of its own")}
    if are_files and len(paths) == 2 and all(map(is_idx, paths)):
        return {"train": idx_images(path, None if plain else others[0])}
    if others:
        raise UserError(
            f"{', '.join(map(str, paths))}: images come from one folder or one file, or from the two idx files of "
            "images and labels, in this order"
        )
    if not are_files:
        return folder_images(path, shape)
    if path.suffix.lower() == ".npz" or (plain and path.suffix.lower() == ".npy"):
        return npz_images(path, shape)
    if form_of(path):
        return {"train": table_images(path, config, shape)}
    if plain and is_idx(path):
        return {"train": idx_images(path, None)}
    raise UserError(f"{path} does not look like {EXPECTED[shape]}")
