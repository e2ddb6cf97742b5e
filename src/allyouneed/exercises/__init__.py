"""Exercises: a file in which the key lines are left out, and checks that say whether they are right. `ayn exercise`."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from allyouneed.errors import UserError, nearest
from allyouneed.storage.wholefile import write_text, writing


@dataclass(frozen=True)
class Exercise:
    """`solution`: where the library has it."""

    about: str
    solution: str


EXERCISES = {
    "attention": Exercise("scores, softmax and the weighted sum; heads", "nn/attention.py"),
    "mask": Exercise("what may not be seen: the future, and padding", "nn/masks.py"),
    "positions": Exercise("sines and cosines, and why a step is a rotation", "nn/positions.py"),
    "beam-search": Exercise("the best few beginnings of a text", "decode/beam.py"),
    "masking": Exercise("which words BERT hides, and what it is asked for", "data/batches/masked.py"),
    "patches": Exercise("an image as a sentence of patches", "models/vit.py"),
}


def find(name: str) -> Exercise:
    """The exercise of this name."""
    if name not in EXERCISES:
        raise UserError(f"there is no exercise '{name}'{nearest(name, EXERCISES)}")
    return EXERCISES[name]


def template(name: str) -> str:
    """The file in which something is left out."""
    return (resources.files("allyouneed") / "exercises" / "files" / f"{name}.txt").read_text(encoding="utf-8")


def begin(name: str, file: Path) -> None:
    """Write the file of an exercise. One that is there is never written over."""
    if file.exists():
        raise UserError(f"{file} is there already")
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_text(file, template(name))


def blanks(source: str) -> list[int]:
    """The numbers of the lines that still have a `...` where a value should be; none if it is not Python."""
    try:
        nodes = ast.walk(ast.parse(source))
    except (SyntaxError, ValueError):
        return []
    return sorted(node.lineno for node in nodes if isinstance(node, ast.Constant) and node.value is ...)
