"""Bytes on disk -> checked UTF-8 text, streaming, about a megabyte at a time."""

from __future__ import annotations

import codecs
import shlex
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from allyouneed.data.compressed import DAMAGED, opened, plain_name
from allyouneed.errors import UserError

CHUNK = 1 << 20  # bytes
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class NotText(UserError):
    """The bytes of a file are not UTF-8 text, nor UTF-16 text with its mark."""


def encoding(path: Path) -> str:
    """UTF-16 if the file begins with its mark, else UTF-8."""
    return "UTF-16" if next(_blocks(path)).startswith(UTF_16) else "UTF-8"


def chunks(path: Path) -> Iterator[bytes]:
    """The text in pieces that end after a newline if they have one, and always between two characters.

    A byte order mark is removed and \\r\\n becomes \\n. The first byte that is not text is an error.
    """
    rest, offset, line = b"", 0, 1  # offset and line: where `rest` begins in the (decompressed) file
    for block in _in_utf8(path):
        buffer = rest + block
        end = _cut(buffer) if block else len(buffer)
        piece, rest = buffer[:end], buffer[end:]
        _check(piece, path, offset, line)
        text = piece.removeprefix(codecs.BOM_UTF8) if offset == 0 else piece
        offset += end
        line += piece.count(b"\n")
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
    except DAMAGED as error:
        raise UserError(f"{path} is damaged: it cannot be decompressed ({error})") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None
    yield b""


def _in_utf8(path: Path) -> Iterator[bytes]:
    """The same blocks, in UTF-8 if the file is UTF-16 with its mark."""
    blocks = _blocks(path)
    first = next(blocks)
    if not first.startswith(UTF_16):
        yield from chain([first], blocks)
        return
    decoder = codecs.getincrementaldecoder("utf-16")()
    try:
        for block in chain([first], blocks):
            yield decoder.decode(block, final=not block).encode()
    except UnicodeError:
        raise NotText(f"{path} begins with the mark of UTF-16, but is not UTF-16 text: save it as UTF-8") from None


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


def _check(piece: bytes, path: Path, offset: int, line: int) -> None:
    zero = piece.find(0)
    if zero >= 0:
        wide = "; if it is UTF-16 text without its mark, save it as UTF-8" if offset + zero < 2 else ""
        raise NotText(f"{path} is a binary file (byte {offset + zero} is zero), but text is expected{wide}")
    try:
        piece.decode()
    except UnicodeDecodeError as error:
        number = line + piece.count(b"\n", 0, error.start)
        told = f"{path}, line {number} is not UTF-8: byte 0x{piece[error.start]:02x} {_cure(path, piece, error.start)}"
        raise NotText(told) from None


def _cure(path: Path, piece: bytes, at: int) -> str:
    """What the byte at `at`, which is not UTF-8, looks like, and what to do."""
    if not piece[:at].isascii():
        return "stands among text that is UTF-8; correct this line"
    letter = piece[at : at + 1].decode("cp1252", errors="ignore")
    foreign = sum(byte > 127 for byte in piece[:CHUNK])
    told, name = f"looks like Latin-1 or Windows-1252 ('{letter}')", "WINDOWS-1252"
    if not letter or 3 * foreign >= len(piece):  # another alphabet has more of them
        told, name = "is of an unknown encoding", "ITS-ENCODING"
    plain = Path(plain_name(path))
    first, given = ("decompress it, then ", plain) if plain.name != path.name else ("", path)
    command = f"iconv -f {name} -t UTF-8 {shlex.quote(str(given))} > {shlex.quote(f'{plain.stem}-utf8{plain.suffix}')}"
    return f"{told}; {first}convert it with: {command}"
