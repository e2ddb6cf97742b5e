"""How the files of public sets of pictures are laid out: the files of each split -> its pictures and their labels."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from allyouneed.data.formats.arrays import read_array
from allyouneed.data.formats.compressed import DAMAGED
from allyouneed.data.formats.pictures import from_arrays
from allyouneed.data.formats.textfile import TextFile
from allyouneed.data.pictures import PictureSplit, hash_splits
from allyouneed.data.public import Form, PublicSet
from allyouneed.errors import UserError

Files = Mapping[str, Sequence[Path]]
Pictures = tuple[np.ndarray, Sequence[str]]  # (N, H, W) or (N, H, W, C), and the label or caption of each
CIFAR10_BYTES = 10_000 * 3073  # of a file


def idx(files: Files, labels: Sequence[str]) -> dict[str, Pictures]:
    """Pictures and the numbers of their labels, as MNIST has them."""
    found: dict[str, Pictures] = {}
    for split, (images, numbers) in files.items():
        pixels, classes = read_array(images), read_array(numbers)
        if pixels.ndim != 3:
            raise UserError(f"{images} is damaged: it does not hold pictures")
        if classes.ndim != 1 or classes.max(initial=0) >= len(labels):
            raise UserError(f"{numbers} is damaged: it does not hold labels from 0 to {len(labels) - 1}")
        found[split] = pixels, [labels[i] for i in classes]
    return found


def cifar10(files: Files, labels: Sequence[str]) -> dict[str, Pictures]:
    """An archive of files with 10,000 records each: a label, and the red, green and blue of 32 x 32 pixels."""
    path = files["train"][0]
    parts: dict[str, list[np.ndarray]] = {split: [] for split in files}
    try:
        with tarfile.open(path, "r:gz") as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                name = Path(member.name).name
                if name.endswith(".bin") and member.isreg() and (file := archive.extractfile(member)) is not None:
                    if member.size != CIFAR10_BYTES:
                        raise ValueError(f"{name} should have {CIFAR10_BYTES:,} bytes, and has {member.size:,}")
                    records = np.frombuffer(file.read(), np.uint8).reshape(-1, 3073)
                    if records[:, 0].max() >= len(labels):
                        raise ValueError(f"{name} has a label above {len(labels) - 1}")
                    parts["test" if name.startswith("test") else "train"].append(records)
        every = {split: np.concatenate(records) for split, records in parts.items()}
    except (tarfile.TarError, OSError, ValueError, *DAMAGED) as error:
        raise UserError(f"{path} is damaged: {error}") from None
    return {
        split: (
            np.ascontiguousarray(records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)),
            [labels[i] for i in records[:, 0]],
        )
        for split, records in every.items()
    }


def emoji(files: Files) -> dict[str, Pictures]:
    """An array (N, 32, 32, 3) of bytes, and one line per picture: the style in which it is drawn, and its caption."""
    images, texts = files["train"]
    pixels = read_array(images)
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (32, 32, 3):
        raise UserError(f"{images} is damaged: it should hold one array of bytes, (N, 32, 32, 3)")
    captions = []
    for number, line in enumerate(TextFile(texts).iter_lines(), 1):
        style, tab, caption = line.partition("\t")
        if not (style.strip() and tab and caption.strip()):
            raise UserError(f"{texts} is damaged: line {number} is not a style, a tab and a caption")
        captions.append(caption.strip().lower())
    return {"train": (pixels, captions)}


LAYOUTS: dict[str, Callable[..., dict[str, Pictures]]] = {"idx": idx, "cifar10": cifar10, "emoji": emoji}


def read_splits(public: PublicSet, form: Form, files: Files) -> dict[str, PictureSplit]:
    """What is held out of train is chosen by a hash of the picture, or of the caption: the same caption is never in two
    splits."""
    word = "caption" if public.shape == "captions" else "label"
    splits: dict[str, PictureSplit] = {}
    for name, (pixels, labels) in LAYOUTS[form.layout](files, **form.options).items():
        listed = from_arrays(pixels, labels, public.name, word)
        chosen = hash_splits(listed, word == "caption", *public.held_out) if name == "train" else {name: listed}
        splits |= {split: PictureSplit(pictures) for split, pictures in chosen.items()}
    return splits
