"""Arrays that nobody should trust: headers that lie, values that are no pixels, and data that unpacks without end."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import lzma
import os
import pickle
import resource
import struct
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from allyouneed.config import DataConfig
from allyouneed.data.formats.arrays import read_array
from allyouneed.data.images import ImageSplit
from allyouneed.data.in_memory import store_examples
from allyouneed.data.opening import open_data
from allyouneed.errors import UserError
from commands import mistake
from conftest import RUNTIME
from test_images import stored, write_idx

ROOM = 600 << 20  # bytes that reading may take beside what the process has
SECONDS = 20.0
MANY = 700 << 20  # bytes that something small becomes
WHOLE: dict[str, Any] = {"valid_part": 0.0, "test_part": 0.0}
PIXELS = np.random.default_rng(0).integers(0, 256, (6, 4, 5), np.uint8)
LABELS = np.array(["a", "b"] * 3)


@contextmanager
def bounded(room: int = ROOM) -> Iterator[None]:
    """Much memory is an error here, and much time another."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + room, hard))
    began = time.process_time()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    assert time.process_time() - began < SECONDS


def refused(path: Path | list[Path], shape: str = "images", room: int = ROOM) -> str:
    paths = tuple(map(str, path if isinstance(path, list) else [path]))
    with bounded(room), pytest.raises(UserError) as told:
        open_data(DataConfig(path=paths, **WHOLE), shape)
    assert "\n" not in str(told.value)
    return str(told.value)


def read(path: Path, shape: str = "images") -> ImageSplit:
    with bounded():
        split = open_data(DataConfig(path=(str(path),), **WHOLE), shape).splits["train"]
    assert isinstance(split, ImageSplit)
    return split


def npy(array: np.ndarray | None = None, header: bytes = b"", data: bytes = b"", version: int = 1) -> bytes:
    """An npy file as NumPy writes it, or with a header of one's own."""
    if array is not None:
        file = io.BytesIO()
        np.save(file, array)
        return file.getvalue()
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + data


def header(descr: str = "'|u1'", shape: str = "(6, 4, 5)", order: str = "False") -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()


def npz(path: Path, members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


# What is read

ODD = {
    "Fortran order": np.asfortranarray(PIXELS),
    "big-endian": PIXELS.astype(">i4"),
    "big-endian floats": (PIXELS / 255).astype(">f8"),
    "16 bits": PIXELS.astype("<u2") * 257,
    "16 bits, big-endian": PIXELS.astype(">u2") * 257,
    "half": (PIXELS / np.float16(255)).astype(np.float16),
    "a view": np.repeat(PIXELS, 2, axis=2)[:, :, ::2],
}


@pytest.mark.parametrize("name", ODD)
def test_every_order_of_bytes_is_the_same_image(name: str, tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "set.npz", images=ODD[name], labels=LABELS)
    split = read(tmp_path / "set.npz")
    assert split.array is not None
    assert np.abs(split.array[..., 0].astype(int) - PIXELS).max() <= ("half" in name)
    assert [image.label for image in split] == LABELS.tolist()
    np.save(tmp_path / "set.npy", ODD[name])
    assert read(tmp_path / "set.npy", "plain").examples == 6


def test_dark_images_of_16_bits_are_dark_in_either_order(tmp_path: Path) -> None:
    for dtype in ("<u2", ">u2"):
        np.save(tmp_path / "set.npy", np.full((2, 4, 4), 200, dtype))
        array = read(tmp_path / "set.npy", "plain").array
        assert array is not None
        assert array.max() == 1


def test_headers_of_other_writers(tmp_path: Path) -> None:
    path, data = tmp_path / "set.npy", PIXELS.tobytes()
    for text, version in (
        (b'{"shape":(6,4,5),"descr":"|u1","fortran_order":False}', 1),
        (b"{'descr': '|u1', 'fortran_order': False, 'shape': (6L, 4L, 5L)}", 1),
        (header(), 2),
        (header(), 3),
    ):
        path.write_bytes(npy(header=text, data=data, version=version))
        assert (read_array(path) == PIXELS).all()


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.array([b"a", "é".encode()] * 3), ["a", "é"]),
        (np.arange(6) % 2, ["0", "1"]),
        (np.array([[0.0], [1.5]] * 3), ["0.0", "1.5"]),
        (np.array([True, False] * 3), ["True", "False"]),
        (np.array(["a", "b"] * 3, ">U3"), ["a", "b"]),
    ],
)
def test_labels_of_any_plain_type(labels: np.ndarray, names: list[str], tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", images=PIXELS, labels=labels)
    assert [image.label for image in read(tmp_path / "set.npz")] == names * 3


# Values that are no pixels, and labels that are no text

VALUES: dict[str, tuple[Any, Any, str]] = {
    "structured": (np.zeros((6, 4, 5), [("r", "u1"), ("g", "u1")]), LABELS, "of 'images', its header is not that"),
    "text": (np.full((6, 4, 5), "x"), LABELS, "values of the type <U1 are no pixels: give numbers"),
    "bytes": (np.full((6, 4, 5), b"x"), LABELS, "values of the type |S1 are no pixels"),
    "void": (np.zeros((6, 4, 5), "V3"), LABELS, "its values are of the type |V3: save it as numbers or as text"),
    "datetime": (np.zeros((6, 4, 5), "M8[ns]"), LABELS, "its values are of the type datetime64[ns]"),
    "complex": (np.zeros((6, 4, 5), complex), LABELS, "its values are of the type complex128"),
    "nothing": (PIXELS[:0], LABELS[:0], "is too small: no image of it is in the train split"),
    "no width": (PIXELS[:, :, :0], LABELS, "the shape (4, 0) is not that of an image"),
    "one number": (np.array(3), LABELS, "set.npz has an array of shape () for the images"),
    "objects": (PIXELS.astype(object), LABELS, "of 'images', it holds Python objects, which are never loaded"),
    "object labels": (PIXELS, LABELS.astype(object), "of 'labels', it holds Python objects"),
    "no UTF-8": (PIXELS, np.array([b"a", b"caf\xe9"] * 3), "label 1 is not valid text: save it as UTF-8"),
    "half a pair": (PIXELS, np.array(["a", "\ud800"] * 3), "label 1 is not valid text"),
    "no character": (PIXELS, np.full(6, 0x110000, np.uint32).view("<U1"), "label 0 is not valid text"),
    "nan": (PIXELS, np.array([0, np.nan] * 3), "label 1 is missing (nan): give one for each image"),
    "dates": (PIXELS, np.zeros(6, "M8[D]"), "of 'labels', its values are of the type datetime64[D]"),
    "complex labels": (PIXELS, np.zeros(6, complex), "of 'labels', its values are of the type complex128"),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_that_are_no_pixels_or_labels(name: str, tmp_path: Path) -> None:
    images, labels, told = VALUES[name]
    path = tmp_path / "set.npz"
    np.savez(path, images=images, labels=labels)
    assert told in refused(path)
    if labels is LABELS:
        np.save(tmp_path / "set.npy", images)
        assert "set.npy" in refused(tmp_path / "set.npy", "plain")


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, (str(tmp_path / "harm"),)

    data = pickle.dumps(np.array([Harm()], object))
    for content in (npy(header=header("'|O'", "(1,)"), data=data), data):
        (tmp_path / "set.npy").write_bytes(content)
        refused(tmp_path / "set.npy", "plain")
        refused(npz(tmp_path / "set.npz", {"images.npy": content, "labels.npy": content}))
    assert not (tmp_path / "harm").exists()


# Headers that lie

HEADERS: dict[str, tuple[bytes, str]] = {
    "9,000 brackets": (b"[" * 9000, "its header is not that of a plain array"),
    "9,000 signs": (b"{'shape': " + b"-" * 9000 + b"1}", "its header is not that of a plain array"),
    "brackets for a shape": (header(shape="(" * 3000 + ")" * 3000), "its header is not that of a plain array"),
    "a call": (header(shape="(__import__('os').getpid(),)"), "its header is not that of a plain array"),
    "empty": (b"", "its header is not that of a plain array"),
    "no shape": (header().replace(b"shape", b"shade"), "its header is not that of a plain array"),
    "negative": (header(shape="(-6, 4, 5)"), "its header is not that of a plain array"),
    "gaps": (header(shape="(6 4, 5)"), "its shape (6 4, 5) is not made of whole numbers"),
    "many digits": (header(shape=f"({'9' * 5000}, 4)"), "is not made of whole numbers"),
    "64 GiB": (header(shape="(1048576, 256, 256)"), "it should have 68,719,476,736 bytes of data, and has 120"),
    "more than numbers go": (header(shape=f"({2**62}, {2**62}, 9)"), " bytes of data, and has 120"),
    "nothing, very often": (header(shape=f"({10**18}, 0, 9)"), "it should have 0 bytes of data, and has more"),
    "90 dimensions": (header(shape=f"({'1, ' * 90})"), "it should have 1 bytes of data, and has more"),
    "too little": (header(shape="(7, 4, 5)"), "it should have 140 bytes of data, and has 120"),
    "too much": (header(shape="(5, 4, 5)"), "it should have 100 bytes of data, and has more"),
    "no type": (header(descr="'<i7'"), "NumPy knows no type <i7"),
    "a type of another kind": (header(descr="'<Q4'"), "its header is not that of a plain array"),
    "text without letters": (header(descr="'<U0'"), "save it as numbers or as text"),
    "very long text": (header(descr="'<U999999999'"), ""),
}


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_lie(name: str, tmp_path: Path) -> None:
    text, told = HEADERS[name]
    content, path = npy(header=text, data=PIXELS.tobytes()), tmp_path / "set.npy"
    path.write_bytes(content)
    assert told in refused(path, "plain")
    assert told in mistake("train", "compress/shapes", "--data", path, "--out", tmp_path / "run", *RUNTIME)
    for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        said = refused(npz(tmp_path / "set.npz", {"images.npy": content, "labels.npy": npy(LABELS)}, method))
        assert told.split(" bytes of data, and has")[0].removeprefix("it should have") in said


def test_a_header_longer_than_any(tmp_path: Path) -> None:
    path = tmp_path / "set.npy"
    path.write_bytes(b"\x93NUMPY\2\0" + struct.pack("<I", 2**32 - 1) + b"x" * 50)
    assert "its header has 4,294,967,295 bytes" in refused(path, "plain")
    path.write_bytes(b"\x93NUMPY\1\0" + struct.pack("<H", 9000) + header())
    assert "its header is not that of a plain array" in refused(path, "plain")
    path.write_bytes(b"\x93NUMPY\x09\0" + bytes(50))
    assert "it does not begin as an idx or npy file does" in refused(path, "plain")


def test_nothing_very_often_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "set.npy").write_bytes(npy(header=header(shape=f"({10**18}, 0, 9)")))
    assert "the shape (0, 9) is not that of an image" in refused(tmp_path / "set.npy", "plain")
    (tmp_path / "set.idx").write_bytes(b"\0\0\x08\3" + struct.pack(">3I", 2**32 - 1, 0, 7))
    assert "the shape (0, 7) is not that of an image" in refused(tmp_path / "set.idx", "plain")


# Archives


def test_members_that_are_no_arrays(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    good = {"images.npy": npy(PIXELS), "labels.npy": npy(LABELS)}
    told = "is damaged, or no npz file of plain arrays: of 'images', it does not begin as an idx or npy file does"
    for content in (b"", b"no array", bytes(200)):
        assert told in refused(npz(path, {**good, "images.npy": content}))
        assert told in refused(npz(path, {"images": content, "labels.npy": npy(LABELS)}))
    assert read(npz(path, {**good, "notes.txt": b"no array"})).examples == 6
    odd = "has the arrays " + "\\x07" * 3
    assert odd in refused(npz(path, {"\7" * 9000: b""}))
    assert len(refused(npz(path, {f"{i:>200}": b"" for i in range(500)}))) < 700


def test_members_that_cannot_be_unpacked(tmp_path: Path) -> None:
    path, good = tmp_path / "set.npz", {"images.npy": npy(PIXELS), "labels.npy": npy(LABELS)}
    for method in (zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA):
        assert "compressed in a way that NumPy does not use" in refused(npz(path, good, method))
    data = bytearray(npz(path, good).read_bytes())
    for mark, at in ((b"PK\3\4", 6), (b"PK\1\2", 8)):  # as if with a password
        data[data.index(mark) + at] |= 1
    path.write_bytes(data)
    assert "of 'images', the data is encrypted: unpack it with its password" in refused(path)
    whole = npz(path, good).read_bytes()
    for end in (10, len(whole) // 2, len(whole) - 10):
        path.write_bytes(whole[:end])
        assert "is damaged, or no npz file" in refused(path)
    flipped = bytearray(npz(path, good, zipfile.ZIP_STORED).read_bytes())
    flipped[200] ^= 1
    path.write_bytes(flipped)
    assert "is damaged, or no npz file of plain arrays: of 'images'" in refused(path)


def test_a_stored_member_that_is_larger_than_its_archive(tmp_path: Path) -> None:
    content = npy(header=header(shape="(1048576, 256, 256)"), data=PIXELS.tobytes())
    path = npz(tmp_path / "set.npz", {"images.npy": content, "labels.npy": npy(LABELS)}, zipfile.ZIP_STORED)
    data, size = bytearray(path.read_bytes()), struct.pack("<II", 2**32 - 2, 2**32 - 2)
    at = data.index(b"PK\1\2")
    data[at + 20 : at + 28] = size
    path.write_bytes(data)
    said = refused(path)  # newer versions of Python refuse such an archive themselves
    assert "it should have 68,719,476,736 bytes of data" in said or "Overlapped entries" in said


def zeros(file: Any, count: int) -> None:
    """Written piece by piece."""
    for _ in range(count >> 20):
        file.write(bytes(1 << 20))


@pytest.mark.slow
@pytest.mark.parametrize("declared", [1, 2 * MANY, 64 << 30])
def test_members_that_unpack_without_end(declared: int, tmp_path: Path) -> None:
    """To more than they declare, and to less."""
    path, rows = tmp_path / "set.npz", -(-declared // 1000)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("labels.npy", npy(np.zeros(1, np.uint8)))
        with archive.open("images.npy", "w") as member:
            member.write(npy(header=header(shape=f"(1, {rows}, 1000)")))
            zeros(member, MANY)
    has = "more" if declared < MANY else f"{MANY:,}"
    assert f"it should have {max(1, rows * 1000):,} bytes of data, and has {has}" in refused(path, room=2 * MANY)
    if declared > MANY:
        assert "there is not enough memory" in refused(path)


# idx files


def test_idx_files_that_declare_more_than_there_is(tmp_path: Path) -> None:
    labels = write_idx(tmp_path / "labels", np.arange(10) % 2)
    head = b"\0\0\x08\3" + struct.pack(">3I", 1 << 20, 256, 256)
    (tmp_path / "images").write_bytes(head + bytes(1000))
    told = "it should have 68,719,476,736 bytes of data, and has 1,000"
    assert told in refused([tmp_path / "images", labels])
    for ending, write in ((".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)):
        path = tmp_path / f"images{ending}"
        path.write_bytes(write(head + bytes(1000)))
        assert told in refused([path, labels])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("height", "told"),
    [
        (5, "it should have 5,120 bytes of data, and has more"),
        (800 << 10, "it should have 838,860,800 bytes of data, and has 734,003,200"),
        (64 << 20, "it should have 68,719,476,736 bytes of data, and has 734,003,200"),
    ],
)
def test_idx_files_that_unpack_without_end(height: int, told: str, tmp_path: Path) -> None:
    with gzip.open(tmp_path / "images.gz", "wb", 1) as file:
        file.write(b"\0\0\x08\3" + struct.pack(">3I", 1, height, 1 << 10))
        zeros(file, MANY)
    assert told in refused(tmp_path / "images.gz", "plain", room=2 * MANY)
    if "more" not in told:
        assert "there is not enough memory" in refused(tmp_path / "images.gz", "plain")


def test_more_images_than_can_be_listed(tmp_path: Path) -> None:
    """Each of a single pixel, so that their list takes far more than they do."""
    with gzip.open(tmp_path / "images.gz", "wb", 1) as file:
        file.write(b"\0\0\x08\3" + struct.pack(">3I", 250 << 20, 1, 1))
        zeros(file, 250 << 20)
    said = refused(tmp_path / "images.gz", "plain")
    assert "the images need 97.7 GiB of memory, and " in said or "not enough memory for the images" in said


def test_a_damaged_compressed_file_is_told(tmp_path: Path) -> None:
    labels = write_idx(tmp_path / "labels", np.arange(6) % 2)
    images = write_idx(tmp_path / "images.gz", PIXELS)
    images.write_bytes(images.read_bytes()[:2] + b"\xff" * 40)
    assert "images.gz is damaged" in refused([images, labels])
    assert "images.gz is damaged" in refused(images, "plain")


# In memory

IN_MEMORY: dict[str, tuple[Callable[[], Any], str, str]] = {
    "text": (lambda: {"images": np.full((6, 4, 5), "x"), "labels": LABELS}, "images", "type <U1 are no pixels"),
    "complex": (lambda: (np.zeros((6, 4, 5), complex), LABELS), "images", "type complex128 are no pixels"),
    "dates": (lambda: (np.zeros((6, 4, 5), "M8[D]"), LABELS), "images", "are no pixels: give numbers"),
    "structured": (lambda: (np.zeros((6, 4, 5), "u1,u1"), LABELS), "images", "are no pixels: give numbers"),
    "objects": (lambda: (PIXELS.astype(object), LABELS), "images", "row 1 of data: values of the type object are no"),
    "no width": (lambda: (PIXELS[:, :, :0], LABELS), "captions", r"row 1 of data: the shape (4, 0) is not that of"),
    "nothing": (lambda: (PIXELS[:0], LABELS[:0]), "images", "data has no rows"),
    "ragged": (lambda: [([[1, 2], [3]], "a")], "images", "row 1 of data: its rows have different lengths"),
    "5 channels": (lambda: [np.zeros((4, 4, 5))], "plain", "(4, 4, 5) is not that of an image"),
    "no UTF-8": (lambda: [(PIXELS[0], b"caf\xe9")], "images", "row 1 of data: the label is not valid text"),
    "half a pair": (lambda: [(PIXELS[0], "a\ud800")], "captions", "row 1 of data: the caption is not valid text"),
    "half a pair beside a path": (lambda: [("a.png", "a\ud800")], "captions", "the caption is not valid text"),
    "ragged labels": (lambda: [(PIXELS[0], [[1, 2], [3]])], "images", "several labels for an image"),
    "half a pair in a text": (
        lambda: {"text": ["a\ud800b"]},
        "text",
        "zero character or half of a",
    ),
    "half a pair in a row": (
        lambda: [("a\ud800b", "x")],
        "labels",
        "zero character or half of a",
    ),
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_what_is_wrong_in_memory(name: str) -> None:
    make, shape, told = IN_MEMORY[name]
    with bounded(), pytest.raises(UserError) as said:
        store_examples(make(), shape)
    assert told in str(said.value)


def test_labels_in_memory_of_any_type() -> None:
    labels = [b"caf\xc3\xa9", "b", 3, 2.5, datetime.date(2020, 1, 2), np.int64(7)]
    path = store_examples(list(zip(PIXELS, labels)), "images")
    assert [image.label for image in read(path)] == ["café", "b", "3", "2.5", "2020-01-02", "7"]


def test_images_of_odd_arrays_are_stored(tmp_path: Path) -> None:
    np.save(tmp_path / "set.npy", np.asfortranarray(PIXELS.astype(">u2") * 257))
    assert (stored(read(tmp_path / "set.npy", "plain"), 4, 1, name="odd").shape) == (6, 4, 4, 1)
    assert (read_array(write_idx(tmp_path / "images.gz", PIXELS)) == PIXELS).all()
