"""The words of running text, where they stand."""

from __future__ import annotations

import re

# A word may have hyphens and dots inside (well-known, 3.5, bit.ly) and a mark before it (@name, #topic); the short
# endings of English ('s, 'll) are words; so is any other character that is not white space.
WORD = re.compile(r"[@#]?\w+(?:[-.]\w+)*|['’](?:s|m|d|t|re|ve|ll)\b|\S")


def find_words(text: str) -> list[tuple[int, int]]:
    """(start, end) of each word, in characters; between them is white space or nothing."""
    return [found.span() for found in WORD.finditer(text)]
