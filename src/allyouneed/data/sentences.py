"""Where a sentence ends.

A line ends a sentence. Inside a line, one ends after . ! ? or …, with the quotes and brackets that close it, if white
space and then no small letter follows. A full stop after a title ("Dr."), after a single capital letter ("J. Smith")
or inside "e.g." does not. After 。！ and ？ no space is needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

END = re.compile(r"""([.!?…]+["'”’»)\]]*)(?=\s+(\S))|[。！？]+[」』”’）]*""")
LAST_WORD = re.compile(r"\S+\Z")
TITLES = {"mr", "mrs", "ms", "dr", "prof", "st", "jr", "sr", "vs", "no", "fig", "cf", "al", "e.g", "i.e", "u.s"}


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, without the white space around them."""
    for line in text.splitlines():
        start = 0
        for found in END.finditer(line):
            if found[1] is None or _ends(line[start : found.end()], found[1], found[2]):
                if sentence := line[start : found.end()].strip():
                    yield sentence
                start = found.end()
        if sentence := line[start:].strip():
            yield sentence


def _ends(sentence: str, mark: str, following: str) -> bool:
    if following.islower():
        return False
    word = LAST_WORD.search(sentence[:-1]) if mark == "." else None
    if word is None:
        return True
    bare = word[0].lstrip("\"'“‘([")
    return not (len(bare) == 1 and bare.isupper()) and bare.lower() not in TITLES


def of_document(chunks: Iterable[str]) -> Iterator[str]:
    """The sentences of a text that comes in chunks, cut anywhere."""
    rest = ""
    for chunk in chunks:
        done, newline, rest = (rest + chunk).rpartition("\n")
        yield from sentences(done + newline)
    yield from sentences(rest)
