"""Labelled texts in files: TSV, CSV, JSONL, a file of texts beside one of labels, or lines that begin with a label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from allyouneed.config import DataConfig
from allyouneed.data.formats.columns import (
    FEW,
    Column,
    Role,
    Survey,
    by_names,
    find_columns,
    label_column,
    text_column,
    with_usual_names,
)
from allyouneed.data.formats.file_paths import form_of
from allyouneed.data.formats.table import MARK, Examples, Table, header_names, likely_form, open_table
from allyouneed.data.formats.textfile import TextFile, shorten
from allyouneed.errors import UserError, nearest

TWO_TEXTS = (
    *(("text", "second"), ("text1", "text2"), ("text_a", "text_b"), ("sentence1", "sentence2")),
    *(("sentence_a", "sentence_b"), ("question1", "question2"), ("premise", "hypothesis")),
)
SURE = [*({"text": one, "second text": two} for one, two in TWO_TEXTS), {"text": "text"}]  # names that leave no doubt
NEVER = frozenset(("nan", "NaN", "<NA>", "#N/A"))  # as programs write a value that is missing
SELDOM = frozenset(("-", "?", "NA", "N/A", "n/a", "null", "NULL"))  # a missing label, or one of the labels
RARE = 5  # times fewer rows than a label has on average
MANY = 10_000  # different labels that are counted
TOGETHER = 256  # rows that are looked at together; with many more alive, garbage collection takes half of the time


def _filled_column(columns: Sequence[Column], free: Sequence[int]) -> int:
    """The first column in which most cells have a value, or else the first."""
    return next((at for at in free if 2 * columns[at].filled > columns[at].rows), free[0])


LABEL = Role(
    "label",
    "data.target",
    (
        *("label", "labels", "class", "category", "sentiment", "intent", "topic", "polarity", "target", "emotion"),
        *("duplicate", "toxic", "spam", "rating", "stars", "score", "overall", "stance", "genre", "language", "output"),
    ),
    parts=True,
    among=_filled_column,
    by_cells=label_column,
)
TEXT = Role(
    "text",
    "data.source",
    (
        *("text", "sentence", "review", "question", "comment", "content", "document", "message", "tweet", "phrase"),
        *("utterance", "query", "post", "sms", "email", "body", "statement", "article", "abstract", "description"),
        *("headline", "summary", "title", "input"),
    ),
    parts=True,
    among=text_column,
    by_cells=text_column,
)
SECOND = Role("second text", "data.second", optional=True)


@dataclass
class LabelTable(Examples):
    """Texts and their labels. While they are read, the labels are counted: the counts show how the file marks a text
    without a label."""

    like: LabelTable | None = None  # the training file
    counts: Counter[str] = field(default_factory=Counter)

    def rows(self) -> Iterator[tuple[str, ...]]:
        """Text, label and, if there is one, the second text."""
        counts, rows = self.counts, super().rows()
        while some := list(islice(rows, TOGETHER)):
            texts, cells, *seconds = zip(*some)
            labels = [cell.strip() for cell in cells]
            counts.update(labels if len(counts) < MANY else (label for label in labels if label in counts))
            yield from zip(texts, labels, *seconds)

    @property
    def unlabelled(self) -> frozenset[str]:
        """The cells that mean "no label". NaN and the like always do. A dash, for example, does if it is rare and the
        labels are words or numbers; a file for valid or test follows the training file."""
        counts = self.counts
        never = NEVER & counts.keys()
        if self.like is not None:
            return never | (self.like.unlabelled & counts.keys())
        labels = [label for label in counts if label and label not in NEVER | SELDOM]
        words = len(labels) > 1 and all(re.search(r"\w", label) for label in labels)
        fair = (counts.total() - counts[""]) / (len(labels) + 1)
        return never | {mark for mark in SELDOM & counts.keys() if words and RARE * counts[mark] < fair}

    def understood(self) -> str:
        if marks := self.unlabelled:
            shown = ", ".join(f"'{mark}'" for mark in sorted(marks))
            self.guessed += f"; {sum(self.counts[mark] for mark in marks):,} rows without a label ({shown}) left out"
        return super().understood()


def open_labels(files: Sequence[TextFile], config: DataConfig, like: LabelTable | None = None) -> LabelTable:
    """Find the format and the columns: those that the user names, else those of `like`, the training file, if it has
    the same names, else those whose names are usual, else those that are found by their cells."""
    roles = (TEXT, LABEL, SECOND)
    wanted = {"text": config.source, "label": config.target, "second text": config.second}

    def usual(first: Sequence[str]) -> bool:
        """Whether a first row has names that tell both columns, or those of the training file."""
        theirs = {like.table.names[at] for at in like.columns.values()} if like and like.table.named else set()
        return _tell_both(first) or bool(theirs and theirs <= set(header_names(first)))

    values = (str, int, float, type(None))  # a label may be a number, or missing
    table = _label_lines(files, config.target, like) or open_table(files, wanted.values(), usual, config.header, values)
    names, where = table.names, table.where
    _refuse_lists(table, config.target)
    if len(names) < 2:
        raise UserError(f"{where} has only one column ({names[0]}), but a text and its label need two")
    known = _usual(names, table.survey) if like is None else _columns_like(table, like, wanted)
    if config.source:  # a user who names one text also says whether there are two
        known.pop("second text", None)

    def sample() -> list[Column]:
        """What the cells of the first rows are like; of all, if none of the first are labels: a file may be sorted."""
        columns = table.survey()
        return columns if any(column.has_labels for column in columns) else table.survey(None)

    columns, guessed = find_columns(names, roles, wanted, where, sample, known=known)
    if like is not None and ("second text" in like.columns) != ("second text" in columns):
        here, there = ("two texts", "one") if "second text" in columns else ("one text", "two")
        raise UserError(
            f"{where} has {here} per example, the training data {there}: name the columns with data.source, "
            "data.second and data.target, or give files of one kind"
        )
    return LabelTable(table, columns, guessed, like=like)


def _refuse_lists(table: Table, label: str) -> None:
    """Raise a UserError if the label is a list."""
    usual = [] if label or with_usual_names(table.names, LABEL) else with_usual_names(table.lists, LABEL)
    for name in [label] if label in table.lists else [table.lists[at] for at in usual]:
        raise UserError(
            f"{table.where}: '{name}' is a list, but a text has one label here, and several are not supported: write "
            "one label for each text, or name another key with data.target"
        )


def _label_lines(files: Sequence[TextFile], label: str, like: LabelTable | None) -> Table | None:
    """A file whose lines begin with their label: one of few words, or with fastText's mark. None: it is a table."""
    file, *other = files
    if other or form_of(file.path) or likely_form(start := file.first_line()):
        return None
    words, marked = Column(), 0
    for line in file.iter_lines():
        word = line.strip().partition(" ")[0]
        words.add(word)
        marked += word.startswith(MARK)
    known = label in ("1", "label") or (like is not None and like.table.form == "words")
    if known or words.has_labels or marked == words.filled:
        return Table((file,), "words", ("label", "text"))
    many = f"{len(words.different):,}" if len(words.different) <= FEW else f"more than {FEW}"
    raise UserError(
        f"{file.path}: its first line {shorten(start)} has no tab and is no JSON object, and {many} words begin its "
        f"{words.filled:,} lines; give a TSV, CSV or JSONL file with that ending, two parallel files, or data.target=1 "
        "if the first word of each line is its label"
    )


def _usual(names: Sequence[str], survey: Survey | None = None) -> dict[str, int]:
    """The columns with usual names; one that could be both, such as review_score, is the label."""
    return by_names(names, (LABEL, TEXT), None, survey, SURE)


def _tell_both(names: Sequence[str]) -> bool:
    """Whether the names tell which column is the text, and which is the label."""
    return {"text", "label"} <= _usual(names).keys()


def _columns_like(table: Table, like: LabelTable, wanted: dict[str, str]) -> dict[str, int]:
    """The columns with the names that they have in the training file, or with usual names; if nothing has names, those
    at the same positions."""
    names, theirs = table.names, like.table.names
    both_named = table.named and like.table.named
    if not both_named and len(names) == len(theirs) and not _tell_both(names):
        return dict(like.columns)
    found = _usual(names)
    if like.table.named:
        found |= {role: names.index(theirs[at]) for role, at in like.columns.items() if theirs[at] in names}
    for role in ("text", "label") if both_named else ():
        if role not in found and not wanted[role]:
            name = theirs[like.columns[role]]
            raise UserError(
                f"{table.where} has no column '{name}', which is the {role} in the training data"
                f"{nearest(name, names)}; correct it, or leave this file out"
            )
    return found
