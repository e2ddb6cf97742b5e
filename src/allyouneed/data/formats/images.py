"""The images of a user: in folders, in tables of their paths, and in arrays (idx, npy and npz files)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from itertools import repeat
from pathlib import Path

import numpy as np

from allyouneed.config import DataConfig
from allyouneed.data.examples import LabelledImage
from allyouneed.data.formats.arrays import check_memory, is_npy, npz_file, read_array
from allyouneed.data.formats.columns import (
    Column,
    Role,
    find_columns,
    first_that,
    text_column,
)
from allyouneed.data.formats.file_paths import SPLITS, as_text, entries, files_below, form_of, is_file, is_folder
from allyouneed.data.formats.labels import LabelTable, open_labels
from allyouneed.data.formats.objects import is_unicode
from allyouneed.data.formats.pixels import (
    ENDINGS,
    BadImageError,
    as_bytes,
    check_form,
    open_image,
    pillow_errors,
    quiet,
)
from allyouneed.data.formats.table import Examples, open_table
from allyouneed.data.formats.textfile import TextFile
from allyouneed.errors import UserError, shortened

VALUES = (str, int, float, type(None))  # of JSON; a label may be a number, or missing
LOOKED_AT = 100  # images
LISTED = 400  # bytes that an image takes beside its pixels
GREY = ("1", "L", "LA", "I", "F", "I;16")  # what Pillow calls images without colours
# Usual names of arrays and columns; BESIDE: of labels or captions, by the shape of the data.
IMAGES, LABELS = ("images", "image", "x", "pixels", "data"), ("labels", "label", "y", "targets", "classes")
CAPTIONS = (
    *("caption", "captions", "text", "texts", "description", "descriptions", "prompt", "prompts"),
    *("sentence", "sentences", "title", "titles", "alt"),
)
BESIDE: dict[str, tuple[str, ...]] = {"images": LABELS, "captions": (*CAPTIONS, *LABELS), "plain": ()}
FORM = "(count, height, width) or (count, height, width, channels)"


@dataclass(frozen=True)
class ImageList:
    """The images of some files, and how these were understood."""

    images: Sequence[LabelledImage]
    understood: str
    side: int  # the usual length of the shorter side; 0: not known
    channels: int  # 1: grey, 3: in colours
    array: np.ndarray | None = None  # (N, H, W, C) the pixels of images that have a number


def is_image_name(name: str) -> bool:
    """Whether a name ends as those of images do."""
    return name.strip().lower().endswith(ENDINGS)


# Files


def file_images(files: Iterable[tuple[Path | None, str]], understood: str) -> ImageList:
    """Files with their labels. Each is opened once, to hash it; the size is read of some. No file is an example
    without content, which is dropped and counted."""
    files = list(files)
    contents: dict[Path | None, str] = {None: ""}  # an image may have several captions
    sizes: list[tuple[int, int]] = []
    for number, (file, _) in enumerate(files):
        if file is not None and file not in contents:
            contents[file] = _content(file, sizes if number % max(1, len(files) // LOOKED_AT) == 0 else None)
    sides, channels = zip(*sorted(sizes)) if sizes else ((0,), (3,))
    images = [LabelledImage(str(file or ""), label, contents[file]) for file, label in files]
    return ImageList(images, understood, sides[len(sides) // 2], max(channels))


def _content(path: Path, sizes: list[tuple[int, int]] | None) -> str:
    """A hash of what is in a file. Its shorter side and its channels are added to `sizes`, unless it is damaged."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=12)).hexdigest()
            if sizes is not None:
                file.seek(0)
                with suppress(BadImageError), quiet(), pillow_errors(), open_image(file) as image:
                    sizes.append((min(image.size), 1 if image.mode in GREY else 3))
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    return found


# Folders


def folder_images(folder: Path, shape: str) -> dict[str, ImageList]:
    """Class folders, or for plain images a folder that holds some at any depth; or folders train, valid and test of
    these; or the idx files of MNIST."""
    inside = entries(folder)
    kinds = ("images",) if shape == "plain" else ("images", "labels")
    idx = {
        split: [next((path for path in inside if path.name.startswith(f"{start}-{kind}")), None) for kind in kinds]
        for split, start in {"train": "train", "test": "t10k"}.items()
    }
    if all(idx["train"]):
        return {split: idx_images(*filter(None, paths)) for split, paths in idx.items() if all(paths)}
    splits = {SPLITS[path.name.lower()]: path for path in inside if path.name.lower() in SPLITS and is_folder(path)}
    if "train" not in splits:
        splits = {"train": folder}
    return {split: _files_of(path, shape) for split, path in splits.items()}


def _files_of(folder: Path, shape: str) -> ImageList:
    """The images of class folders, labelled with their names, or plain ones at any depth."""
    inside = [path for path in entries(folder) if not path.name.startswith(".")]
    groups = [folder] if shape == "plain" else [path for path in inside if is_folder(path)]
    if not groups:
        own = sum(is_image_name(path.name) for path in inside)
        what = (
            f"{own:,} images without a {'caption' if shape == 'captions' else 'class'}" if own else "no folders in it"
        )
        put = "put the images of each class into a folder of its own, with its name"
        if shape == "captions":
            put = f"give a CSV, TSV or JSONL file with paths and captions, or {put}, which becomes the caption"
        raise UserError(f"{folder} has {what}: {put}")
    files, aside = [], 0
    for group in groups:
        found, others = images_in(group)
        if not found and shape == "plain":
            raise UserError(
                f"the folder {folder} has no image in it, at any depth: give one with files such as .png or .jpg"
            )
        if not found:
            raise UserError(f"the class folder {group} has no image: add some, or remove the folder")
        files += [(file, "" if shape == "plain" else as_text(group.name)) for file in found]
        aside += others
    understood = f"{folder.name}: {len(files):,} images"
    if shape != "plain":
        understood += f" in {len(groups)} class folders"
    if shape == "captions":
        understood += "; the name of a folder is the caption of its images"
    if odd := [as_text(path.name) for path in groups if not is_unicode(path.name) and shape != "plain"]:
        names = ", ".join(odd[:5]) + ", …" * (len(odd) > 5)
        understood += f"; names of folders that are not UTF-8 are written as {names}"
    if aside:
        understood += f"; left out as no images, by their names: {aside:,}"
    return file_images(files, understood)


def images_in(folder: Path) -> tuple[list[Path], int]:
    """The images at any depth, and how many other files there are; hidden ones do not count."""
    files = [file for file in sorted(files_below(folder)) if is_file(file)]
    images = [file for file in files if is_image_name(file.name)]
    return images, len(files) - len(images)


# Tables


def _has_images(column: Column) -> bool:
    """Whether most cells end as the names of images do."""
    return 2 * sum(map(is_image_name, column.different)) > len(column.different)


def _of_captions(columns: Sequence[Column], free: Sequence[int]) -> int | None:
    texts = [at for at in free if columns[at].filled and not columns[at].has_numbers]
    return text_column(columns, texts) if texts else None


IMAGE = Role(
    "image",
    "data.source",
    ("path", "file", "filename", "file_name", "image", "image", "image_path", "filepath", "img"),
    by_cells=first_that(_has_images),
)
CAPTION = Role(
    "caption",
    "data.target",
    (*CAPTIONS, "label", "labels", "class", "category", "target"),
    parts=True,
    among=first_that(lambda column: column.filled > 0),
    by_cells=_of_captions,
)


def table_images(path: Path, config: DataConfig, shape: str) -> ImageList:
    """Paths, from the folder of the table, and labels or captions."""
    file = TextFile(path, config.encoding)
    header = _header(file, config)
    wanted = (config.source, config.target if shape != "plain" else "")
    table = open_table([file], wanted, _names_images, header, values=VALUES)
    roles = (IMAGE, CAPTION) if shape == "captions" else (IMAGE,)
    asked = {"image": config.source, "caption": config.target}
    columns, guessed = find_columns(table.names, roles, asked, table.where, table.survey)
    found = Examples(table, columns, guessed)
    if shape == "images":
        found = open_labels([file], replace(config, source=table.names[columns["image"]], second="", header=header))
        found.columns = {"image": found.columns["text"], "label": found.columns["label"]}
    rows = list(found.rows())
    unlabelled = found.unlabelled if isinstance(found, LabelTable) else frozenset()
    files: list[tuple[Path | None, str]] = []
    for number, row in enumerate(rows, 1 + found.table.header):
        name, *label = (cell.strip() for cell in row)
        image = path.parent / os.path.expanduser(name)
        if name and not is_file(image):
            raise UserError(
                f"{path}, row {number}: there is no image {shortened(image, 300)}; paths count from the folder of "
                "the table"
            )
        if name or any(label):  # not a blank line
            files.append((image if name else None, "".join(one for one in label if one not in unlabelled)))
    return file_images(files, found.understood())


def _header(file: TextFile, config: DataConfig) -> str:
    """data.header; if it is auto and there are names of images: a first row with such a name is no header, and one
    without, above them, is."""
    if config.header != "auto" or form_of(file.path) == "jsonl":
        return config.header
    table = open_table([file], (), _names_images, "false", values=VALUES)
    first = next((row for row in table.rows(range(len(table.names))) if any(row)), ())
    if any(map(is_image_name, first)):
        return "false"
    return "true" if any(map(_has_images, table.survey())) else "auto"


def _names_images(first: Sequence[str]) -> bool:
    return any(cell.strip().lower() in IMAGE.usual for cell in first)


# Arrays


def idx_images(images: Path, labels: Path | None = None) -> ImageList:
    """The format of MNIST. None: without labels."""
    pixels, numbers = read_array(images), None if labels is None else read_array(labels)
    if labels is not None and numbers is not None and pixels.ndim < numbers.ndim:
        raise UserError(
            f"{images.name} has {pixels.ndim} dimensions and {labels.name} {numbers.ndim}: give the file of the "
            "images first, then that of the labels"
        )
    return from_arrays(pixels, numbers, images.name, more="" if labels is None else f", with labels of {labels.name}")


def npz_images(path: Path, shape: str) -> dict[str, ImageList]:
    """Arrays by name: images and labels, or x_train, y_train, x_test, y_test and the like; captions instead of labels;
    plain images need neither, and may be the only array of an npy file."""
    word = "caption" if shape == "captions" else "label"
    if is_npy(path):
        if shape != "plain":
            raise UserError(
                f"{path} is no npz file of plain arrays: it is a single array, so its name should end in .npy; save it "
                f"with its {word}s"
            )
        return {"train": from_arrays(read_array(path), None, path.name)}
    with npz_file(path) as (members, read):
        names: dict[str, tuple[str, str]] = {}
        for mark, split in {"": "train", **SPLITS}.items():
            images, labels = (_named(members, kinds, mark) for kinds in (IMAGES, BESIDE[shape]))
            if images and (labels or shape == "plain"):
                names.setdefault(split, (images, labels))
        if "train" not in names:
            usual = "images" if shape == "plain" else f"images and {word}s"
            raise UserError(
                f"{path} has the arrays {shortened(', '.join(members), 300) or 'none'}: name them {usual}, or x_train, "
                "y_train, x_test and y_test"
            )
        return {
            split: from_arrays(read(images), read(labels) if labels else None, path.name, word, f" for {split}")
            for split, (images, labels) in names.items()
        }


def _named(names: Sequence[str], kinds: Sequence[str], mark: str) -> str:
    """The first of the names that is of such a kind, with this mark before or after it; "": none."""
    plain = {name.lower(): name for name in names}
    wanted = [form for kind in kinds for form in ((f"{kind}_{mark}", f"{mark}_{kind}") if mark else (kind,))]
    return next((plain[name] for name in wanted if name in plain), "")


def from_arrays(
    pixels: np.ndarray, labels: Sequence[str] | np.ndarray | None, name: str, word: str = "label", more: str = ""
) -> ImageList:
    """Images (N, H, W) or (N, H, W, C) of any number type. None: without labels. `name`: of their file; `more`: what
    else to say of it."""
    if pixels.ndim not in (3, 4):
        raise UserError(f"{name} has an array of shape {pixels.shape} for the images; they are {FORM}")
    count = len(pixels)
    if isinstance(labels, np.ndarray):
        if labels.shape not in ((count,), (count, 1)):  # the latter is not one column per class
            raise UserError(
                f"{name}: images of shape {pixels.shape} do not go with {word}s of shape {labels.shape}; give one "
                f"{word} for each image; images are {FORM}"
            )
        labels = [as_label(labels, number, f"{name}: {word} {number}") for number in range(count)]
    if labels is not None and len(labels) != count:
        raise UserError(f"{name} has {count:,} images, but {len(labels):,} {word}s: give one for each image")
    try:
        check_form(pixels.shape[1:], pixels.dtype)
        check_memory(LISTED * count)
        array = as_bytes(pixels)
        array = array[..., None] if array.ndim == 3 else array
        images = [
            LabelledImage(f"{name}, image {i}", label, _hash(one), i)
            for i, (one, label) in enumerate(zip(array, repeat("") if labels is None else labels))
        ]
    except BadImageError as error:
        raise UserError(f"{name}: {error}") from None
    except MemoryError:
        raise UserError(f"there is not enough memory for the images of {name}: give fewer or smaller ones") from None
    height, width, channels = array.shape[1:]
    kind = ("grey", "grey with alpha", "RGB", "RGBA")[channels - 1]
    understood = f"{name}: {count:,} images of {height} x {width} pixels, {kind}{more}"
    return ImageList(images, understood, min(height, width), 3 if channels > 2 else 1, array)


def _hash(pixels: np.ndarray) -> str:
    return hashlib.blake2b(f"{pixels.shape}".encode() + pixels.tobytes(), digest_size=12).hexdigest()


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
        raise UserError(f"{where} is missing ({text}): give one for each image")
    return text
