"""Tests of word vectors: which word completes an analogy, and how similar two words are, as people judge it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from allyouneed.data.fetch import obtain
from allyouneed.data.formats.file_paths import is_file
from allyouneed.data.formats.textfile import TextFile
from allyouneed.data.registry import SETS
from allyouneed.data.vectors import is_number
from allyouneed.errors import UserError

Question = tuple[str, str, str, str]
Judged = tuple[str, str, float]
FILES = SETS["words"].forms[0].every_file  # of analogies, and of pairs with their similarity


@dataclass
class WordTests:
    """By name: questions "a is to b as c is to d", and pairs of words with their similarity as people judge it."""

    analogies: dict[str, list[Question]] = field(default_factory=dict)
    similarity: dict[str, list[Judged]] = field(default_factory=dict)


def read(mirror: str, say: Callable[[str], None]) -> WordTests:
    """The public tests, all together and by kind. Those that cannot be obtained are left out, and the user is told."""
    tests = WordTests()
    for file, judged in zip(FILES, (False, True)):
        try:
            path = obtain(file, mirror)
        except UserError as error:
            say(f"{Path(file.path).name} is left out: {error}")
            continue
        if judged:
            tests.similarity["wordsim353"] = pairs(path)
        else:
            sections = questions(path)
            tests.analogies["google"] = [question for _, question in sections]
            for name, grammar in (("google-meaning", False), ("google-grammar", True)):
                tests.analogies[name] = [q for section, q in sections if section.startswith("gram") == grammar]
    return tests


def read_own(path: Path) -> WordTests:
    """The user's own file of analogies or of pairs; its first two lines tell which, because the first may be a
    header."""
    if not is_file(path):
        raise UserError(f"there is no file {path}, which task.questions names")
    start = list(islice(_rows(path), 2))
    if any(_score(fields) is not None for _, fields in start):
        return WordTests(similarity={path.name: pairs(path)})
    for number, fields in start[:1]:
        if fields[0] != ":" and len(fields) != 4:
            raise UserError(f"{path}, line {number}: four words, or two words and a number, are expected")
    found = [question for _, question in questions(path)]
    if not found:
        raise UserError(f"{path} has no question: lines of four words, or of two words and a number, are expected")
    return WordTests(analogies={path.name: found})


def questions(path: Path) -> list[tuple[str, Question]]:
    """Lines of four words below ": name of the section"; a line that begins with # is a comment."""
    section, found = "", []
    for number, fields in _rows(path):
        if fields[0] == ":":
            section = " ".join(fields[1:])
        elif len(fields) == 4:
            found.append((section, (fields[0], fields[1], fields[2], fields[3])))
        else:
            raise UserError(f"{path}, line {number}: four words are expected, there are {len(fields)}")
    return found


def pairs(path: Path) -> list[Judged]:
    """Two words and a number, with tabs, commas or spaces between them; a line that begins with # is a comment. The
    first line may be a header. More columns are allowed: the first number counts, as in SimLex-999."""
    found, at = [], None
    for line, (number, fields) in enumerate(_rows(path)):
        at = _score(fields) if at is None else at
        if at is None and line == 0 and len(fields) > 2:
            continue  # a header
        if at is None or len(fields) <= at or not is_number(fields[at]):
            raise UserError(f"{path}, line {number}: two words and a number are expected (# begins a comment)")
        found.append((fields[0], fields[1], float(fields[at])))
    return found


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """The number of each line and its fields, without blank lines and comments."""
    return (
        (number, fields)
        for number, line in enumerate(TextFile(path).iter_lines(), 1)
        if not line.startswith("#") and (fields := _fields(line))
    )


def _fields(line: str) -> list[str]:
    """Between tabs or commas a field may have spaces: Human (mean)."""
    mark = next((mark for mark in "\t," if line.count(mark) > 1), None)
    return [field.strip() for field in line.split(mark)] if mark else line.replace(",", " ").split()


def _score(fields: Sequence[str]) -> int | None:
    """The first column after the two words that is a number."""
    return next((at for at, field in enumerate(fields) if at > 1 and is_number(field)), None)
