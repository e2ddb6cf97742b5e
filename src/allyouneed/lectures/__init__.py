"""The experiments of the lectures: one small file each, one command, one picture. `ayn lecture NAME`."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from allyouneed.errors import UserError, nearest

if TYPE_CHECKING:
    from allyouneed.lectures.base import Classroom

LECTURES = {
    "gradients": "how the gradient shrinks with the distance: RNN, LSTM, Transformer",
    "paths": "path length, sequential steps and measured time by the length of a sentence",
    "lengths": "translation score by the length of the sentence, with and without attention",
    "alignment": "which French word attends to which English word: attention over an RNN",
    "wordmap": "word vectors on a map, and man + aunt - uncle as arrows",
    "banks": "the bank of a river, the bank with the money, and to bank on something, in ELMo",
    "places": "how well a ViT learns with no positions, 1-D, learned and 2-D ones, three seeds each",
    "patches": "which positions of a ViT are alike, what its filters look for, and what patches save",
}


LOOKING = ("alignment", "wordmap", "banks", "patches")  # those that can use a given run


@dataclass(frozen=True)
class Shown:
    """The files that a lecture writes: its picture, and the numbers in it."""

    picture: Path
    numbers: Path


def find(name: str) -> str:
    """The description of an experiment; a UserError if there is none of this name."""
    if name not in LECTURES:
        raise UserError(f"there is no lecture '{name}'{nearest(name, LECTURES)}")
    return LECTURES[name]


def show(name: str, room: Classroom) -> Shown:
    """Run one experiment: it prints its numbers as a small table, and draws them."""
    find(name)
    if room.run and name not in LOOKING:
        raise UserError(f"'{name}' makes its own models; --run is for {', '.join(LOOKING)}")
    numbers = import_module(f"allyouneed.lectures.{name}").show(room)
    return Shown(room.picture(name), room.keep(name, numbers))
