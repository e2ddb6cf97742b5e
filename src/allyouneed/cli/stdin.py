"""The lines of a pipe as they come: a file is taken in large pieces, what someone writes now is there now."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator

AT_ONCE = 1 << 20  # bytes that are taken together
LONGEST = 1 << 16  # bytes of a line; no sentence is longer


def lines(file: int, complain: Callable[[str], None]) -> Iterator[list[str]]:
    """All lines that are there, then all that have come since, and so on; UTF-8, whatever the locale says.

    A line that is not text, or that does not end, is complained of and becomes an empty one.
    """
    number = 0
    for group in _groups(file):
        texts = []
        for raw in group:
            number += 1
            text = ""
            if len(raw) > LONGEST:
                complain(f"line {number}: it has more than {LONGEST:,} bytes; cut it into sentences")
            else:
                try:
                    text = raw.decode().rstrip("\r")
                except UnicodeDecodeError as error:
                    value = raw[error.start]
                    complain(f"line {number}: it is not UTF-8 text: byte {error.start} is 0x{value:02x}")
            texts.append(text)
        yield texts


def _groups(file: int) -> Iterator[list[bytes]]:
    rest, ended = b"", False
    ready = select.poll()  # not select(), which knows no file number above 1023
    ready.register(file, select.POLLIN)
    while not ended:
        pieces, size = [rest], 0
        while not ended and size < AT_ONCE and (not size or ready.poll(0)):
            piece = os.read(file, 1 << 16)
            pieces.append(piece)
            size += len(piece)
            ended = not piece
        *whole, rest = b"".join(pieces).split(b"\n")
        rest = rest[: LONGEST + 1]  # of an endless line no more is kept than shows that it is too long
        if ended and rest:
            whole.append(rest)
        if whole:
            yield whole
