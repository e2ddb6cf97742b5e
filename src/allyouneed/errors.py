"""A mistake that the person at the keyboard can mend: one sentence, exit code 2, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST = 30  # names in a list


class UserError(Exception):
    """What was given, what was expected, what to do."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: "; did you mean 'heads'?", or the list when nothing is close."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    rest = f" and {len(names) - MOST} more" if len(names) > MOST else ""
    return f"; there is {', '.join(names[:MOST])}{rest}" if names else ""
