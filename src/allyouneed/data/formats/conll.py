"""Sentences with one tag per word, in CoNLL columns, and the schemes in which tags mark entities.

IOB2: an entity begins with B-type and continues with I-type; O is outside of entities.
IOB1: an entity begins with I-type as well; B-type only separates two adjacent entities of one type.
IOBES: as IOB2, but an entity ends with E-type, and S-type is an entity of a single word.
Other tags, such as parts of speech, mark no entities: each belongs to its word alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

from allyouneed.config import DataConfig
from allyouneed.data.examples import TaggedSentence, to_cells
from allyouneed.data.formats.columns import beginning, column_named
from allyouneed.data.formats.table import check_width
from allyouneed.data.formats.textfile import TextFile, shorten
from allyouneed.errors import UserError
from allyouneed.text.word_boundaries import unbroken

TAG = re.compile(r"O|[BIES]-\S+")
PER_WORD = "per word"  # the scheme of tags that mark no entities
DOCUMENT = "-DOCSTART-"
CONLL_U = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")
SKIPPED = re.compile(r"\d+[-.]\d+")  # the number of a word that is written as several, or of one that is not written
LONGEST = 100_000  # words of a sentence
LONG = 200  # words: a longer sentence that is alone in its file means that blank lines are missing


class Span(NamedTuple):
    """An entity: the words from `start` up to, but not including, `end`."""

    kind: str
    start: int
    end: int


def spans(tags: Sequence[str]) -> list[Span]:
    """The entities that tags of any scheme mark, read as conlleval and seqeval read them: I and E continue an entity of
    their type if the previous tag is B or I; any other tag but O begins one."""
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
class TagCounts:
    """Counts over the tags of many sentences, from which their scheme follows."""

    letters: Counter[str] = field(default_factory=Counter)
    begun: Counter[str] = field(default_factory=Counter)  # with which letter entities begin
    parted: int = 0  # how many B separate adjacent entities of one type, where IOB1 needs them
    different: set[str] = field(default_factory=set)

    def add(self, tags: Sequence[str]) -> None:
        self.different.update(tags)
        self.letters.update(tag[0] for tag in tags)
        before = Span("", 0, 0)
        for span in spans(tags):
            self.begun[tags[span.start][0]] += 1
            self.parted += tags[span.start][0] == "B" and before.kind == span.kind and before.end == span.start
            before = span

    @property
    def scheme(self) -> str:
        if not all(map(TAG.fullmatch, self.different)):
            return PER_WORD
        if self.letters["E"] or self.letters["S"]:
            return "IOBES"
        return "IOB1" if self.begun["I"] and self.begun["B"] == self.parted else "IOB2"

    def describe(self) -> str:
        """One phrase for the user: the scheme, and how many tags do not fit it."""
        if self.scheme == PER_WORD:
            return f"{len(self.different):,} different tags, which mark no entities"
        odd = 0 if self.scheme == "IOB1" else self.begun["I"] + self.begun["E"]
        loose = f" (entities that begin with I- or E-, read as if with B-: {odd:,})" if odd else ""
        return f"{self.scheme} tags{loose}"


@dataclass
class TagTable:
    """A CoNLL file. While it is read, its tags are counted: the scheme follows from all of them."""

    file: TextFile
    separator: str  # a tab, or any number of blanks
    names: tuple[str, ...]  # of the columns; numbers if the file gives none
    indexed: bool  # the first column numbers the words of a sentence; then lines that begin with # are comments
    word: int  # columns, from 0
    tag: int
    entities: bool  # whether the tags mark entities
    counts: TagCounts = field(default_factory=TagCounts)
    skipped: int = 0  # lines that only say that a document begins
    first: TaggedSentence | None = None

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The words and the tags of each sentence, with spaces between them. Every broken line is an error."""
        counts, path, sentences = self.counts, self.file.path, 0
        for sentence in self._sentences():
            counts.add(sentence.tags)
            self.first = self.first or sentence
            sentences += 1
            yield to_cells(sentence)
        words = counts.letters.total()
        if sentences == 1 and words > LONG:
            raise UserError(f"{path} is one sentence of {words:,} words: a blank line must stand between two sentences")
        if counts.scheme == PER_WORD and 2 * len(counts.different) > words > 20:
            raise UserError(
                f"{path}: column {self.names[self.tag]} has {len(counts.different):,} different values for {words:,} "
                "words: is this the tag? choose it with data.target, the word with data.source"
            )

    def _sentences(self) -> Iterator[TaggedSentence]:
        """The lines between two blank lines are a sentence; every line is checked."""
        words: list[str] = []
        tags: list[str] = []
        for number, line in chain(enumerate(self.file.iter_lines(), 1), [(0, "")]):
            if not line.strip() or line.startswith(DOCUMENT):
                self.skipped += line.startswith(DOCUMENT)
                if words:
                    yield TaggedSentence(tuple(words), tuple(tags))
                words, tags = [], []
                continue
            cells = _cells(line, self.separator)
            if self.indexed and (line.startswith("#") or SKIPPED.fullmatch(cells[0])):
                continue
            fits = len(cells) == len(self.names) > 1 and cells[self.word].strip() and self._fits(cells[self.tag])
            if not fits and not words and line.startswith("# "):
                continue  # a comment before a sentence
            if not fits:
                raise self._wrong(number, line, cells)
            if len(words) == LONGEST:
                raise UserError(
                    f"{self.file.path}, line {number}: this sentence has more than {LONGEST:,} words: a blank line "
                    "must stand between two sentences"
                )
            words.append(unbroken(cells[self.word].strip()))
            tags.append(cells[self.tag].strip())

    def _fits(self, tag: str) -> bool:
        """Whether it can be a tag of this file."""
        return bool(TAG.fullmatch(tag.strip()) if self.entities else len(tag.split()) == 1)

    def _wrong(self, number: int, line: str, cells: Sequence[str]) -> UserError:
        """The error of a line that has no word with its tag."""
        where, width = f"{self.file.path}, line {number}", len(self.names)
        if len(cells) != width or width < 2:
            wanted = f"the first has {width}" if width > 1 else "a word and its tag need two"
            comment = "; a comment stands before a sentence" if line.startswith("#") else ""
            count = f"{len(cells)} column{'s' if len(cells) != 1 else ''}"
            return UserError(f"{where} has {count}, but {wanted}: {shorten(line)}{comment}")
        if not cells[self.word].strip():
            return UserError(f"{where} has no word in column {self.names[self.word]}: {shorten(line)}")
        kind, form = "tag", "one word"
        if self.entities:
            kind, form = "tag of an entity", "O, or B-, I-, E- or S- and a type without blanks"
        return UserError(
            f"{where}: '{cells[self.tag].strip()}' is not the {kind}: column {self.names[self.tag]} must have {form}; "
            "another column is chosen with data.target"
        )

    def understood(self) -> str:
        """One sentence for the user, with the first example."""
        assert self.first is not None  # a file without any sentence is refused
        names, marks = self.names, "tabs" if self.separator == "\t" else "blanks"
        skipped = f"; {self.skipped:,} {DOCUMENT} lines skipped" if self.skipped else ""
        form = "CoNLL-U" if names == CONLL_U else "CoNLL"
        others = " (choose others with data.source and data.target)" if len(names) > 2 else ""
        return (
            f"{self.file.path.name}: {form} (columns between {marks}), {self.file.encoding}; the word is column "
            f"{names[self.word]}, the tag column {names[self.tag]}{others}; {self.counts.describe()}{skipped}; the "
            f"first sentence is {' → '.join(map(shorten, to_cells(self.first)))}"
        )


def open_tags(file: TextFile, config: DataConfig) -> TagTable:
    """The columns of the word and the tag: those that the user names, else FORM and UPOS in CoNLL-U, else the first one
    (after the number of the word) and the last, or the last that has only tags of entities."""
    path = file.path
    head = [line for line in beginning(file.iter_lines(), len) if line.strip() and not line.startswith(DOCUMENT)]
    if not head:
        file.first_line()  # an error if the file has no line at all
        raise UserError(f"{path} has only {DOCUMENT} lines: there is no sentence in it")
    plain = [line for line in head if not line.startswith("#")] or head
    separator = "\t" if "\t" in plain[0].strip() else " "
    rows = [_cells(line, separator) for line in plain]
    check_width(f"{path}: its first row", len(rows[0]), "columns")
    names = tuple(str(number) for number in range(1, len(rows[0]) + 1))
    numbers = [cells[0] for cells in rows if not SKIPPED.fullmatch(cells[0])]
    indexed = numbers[:1] == ["1"] and numbers[1:2] in ([], ["1"], ["2"]) and len(names) > 2
    if indexed and separator == "\t" and len(names) == len(CONLL_U):
        names = CONLL_U
    rows = [cells for cells in rows if len(cells) == len(names) and not (indexed and SKIPPED.fullmatch(cells[0]))]
    at = {"word": int(indexed), "tag": len(names) - 1}
    entities = [i for i in range(1, len(names)) if all(TAG.fullmatch(cells[i].strip()) for cells in rows)]
    if names == CONLL_U:
        at = {"word": CONLL_U.index("FORM"), "tag": CONLL_U.index("UPOS")}
    elif entities:
        at["tag"] = entities[-1]
    wanted = {"word": config.source, "tag": config.target}
    at |= {role: column_named(names, given, str(path)) for role, given in wanted.items() if given}
    if at["word"] == at["tag"] and len(names) > 1:
        name = names[at["word"]]
        raise UserError(f"{path}: the word and the tag are both column {name}; set data.source and data.target")
    marks = any(TAG.fullmatch(cells[at["tag"]].strip()) for cells in rows)
    return TagTable(file, separator, names, indexed, at["word"], at["tag"], marks)


def _cells(line: str, separator: str) -> list[str]:
    return line.split("\t") if separator == "\t" else re.split("[ \t]+", line.strip(" \t"))
