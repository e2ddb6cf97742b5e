"""Pictures in arrays: idx files, npz files, and arrays of NumPy."""

from __future__ import annotations

import hashlib
import struct
import zipfile
from collections.abc import Sequence
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
CAPTIONS = (
    *("caption", "captions", "text", "texts", "description", "descriptions", "prompt", "prompts"),
    *("sentence", "sentences", "title", "titles", "alt"),
)
# What an array or a column beside the pictures may be called, by the shape of the data.
BESIDE: dict[str, tuple[str, ...]] = {"pictures": LABELS, "captions": (*CAPTIONS, *LABELS), "plain": ()}
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


def idx_pictures(images: Path, labels: Path | None) -> Listed:
    """The format of MNIST: zeros, the type, the number of dimensions, their sizes, the bytes. None: without labels."""
    pixels, numbers = read_idx(images), None if labels is None else read_idx(labels)
    if labels is None and pixels.ndim not in (3, 4):
        raise UserError(f"{images.name} has {pixels.ndim} dimensions, so it holds no pictures: give the file that does")
    if labels is not None and numbers is not None and (pixels.ndim not in (3, 4) or numbers.ndim != 1):
        raise UserError(
            f"{images.name} has {pixels.ndim} dimensions and {labels.name} {numbers.ndim}: give the file of the "
            "pictures first, then that of the labels"
        )
    files = " and ".join(path.name for path in (images, labels) if path is not None)
    names = [""] * len(pixels) if numbers is None else [str(number) for number in numbers]
    return from_arrays(pixels, names, images.name, f"{files}: idx, {len(pixels):,} pictures of {_shape(pixels)}")


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


def npz_pictures(path: Path, shape: str) -> dict[str, Listed]:
    """Arrays by name: images and labels, or x_train, y_train, x_test, y_test and the like; captions instead of labels;
    plain pictures need neither, and may be the only array of an npy file."""
    arrays: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
    try:
        file = np.load(path)
        if isinstance(file, np.ndarray):
            if shape != "plain":
                raise ValueError(
                    f"it is a single array, so its name should end in .npy; save it with its {_word(shape)}s"
                )
            names, arrays = ["images"], {"train": (file, None)}
        else:
            with file:
                names = list(file.files)
                for mark, split in {"": "train", **SPLITS}.items():
                    images, labels = (_named(names, kinds, mark) for kinds in (IMAGES, BESIDE[shape]))
                    if images and (labels or shape == "plain") and split not in arrays:
                        arrays[split] = file[images], file[labels] if labels else None
    except (ValueError, OSError, MemoryError, zipfile.BadZipFile, *DAMAGED) as error:
        raise UserError(f"{path} is no {path.suffix[1:].lower()} file of plain arrays: {error}") from None
    if "train" not in arrays:
        usual = "images" if shape == "plain" else f"images and {_word(shape)}s"
        raise UserError(
            f"{path} has the arrays {', '.join(names) or 'none'}: name them {usual}, or x_train, y_train, x_test and "
            "y_test"
        )
    return {split: _listed(path, split, *both, _word(shape)) for split, both in arrays.items()}


def _listed(path: Path, split: str, pixels: np.ndarray, labels: np.ndarray | None, word: str) -> Listed:
    """The pictures of one split of an npz file."""
    form = "pictures are (count, height, width) or (count, height, width, channels)"
    if labels is None:
        if pixels.ndim not in (3, 4):
            raise UserError(f"{path} has an array of shape {pixels.shape} for the pictures; {form}")
        labels = np.full(len(pixels), "")
    single = labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1)  # not one column per class
    if pixels.ndim not in (3, 4) or not single or len(labels) != len(pixels):
        raise UserError(
            f"{path}: pictures of shape {pixels.shape} do not go with {word}s of shape {labels.shape}; give one "
            f"{word} for each picture; {form}"
        )
    names = [
        label.decode(errors="replace") if isinstance(label, bytes) else str(label)
        for label in labels.reshape(len(labels), -1)[:, 0]
    ]
    return from_arrays(
        pixels, names, path.name, f"{path.name}: {len(pixels):,} pictures of {_shape(pixels)} for {split}"
    )


def _word(shape: str) -> str:
    return "caption" if shape == "captions" else "label"


def _named(names: Sequence[str], kinds: Sequence[str], mark: str) -> str | None:
    plain = {name.lower(): name for name in names}
    wanted = [form for kind in kinds for form in ((f"{kind}_{mark}", f"{mark}_{kind}") if mark else (kind,))]
    return next((plain[name] for name in wanted if name in plain), None)


def from_arrays(pixels: np.ndarray, labels: Sequence[str], name: str, told: str, word: str = "label") -> Listed:
    """Pictures (N, H, W) or (N, H, W, C) of any number type."""
    if len(labels) != len(pixels):
        raise UserError(f"{name} has {len(pixels):,} pictures, but {len(labels):,} {word}s: give one for each picture")
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
