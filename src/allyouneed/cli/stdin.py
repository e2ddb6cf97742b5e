"""The lines of standard input as they come: a file in large pieces, a typed line at once."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator

from allyouneed.data.formats.textfile import UTF_8, western
from allyouneed.errors import UserError

PIECE = 1 << 20  # bytes that are read together
LONGEST = 1 << 16  # bytes of a line; no sentence is longer


def read_lines(file: int, say: Callable[[str], None]) -> Iterator[list[str | UserError]]:
    """All lines that are there, then all that have come since, and so on; UTF-8, whatever the locale says. If the first
    accents are not, but fit Latin-1 or Windows-1252, all is read as that, which is said.

    A line that is no text, or that is too long, comes as the error that says so.
    """
    code = ""
    for group in _groups(file):
        accented = [raw for raw in group if not raw.isascii()]
        if accented and not code:
            code = UTF_8 if any(map(_is_utf8, accented)) else western(accented) or UTF_8
            if code != UTF_8:
                say(f"standard input is not UTF-8: it is read as {code}")
        yield [_line(raw, code or UTF_8) for raw in group]


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def _line(raw: bytes, code: str) -> str | UserError:
    if len(raw) > LONGEST:
        return UserError(f"it has more than {LONGEST:,} bytes; cut it into sentences")
    try:
        return raw.decode(code).rstrip("\r")
    except UnicodeDecodeError as error:
        return UserError(f"it is not {code} text: byte {error.start} is 0x{raw[error.start]:02x}")


def _groups(file: int) -> Iterator[list[bytes]]:
    rest, ended = b"", False
    ready = select.poll()  # not select(), which takes no file number above 1023
    ready.register(file, select.POLLIN)
    while not ended:
        pieces, size = [rest], 0
        while not ended and size < PIECE and (not size or ready.poll(0)):
            piece = os.read(file, 1 << 16)
            pieces.append(piece)
            size += len(piece)
            ended = not piece
        *whole, rest = b"".join(pieces).split(b"\n")
        rest = rest[: LONGEST + 1]  # of an endless line, only as much as shows that it is too long
        if ended and rest:
            whole.append(rest)
        if whole:
            yield whole
