"""An error the user can fix: one sentence, exit code 2, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from allyouneed.terminal import brief

MOST = 8  # names in a list; of more, the nearest few are shown
FEW = 4
IN_PYTHON = {
    "--out": "out",
    "--resume": "resume=True",
    "--overwrite": "overwrite=True",
    "--init": "init",
    "--mirror DIR": "data.mirror=DIR",
    "--data": "data",
    "--run": "run",
    "--as": "`ayn import --as`",
    "--to": "to",
    "--engine": "engine",
}
shell = False  # whether the user types commands; set by the command line


class UserError(Exception):
    """What was given, what was expected, what to do: one line, whatever the values in it hold and however long they
    are."""

    def __init__(self, sentence: str) -> None:
        super().__init__(brief(sentence))


def option_name(option: str) -> str:
    """An option as the user knows it: on the command line, or in Python."""
    return option if shell else IN_PYTHON[option]


def nearest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """A hint for a misspelt name: "; did you mean 'heads'?". If nothing is close, it is `otherwise`, or the list: the
    nearest few of many."""
    names = sorted(known)
    close = difflib.get_close_matches(word[:1000], names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean '{close[0]}'?"
    if otherwise is not None:
        return otherwise
    shown = names if len(names) <= MOST else difflib.get_close_matches(word[:1000], names, n=FEW, cutoff=0.0)
    rest = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"; there is {', '.join(shown)}{rest}" if names else ""


def shortened(value: object, most: int = 80) -> str:
    """A value that the user gave, as a message shows it: on one line, and not longer than that."""
    try:
        text = str(value)
    except ValueError:  # Python writes no whole number of more than 4,300 digits
        return "a very large number"
    shown = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text[:most])
    return shown if len(text) <= most else f"{shown}…"
