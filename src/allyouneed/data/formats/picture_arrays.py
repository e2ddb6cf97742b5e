"""Pictures in arrays: idx files, npz files, and arrays of NumPy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.data.examples import LabelledPicture
from allyouneed.data.formats.arrays import check_memory, is_npy, npz_file, read_idx, read_npy
from allyouneed.data.formats.decoding import BadPictureError, as_bytes, check_form
from allyouneed.data.formats.file_paths import SPLITS
from allyouneed.errors import UserError, shortened

IMAGES, LABELS = ("images", "image", "x", "pixels", "data"), ("labels", "label", "y", "targets", "classes")
CAPTIONS = (
    *("caption", "captions", "text", "texts", "description", "descriptions", "prompt", "prompts"),
    *("sentence", "sentences", "title", "titles", "alt"),
)
# What an array or a column beside the pictures may be called, by the shape of the data.
BESIDE: dict[str, tuple[str, ...]] = {"pictures": LABELS, "captions": (*CAPTIONS, *LABELS), "plain": ()}
LISTED = 400  # bytes that a picture takes beside its pixels


@dataclass(frozen=True)
class Listed:
    """The pictures of some files, and how these were understood."""

    pictures: list[LabelledPicture]
    told: str
    array: np.ndarray | None = None
    seen: tuple[int, int] = (0, 3)  # of files: the usual length of the shorter side, and the values per pixel


def to_image(pixels: np.ndarray) -> Any:
    """An array (H, W) or (H, W, C) as a picture of Pillow."""
    from PIL import Image

    check_form(pixels.shape, pixels.dtype)
    pixels = as_bytes(np.asarray(pixels))
    return Image.fromarray(pixels[..., 0] if pixels.shape[2:] == (1,) else pixels)


def idx_pictures(images: Path, labels: Path | None) -> Listed:
    """The format of MNIST. None: without labels."""
    pixels, numbers = read_idx(images), None if labels is None else read_idx(labels)
    if labels is None and pixels.ndim not in (3, 4):
        raise UserError(f"{images.name} has {pixels.ndim} dimensions, so it holds no pictures: give the file that does")
    if labels is not None and numbers is not None and (pixels.ndim not in (3, 4) or numbers.ndim != 1):
        raise UserError(
            f"{images.name} has {pixels.ndim} dimensions and {labels.name} {numbers.ndim}: give the file of the "
            "pictures first, then that of the labels"
        )
    files = " and ".join(path.name for path in (images, labels) if path is not None)
    names = None if numbers is None else [str(number) for number in numbers]
    return from_arrays(pixels, names, images.name, f"{files}: idx, {len(pixels):,} pictures of {_shape(pixels)}")


def npz_pictures(path: Path, shape: str) -> dict[str, Listed]:
    """Arrays by name: images and labels, or x_train, y_train, x_test, y_test and the like; captions instead of labels;
    plain pictures need neither, and may be the only array of an npy file."""
    word = "caption" if shape == "captions" else "label"
    if is_npy(path):
        if shape != "plain":
            raise UserError(
                f"{path} is no npz file of plain arrays: it is a single array, so its name should end in .npy; save it "
                f"with its {word}s"
            )
        return {"train": _listed(path, "train", read_npy(path), None, word)}
    with npz_file(path) as (members, read):
        named: dict[str, tuple[str, str | None]] = {}
        for mark, split in {"": "train", **SPLITS}.items():
            images, beside = (_named(members, kinds, mark) for kinds in (IMAGES, BESIDE[shape]))
            if images and (beside or shape == "plain") and split not in named:
                named[split] = images, beside
        if "train" not in named:
            usual = "images" if shape == "plain" else f"images and {word}s"
            raise UserError(
                f"{path} has the arrays {shortened(', '.join(members), 300) or 'none'}: name them {usual}, or x_train, "
                "y_train, x_test and y_test"
            )
        wanted = {name for both in named.values() for name in both if name}
        arrays = {name: read(name) for name in members if name in wanted}
    return {
        split: _listed(path, split, arrays[images], arrays[beside] if beside else None, word)
        for split, (images, beside) in named.items()
    }


def _listed(path: Path, split: str, pixels: np.ndarray, labels: np.ndarray | None, word: str) -> Listed:
    """The pictures of one split of an npz file."""
    form = "pictures are (count, height, width) or (count, height, width, channels)"
    if labels is None and pixels.ndim not in (3, 4):
        raise UserError(f"{path} has an array of shape {pixels.shape} for the pictures; {form}")
    names = None
    if labels is not None:
        single = labels.ndim == 1 or (labels.ndim == 2 and labels.shape[1] == 1)  # not one column per class
        if pixels.ndim not in (3, 4) or not single or len(labels) != len(pixels):
            raise UserError(
                f"{path}: pictures of shape {pixels.shape} do not go with {word}s of shape {labels.shape}; give one "
                f"{word} for each picture; {form}"
            )
        names = [as_label(labels, number, f"{path}: {word} {number}") for number in range(len(labels))]
    return from_arrays(
        pixels, names, path.name, f"{path.name}: {len(pixels):,} pictures of {_shape(pixels)} for {split}"
    )


def as_label(labels: np.ndarray, number: int, where: str) -> str:
    """A label as text; `where` names it for the user."""
    try:
        label = labels[number].item() if labels.ndim > 1 else labels[number]  # a column of one
        text = label.decode() if isinstance(label, bytes) else str(label)
        text.encode()
    except (ValueError, SystemError):  # not UTF-8, half of a pair of code units, or a number above all characters
        raise UserError(f"{where} is not valid text: save it as UTF-8, or as a whole number") from None
    if labels.dtype.kind not in "biufUSM" and not isinstance(label, date):
        raise UserError(f"{where} is neither text nor a number: {shortened(text)}")
    if labels.dtype.kind == "f" and not np.isfinite(label):
        raise UserError(f"{where} is missing ({text}): give one for each picture")
    return text


def _named(names: Sequence[str], kinds: Sequence[str], mark: str) -> str | None:
    plain = {name.lower(): name for name in names}
    wanted = [form for kind in kinds for form in ((f"{kind}_{mark}", f"{mark}_{kind}") if mark else (kind,))]
    return next((plain[name] for name in wanted if name in plain), None)


def from_arrays(pixels: np.ndarray, labels: Sequence[str] | None, name: str, told: str, word: str = "label") -> Listed:
    """Pictures (N, H, W) or (N, H, W, C) of any number type. None: without labels."""
    if labels is not None and len(labels) != len(pixels):
        raise UserError(f"{name} has {len(pixels):,} pictures, but {len(labels):,} {word}s: give one for each picture")
    try:
        check_form(pixels.shape[1:], pixels.dtype)
        check_memory(LISTED * len(pixels))
        array = as_bytes(pixels)
        array = array[..., None] if array.ndim == 3 else array
        found = [
            LabelledPicture(f"{name}, picture {i}", label, _hash(one), i)
            for i, (one, label) in enumerate(zip(array, repeat("") if labels is None else labels))
        ]
    except BadPictureError as error:
        raise UserError(f"{name}: {error}") from None
    except MemoryError:
        raise UserError(f"there is not enough memory for the pictures of {name}: give fewer or smaller ones") from None
    return Listed(found, told, array)


def _hash(pixels: np.ndarray) -> str:
    return hashlib.blake2b(f"{pixels.shape}".encode() + pixels.tobytes(), digest_size=12).hexdigest()


def _shape(pixels: np.ndarray) -> str:
    kind = {1: "grey", 2: "grey with alpha", 3: "RGB", 4: "RGBA"}.get(pixels.shape[3] if pixels.ndim == 4 else 1, "?")
    return f"{pixels.shape[1]} x {pixels.shape[2]} pixels, {kind}"
