"""Public sets of pictures, with address if there is one, checksum, licence and splits."""

from __future__ import annotations

import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from allyouneed.data.fetch import File
from allyouneed.data.formats.compressed import DAMAGED
from allyouneed.data.formats.textfile import TextFile
from allyouneed.data.public import PublicSet, Reader
from allyouneed.data.sources import caption_key, part_of
from allyouneed.errors import UserError

if TYPE_CHECKING:  # names of data sets come without numpy
    import numpy as np

    from allyouneed.data.pictures import PictureSplit

HELD = 1 / 20  # of train, for valid; of captions, for valid and again for test
FASHION = (*("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),)
CIFAR10_BYTES = 10_000 * 3073  # of a file
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
DIGITS = tuple(map(str, range(10)))
MNIST_FILES = {
    "train-images-idx3": (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    "train-labels-idx1": (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    "t10k-images-idx3": (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    "t10k-labels-idx1": (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
}
# The files of a mirror may be compressed in another way than those at the address, which have the second checksum.
FASHION_FILES = {
    "train-images-idx3": (
        *(26421856, "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"),
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    ),
    "train-labels-idx1": (
        *(29491, "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"),
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    ),
    "t10k-images-idx3": (
        *(4422079, "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"),
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    ),
    "t10k-labels-idx1": (
        *(5125, "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"),
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
}
HELD_OUT = "official test of 10,000 pictures; a twentieth of train is held out for valid by a hash of the picture"


def _splits(
    train: tuple[np.ndarray, Sequence[str]], test: tuple[np.ndarray, Sequence[str]], name: str
) -> dict[str, PictureSplit]:
    """Pictures (N, H, W) or (N, H, W, C) and their labels."""
    from allyouneed.data.formats.picture_arrays import from_arrays
    from allyouneed.data.pictures import PictureSplit

    first, last = (from_arrays(*both, name, "") for both in (train, test))
    parts = {
        split: PictureSplit([p for p in first.pictures if part_of(p.content, HELD, 0.0) == split], first.array)
        for split in ("train", "valid")
    }
    return {**parts, "test": PictureSplit(last.pictures, last.array)}


def _idx(name: str, labels: Sequence[str]) -> Reader:
    """Four files, as MNIST has them."""

    def read(paths: Sequence[Path], reverse: bool) -> dict[str, PictureSplit]:
        from allyouneed.data.formats.arrays import read_idx

        found = [read_idx(path) for path in paths]
        for path, array, of in zip(paths, found, (3, 1, 3, 1)):
            if array.ndim != of or (of == 1 and array.max(initial=0) >= len(labels)):
                raise UserError(
                    f"{path} is damaged: it does not hold the {'pictures' if of == 3 else 'labels'} of {name}"
                )
        named = [(pixels, [labels[i] for i in numbers]) for pixels, numbers in zip(found[::2], found[1::2])]
        return _splits(named[0], named[1], name)

    return read


def _cifar10(paths: Sequence[Path], reverse: bool) -> dict[str, PictureSplit]:
    """An archive of files with 10,000 records each: a label, and the red, green and blue of 32 x 32 pixels."""
    import numpy as np

    parts: dict[bool, list[np.ndarray]] = {True: [], False: []}
    try:
        with tarfile.open(paths[0]) as archive:
            for member in sorted(archive.getmembers(), key=lambda member: member.name):
                name = Path(member.name).name
                if name.endswith(".bin") and (file := archive.extractfile(member)) is not None:
                    if member.size != CIFAR10_BYTES:
                        raise ValueError(f"{name} should have {CIFAR10_BYTES:,} bytes, and has {member.size:,}")
                    records = np.frombuffer(file.read(), np.uint8).reshape(-1, 3073)
                    if records[:, 0].max() >= len(CIFAR10):
                        raise ValueError(f"{name} has a label above {len(CIFAR10) - 1}")
                    parts[name.startswith("test")].append(records)
        train, test = (np.concatenate(parts[key]) for key in (False, True))
    except (tarfile.TarError, OSError, ValueError, *DAMAGED) as error:
        raise UserError(f"{paths[0]} is damaged: {error}") from None

    def named(records: np.ndarray) -> tuple[np.ndarray, list[str]]:
        pixels = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels), [CIFAR10[i] for i in records[:, 0]]

    return _splits(named(train), named(test), "cifar10")


def _emoji(paths: Sequence[Path], reverse: bool) -> dict[str, PictureSplit]:
    """An array (N, 32, 32, 3) of bytes, and one line per picture: the style in which it is drawn, and its caption. What
    is held out is held out in every style."""
    import numpy as np

    from allyouneed.data.formats.arrays import read_npy
    from allyouneed.data.formats.picture_arrays import from_arrays
    from allyouneed.data.pictures import PictureSplit

    images, texts = paths
    pixels = read_npy(images)
    if pixels.dtype != np.uint8 or pixels.shape[1:] != (32, 32, 3):
        raise UserError(f"{images} is damaged: it should hold one array of bytes, (N, 32, 32, 3)")
    captions = []
    for number, line in enumerate(TextFile(texts).lines(), 1):
        style, tab, caption = line.partition("\t")
        if not (style.strip() and tab and caption.strip()):
            raise UserError(f"{texts} is damaged: line {number} is not a style, a tab and a caption")
        captions.append(caption.strip().lower())
    listed = from_arrays(pixels, captions, "emoji", "", "caption")
    parts = [part_of(caption_key(picture.label), HELD, HELD) for picture in listed.pictures]
    return {
        split: PictureSplit([p for p, part in zip(listed.pictures, parts) if part == split], listed.array)
        for split in ("train", "valid", "test")
    }


PICTURE_SETS = (
    PublicSet(
        name="mnist",
        shape="pictures",
        what="handwritten digits, 28 x 28 grey, 70,000",
        licence="CC BY-SA 3.0",
        origin="yann.lecun.com/exdb/mnist",
        files=tuple(
            File(f"mnist/{name}-ubyte.gz", *known, f"https://ossci-datasets.s3.amazonaws.com/mnist/{name}-ubyte.gz")
            for name, known in MNIST_FILES.items()
        ),
        read=_idx("mnist", DIGITS),
        notes=(HELD_OUT,),
    ),
    PublicSet(
        name="fashion-mnist",
        shape="pictures",
        what="clothes, shoes and bags, 28 x 28 grey, 10 classes, 70,000",
        licence="MIT",
        origin="github.com/zalandoresearch/fashion-mnist",
        files=tuple(
            File(
                f"fashion-mnist/{name}-ubyte.gz",
                size,
                sha256,
                f"https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/{name}-ubyte.gz",
                address_sha256=theirs,
            )
            for name, (size, sha256, theirs) in FASHION_FILES.items()
        ),
        read=_idx("fashion-mnist", FASHION),
        notes=(HELD_OUT,),
    ),
    PublicSet(
        name="cifar10",
        shape="pictures",
        what="photos of animals and vehicles, 32 x 32 RGB, 10 classes, 60,000",
        licence="unclear",
        origin="cs.toronto.edu/~kriz/cifar.html",
        files=(
            File(
                "cifar10/cifar-10-binary.tar.gz",
                170052171,
                "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
                "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
            ),
        ),
        read=_cifar10,
        notes=(HELD_OUT,),
    ),
    PublicSet(
        name="emoji",
        shape="captions",
        what="emoji in six styles with captions, 32 x 32 RGB, 12,262",
        licence="Apache-2.0, CC BY 4.0, CC BY-SA 4.0, MIT",
        origin="Noto, Twemoji, OpenMoji, Fluent, EmojiOne",
        files=(
            File("emoji/images_u8.npy.xz", 4548156, "55e42f5f2597f5d2ff5710eda3421d16c184fce1016eb55c51a582f81639fa90"),
            File("emoji/captions.tsv", 318224, "47fdd158b283ac077af156e53860153f5f84dfac805baa496351c8dcd7f376bb"),
        ),
        read=_emoji,
        notes=(
            "a twentieth of the captions each for valid and test, by a hash of the caption: the same caption is never "
            "in two splits",
        ),
    ),
)
