"""The experiments of the lectures: one small file each, one command, one figure. `ayn lecture NAME`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from allyouneed.errors import UserError, nearest

if TYPE_CHECKING:
    from allyouneed.lectures.base import Lecture

LECTURES = {
    "gradients": "how the gradient shrinks with the distance: RNN, LSTM, Transformer",
    "paths": "path length, sequential steps and measured time by the length of a sentence",
    "lengths": "translation score by the length of the sentence, with and without attention",
    "alignment": "which French word attends to which English word: attention over an RNN",
    "wordmap": "word vectors on a map, and man + aunt - uncle as arrows",
    "banks": "the bank of a river, the bank with the money, and to bank on something, in ELMo",
    "patch-positions": "how well a ViT learns with no positions, 1-D, learned and 2-D ones, three seeds each",
    "patches": "which positions of a ViT are alike, what its filters look for, and what patches save",
}
FROM_RUNS = ("alignment", "wordmap", "banks", "patches")  # those that can use a given run


def check(name: str, run: str = "") -> None:
    """Raise a UserError if there is no experiment of this name, or if it cannot use a given run."""
    if name not in LECTURES:
        raise UserError(f"there is no lecture '{name}'{nearest(name, LECTURES)}")
    if run and name not in FROM_RUNS:
        raise UserError(f"'{name}' makes its own models; --run is for {', '.join(FROM_RUNS)}")


def show(name: str, lecture: Lecture) -> None:
    """Run one experiment: it prints its numbers as a small table, and writes them and its figure."""
    check(name, lecture.run)
    lecture.write_numbers(name, import_module(f"allyouneed.lectures.{name.replace('-', '_')}").show(lecture))
