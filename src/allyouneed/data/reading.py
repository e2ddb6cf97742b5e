"""Bytes on disk -> checked UTF-8 text, streaming, about a megabyte at a time."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from allyouneed.errors import UserError

CHUNK = 1 << 20  # bytes
COMPRESSED = (".gz", ".xz", ".bz2")
BOM = b"\xef\xbb\xbf"


class NotText(UserError):
    """The bytes of a file are not UTF-8 text."""


def plain_name(path: Path) -> str:
    """The name of a file without the ending of its compression: train.en.gz -> train.en."""
    return path.stem if path.suffix.lower() in COMPRESSED else path.name


def chunks(path: Path) -> Iterator[bytes]:
    """The text in pieces that end after a newline if they have one, and always between two characters.

    A byte order mark is removed and \\r\\n becomes \\n. The first byte that is not UTF-8 text is an error.
    """
    rest, offset = b"", 0  # offset: where `rest` begins in the (decompressed) file
    for block in _blocks(path):
        buffer = rest + block
        end = _cut(buffer) if block else len(buffer)
        piece, rest = buffer[:end], buffer[end:]
        _check(piece, path, offset)
        text = piece.removeprefix(BOM) if offset == 0 else piece
        offset += end
        if text:
            yield text.replace(b"\r\n", b"\n") if b"\r\n" in text else text


def text(path: Path, start: int = 0, end: int | None = None) -> Iterator[str]:
    """The text between two byte positions. A position inside a character is moved back to its beginning."""
    at = 0
    for piece in chunks(path):
        low, high = _character(piece, start - at), len(piece) if end is None else _character(piece, end - at)
        if low < high:
            yield piece[low:high].decode()
        at += len(piece)
        if end is not None and at >= end:
            return


def lines(path: Path) -> Iterator[str]:
    """The lines without their ends. Only a newline ends a line, never U+2028 or a form feed."""
    carry = ""
    for piece in chunks(path):
        found = (carry + piece.decode()).split("\n")
        carry = found.pop()
        yield from found
    if carry:
        yield carry


def boundary(path: Path, at: int, stop: int) -> int:
    """Where the first line begins in [at, stop); if none does, where the character at `at` begins."""
    seen, character = 0, at
    for piece in chunks(path):
        if seen >= stop:
            break
        found = piece.find(b"\n", max(0, at - 1 - seen), stop - 1 - seen)
        if found >= 0:
            return seen + found + 1
        if seen <= at < seen + len(piece):
            character = seen + _character(piece, at - seen)
        seen += len(piece)
    return character


def is_text(path: Path) -> bool:
    """Whether the first megabyte is UTF-8 text. A file that cannot be read is an error."""
    try:
        next(chunks(path), b"")
    except NotText:
        return False
    return True


def _blocks(path: Path) -> Iterator[bytes]:
    """Blocks of the decompressed file, then one empty block."""
    try:
        with opened(path) as stream:
            while block := stream.read(CHUNK):
                yield block
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged: it cannot be decompressed ({error})") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    yield b""


def opened(path: Path) -> IO[bytes]:
    """A stream of the decompressed bytes. The first bytes tell the format, whatever the file is called."""
    with path.open("rb") as stream:
        head = stream.read(10)
    if head.startswith(b"\x1f\x8b"):
        return gzip.open(path)  # type: ignore[return-value]
    if head.startswith(b"\xfd7zXZ\0"):
        return lzma.open(path)
    if head.startswith(b"BZh") and head[4:] == b"1AY&SY":
        return bz2.open(path)
    return path.open("rb")


def _cut(buffer: bytes) -> int:
    """The end of the last line, or of the last whole character if no line ends; \\r and \\n stay together."""
    newline = buffer.rfind(b"\n") + 1
    if newline:
        return newline
    last = _character(buffer, len(buffer) - 1)
    lead = buffer[last]
    whole = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    return last if last + whole > len(buffer) or lead == ord("\r") else len(buffer)


def _character(piece: bytes, at: int) -> int:
    """`at`, limited to the piece and moved back to the beginning of its character."""
    at = min(max(at, 0), len(piece))
    while 0 < at < len(piece) and piece[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _check(piece: bytes, path: Path, offset: int) -> None:
    if offset == 0 and piece[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise NotText(f"{path} is not UTF-8 text: byte 0 begins a UTF-16 mark; save it as UTF-8")
    zero = piece.find(0)
    if zero >= 0:
        raise NotText(f"{path} is a binary file (byte {offset + zero} is zero), but text is expected")
    try:
        piece.decode()
    except UnicodeDecodeError as error:
        value = piece[error.start]
        raise NotText(
            f"{path} is not UTF-8 text: byte {offset + error.start} is 0x{value:02x}; save it as UTF-8"
        ) from None
