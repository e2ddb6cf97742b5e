"""Sentences with one tag per word, in CoNLL columns, and the schemes in which tags mark entities.

IOB2: an entity begins with B-type and continues with I-type; O is outside of entities.
IOB1: an entity begins with I-type as well; B-type only separates two adjacent entities of one type.
IOBES: as IOB2, but an entity ends with E-type, and S-type is an entity of a single word.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from allyouneed.data.examples import TaggedSentence
from allyouneed.data.reading import lines
from allyouneed.data.sources import shorten
from allyouneed.data.tables import first_line
from allyouneed.errors import UserError
from allyouneed.text.words import unbroken

TAG = re.compile(r"O|[BIES]-\S+")
DOCUMENT = "-DOCSTART-"
LONG = 200  # words: a longer sentence that is alone in its file means that blank lines are missing


class Span(NamedTuple):
    """An entity: the words from `start` up to, but not including, `end`."""

    kind: str
    start: int
    end: int


def spans(tags: Sequence[str]) -> list[Span]:
    """The entities that tags of any scheme mark, read as conlleval and seqeval read them: I and E continue an entity of
    their type if the tag before is B or I; any other tag but O begins one."""
    found: list[Span] = []
    before = ("O", "")
    for i, tag in enumerate(tags):
        letter, _, kind = tag.partition("-")
        if letter in "IE" and before[0] in "BI" and before[1] == kind:
            found[-1] = found[-1]._replace(end=i + 1)
        elif letter != "O":
            found.append(Span(kind, i, i + 1))
        before = letter, kind
    return found


def tagged(entities: Iterable[Span], words: int, scheme: str) -> list[str]:
    """The inverse of `spans`: one tag per word."""
    tags = ["O"] * words
    before = Span("", 0, 0)
    for span in sorted(entities, key=lambda span: span.start):
        kind, start, end = span
        touching = before.kind == kind and before.end == start
        tags[start:end] = [f"I-{kind}"] * (end - start)
        if scheme != "IOB1" or touching:
            tags[start] = f"B-{kind}"
        if scheme == "IOBES":
            tags[end - 1] = f"E-{kind}" if end - start > 1 else f"S-{kind}"
        before = span
    return tags


@dataclass
class Survey:
    """Counts over the tags of many sentences, from which their scheme follows."""

    letters: Counter[str] = field(default_factory=Counter)
    begun: Counter[str] = field(default_factory=Counter)  # with which letter entities begin
    parted: int = 0  # how many B separate adjacent entities of one type, where IOB1 needs them

    def add(self, tags: Sequence[str]) -> None:
        self.letters.update(tag[0] for tag in tags)
        before = Span("", 0, 0)
        for span in spans(tags):
            self.begun[tags[span.start][0]] += 1
            self.parted += tags[span.start][0] == "B" and before.kind == span.kind and before.end == span.start
            before = span

    @property
    def scheme(self) -> str:
        if self.letters["E"] or self.letters["S"]:
            return "IOBES"
        return "IOB1" if self.begun["I"] and self.begun["B"] == self.parted else "IOB2"

    def told(self) -> str:
        """For the user, with what does not fit the scheme."""
        odd = 0 if self.scheme == "IOB1" else self.begun["I"] + self.begun["E"]
        loose = f" (entities that begin with I- or E-, read as if with B-: {odd:,})" if odd else ""
        return f"{self.scheme} tags{loose}"


@dataclass(frozen=True)
class TagTable:
    """A CoNLL file. Iterating reads it again."""

    path: Path
    separator: str  # a tab, or any number of blanks
    width: int  # columns
    skipped: int  # lines that only say that a document begins
    survey: Survey

    def __iter__(self) -> Iterator[TaggedSentence]:
        return _sentences(self.path, self.separator)

    def understood(self) -> str:
        """One sentence for the user, with the first example."""
        marks = "tabs" if self.separator == "\t" else "blanks"
        skipped = f"; {self.skipped:,} {DOCUMENT} lines skipped" if self.skipped else ""
        words, tags = (shorten(text) for text in next(iter(self), TaggedSentence((), ())).texts)
        return (
            f"{self.path.name}: CoNLL (columns between {marks}), UTF-8; the word is column 1, the tag column "
            f"{self.width}; {self.survey.told()}{skipped}; the first sentence is {words} → {tags}"
        )


def open_tags(path: Path) -> TagTable:
    """Reads the whole file, so that every broken line is found, and finds the scheme of its tags."""
    line = next((line for line in lines(path) if line.strip() and not line.startswith(DOCUMENT)), "")
    if not line:
        first_line(path)  # an error if the file has no line at all
        raise UserError(f"{path} has only {DOCUMENT} lines: there is no sentence in it")
    if "\r" in line.strip():
        raise UserError(
            f"{path}: its lines end with a carriage return alone; convert it so that they end with a newline"
        )
    separator, survey, sentences = "\t" if "\t" in line.strip() else " ", Survey(), 0
    for sentence in _sentences(path, separator):
        survey.add(sentence.tags)
        sentences += 1
    if sentences == 1 and survey.letters.total() > LONG:
        raise UserError(
            f"{path} is one sentence of {survey.letters.total():,} words: a blank line must stand between two sentences"
        )
    skipped = sum(line.startswith(DOCUMENT) for line in lines(path))
    return TagTable(path, separator, len(_cells(line, separator)), skipped, survey)


def _sentences(path: Path, separator: str) -> Iterator[TaggedSentence]:
    """The lines between two blank lines are a sentence; every line is checked."""
    words: list[str] = []
    tags: list[str] = []
    width = 0
    for number, line in enumerate(lines(path), 1):
        if not line.strip() or line.startswith(DOCUMENT):
            if words:
                yield TaggedSentence(tuple(words), tuple(tags))
            words, tags = [], []
            continue
        cells = _cells(line, separator)
        width = width or len(cells)
        if len(cells) != width or width < 2:
            mark = "a tab" if separator == "\t" else "a blank"
            wanted = f"the first has {width}" if width > 1 else f"a word and its tag need two, with {mark} between them"
            comment = "; comments are not read, remove them" if line.startswith("#") else ""
            raise UserError(f"{path}, line {number} has {_columns(len(cells))}, but {wanted}: {shorten(line)}{comment}")
        word, tag = cells[0], cells[-1].strip()
        if not word.strip():
            raise UserError(f"{path}, line {number} has no word in its first column: {shorten(line)}")
        if not TAG.fullmatch(tag):
            raise UserError(
                f"{path}, line {number}: '{tag}' is not the tag of an entity: the last column must have O, or B-, I-, "
                f"E- or S- and a type without blanks{'; comments are not read' * line.startswith('#')}"
            )
        words.append(unbroken(word))
        tags.append(tag)
    if words:
        yield TaggedSentence(tuple(words), tuple(tags))


def _cells(line: str, separator: str) -> list[str]:
    return line.split("\t") if separator == "\t" else re.split("[ \t]+", line.strip(" \t"))


def _columns(count: int) -> str:
    return f"{count} columns" if count != 1 else "1 column"
