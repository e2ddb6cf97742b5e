"""Labelled texts in files: TSV, CSV, JSONL, or a file of texts beside one of labels."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from allyouneed.data.examples import LabelledText
from allyouneed.data.tables import Table, column_of, open_table
from allyouneed.errors import UserError

TEXTS = ("text", "sentence", "review", "question", "comment", "content", "document", "message", "tweet", "title")
LABELS = ("label", "class", "category", "sentiment", "intent", "topic", "polarity", "target")
TWO_TEXTS = (
    *(("text", "second"), ("text1", "text2"), ("text_a", "text_b"), ("sentence1", "sentence2")),
    *(("sentence_a", "sentence_b"), ("question1", "question2"), ("premise", "hypothesis")),
)
LOOKED_AT = 1000  # rows, if the names do not tell


@dataclass(frozen=True)
class LabelTable:
    """Texts and their labels in a table. Iterating reads the files again."""

    table: Table
    text: int  # columns, from 0
    label: int
    second: int | None = None

    @property
    def columns(self) -> dict[str, int]:
        found = {"text": self.text, "label": self.label}
        return found if self.second is None else {**found, "second": self.second}

    def __iter__(self) -> Iterator[LabelledText]:
        rows = self.table.rows(list(self.columns.values()))
        return (LabelledText(text, label.strip(), *second) for text, label, *second in rows)

    def understood(self) -> str:
        """One sentence for the user, with the first example."""
        names = {"second": "second text"}
        return self.table.understood({names.get(side, side): at for side, at in self.columns.items()}, "example")


def open_labels(
    paths: Sequence[Path], text: str = "", label: str = "", second: str = "", like: LabelTable | None = None
) -> LabelTable:
    """Finds the format and the columns: those that are named, else those whose names are usual, else those of `like`,
    the training file, else the one with the longest texts and the one with the fewest different labels."""
    # A label may be a number.
    table = open_table(paths, (text, label, second), _usual_columns, values=(str, int, float))
    names, where = table.names, table.where
    if len(names) < 2:
        raise UserError(f"{where} has only one column ({names[0]}), but a text and its label need two")
    named = (("text", text), ("label", label), ("second", second))
    chosen = {side: column_of(table, name) for side, name in named if name}
    if len(set(chosen.values())) < len(chosen):
        told = ", ".join(f"{side} is column {names[column]}" for side, column in chosen.items())
        raise UserError(f"{where}: {told}; each needs a column of its own (data.source, data.target, data.second)")
    usual = _usual_columns(names) or {}
    if not usual and like is not None and len(like.table.names) == len(names):
        usual = like.columns
    if "text" in chosen:  # a user who names one text also says whether there are two
        usual.pop("second", None)
    for side, column in usual.items():
        if side not in chosen and column not in chosen.values():
            chosen[side] = column
    for side in ("text", "label"):
        if side not in chosen:
            chosen[side] = _likely(side, table, set(chosen.values()))
    if like is not None and (like.second is None) != ("second" not in chosen):
        here, there = ("one text", "two") if like.second is not None else ("two texts", "one")
        raise UserError(
            f"{where} has {here} per example, the training data {there}: name the columns with data.source, "
            "data.second and data.target, or give files of one kind"
        )
    return LabelTable(table, chosen["text"], chosen["label"], chosen.get("second"))


def _usual_columns(names: Sequence[str]) -> dict[str, int] | None:
    """The columns with usual names; None unless there is a text and a label."""
    plain = [name.strip().lower() for name in names]
    label = _named(plain, LABELS)
    for first, second in TWO_TEXTS:
        if label is not None and first in plain and second in plain:
            return {"text": plain.index(first), "label": label, "second": plain.index(second)}
    text = _named(plain, TEXTS)
    return {"text": text, "label": label} if text is not None and label is not None else None


def _named(plain: Sequence[str], usual: Sequence[str]) -> int | None:
    """The column with one of the usual names, or with a name that has one as a part: tweet_text."""
    parts = [re.split(r"[\W_]+", name) for name in plain]
    return next(
        (column for name in usual for column, own in enumerate(plain) if own == name),
        next((column for name in usual for column, own in enumerate(parts) if name in own), None),
    )


def _likely(side: str, table: Table, taken: set[int]) -> int:
    """By their contents: the column with the longest texts, or with the fewest different values, but more than one."""
    columns = [column for column in range(len(table.names)) if column not in taken]
    if not columns:
        raise UserError(
            f"{table.paths[0]} has no column left for the {side}; it has {', '.join(table.names)}: "
            "choose with data.source and data.target"
        )
    if table.form == "jsonl":
        return columns[0]
    rows = [row for row in islice(table.rows(range(len(table.names))), LOOKED_AT) if any(row)]
    if side == "text":
        # A label is never as long as its text; if both are one word, the text comes first.
        return max(columns, key=lambda column: (sum(len(row[column]) for row in rows), -column))
    different = {column: len({row[column].strip() for row in rows}) for column in columns}
    return min(columns, key=lambda column: (different[column] < 2, different[column], -column))
