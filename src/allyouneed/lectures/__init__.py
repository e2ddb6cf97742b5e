"""The classroom's experiments: one small file each, one command, one picture. `ayn lecture NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from allyouneed.errors import UserError, nearest

if TYPE_CHECKING:
    from allyouneed.lectures.base import Classroom

LECTURES = {
    "gradients": "how much of a gradient comes back over a distance: RNN, LSTM, Transformer",
    "paths": "path length, steps one after the other, and measured time against the length of a sentence",
    "lengths": "translation score against the length of the sentence, with and without attention",
    "alignment": "which French word looks at which English word: attention over an RNN",
    "wordmap": "word vectors on a map, and man + aunt - uncle as arrows",
    "banks": "the bank of a river, the bank with the money, and to bank on something, in ELMo",
}


LOOKING = ("alignment", "wordmap", "banks")  # those that can look into a run that is there


@dataclass(frozen=True)
class Shown:
    """What a lecture leaves: its picture, and the numbers in it."""

    picture: Path
    numbers: Path


def find(name: str) -> str:
    """The line of an experiment; a mistake in its name is said."""
    if name not in LECTURES:
        raise UserError(f"there is no lecture '{name}'{nearest(name, LECTURES)}")
    return LECTURES[name]


def show(name: str, room: Classroom) -> Shown:
    """Run one experiment; it says its numbers as a small table, and draws them."""
    find(name)
    if room.run and name not in LOOKING:
        raise UserError(f"'{name}' makes its own models; --run is for {', '.join(LOOKING)}")
    numbers = import_module(f"allyouneed.lectures.{name}").show(room)
    return Shown(room.picture(name), room.keep(name, numbers))
