"""What people read: nothing in it can steer a terminal, and no value in it is endless. Files are not written here."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

WORD, SHOWN = 300, 100  # a longer word is a value of the user; this much of it is shown
LINE, FIRST, LAST = 2000, 1200, 600  # of a longer line, its ends are shown: what is wrong, and what to do
# Control characters, separators of lines, signs that turn the direction of a text around, and halves of characters.
STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
Say = Callable[[str], None]  # prints a message for the user


def printable(text: str) -> str:
    """The text with control characters as their codes, such as \\x1b; newlines and tabs stay. A JSON text stays JSON:
    what it may hold unescaped gets the codes of JSON."""
    return STEERING.sub(lambda found: _code(found[0]), text)


def _code(character: str) -> str:
    return ascii(character)[1:-1] if character < " " else f"\\u{ord(character):04x}"


def brief(text: str) -> str:
    """The text on one line. Of a very long value in it, and of a very long line, a part is shown and the length."""
    line = printable(text).replace("\n", "\\n").replace("\t", "\\t")
    line = re.sub(rf"\S{{{WORD + 1},}}", lambda word: f"{word[0][:SHOWN]}… ({len(word[0]):,} characters)", line)
    if len(line) <= LINE:
        return line
    return f"{line[:FIRST]} … ({len(line):,} characters) … {line[-LAST:]}"


def write(text: str, end: str = "\n", err: bool = False) -> None:
    """Print what was asked for, whole: an answer, a table, a command to copy."""
    print(printable(text), end=end, file=sys.stderr if err else sys.stdout, flush=True)


def say(text: str) -> None:
    """Print a message of a training, or of other long work, while it runs."""
    write("\n".join(map(brief, text.split("\n"))))
