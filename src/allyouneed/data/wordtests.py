"""Tests of word vectors: which word completes an analogy, and how similar two words are, as people judge it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from allyouneed.data.fetch import obtain
from allyouneed.data.paths import is_file
from allyouneed.data.public import WORDS
from allyouneed.data.reading import lines
from allyouneed.errors import UserError

Question = tuple[str, str, str, str]
Judged = tuple[str, str, float]


@dataclass
class WordTests:
    """By name: questions "a is to b as c is to d", and pairs of words with their similarity as people judge it."""

    analogies: dict[str, list[Question]] = field(default_factory=dict)
    similarity: dict[str, list[Judged]] = field(default_factory=dict)


def read(mirror: str, say: Callable[[str], None]) -> WordTests:
    """The public tests, all together and by kind. Those that cannot be obtained are left out, and the user is told."""
    tests = WordTests()
    for file, judged in zip(WORDS.files, (False, True)):
        try:
            path = obtain(file, mirror)
        except UserError as error:
            say(f"{Path(file.path).name} is left out: {error}")
            continue
        if judged:
            tests.similarity["wordsim353"] = pairs(path)
        else:
            sections = questions(path)
            grammar = {
                name: [q for part, q in sections if part.startswith("gram") == syntax]
                for name, syntax in (("meaning", False), ("grammar", True))
            }
            tests.analogies = {"google": [q for _, q in sections]} | {f"google-{k}": v for k, v in grammar.items()}
    return tests


def read_own(path: Path) -> WordTests:
    """The user's own file of analogies or of pairs; its first line tells which."""
    if not is_file(path):
        raise UserError(f"there is no file {path}, which task.questions names")
    for number, line in enumerate(lines(path), 1):
        fields = _fields(line)
        if not fields or line.startswith("#"):
            continue
        if fields[0] == ":" or len(fields) == 4:
            found = [question for _, question in questions(path)]
            if not found:
                break
            return WordTests(analogies={path.name: found})
        if len(fields) == 3:
            return WordTests(similarity={path.name: pairs(path)})
        raise UserError(f"{path}, line {number}: four words, or two words and a number, are expected")
    raise UserError(f"{path} has no question: lines of four words, or of two words and a number, are expected")


def questions(path: Path) -> list[tuple[str, Question]]:
    """Lines of four words below ": name of the section"; a line that begins with # is a comment."""
    section, found = "", []
    for number, line in enumerate(lines(path), 1):
        words = line.split()
        if line.startswith("#"):
            continue
        if words[:1] == [":"]:
            section = " ".join(words[1:])
        elif len(words) == 4:
            found.append((section, (words[0], words[1], words[2], words[3])))
        elif words:
            raise UserError(f"{path}, line {number}: four words are expected, there are {len(words)}")
    return found


def pairs(path: Path) -> list[Judged]:
    """Two words and a number, with tabs, commas or spaces between them; a line that begins with # is a comment."""
    found = []
    for number, line in enumerate(lines(path), 1):
        fields = _fields(line)
        if not fields or line.startswith("#"):
            continue
        if len(fields) != 3 or not _is_number(fields[2]):
            raise UserError(f"{path}, line {number}: two words and a number are expected (# begins a comment)")
        found.append((fields[0], fields[1], float(fields[2])))
    return found


def _fields(line: str) -> list[str]:
    return line.replace(",", " ").split()


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
