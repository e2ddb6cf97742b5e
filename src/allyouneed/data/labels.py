"""Labelled texts in files: TSV, CSV, JSONL, a file of texts beside one of labels, or lines that begin with a label."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from allyouneed.data.columns import FEW, Column, label_column, text_column
from allyouneed.data.examples import LabelledText
from allyouneed.data.reading import lines
from allyouneed.data.sources import shorten
from allyouneed.data.tables import MARK, Table, column_of, first_line, form_of, header_names, likely_form, open_table
from allyouneed.errors import UserError, nearest

TEXTS = (
    *("text", "sentence", "review", "question", "comment", "content", "document", "message", "tweet", "phrase"),
    *("utterance", "query", "post", "sms", "email", "body", "statement", "article", "abstract", "description"),
    *("headline", "summary", "title", "input"),
)
LABELS = (
    *("label", "labels", "class", "category", "sentiment", "intent", "topic", "polarity", "target", "emotion"),
    *("duplicate", "toxic", "spam", "rating", "stars", "score", "overall", "stance", "genre", "language", "output"),
)
TWO_TEXTS = (
    *(("text", "second"), ("text1", "text2"), ("text_a", "text_b"), ("sentence1", "sentence2")),
    *(("sentence_a", "sentence_b"), ("question1", "question2"), ("premise", "hypothesis")),
)
NEVER = frozenset(("nan", "NaN", "<NA>", "#N/A"))  # as programs write a value that is missing
SELDOM = frozenset(("-", "?", "NA", "N/A", "n/a", "null", "NULL"))  # a missing label, or one of the labels
RARE = 5  # times fewer rows than a label has on average
MANY = 10_000  # different labels that are counted
NUMBERED = {"id", "ids", "idx"}  # in names of columns that are neither text nor label
SETTINGS = {"text": "data.source", "label": "data.target", "second": "data.second"}


@dataclass(frozen=True)
class LabelTable:
    """Texts and their labels in a table. Iterating reads the files again."""

    table: Table
    text: int  # columns, from 0
    label: int
    second: int | None = None
    guessed: str = ""  # what was guessed, for the user
    unlabelled: frozenset[str] = frozenset()  # what stands in the column of the label where there is none

    @property
    def columns(self) -> dict[str, int]:
        found = {"text": self.text, "label": self.label}
        return found if self.second is None else {**found, "second": self.second}

    def __iter__(self) -> Iterator[LabelledText]:
        rows = self.table.rows(list(self.columns.values()))
        return (LabelledText(text, self.labelled(label), *second) for text, label, *second in rows)

    def labelled(self, cell: str) -> str:
        """The label in a cell; blank if there is none, so that the example is dropped."""
        label = cell.strip()
        return "" if label in self.unlabelled else label

    def understood(self) -> str:
        """One sentence for the user, with the first example."""
        columns = {"second text" if side == "second" else side: at for side, at in self.columns.items()}
        return self.table.understood(columns, "example", self.guessed)


def open_labels(
    paths: Sequence[Path],
    text: str = "",
    label: str = "",
    second: str = "",
    header: str = "auto",
    like: LabelTable | None = None,
    code: str = "",
) -> LabelTable:
    """Finds the format and the columns: those that the user names, else those of `like`, the training file, if it has
    the same names, else those whose names are usual, else those that `columns` finds by their contents. `code`:
    data.encoding."""
    table = _label_lines(paths, label, like, code) or open_table(
        paths,
        (text, label, second),
        lambda first: _tell(first) or _same_header(first, like),
        header,
        values=(str, int, float, type(None)),  # a label may be a number, or missing
        least=1,
        code=code,
    )
    names, where = table.names, table.where
    _refuse_lists(table, label)
    if len(names) < 2:
        raise UserError(f"{where} has only one column ({names[0]}), but a text and its label need two")
    wanted = (("text", text), ("label", label), ("second", second))
    asked = {side: column_of(table, name) for side, name in wanted if name}
    if len(set(asked.values())) < len(asked):
        told = ", ".join(f"{side} is column {names[column]}" for side, column in asked.items())
        raise UserError(f"{where}: {told}; each needs a column of its own (data.source, data.target, data.second)")
    usual = _usual_texts(table) if like is None else _columns_like(table, like)
    if "text" in asked:  # a user who names one text also says whether there are two
        usual.pop("second", None)
    known = asked | {side: at for side, at in usual.items() if side not in asked and at not in asked.values()}
    if like is not None:
        _check_like(table, like, known)
    chosen, guessed = _by_contents(table, known)
    if like is not None and (like.second is None) != ("second" not in chosen):
        here, there = ("one text", "two") if like.second is not None else ("two texts", "one")
        raise UserError(
            f"{where} has {here} per example, the training data {there}: name the columns with data.source, "
            "data.second and data.target, or give files of one kind"
        )
    if like is None and table.form != "words":
        guessed += _could_be(table, chosen, asked)
    marks, count = _marks(table, chosen["label"], like)
    if count:
        told = ", ".join(f"'{mark}'" for mark in sorted(marks))
        guessed += f"; {count:,} rows without a label ({told}) left out"
    return LabelTable(table, chosen["text"], chosen["label"], chosen.get("second"), guessed, frozenset(marks))


def _refuse_lists(table: Table, label: str) -> None:
    """Raise a UserError if the label is a list."""
    usual = [] if label or with_usual_names(table.names, LABELS) else with_usual_names(table.lists, LABELS)
    for name in [label] if label in table.lists else [table.lists[at] for at in usual]:
        raise UserError(
            f"{table.where}: '{name}' is a list, but a text has one label here, and several are not supported: write "
            "one label for each text, or name another key with data.target"
        )


def _marks(table: Table, column: int, like: LabelTable | None) -> tuple[set[str], int]:
    """What stands in the column of the label where there is none, and in how many rows. NaN and the like are never
    labels. A dash, say, is none if it is rare and the labels are words or numbers; a file for valid or test has it from
    the training file."""
    counts: Counter[str] = Counter()
    with suppress(UserError):  # whoever reads on finds the mistake
        for (cell,) in table.rows([column]):
            label = cell.strip()
            if label in counts or len(counts) < MANY:
                counts[label] += 1
    counts.pop("", None)
    marks = set(NEVER & counts.keys())
    if like is not None:
        marks |= like.unlabelled & counts.keys()
    else:
        labels = [label for label in counts if label not in NEVER | SELDOM]
        words = len(labels) > 1 and all(re.search(r"\w", label) for label in labels)
        fair = counts.total() / (len(labels) + 1)
        marks |= {mark for mark in SELDOM & counts.keys() if words and RARE * counts[mark] < fair}
    return marks, sum(counts[mark] for mark in marks)


def _label_lines(paths: Sequence[Path], label: str, like: LabelTable | None, code: str) -> Table | None:
    """A file whose lines begin with their label: one of few words, or with fastText's mark. None: it is a table."""
    path, *other = paths
    if other or form_of(path) or likely_form(start := first_line(path, code)):
        return None
    words, marked = Column(), 0
    for line in lines(path, code):
        word = line.strip().partition(" ")[0]
        words.add(word)
        marked += word.startswith(MARK)
    known = label in ("1", "label") or (like is not None and like.table.form == "words")
    if known or words.has_labels or marked == words.filled:
        return Table((path,), "words", ("label", "text"), code=code)
    many = f"{len(words.different):,}" if len(words.different) <= FEW else f"more than {FEW}"
    raise UserError(
        f"{path}: its first line {shorten(start)} has no tab and is no JSON object, and {many} words begin its "
        f"{words.filled:,} lines; give a TSV, CSV or JSONL file with that ending, two parallel files, or data.target=1 "
        "if the first word of each line is its label"
    )


def _tell(names: Sequence[str]) -> bool:
    """Whether the names tell both columns."""
    return {"text", "label"} <= _usual_columns(names).keys()


def _columns_like(table: Table, like: LabelTable) -> dict[str, int]:
    """Those with the names that they have in the training file, or with usual names; if nothing has names, those at the
    same places."""
    names = table.names
    if not _tell(names) and not (table.named and like.table.named) and len(names) == len(like.table.names):
        return like.columns
    theirs = {side: like.table.names[at] for side, at in like.columns.items()} if like.table.named else {}
    return _usual_columns(names) | {side: names.index(name) for side, name in theirs.items() if name in names}


def _same_header(first: Sequence[str], like: LabelTable | None) -> bool:
    """Whether a first row has the names that the training file gives to its columns."""
    return (
        like is not None
        and like.table.named
        and {like.table.names[at] for at in like.columns.values()} <= set(header_names(first))
    )


def _usual_columns(names: Sequence[str]) -> dict[str, int]:
    """The columns with usual names; one that could be both, such as review_score, is the label."""
    plain = [name.strip().lower() for name in names]
    found: dict[str, int] = {}
    for side, usual in (("label", LABELS), ("text", TEXTS)):
        free = [at for at in with_usual_names(names, usual) if at not in found.values()]
        if free:
            found[side] = free[0]
    for first, second in TWO_TEXTS:
        if first in plain and second in plain:
            return {**found, "text": plain.index(first), "second": plain.index(second)}
    return found


def _usual_texts(table: Table) -> dict[str, int]:
    """The columns with usual names. If several could be the text, the one with the longest texts is, unless one is
    called text; if several could be the label, the first that is mostly filled."""
    found, names = _usual_columns(table.names), table.names
    texts, labels = (with_usual_names(names, usual) for usual in (TEXTS, LABELS))
    if len(labels) < 2 and len(texts) < 2:
        return found
    columns = table.survey()
    filled = [at for at in labels if 2 * columns[at].filled > columns[at].rows]
    if filled:
        found["label"] = filled[0]
    texts = [at for at in texts if at != found.get("label")]
    if texts and "second" not in found:
        called = [at for at in texts if names[at].strip().lower() == TEXTS[0]]
        found["text"] = called[0] if called else text_column(columns, texts)
    return found


def with_usual_names(names: Sequence[str], usual: Sequence[str]) -> list[int]:
    """The columns with one of the usual names, then those with one as a part: tweet_text, reviewText."""
    plain = [name.strip().lower() for name in names]
    parts = [set(re.split(r"[\W_]+", re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower())) for name in names]
    whole = [at for name in usual for at, own in enumerate(plain) if own == name]
    partly = [at for name in usual for at, own in enumerate(parts) if name in own and not own & NUMBERED]
    return list(dict.fromkeys(whole + partly))


def _check_like(table: Table, like: LabelTable, known: dict[str, int]) -> None:
    """Raise a UserError if a file with names has no column for the text or the label of the training file."""
    for side in ("text", "label"):
        if side not in known and table.named and like.table.named:
            name = like.table.names[like.columns[side]]
            raise UserError(
                f"{table.where} has no column '{name}', which is the {side} in the training data"
                f"{nearest(name, table.names)}; correct it, or leave this file out"
            )


def _by_contents(table: Table, known: dict[str, int]) -> tuple[dict[str, int], str]:
    """The columns with text and label, those that are not known found by their cells, which the user is told."""
    chosen, told = dict(known), []
    columns = table.survey()
    for side in ("text", "label"):
        if side in chosen:
            continue
        free = [at for at in range(len(columns)) if at not in chosen.values()]
        free = [at for at in free if columns[at].filled] or free
        if not free:
            raise UserError(
                f"{table.paths[0]} has no column left for the {side}; it has {', '.join(table.names)}: "
                "choose with data.source and data.target"
            )
        if side == "label" and not any(columns[at].has_labels for at in free):
            columns = table.survey(None)  # the file may be sorted by its labels
        chosen[side] = (text_column if side == "text" else label_column)(columns, free)
        told.append(side)
    others = " and ".join(SETTINGS[side] for side in told)
    return chosen, f"; {' and '.join(told)} guessed from the cells (choose others with {others})" if told else ""


def _could_be(table: Table, chosen: dict[str, int], asked: dict[str, int]) -> str:
    """Which other columns could be the text or the label, for the user."""
    columns, told = table.survey(), ""
    for side, usual in (("text", TEXTS), ("label", LABELS)):
        others = set(with_usual_names(table.names, usual))
        if side == "label":
            most = len(columns[chosen["label"]].different)
            others |= {at for at, column in enumerate(columns) if column.has_labels and len(column.different) <= most}
        names = ", ".join(table.names[at] for at in sorted(others - set(chosen.values())) if columns[at].filled)
        if names and side not in asked:
            told += f"; the {side} could also be {names} ({SETTINGS[side]})"
    return told
