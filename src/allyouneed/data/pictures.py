"""Labelled pictures: a folder of class folders, a table of paths, idx files or an npz file; decoded once, and kept."""

from __future__ import annotations

import hashlib
import os
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.config import DataConfig
from allyouneed.data.compressed import DAMAGED, opened
from allyouneed.data.decoding import VERSION, BadPictureError, as_bytes, decode_all, square
from allyouneed.data.examples import LabelledPicture
from allyouneed.data.labels import open_labels
from allyouneed.data.paths import SPLITS, existing, is_folder
from allyouneed.data.sources import Counts, Dataset, Split, drawn, fingerprint, is_blank, limited, part_of
from allyouneed.data.store import TokenKey, store_rows
from allyouneed.data.tables import form_of, open_table
from allyouneed.errors import UserError

ENDINGS = (
    *(".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ppm", ".pgm", ".pbm", ".pnm"),
    *(".tga", ".ico", ".avif", ".jp2"),
)
PATHS = ("path", "file", "filename", "file_name", "image", "picture", "image_path", "filepath", "img")
IMAGES, LABELS = ("images", "image", "x", "pixels", "data"), ("labels", "label", "y", "targets", "classes")
IDX = {"train-images": ("train", "images"), "train-labels": ("train", "labels")}
IDX |= {"t10k-images": ("test", "images"), "t10k-labels": ("test", "labels")}
MOST_BYTES = 1 << 37  # of an array of pictures
LOOKED_AT = 100  # pictures
MANY = 500  # pictures; the decoding of more shows a bar


class PictureSplit(Split):
    """Yields pictures without their pixels; `stored` gives these. Pictures without a label are dropped, and so are
    damaged ones, if they may be. `array`: the pixels of pictures that have a number."""

    def __init__(self, found: Sequence[LabelledPicture], array: np.ndarray | None = None, limit: int = 0) -> None:
        super().__init__()
        good = [picture for picture in found if not is_blank(picture)]
        self.empty_labels = len(found) - len(good)
        self.pictures, self.array, self.damaged = good, array, 0
        self.restrict(limit)

    def restrict(self, limit: int) -> None:
        if limit:
            used = drawn(limit, len(self.pictures))
            self.pictures = [picture for picture, use in zip(self.pictures, used) if use]
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
            with suppress(Exception), Image.open(picture.where) as opened_picture:
                sides.append(min(opened_picture.size))
                grey = grey and opened_picture.mode in ("1", "L", "LA", "I", "F", "I;16")
        return sorted(sides)[len(sides) // 2] if sides else 0, 1 if grey and sides else 3

    def stored(self, key: TokenKey, side: int, channels: int, config: DataConfig) -> np.ndarray:
        """(N, side, side, channels) bytes of the pictures, from the cache or decoded. The pictures that cannot be
        decoded are an error, or are dropped (data.skip_bad)."""
        made = Squares(self.pictures, self.array, side, channels, config)
        rows = store_rows(made.rows(), made, key)
        good = rows.lengths > 0
        self.damaged += int((~good).sum())
        self.pictures = [picture for picture, keep in zip(self.pictures, good) if keep]
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
        return f"pictures {VERSION} {self.side} {self.channels} {self.config.skip_bad}"

    def __len__(self) -> int:
        return 256  # values of a byte

    def rows(self) -> Iterator[bytes]:
        with _progress(len(self.pictures)) as advance:
            for picture, data in zip(self.pictures, self._decoded()):
                if isinstance(data, BadPictureError) and not self.config.skip_bad:
                    raise UserError(
                        f"{picture.where}: {data}; remove it, or leave out such files with data.skip_bad=true"
                    )
                advance()
                yield b"" if isinstance(data, BadPictureError) else data

    def _decoded(self) -> Iterator[bytes | BadPictureError]:
        if self.array is None:
            workers = self.config.workers or os.cpu_count() or 1
            return decode_all([picture.where for picture in self.pictures], self.side, self.channels, workers)
        return (self._squared(self.array[picture.number]) for picture in self.pictures)

    def _squared(self, pixels: np.ndarray) -> bytes:
        """(H, W, C) -> the bytes of the square."""
        if pixels.shape == (self.side, self.side, self.channels):
            return pixels.tobytes()
        return square(to_image(pixels), self.side, self.channels)


def to_image(pixels: np.ndarray) -> Any:
    """An array (H, W) or (H, W, C) as a picture of Pillow."""
    from PIL import Image

    pixels = as_bytes(np.asarray(pixels))
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (2, 3, 4)) or not pixels.size:
        raise BadPictureError(
            f"its shape {pixels.shape} is not that of a picture: (height, width), or (height, width, channels) with 1 "
            "to 4 channels"
        )
    return Image.fromarray(pixels)


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
class Listed:
    """The pictures of some files, and how these were understood."""

    pictures: list[LabelledPicture]
    told: str
    array: np.ndarray | None = None


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
        of, own = listed.get(name, train), listed["train"].pictures
        if of is train:
            own = [p for p in own if part_of(p.content, held["valid"], held["test"]) == name]
        else:
            own = of.pictures
        if not own:
            raise UserError(
                f"{' '.join(config.path)} is too small: no picture of it is in the {name} split; give more pictures, "
                f"or a folder of its own (data.{name}_path)"
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
    if len(paths) == 2 and all(_is_idx(one) for one in paths):
        return {"train": _idx(*paths)}
    if others:
        raise UserError(
            f"{', '.join(map(str, paths))}: pictures come from one folder or one file, or from the two idx files of "
            "pictures and labels, in this order"
        )
    if path.suffix.lower() == ".npz":
        return _npz(path)
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
        pairs = {split: (idx[split, "images"], idx[split, "labels"]) for split, kind in idx if kind == "images"}
        return {split: _idx(*both) for split, both in pairs.items()}
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
        files = [file for file in sorted(path.rglob("*")) if file.is_file() and not file.name.startswith(".")]
        pictures = [file for file in files if file.suffix.lower() in ENDINGS]
        if not pictures:
            raise UserError(f"the class folder {path} has no picture: add some, or remove the folder")
        aside += len(files) - len(pictures)
        found += [LabelledPicture(str(file), path.name, _content(file)) for file in pictures]
    left = f"; {aside:,} files that are no pictures by their names left out" if aside else ""
    return Listed(found, f"{folder.name}: {len(found):,} pictures in {len(names)} class folders{left}")


def _content(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _table(path: Path, config: DataConfig) -> Listed:
    """Paths, from the folder of the table, and labels."""
    source = config.source
    if not source:
        names = open_table([path], (), lambda first: any(cell.strip().lower() in PATHS for cell in first)).names
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


def _is_idx(path: Path) -> bool:
    with opened(path) as file:
        return file.read(3) == b"\0\0\x08"


def _idx(images: Path, labels: Path) -> Listed:
    """The format of MNIST: zeros, the type, the number of dimensions, their sizes, the bytes."""
    pixels, numbers = read_idx(images), read_idx(labels)
    if pixels.ndim not in (3, 4) or numbers.ndim != 1:
        raise UserError(
            f"{images.name} has {pixels.ndim} dimensions and {labels.name} {numbers.ndim}: give the file of the "
            "pictures first, then that of the labels"
        )
    told = f"{images.name} and {labels.name}: idx files, {len(pixels):,} pictures of {_shape(pixels)}"
    return from_arrays(pixels, [str(number) for number in numbers], images.name, told)


def read_idx(path: Path) -> np.ndarray:
    """An idx file of bytes, compressed or not."""
    try:
        with opened(path) as file:
            head = file.read(4)
            if head[:3] != b"\0\0\x08" or not head[3:] or not 1 <= head[3] <= 4:
                raise UserError(f"{path} is no idx file of bytes")
            shape = struct.unpack(f">{head[3]}I", file.read(4 * head[3]))
            size = int(np.prod(shape, dtype=object))
            if size > MOST_BYTES:
                raise UserError(f"{path} says that it has {size:,} bytes, which is too many: it is damaged")
            data = file.read(size + 1)
    except (struct.error, OSError, *DAMAGED) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    if len(data) != size:
        more = "more" if len(data) > size else f"{len(data):,}"
        raise UserError(f"{path} is damaged: it should have {size:,} bytes of data, and has {more}")
    return np.frombuffer(data, np.uint8).reshape(shape)


def _npz(path: Path) -> dict[str, Listed]:
    """Arrays by name: images and labels, or x_train, y_train, x_test, y_test and the like."""
    try:
        with np.load(path) as file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile, *DAMAGED) as error:
        raise UserError(f"{path} is no npz file of plain arrays: {error}") from None
    found: dict[str, Listed] = {}
    for mark, split in {"": "train", **SPLITS}.items():
        pixels, labels = (_named(arrays, kinds, mark) for kinds in (IMAGES, LABELS))
        if pixels is None or labels is None or split in found:
            continue
        if pixels.ndim not in (3, 4) or len(labels) != len(pixels) or labels.ndim > 2:
            raise UserError(
                f"{path}: pictures of shape {pixels.shape} do not go with labels of shape {labels.shape}; give one "
                "label for each picture; pictures are (count, height, width) or (count, height, width, channels)"
            )
        names = [str(label) for label in labels.reshape(len(labels), -1)[:, 0]]
        told = f"{path.name}: {len(pixels):,} pictures of {_shape(pixels)} for {split}"
        found[split] = from_arrays(pixels, names, path.name, told)
    if "train" not in found:
        raise UserError(
            f"{path} has the arrays {', '.join(arrays) or 'none'}: name them images and labels, or x_train, y_train, "
            "x_test and y_test"
        )
    return found


def _named(arrays: Mapping[str, np.ndarray], kinds: Sequence[str], mark: str) -> np.ndarray | None:
    plain = {name.lower(): array for name, array in arrays.items()}
    wanted = [form for kind in kinds for form in ((f"{kind}_{mark}", f"{mark}_{kind}") if mark else (kind,))]
    return next((plain[name] for name in wanted if name in plain), None)


def from_arrays(pixels: np.ndarray, labels: Sequence[str], name: str, told: str) -> Listed:
    """Pictures (N, H, W) or (N, H, W, C) of any number type."""
    if len(labels) != len(pixels):
        raise UserError(f"{name} has {len(pixels):,} pictures, but {len(labels):,} labels")
    try:
        array = as_bytes(pixels)
    except BadPictureError as error:
        raise UserError(f"{name}: {error}") from None
    array = array[..., None] if array.ndim == 3 else array
    if not 1 <= array.shape[3] <= 4:
        raise UserError(
            f"{name}: pictures of shape {pixels.shape[1:]} have {array.shape[3]} channels; 1 to 4 are known"
        )
    found = [
        LabelledPicture(f"{name}, picture {i}", label, hashlib.blake2b(one.tobytes(), digest_size=12).hexdigest(), i)
        for i, (one, label) in enumerate(zip(array, labels))
    ]
    return Listed(found, told, array)


def _shape(pixels: np.ndarray) -> str:
    kind = {1: "grey", 2: "grey with alpha", 3: "RGB", 4: "RGBA"}.get(pixels.shape[3] if pixels.ndim == 4 else 1, "?")
    return f"{pixels.shape[1]} x {pixels.shape[2]} pixels, {kind}"
