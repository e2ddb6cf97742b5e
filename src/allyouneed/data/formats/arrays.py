"""Arrays in files: idx, npy and npz. Memory is taken for what a file holds, not for what it says that it holds, and
nothing in it is ever run: an array of Python objects is refused."""

from __future__ import annotations

import math
import re
import struct
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

import numpy as np

from allyouneed.data.formats.compressed import BROKEN, DAMAGED, opened
from allyouneed.errors import UserError, shortened
from allyouneed.format import human_bytes
from allyouneed.runtime import free_memory

NPY, IDX = b"\x93NUMPY", b"\0\0\x08"  # how such files begin
KINDS = "buifSU"  # of values that are read: numbers and text
LONGEST = 10_000  # bytes of the header of an npy file, as in NumPy
RATIO = 2000  # bytes that a compressed byte may become; deflate reaches 1032
PIECE = 1 << 20  # bytes that are read at a time
# A header is a Python dict. Its entries are searched for, never evaluated: deep brackets crash the parser of Python.
ENTRIES = (
    re.compile(rb"""['"]descr['"]\s*:\s*['"]([<>|=]?[biufcmMOSUV]\d{0,9}(?:\[\w{0,9}\])?)['"]"""),
    re.compile(rb"""['"]fortran_order['"]\s*:\s*(True|False)\b"""),
    re.compile(rb"""['"]shape['"]\s*:\s*\(([\dL\s,]*)\)"""),
)


def is_idx(path: Path) -> bool:
    with _damage_named(path), opened(path) as file:
        return file.read(3) == IDX


def is_npy(path: Path) -> bool:
    with _damage_named(path), path.open("rb") as file:
        return file.read(len(NPY)) == NPY


def read_array(path: Path) -> np.ndarray:
    """An idx file of bytes or an npy file, compressed or not."""
    with _damage_named(path, "idx or npy file of a plain array"), opened(path) as file:
        return _read(file, path.stat().st_size)


@contextmanager
def npz_file(path: Path) -> Iterator[tuple[list[str], Callable[[str], np.ndarray]]]:
    """The names of the arrays of an npz file, and what reads one of them."""
    with _damage_named(path, "npz file of plain arrays"), zipfile.ZipFile(path) as archive:
        listed = archive.infolist()
        members = {member.filename.removesuffix(".npy"): member for member in listed if not member.is_dir()}

        def read(name: str) -> np.ndarray:
            member = members[name]
            try:
                if member.flag_bits & 1:
                    raise ValueError("the data is encrypted: unpack it with its password and save it without one")
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ValueError(
                        "the data is compressed in a way that NumPy does not use: save it with numpy.savez_compressed"
                    )
                with archive.open(member) as file:
                    return _read(file, min(member.compress_size, path.stat().st_size))
            except (ValueError, RuntimeError, *DAMAGED) as error:
                raise ValueError(f"of '{shortened(name)}', {error}") from None

        yield list(members), read


@contextmanager
def _damage_named(path: Path, what: str = "") -> Iterator[None]:
    """`what`: what else the file may not be."""
    try:
        yield
    except MemoryError:
        raise UserError(f"there is not enough memory for the arrays of {path}: give fewer or smaller ones") from None
    except (OSError, OverflowError, *BROKEN, *DAMAGED) as error:
        if reason := getattr(error, "strerror", None):  # what the system says, not what the content is
            raise UserError(f"{path} cannot be read: {reason}") from None
        raise UserError(f"{path} is damaged{what and f', or no {what}'}: {shortened(error, 300)}") from None


def _read(file: IO[bytes], stored: int) -> np.ndarray:
    """`stored`: how many bytes are on the disk."""
    shape, dtype, order = _read_header(file)
    size = math.prod(shape) * dtype.itemsize
    check_memory(min(size, RATIO * stored))
    data = bytearray()  # as long as what is there, not as the header says
    with suppress(EOFError):  # the file is cut off
        while piece := file.read(min(PIECE, size - len(data))):
            data += piece
    if len(data) < size or file.read(1):
        has = "more" if len(data) == size else f"{len(data):,}"
        raise ValueError(f"it should have {size:,} bytes of data, and has {has}")
    return np.frombuffer(data, dtype).reshape(shape, order=order)


def check_memory(size: int) -> None:
    """A UserError if so many bytes are not free."""
    if size > (free := free_memory()):
        raise UserError(
            f"the images need {human_bytes(size)} of memory, and {human_bytes(free)} are free: give fewer or smaller "
            "ones, or files that are read one by one"
        )


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype, Literal["C", "F"]]:
    """The shape, the type, and the order: F if columns come first, as in Fortran."""
    start = file.read(4)
    if start[:3] == IDX and 1 <= start[-1] <= 4:  # zeros, the type, the number of dimensions, their sizes
        sizes = file.read(4 * start[3])
        if len(sizes) < 4 * start[3]:
            raise ValueError("it ends before its data begins")
        return struct.unpack(f">{start[3]}I", sizes), np.dtype(np.uint8), "C"
    start += file.read(4)
    if start[:6] != NPY or start[6:7] not in (b"\1", b"\2", b"\3"):
        raise ValueError("it does not begin as an idx or npy file does")
    width = 2 if start[6] == 1 else 4
    length = int.from_bytes(file.read(width), "little")
    if length > LONGEST:
        raise ValueError(f"its header has {length:,} bytes; that of a plain array has about a hundred")
    text = file.read(length)
    found = [pattern.search(text) for pattern in ENTRIES]
    if not all(found) or len(text) < length:
        raise ValueError("its header is not that of a plain array of numbers or text")
    descr, order, shape = (match[1].decode() for match in found if match)
    entries = [size.strip().removesuffix("L") for size in shape.split(",") if size.strip()]  # L: Python 2
    if not all(size.isdecimal() and len(size) < 20 for size in entries):
        raise ValueError(f"its shape ({shortened(shape)}) is not made of whole numbers")
    return tuple(map(int, entries)), _dtype(descr), "F" if order == "True" else "C"


def _dtype(descr: str) -> np.dtype:
    try:
        found = np.dtype(descr)
    except (TypeError, ValueError, OverflowError, SyntaxError):
        raise ValueError(f"NumPy knows no type {shortened(descr)}") from None
    if found.kind == "O":
        raise ValueError("it holds Python objects, which are never loaded: save it as numbers or as text")
    if found.kind not in KINDS or not found.itemsize:
        raise ValueError(f"its values are of the type {found}: save it as numbers or as text")
    return found
