"""Pictures in arrays: idx files, npz files, and arrays of numpy."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.data.compressed import DAMAGED, opened
from allyouneed.data.decoding import BadPictureError, as_bytes
from allyouneed.data.examples import LabelledPicture
from allyouneed.data.paths import SPLITS
from allyouneed.errors import UserError

IMAGES, LABELS = ("images", "image", "x", "pixels", "data"), ("labels", "label", "y", "targets", "classes")
MOST_BYTES = 1 << 37  # of an array of pictures


@dataclass(frozen=True)
class Listed:
    """The pictures of some files, and how these were understood."""

    pictures: list[LabelledPicture]
    told: str
    array: np.ndarray | None = None


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


def is_idx(path: Path) -> bool:
    with opened(path) as file:
        return file.read(3) == b"\0\0\x08"


def idx_pictures(images: Path, labels: Path) -> Listed:
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


def npz_pictures(path: Path) -> dict[str, Listed]:
    """Arrays by name: images and labels, or x_train, y_train, x_test, y_test and the like."""
    try:
        file = np.load(path)
        if isinstance(file, np.ndarray):
            raise ValueError("it is a single array, so its name should end in .npy; save it with its labels")
        with file:
            arrays = {name: file[name] for name in file.files}
    except (ValueError, OSError, zipfile.BadZipFile, *DAMAGED) as error:
        raise UserError(f"{path} is no npz file of plain arrays: {error}") from None
    found: dict[str, Listed] = {}
    for mark, split in {"": "train", **SPLITS}.items():
        pixels, labels = (_named(arrays, kinds, mark) for kinds in (IMAGES, LABELS))
        if pixels is None or labels is None or split in found:
            continue
        single = labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1)  # not one column per class
        if pixels.ndim not in (3, 4) or not single or len(labels) != len(pixels):
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
        LabelledPicture(f"{name}, picture {i}", label, _hash(one), i)
        for i, (one, label) in enumerate(zip(array, labels))
    ]
    return Listed(found, told, array)


def _hash(pixels: np.ndarray) -> str:
    return hashlib.blake2b(f"{pixels.shape}".encode() + pixels.tobytes(), digest_size=12).hexdigest()


def _shape(pixels: np.ndarray) -> str:
    kind = {1: "grey", 2: "grey with alpha", 3: "RGB", 4: "RGBA"}.get(pixels.shape[3] if pixels.ndim == 4 else 1, "?")
    return f"{pixels.shape[1]} x {pixels.shape[2]} pixels, {kind}"
