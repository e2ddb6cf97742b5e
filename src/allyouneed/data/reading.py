"""Bytes on disk -> checked UTF-8 text, streaming, about a megabyte at a time.

A file is UTF-8, or UTF-16 with its mark, or what data.encoding says (`code`). A file that is none of these and fits
Windows-1252, of which Latin-1 is a part, is read as that.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from pathlib import Path

from allyouneed.data.compressed import DAMAGED, opened
from allyouneed.errors import UserError

CHUNK = 1 << 20  # bytes
LONGEST = 1 << 24  # characters of a line; no example is longer
UTF_8, UTF_16 = "UTF-8", (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
ASCII = bytes(range(128))
NO_LETTERS = bytes(byte for byte in range(256) if byte > 127 or not chr(byte).isalpha())
MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
UNDEFINED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")  # in Windows-1252


class NotText(UserError):
    """The bytes of a file are not text in its encoding."""


def encoding(path: Path, code: str = "") -> str:
    """The encoding of a file, for the user."""
    found = code or next((name for _, name in _named(path) if name), UTF_8)
    return found if code or found.startswith("UTF") else f"{found} (it is not UTF-8; data.encoding if it is another)"


def chunks(path: Path, code: str = "") -> Iterator[bytes]:
    """The text in pieces that end after a newline if they have one, and always between two characters.

    A byte order mark is removed and \\r\\n becomes \\n. The first byte that is not text is an error.
    """
    rest, offset, line = b"", 0, 1  # offset and line: where `rest` begins in the (decompressed) file
    for block in _in_utf8(path, code):
        buffer = rest + block
        end = _cut(buffer) if block else len(buffer)
        piece, rest = buffer[:end], buffer[end:]
        _check(piece, path, offset, line)
        text = piece.removeprefix(codecs.BOM_UTF8) if offset == 0 else piece
        offset += end
        line += piece.count(b"\n")
        if text:
            yield text.replace(b"\r\n", b"\n") if b"\r\n" in text else text


def text(path: Path, start: int = 0, end: int | None = None, code: str = "") -> Iterator[str]:
    """The text between two byte positions. A position inside a character is moved back to its beginning."""
    at = 0
    for piece in chunks(path, code):
        low, high = _character(piece, start - at), len(piece) if end is None else _character(piece, end - at)
        if low < high:
            yield piece[low:high].decode()
        at += len(piece)
        if end is not None and at >= end:
            return


def lines(path: Path, code: str = "") -> Iterator[str]:
    """The lines without their ends, none longer than about `LONGEST`. Only a newline ends a line, never U+2028 or a
    form feed; in a file that begins without one, a carriage return, as in files of old Macs."""
    carry, number, returns = "", 0, None
    for piece in chunks(path, code):
        text = piece.decode()
        if returns is None:
            returns = "\n" not in text and "\r" in text
        found = (carry + (text.replace("\r", "\n") if returns else text)).split("\n")
        carry = found.pop()
        number += len(found)
        if len(carry) > LONGEST:
            raise UserError(
                f"{path}, line {number + 1} has more than {LONGEST:,} characters, which is too long for one example: "
                "is this the right file, and does a newline end its lines?"
            )
        yield from found
    if carry:
        yield carry


def boundary(path: Path, at: int, stop: int, code: str = "") -> int:
    """Where the first line begins in [at, stop); if none does, where the character at `at` begins."""
    seen, character = 0, at
    for piece in chunks(path, code):
        if seen >= stop:
            break
        found = piece.find(b"\n", max(0, at - 1 - seen), stop - 1 - seen)
        if found >= 0:
            return seen + found + 1
        if seen <= at < seen + len(piece):
            character = seen + _character(piece, at - seen)
        seen += len(piece)
    return character


def is_text(path: Path, code: str = "") -> bool:
    """Whether the first megabyte is text. A file that cannot be read is an error."""
    try:
        next(chunks(path, code), b"")
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


def _named(path: Path) -> Iterator[tuple[bytes, str]]:
    """The blocks, each with the encoding of the file; "" as long as everything is ASCII, which fits all of them."""
    code, held = "", b""
    for number, raw in enumerate(_blocks(path)):
        block, held = held + raw, b""
        if not number and block.startswith(UTF_16):
            code = "UTF-16"
        elif not number and block.startswith(codecs.BOM_UTF8):
            code = UTF_8
        elif not code and not block.isascii():
            decoder = codecs.getincrementaldecoder(UTF_8)()
            try:
                decoder.decode(block)
                held = decoder.getstate()[0] if raw else b""  # a character of which the rest is in the next block
                block = block.removesuffix(held)
                code = "" if block.isascii() else UTF_8  # also if the file is torn inside its last character
            except UnicodeDecodeError:
                stamp = path.stat()
                code = _western(path, stamp.st_ino, stamp.st_size, stamp.st_mtime_ns) or UTF_8
        if block:
            yield block, code
    yield b"", code


@lru_cache
def _western(path: Path, *stamp: int) -> str:
    """`western` of a file; `stamp` tells it from a later one of that name."""
    return western(_blocks(path))


def western(blocks: Iterable[bytes]) -> str:
    """Windows-1252, or Latin-1 if it has none of the former's additions, for text that is not UTF-8; "" if it cannot be
    that: it is binary, of another alphabet, or mostly UTF-8."""
    foreign = letters = whole = 0
    additions = False
    for block in blocks:
        high = block.translate(None, ASCII)
        if b"\0" in block or UNDEFINED.search(high):
            return ""
        foreign += len(high)
        letters += len(block.translate(None, NO_LETTERS))
        whole += sum(map(len, MULTIBYTE.findall(block)))
        additions = additions or min(high, default=255) < 0xA0
    if 10 * whole > foreign or 2 * foreign > letters:
        return ""
    return "Windows-1252" if additions else "Latin-1"


def _in_utf8(path: Path, code: str) -> Iterator[bytes]:
    """The blocks of the file in UTF-8, then one empty block."""
    blocks = ((block, code) for block in _blocks(path)) if code else _named(path)
    decoder, line = None, 1
    for block, name in blocks:
        if not name or (name == UTF_8 and not code):
            yield block  # `_check` looks at it
            continue
        decoder = decoder or codecs.getincrementaldecoder(name)()
        try:
            text = decoder.decode(block, final=not block)
            found = text.encode()
        except UnicodeError as error:
            raise NotText(_mistake(path, name, code, line, error)) from None
        line += text.count("\n")
        if found or not block:
            yield found
    if decoder is not None and found:
        yield b""


def _mistake(path: Path, name: str, code: str, line: int, error: UnicodeError) -> str:
    if not code:
        return f"{path} begins with the mark of {name}, but is not {name} text: save it as UTF-8"
    byte = ""
    if isinstance(error, UnicodeDecodeError) and error.start < len(error.object):
        line += error.object.count(b"\n", 0, error.start)
        byte = f" (byte 0x{error.object[error.start]:02x})"
    return f"{path}, line {line} is not {name}{byte}, which data.encoding names: correct one of them"


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
        wide = (
            "; if it is UTF-16 text without its mark, say data.encoding=utf-16-le, or -be" if offset + zero < 2 else ""
        )
        raise NotText(f"{path} is a binary file (byte {offset + zero} is zero), but text is expected{wide}")
    try:
        piece.decode()
    except UnicodeDecodeError as error:
        number = line + piece.count(b"\n", 0, error.start)
        among = "stands among text that is UTF-8: correct this line"
        cure = "is of an unknown encoding: save it as UTF-8" if piece[: error.start].isascii() else among
        told = f"{path}, line {number} is not UTF-8: byte 0x{piece[error.start]:02x} {cure}"
        raise NotText(f"{told}, or name the encoding with data.encoding") from None
