"""Two texts in one line of the user's input, with a mark between them."""

from __future__ import annotations

BETWEEN = "|||"
MARKS = ("\t", BETWEEN)


def two_texts(text: str) -> list[str]:
    """The texts on both sides of the first mark, without the white space around them; the text itself without one."""
    marks = [mark for mark in MARKS if mark in text]
    return [side.strip() for side in text.split(min(marks, key=text.index), 1)] if marks else [text]
