"""Thousands of damaged arrays and images: each is read or refused, with bounded memory and time."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import re
import struct
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from allyouneed.config import DataConfig
from allyouneed.data.formats.decoding import FORMATS, BadImageError, decode_frames
from allyouneed.data.images import ImageSplit, Squares
from allyouneed.data.opening import open_data
from allyouneed.errors import UserError
from test_images import bomb
from test_import_fuzz import flipped, truncated
from test_untrusted_arrays import bounded
from test_untrusted_images import POSTSCRIPT, started  # noqa: F401 - a fixture

ARRAYS, IMAGES = 600, 1500
SLOWEST = 5.0  # seconds for one input

DTYPES = (
    *("|u1", "|u1", "|u1", "|b1", "|i1", "<i2", ">i4", "<u2", ">u2", "<i8", "<f2", "<f4", ">f8", "<f8", "<U3", ">U2"),
    *("|S4", "<c8", "<M8[ns]", "<m8[D]", "|V5", "|O", "u1,f4"),
)
GOOD_SHAPES = ((6, 4, 5), (6, 4, 5, 3), (6, 4, 5, 1), (6, 3, 3, 4))
SHAPES = (*GOOD_SHAPES, (6,), (6, 1), (0, 4, 5), (6, 0, 5), (6, 4, 5, 7), (), (6, 4))
ODD_SHAPES = ("(1048576, 65536)", "(6, 4, 5, 99999999999)", "(-1,)", "()", "(6, 4, 5)", f"({2**63},)", "(0,) * 9", "6")
LABELS: tuple[Callable[[], np.ndarray], ...] = (
    lambda: np.array(["a", "b"] * 3),
    lambda: np.arange(6) % 2,
    lambda: np.array([b"caf\xe9", b"b"] * 3),
    lambda: np.array(["\ud800", "b"] * 3),
    lambda: np.array([0.0, np.nan] * 3),
    lambda: np.array(["a", None] * 3, object),
    lambda: np.zeros((6, 2)),
    lambda: np.arange(9),
    lambda: np.full(6, 0xFFFFFFFF, np.uint32).view("<U1"),
)


def some_array(chance: random.Random) -> np.ndarray:
    """Of any type and shape; mostly one that is fine."""
    good = chance.random() < 0.5
    shape, dtype = (chance.choice(GOOD_SHAPES), "|u1") if good else (chance.choice(SHAPES), chance.choice(DTYPES))
    raw = np.random.default_rng(chance.randrange(2**32)).integers(0, 256, shape)
    if chance.random() < 0.2:
        raw = np.asfortranarray(raw)
    try:
        made = raw.astype(dtype)
    except (TypeError, ValueError):
        made = np.zeros(shape, dtype)
    with np.errstate(all="ignore"):
        return made / 255 if made.dtype.kind == "f" and chance.random() < 0.5 else made


def npy(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def idx(array: np.ndarray) -> bytes:
    array = array if array.dtype == np.uint8 else np.zeros(array.shape, np.uint8)
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def lying(data: bytes, chance: random.Random) -> bytes:
    """A header that says something else."""
    if data[:3] == b"\0\0\x08":
        place = 3 + chance.randrange(9)
        return data[:place] + struct.pack(">I", chance.choice([0, 1, 7, 2**20, 2**32 - 1])) + data[place + 4 :]
    shape, descr = chance.choice(ODD_SHAPES).encode(), repr(chance.choice(DTYPES)).encode()
    found = re.sub(rb"\([\d, ]*\)", lambda _: shape, data, count=1) if chance.random() < 0.6 else data
    return re.sub(rb"'[<>|][^']*'", lambda _: descr, found, count=1) if chance.random() < 0.6 else found


def nested(data: bytes, chance: random.Random) -> bytes:
    """A header of brackets or signs."""
    text = chance.choice([b"[", b"(", b"{", b"-", b"{'a':", b"'"]) * chance.choice([100, 5000, 60_000])
    return b"\x93NUMPY\2\0" + struct.pack("<I", len(text)) + text + data[:100]


DAMAGE: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "whole": lambda data, chance: data,
    "truncated": truncated,
    "flipped": lambda data, chance: flipped(data, chance) if data else data,
    "lying": lying,
    "nested": nested,
}

PACKERS: tuple[Callable[[bytes], bytes], ...] = (  # each needs far less time than with its usual, large memory
    lambda data: data,
    gzip.compress,
    lambda data: lzma.compress(data, preset=0),
    lambda data: bz2.compress(data, 1),
)


def array_file(root: Path, chance: random.Random) -> tuple[str, list[Path]]:
    """The kind of a file, with its damage, and where it is."""
    kind, how = chance.choice(["npy", "npz", "npz", "idx", "idx"]), chance.choice(list(DAMAGE))
    damaged = DAMAGE[how]
    if kind == "npy":
        path = root / "set.npy"
        path.write_bytes(damaged(npy(some_array(chance)), chance))
        return f"{kind} {how}", [path]
    labels = chance.choice(LABELS[: chance.choice([2, len(LABELS)])])()
    if kind == "npz":
        path, method = root / "set.npz", chance.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
        outside = chance.random() < 0.4  # damage to the archive, or to a member
        content = npy(some_array(chance))
        with zipfile.ZipFile(path, "w", method) as archive:
            archive.writestr("images.npy", content if outside else damaged(content, chance))
            archive.writestr(chance.choice(["labels.npy", "captions.npy", "y.npy"]), npy(labels))
        if outside:
            path.write_bytes(damaged(path.read_bytes(), chance))
        return f"{kind} {how}", [path]
    packed = chance.choice(PACKERS)
    paths = [root / "images", root / "labels"]
    content = damaged(idx(some_array(chance)), chance)
    paths[0].write_bytes(packed(content) if chance.random() < 0.7 else damaged(packed(content), chance))
    paths[1].write_bytes(idx(np.arange(6, dtype=np.uint8) % 2))
    return f"{kind} {how}", paths[: chance.choice([1, 2, 2])]


def read_arrays(paths: list[Path], shape: str) -> None:
    data = open_data(DataConfig(path=tuple(map(str, paths)), valid_part=0.0, test_part=0.0), shape)
    split = data.splits["train"]
    assert isinstance(split, ImageSplit)
    assert split.look()[0] > 0
    for row in Squares(split.listed, 8, 3, DataConfig()).rows():
        assert len(row) == 8 * 8 * 3
    assert all(image.label.encode() or shape == "plain" for image in split)


def report(counts: Counter[str], what: str, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{counts.total()} {what}:", ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_damaged_arrays_are_refused_or_read(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chance, counts, many = random.Random(seed), Counter[str](), ARRAYS * (1 if seed == 1 else 10)
    for number in range(many):
        kind, paths = array_file(tmp_path, chance)
        shape, began, told = chance.choice(["images", "captions", "plain"]), time.process_time(), ""
        try:
            with bounded():
                read_arrays(paths, shape)
        except UserError as error:
            told = str(error)
        counts[f"{kind}: {'refused' if told else 'read'}"] += 1
        assert "\n" not in told, (number, kind)
        assert time.process_time() - began < SLOWEST, (number, kind, shape)
    report(counts, "arrays", capsys)
    assert sum(n for what, n in counts.items() if what.endswith("refused")) > many // 3
    assert sum(n for what, n in counts.items() if what.endswith("read")) > many // 20


# Images


def originals() -> dict[str, list[bytes]]:
    """Small files of every format that Pillow writes, in several modes, some with several frames."""
    Image.init()
    rng, found = np.random.default_rng(0), {}
    noise = [Image.fromarray(rng.integers(0, 256, (24, 20, 3), np.uint8)) for _ in range(3)]
    for kind in sorted(set(Image.SAVE) & set(Image.OPEN)):
        for mode in ("RGB", "L", "1", "P", "RGBA", "I;16", "F", "CMYK"):
            for more in ({}, {"save_all": True, "append_images": [one.convert("RGB") for one in noise[1:]]}):
                made = io.BytesIO()
                try:
                    image = Image.new(mode, (24, 20)) if mode in ("I;16", "F") else noise[0].convert(mode)
                    image.save(made, format=kind, **more)
                except Exception:  # not in this mode, or without further frames
                    continue
                found.setdefault(kind, []).append(made.getvalue())
    return found


# How files of formats begin that Pillow knows and does not write, or that others are known by.
HEADS = {
    "EPS": POSTSCRIPT,
    "EPS in DOS": b"\xc5\xd0\xd3\xc6" + struct.pack("<2I", 30, len(POSTSCRIPT)) + bytes(18) + POSTSCRIPT,
    "WMF": b"\xd7\xcd\xc6\x9a\0\0\0\0\0\0\x20\0\x20\0\x60\0" + bytes(99),
    "EMF": b"\1\0\0\0" + bytes(36) + b" EMF" + bytes(99),
    "FPX": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(999),
    "FITS": b"SIMPLE  =                    T" + b" " * 2850,
    "PSD": b"8BPS\0\1" + bytes(6) + b"\0\3" + struct.pack(">2I", 9, 9) + b"\0\x08\0\3" + bytes(99),
    "XPM": b'/* XPM */\nstatic char *a[] = {\n"1 1 1 1",\n"a c #ff0000",\n"a"};\n',
    "FLI": struct.pack("<IHHHHHH", 999, 0xAF11, 1, 9, 9, 8, 3) + bytes(120),
    "PCD": bytes(2048) + b"PCD_" + bytes(99),
    "MPEG": b"\0\0\1\xb3\x01\0\x10" + bytes(99),
    "HDF5": b"\x89HDF\r\n\x1a\n" + bytes(99),
    "GRIB": b"GRIB\0\0\0\1" + bytes(99),
    "BUFR": b"BUFR" + bytes(99),
    "QOI": b"qoif" + struct.pack(">2I", 9, 9) + b"\3\0" + bytes(99),
    "SVG": b'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script></svg>',
    "PDF": b"%PDF-1.4\n%%EOF\n",
    "HEIC": b"\0\0\0\x18ftypheic" + bytes(99),
}


def resized(data: bytes, chance: random.Random) -> bytes:
    """A number in the header is another one: often a size."""
    found, place = bytearray(data), chance.randrange(min(len(data), 64))
    form = chance.choice(["<H", ">H", "<I", ">I"])
    value = struct.pack(form, chance.choice([0, 1, 255, 0x3FFF, 0x4000, 0x7FFF, 0xFFFF]))
    found[place : place + len(value)] = value
    return bytes(found)


def spliced(data: bytes, chance: random.Random) -> bytes:
    """A part of it twice, or missing."""
    first, second = sorted(chance.randrange(len(data)) for _ in range(2))
    return data[:second] + data[first:] if chance.random() < 0.5 else data[:first] + data[second:]


SPOIL = {
    "whole": lambda data, chance: data,
    "truncated": truncated,
    "flipped": flipped,
    "resized": resized,
    "spliced": spliced,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bytes]]:
    root = tmp_path_factory.mktemp("bombs")
    sides = ((50_000, 10), (9_000, 9_000), (16_000, 16_000), (2**31 - 1, 2**31 - 1), (0, 9))
    bombs = {"bomb": [bomb(root / "a.png", *side).read_bytes() for side in sides]}
    return originals() | {f"head of {name}": [data] for name, data in HEADS.items()} | bombs


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_damaged_images_are_refused_or_read(
    seed: int, files: dict[str, list[bytes]], capsys: pytest.CaptureFixture[str]
) -> None:
    chance, counts, many = random.Random(seed), Counter[str](), IMAGES * (1 if seed == 1 else 10)
    usual = [kind for kind in files if kind in FORMATS]
    for number in range(many):
        kind = chance.choice(usual if chance.random() < 0.7 else list(files))
        how = chance.choice(list(SPOIL))
        data = SPOIL[how](chance.choice(files[kind]), chance)
        began, channels = time.process_time(), chance.choice([1, 2, 3, 4])
        group = kind if kind in (*FORMATS, "bomb") else "another format"
        passing = False
        try:
            with bounded(2 << 30):
                assert {len(frame) for frame in decode_frames(data, 8, channels, 4)} == {64 * channels}
            counts[f"{group}: read"] += 1
        except BadImageError as error:
            passing = error.passing
            counts[f"{group}: refused"] += 1
        assert not passing, (number, kind, how)  # not even large ones lack memory
        assert time.process_time() - began < SLOWEST, (number, kind, how)
    report(counts, "images", capsys)
    assert sum(n for what, n in counts.items() if what.endswith("refused")) > many // 3
    assert sum(n for what, n in counts.items() if what.endswith("read")) > many // 5


def test_whole_files_are_read_or_refused_by_their_format(files: dict[str, list[bytes]]) -> None:
    """Every format that is listed and no other; MPO is JPEG with more behind it."""
    read: dict[str, Any] = {}
    for kind, contents in files.items():
        for data in contents:
            try:
                decode_frames(data, 8, 3, 2)
                read[kind] = True
            except BadImageError:
                read.setdefault(kind, False)
    assert {kind for kind, good in read.items() if good} - {"MPO"} == set(FORMATS) & set(files)
