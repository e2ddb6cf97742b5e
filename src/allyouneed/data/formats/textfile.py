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
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import IO

from allyouneed.data.fetch import cache_folder
from allyouneed.data.formats.compressed import DAMAGED, opened
from allyouneed.errors import UserError

CHUNK = 1 << 20  # bytes
LONGEST = 1 << 24  # characters of a line; no example is longer
START = 1 << 16  # characters of a first line that are looked at
UTF_8, UTF_16 = "UTF-8", (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
ASCII = bytes(range(128))
NO_LETTERS = bytes(byte for byte in range(256) if byte > 127 or not chr(byte).isalpha())
MULTIBYTE = re.compile(rb"[\xc2-\xdf][\x80-\xbf]|[\xe0-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}")
UNDEFINED = re.compile(rb"[\x81\x8d\x8f\x90\x9d]")  # in Windows-1252


class TextFile:
    """The text of a file, as a copy without a name, which is deleted with this object. The copy has no byte order mark,
    and \\n in the place of \\r\\n."""

    def __init__(self, path: Path, code: str = "") -> None:
        self.path, self.encoding = path, code or UTF_8  # the encoding for the user
        blocks = _blocks(path)
        first = next(blocks, b"")
        if code or first.startswith(UTF_16):
            self.encoding = code or "UTF-16"
            self._copy = _copied(path, _decoded(path, code, chain([first], blocks)))
            return
        start = first.removeprefix(codecs.BOM_UTF8)
        self._copy = _copied(path, chain([start], blocks), len(first) - len(start))
        try:
            deque(self.text(), maxlen=0)
        except UnicodeDecodeError as error:
            self._read_as_western(error)

    def _read_as_western(self, error: UnicodeDecodeError) -> None:
        """Read the copy, which is not UTF-8, as Windows-1252 or Latin-1; an error if it cannot be that."""
        torn = error.reason == "unexpected end of data"  # the file ends inside a character of UTF-8
        name = "" if torn else western(self.chunks())
        if not name:
            before = error.object[: error.start]
            line, plain = 1 + before.count(b"\n"), before.isascii()
            with suppress(UnicodeDecodeError):
                for text in self.text():
                    line, plain = line + text.count("\n"), plain and text.isascii()
            why = "is of an unknown encoding: save it as UTF-8"
            if not plain:
                why = "stands among text that is UTF-8: correct this line"
            raise UserError(
                f"{self.path}, line {line} is not UTF-8: byte 0x{error.object[error.start]:02x} {why}, or "
                "name the encoding with data.encoding"
            ) from None
        self._copy = _copied(self.path, (block.decode(name).encode() for block in self.chunks()))
        self.encoding = f"{name} (it is not UTF-8; data.encoding if it is another)"

    def chunks(self) -> Iterator[bytes]:
        """The text in pieces of UTF-8, cut anywhere."""
        at = 0
        while block := os.pread(self._copy.fileno(), CHUNK, at):
            at += len(block)
            yield block

    def text(self) -> Iterator[str]:
        """The same pieces, decoded."""
        return codecs.iterdecode(self.chunks(), UTF_8)

    def iter_lines(self) -> Iterator[str]:
        """The lines without their ends, none longer than about `LONGEST`."""
        for block in self.blocks_of_lines():
            for line in io.StringIO(block, newline="\n"):
                yield line[:-1] if line.endswith("\n") else line

    def blocks_of_lines(self) -> Iterator[str]:
        """Whole lines in blocks of about a megabyte. Only a newline ends a line, never U+2028 or a form feed; in a file
        that begins without one, a carriage return, as in files of old Macs."""
        rest, number, returns = "", 0, None
        for piece in self.text():
            if returns is None:
                returns = "\n" not in piece and "\r" in piece
            text = rest + (piece.replace("\r", "\n") if returns else piece)
            end = text.rfind("\n") + 1
            rest = text[end:]
            number += text.count("\n")
            if len(rest) > LONGEST:
                raise UserError(
                    f"{self.path}, line {number + 1} has more than {LONGEST:,} characters, which is too long for one "
                    "example: is this the right file, and does a newline end its lines?"
                )
            if end:
                yield text[:end]
        if rest:
            yield rest

    def first_line(self) -> str:
        """The beginning of the first line that is not blank; an error if there is none."""
        text = next(filter(str.strip, self.text()), "")
        if not text:
            empty = not os.fstat(self._copy.fileno()).st_size
            raise UserError(f"{self.path} {'is empty' if empty else 'holds only blank lines'}")
        at = text.rfind("\n", 0, len(text) - len(text.lstrip())) + 1
        start = text[at : at + START]
        return start.partition("\n" if "\n" in start else "\r")[0]


def is_text(path: Path, code: str = "") -> bool:
    """Whether the first megabyte is text. A file that cannot be read is an error."""
    block = next(_blocks(path), b"")
    code = code or ("UTF-16" if block.startswith(UTF_16) else "")
    try:  # the last character may be torn
        return "\0" not in codecs.getincrementaldecoder(code or UTF_8)().decode(block)
    except UnicodeError:
        return not code and bool(western([block]))


def _blocks(path: Path) -> Iterator[bytes]:
    """The decompressed file, in blocks."""
    try:
        with opened(path) as stream:
            while block := stream.read(CHUNK):
                yield block
    except DAMAGED as error:
        raise UserError(f"{path} is damaged: it cannot be decompressed ({error})") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from None


def _decoded(path: Path, code: str, blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The blocks in UTF-8. `code`: data.encoding, or "" for UTF-16 with its mark."""
    name, line = code or "UTF-16", 1
    try:
        for number, text in enumerate(codecs.iterdecode(blocks, name)):
            yield (text if number else text.removeprefix("\ufeff")).encode()
            line += text.count("\n")
    except UnicodeError as error:
        if not code:
            raise UserError(
                f"{path} begins with the mark of {name}, but is not {name} text: save it as UTF-8"
            ) from None
        byte = ""
        if isinstance(error, UnicodeDecodeError) and error.start < len(error.object):
            line += error.object.count(b"\n", 0, error.start)
            byte = f" (byte 0x{error.object[error.start]:02x})"
        raise UserError(
            f"{path}, line {line} is not {name}{byte}, which data.encoding names: correct one of them"
        ) from None


def _copied(path: Path, blocks: Iterable[bytes], offset: int = 0) -> IO[bytes]:
    """A file without a name with this text: a zero byte is an error, and \\r\\n becomes \\n. `offset`: where the text
    begins in the file."""
    folder, rest = cache_folder(), b""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        copy = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115  (it is gone with its TextFile)
        for block in chain(blocks, [b""]):
            if (zero := block.find(0)) >= 0:
                at = offset + zero
                wide = "; if it is UTF-16 text without its mark, say data.encoding=utf-16-le, or -be" if at < 2 else ""
                raise UserError(f"{path} is a binary file (byte {at} is zero), but text is expected{wide}")
            offset += len(block)
            text = rest + block
            rest = b"\r" if block and text.endswith(b"\r") else b""  # its newline may come next
            copy.write(text.removesuffix(rest).replace(b"\r\n", b"\n"))
        copy.flush()
    except OSError as error:
        raise UserError(
            f"the prepared data cannot be kept in {folder}: {error.strerror or error}; free space, or let "
            "ALLYOUNEED_CACHE name another folder"
        ) from None
    return copy


def western(blocks: Iterable[bytes]) -> str:
    """Which of Windows-1252 and Latin-1, a part of it, a text is that is not UTF-8; "" if it is neither: binary, in
    another alphabet, or mostly UTF-8."""
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


def shorten(text: str, width: int = 50) -> str:
    """The beginning of a text, in quotes."""
    most = 20 * width  # a text may be very long
    line = " ".join(text[:most].split())
    return f"“{line}”" if len(line) <= width and len(text) <= most else f"“{line[: width - 1]}…”"
