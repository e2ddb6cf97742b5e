"""A text file of the user, read once: bytes on disk -> checked UTF-8 text in a copy, which may be read again and again.

A file is UTF-8, or UTF-16 with its mark, or what data.encoding says (`code`). A file that is none of these and fits
Windows-1252, of which Latin-1 is a part, is read as that.
"""

from __future__ import annotations

import codecs
import io
import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

from allyouneed.data.fetch import cache_folder
from allyouneed.data.formats.compressed import DAMAGED, opened
from allyouneed.errors import UserError

CHUNK = 1 << 20  # bytes
WHOLE = 4  # bytes of the longest character
LONGEST = 1 << 24  # characters of a line; no example is longer
START = 1 << 16  # characters of a first line that are looked at
UTF_8, UTF_16 = "UTF-8", (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
UNKNOWN, TORN = "unknown", "torn"
ASCII = bytes(range(128))
NO_LETTERS = bytes(byte for byte in range(256) if byte > 127 or not chr(byte).isalpha())
MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
UNDEFINED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")  # in Windows-1252
BLANK_LINES = re.compile(r"(?:[^\S\n]*\n)*")


class NotText(UserError):
    """The bytes of a file are not text in its encoding."""


class TextFile:
    """The text of a file. It is copied when this is made, and the copy has no name: it is gone with this object. In the
    copy there is no byte order mark, and \\r\\n is \\n."""

    def __init__(self, path: Path, code: str = "") -> None:
        self.path, self.code = path, code
        self._copy = _temporary()
        self._named = _copy_utf8(path, code, self._copy)
        if self._named in (UNKNOWN, TORN):
            self._named = self._western()

    def _western(self) -> str:
        """Read the copy, which is not UTF-8, as Windows-1252 or Latin-1; an error if it cannot be that."""
        name = western(self._blocks()) if self._named == UNKNOWN else ""
        if not name:
            raise NotText(_not_utf8(self.path, self._blocks()))
        made = _temporary()
        _write(made, (block.decode(name).encode() for block in self._blocks()), self.path)
        self._copy = made
        return name

    @property
    def encoding(self) -> str:
        """For the user."""
        name = self.code or self._named
        return (
            name if self.code or name.startswith("UTF") else f"{name} (it is not UTF-8; data.encoding if it is another)"
        )

    def _blocks(self) -> Iterator[bytes]:
        at = 0
        while block := os.pread(self._copy.fileno(), CHUNK, at):
            at += len(block)
            yield block

    def chunks(self) -> Iterator[bytes]:
        """The text in pieces that end after a newline if they have one, and always between two characters."""
        at = 0
        while block := os.pread(self._copy.fileno(), max(CHUNK, WHOLE), at):
            block = block[: _cut(block)]
            at += len(block)
            yield block

    def text(self) -> Iterator[str]:
        """The same as text."""
        return (piece.decode() for piece in self.chunks())

    def lines(self) -> Iterator[str]:
        """The lines without their ends, none longer than about `LONGEST`."""
        return (line[:-1] if line.endswith("\n") else line for line in self.whole_lines())

    def whole_lines(self) -> Iterator[str]:
        """The lines with their ends."""
        for block in self.blocks_of_lines():
            yield from io.StringIO(block, newline="\n")

    def blocks_of_lines(self) -> Iterator[str]:
        """Whole lines in blocks of about a megabyte. Only a newline ends a line, never U+2028 or a form feed; in a file
        that begins without one, a carriage return, as in files of old Macs."""
        carry, number, returns = "", 0, None
        for piece in self.text():
            if returns is None:
                returns = "\n" not in piece and "\r" in piece
            if not carry and not returns and piece.endswith("\n"):
                number += piece.count("\n")
                yield piece
                continue
            text = carry + (piece.replace("\r", "\n") if returns else piece)
            end = text.rfind("\n") + 1
            carry = text[end:]
            number += text.count("\n")
            if len(carry) > LONGEST:
                raise UserError(
                    f"{self.path}, line {number + 1} has more than {LONGEST:,} characters, which is too long for one "
                    "example: is this the right file, and does a newline end its lines?"
                )
            if end:
                yield text[:end]
        if carry:
            yield carry

    def first_line(self) -> str:
        """The beginning of the first line that is not blank; an error if there is none."""
        blank = False
        for piece in self.text():
            if piece.strip():
                blanks = BLANK_LINES.match(piece)
                start = piece[blanks.end() if blanks else 0 :][:START]
                return start.partition("\n" if "\n" in start else "\r")[0]
            blank = True
        raise UserError(f"{self.path} holds only blank lines" if blank else f"{self.path} is empty")


def is_text(path: Path, code: str = "") -> bool:
    """Whether the first megabyte is text. A file that cannot be read is an error."""
    block = next(_blocks(path), b"")
    if not code and not block.startswith(UTF_16):
        if b"\0" in block:
            return False
        return _is_utf8(block) or bool(western([block]))
    try:
        return "\0" not in codecs.getincrementaldecoder(code or "utf-16")().decode(block)
    except UnicodeError:
        return False


def _is_utf8(block: bytes) -> bool:
    """Whether it is UTF-8 as far as it goes: its last character may be torn."""
    try:
        codecs.getincrementaldecoder(UTF_8)().decode(block)
    except UnicodeDecodeError:
        return False
    return True


def _temporary() -> IO[bytes]:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        raise unwritable(folder, error) from None


def unwritable(folder: Path, error: OSError) -> UserError:
    """What to say if the cache cannot be written."""
    return UserError(
        f"the prepared data cannot be kept in {folder}: {error.strerror or error}; free space, or let ALLYOUNEED_CACHE "
        "name another folder"
    )


def _blocks(path: Path) -> Iterator[bytes]:
    """Blocks of the decompressed file."""
    try:
        with opened(path) as stream:
            while block := stream.read(CHUNK):
                yield block
    except DAMAGED as error:
        raise UserError(f"{path} is damaged: it cannot be decompressed ({error})") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _copy_utf8(path: Path, code: str, out: IO[bytes]) -> str:
    """Write the file as UTF-8; returns its encoding. If that is UNKNOWN, it is copied as it is; one that is TORN ends
    inside a character of UTF-8."""
    blocks = _blocks(path)
    first = next(blocks, b"")
    name = code or ("UTF-16" if first.startswith(UTF_16) else UTF_8)
    if name != UTF_8 or code:
        _write(out, _decoded(path, name, code, _chain(first, blocks)), path)
        return name
    known, torn = True, False
    decoder = codecs.getincrementaldecoder(UTF_8)()

    def checked() -> Iterator[bytes]:
        nonlocal known, torn
        for block in _chain(first.removeprefix(codecs.BOM_UTF8), blocks):
            if known and (decoder.getstate()[0] or not block.isascii()):
                try:
                    decoder.decode(block)
                except UnicodeDecodeError:
                    known = False
            yield block
        torn = known and bool(decoder.getstate()[0])

    _write(out, checked(), path, len(codecs.BOM_UTF8) if first.startswith(codecs.BOM_UTF8) else 0)
    return TORN if torn else UTF_8 if known else UNKNOWN


def _chain(first: bytes, rest: Iterable[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


def _decoded(path: Path, name: str, code: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks in UTF-8."""
    decoder, line, first = codecs.getincrementaldecoder(name)(), 1, True
    for block in _ended(blocks):
        try:
            text = decoder.decode(block, final=not block)
            found = text.encode()
        except UnicodeError as error:
            raise NotText(_mistake(path, name, code, line, error)) from None
        line += text.count("\n")
        yield found.removeprefix(codecs.BOM_UTF8) if first else found
        first = False


def _ended(blocks: Iterable[bytes]) -> Iterator[bytes]:
    yield from blocks
    yield b""


def _write(out: IO[bytes], blocks: Iterable[bytes], path: Path, offset: int = 0) -> None:
    """Write text, in which a zero byte is an error and \\r\\n becomes \\n. `offset`: where it begins in the file."""
    held = b""
    try:
        for block in blocks:
            zero = block.find(0)
            if zero >= 0:
                wide = "; if it is UTF-16 text without its mark, say data.encoding=utf-16-le, or -be"
                at = offset + zero
                raise NotText(
                    f"{path} is a binary file (byte {at} is zero), but text is expected{wide if at < 2 else ''}"
                )
            offset += len(block)
            if b"\r" in block or held:
                block = held + block
                held = b"\r" if block.endswith(b"\r") else b""
                block = block.removesuffix(held).replace(b"\r\n", b"\n")
            out.write(block)
        out.write(held)
        out.flush()
    except OSError as error:
        raise unwritable(cache_folder(), error) from None


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


def _mistake(path: Path, name: str, code: str, line: int, error: UnicodeError) -> str:
    if not code:
        return f"{path} begins with the mark of {name}, but is not {name} text: save it as UTF-8"
    byte = ""
    if isinstance(error, UnicodeDecodeError) and error.start < len(error.object):
        line += error.object.count(b"\n", 0, error.start)
        byte = f" (byte 0x{error.object[error.start]:02x})"
    return f"{path}, line {line} is not {name}{byte}, which data.encoding names: correct one of them"


def _not_utf8(path: Path, blocks: Iterable[bytes]) -> str:
    """Where a text is not UTF-8."""
    rest, line, plain = b"", 1, True
    for block in _ended(blocks):
        buffer = rest + block
        end = _cut(buffer) if block else len(buffer)
        piece, rest = buffer[:end], buffer[end:]
        try:
            piece.decode()
        except UnicodeDecodeError as error:
            line += piece.count(b"\n", 0, error.start)
            among = "stands among text that is UTF-8: correct this line"
            cure = "is of an unknown encoding: save it as UTF-8"
            told = cure if plain and piece[: error.start].isascii() else among
            return (
                f"{path}, line {line} is not UTF-8: byte 0x{piece[error.start]:02x} {told}, or name the encoding with "
                "data.encoding"
            )
        plain = plain and piece.isascii()
        line += piece.count(b"\n")
    raise ValueError("it is UTF-8")


def _cut(buffer: bytes) -> int:
    """The end of the last line, or of the last whole character if no line ends."""
    newline = buffer.rfind(b"\n") + 1
    if newline or not buffer:
        return newline
    last = character(buffer, len(buffer) - 1)
    lead = buffer[last]
    whole = 1 if lead < 0xC0 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
    return last if last + whole > len(buffer) else len(buffer)


def character(piece: bytes, at: int) -> int:
    """`at`, limited to the piece and moved back to the beginning of its character."""
    at = min(max(at, 0), len(piece))
    while 0 < at < len(piece) and piece[at] & 0xC0 == 0x80:
        at -= 1
    return at


def shorten(text: str, width: int = 50) -> str:
    """The beginning of a text, in quotes."""
    most = 20 * width  # a text may be very long
    line = " ".join(text[:most].split())
    return f"“{line}”" if len(line) <= width and len(text) <= most else f"“{line[: width - 1]}…”"
