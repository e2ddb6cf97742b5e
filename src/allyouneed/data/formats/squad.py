"""Questions about texts: SQuAD's JSON (1.1 and 2.0), JSONL, a list of objects in JSON, CSV or TSV. Answers are pieces
of the text, the context.

Where a file does not say at which character an answer begins, it is searched in the context.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from allyouneed.config import DataConfig
from allyouneed.data.examples import Question, digest, to_cells
from allyouneed.data.formats.columns import Role, by_names, find_columns
from allyouneed.data.formats.compressed import plain_name
from allyouneed.data.formats.objects import ONE_PER_LINE, is_listed, is_unicode, json_objects, json_shown
from allyouneed.data.formats.table import JSON, Examples, open_table
from allyouneed.data.formats.textfile import TextFile, shorten
from allyouneed.errors import UserError, nearest, shortened

Record = dict[str, Any]  # one question as its file has it
ROLES = (
    Role("context", "data.source", ("context", "text", "passage", "paragraph", "document", "article")),
    Role("question", "data.second", ("question", "query")),
    Role("answer", "data.target", ("answers", "answer", "answer_text")),
)
START, ID, IMPOSSIBLE = "answer_start", "id", "is_impossible"


@dataclass
class QuestionFile(Examples):
    """Questions in a file. While they are read, they are counted; blank ones do not count."""

    titles: Sequence[str] = ()  # of the articles to read from SQuAD's JSON, in this order; none: all
    counts: Counter[str] = field(default_factory=Counter)
    first: Question | None = None  # with an answer, if one has any

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The cells of each question; every error in the file is found."""
        names = {role: self.table.names[at] for role, at in self.columns.items()}
        contexts = set()
        for where, record in self._records(names):
            question, several = _question(record, names, where)
            yield to_cells(question)
            if several is None:
                continue
            if self.first is None or not self.first.answers:
                self.first = question
            self.counts["questions"] += 1
            self.counts["unanswered"] += not question.answers
            self.counts["several"] += several
            contexts.add(digest(question.context))
        self.counts["contexts"] = len(contexts)
        if not self.counts["questions"]:
            raise UserError(
                f"{self.table.where} has no question about a text: give a file with questions and their contexts"
            )

    def _records(self, names: dict[str, str]) -> Iterator[tuple[str, Record]]:
        if self.table.form == "squad":
            yield from _squad(self.table.files[0], self.titles)
            return
        for where, record in self.table.records():
            if record is None:
                record = dict.fromkeys(names.values(), "")
            elif self.table.form in ("csv", "tsv"):  # all cells are text
                record.pop(IMPOSSIBLE, None)
                with suppress(KeyError, ValueError):  # what is no number is an error later
                    record[START] = float(record[START]) if record[START].strip() else None
            yield where, record

    def understood(self) -> str:
        counts = self.counts
        self.guessed = (
            f"; {counts['questions']:,} questions about {counts['contexts']:,} texts, {counts['unanswered']:,} without "
            "an answer"
        )
        if counts["several"]:
            self.guessed += (
                f"; {counts['several']:,} have an answer that occurs several times in its context and has no {START}: "
                "the first place is used"
            )
        return super().understood()

    def _first(self) -> Sequence[str]:
        assert self.first is not None  # a file without any question is refused
        return [self.first.question, *(text for _, text in self.first.answers[:1])]


def open_questions(file: TextFile, config: DataConfig, titles: Sequence[str] = ()) -> QuestionFile:
    """The columns, or the keys of JSON, are those that the user names, else those with usual names."""
    path, wanted = file.path, {"context": config.source, "question": config.second, "answer": config.target}
    form = "squad" if _is_squad(file) else ""
    for role in ROLES if form else ():
        if given := wanted[role.name]:
            raise UserError(f"{role.setting} = {given} is for tables and JSONL; {path} is SQuAD's JSON: leave it out")
    table = open_table([file], wanted.values(), _are_usual, config.header, (object,), form, "questions")
    if IMPOSSIBLE in table.names and table.form in JSON and "answer" not in by_names(table.names, ROLES):
        table = replace(table, names=(*table.names, "answers"))  # this one has no answer, and needs no key for it
    columns, _ = find_columns(table.names, ROLES, wanted, table.where)
    return QuestionFile(table, columns, what="question", titles=titles)


def _are_usual(names: Sequence[str]) -> bool:
    return len(by_names(names, ROLES)) > 1


def _is_squad(file: TextFile) -> bool:
    """Whether a file is an object with questions inside of others, or broken: reading it as SQuAD's JSON shows how."""
    suffix = Path(plain_name(file.path)).suffix.lower()
    if file.first_line().lstrip()[:1] != "{" or suffix in (*ONE_PER_LINE, ".csv", ".tsv", ".tab"):
        return False
    listed = is_listed(file, _are_usual)
    try:
        first = next((item for _, item in json_objects(file, listed) if item is not None), {})
    except UserError:
        return True
    return "question" not in by_names(list(first), ROLES) and (listed or "data" in first)


def _squad(file: TextFile, titles: Sequence[str] = ()) -> Iterator[tuple[str, Record]]:
    """Articles have paragraphs, and a paragraph is a context with its questions. `titles`: the articles to read."""
    path = file.path
    articles = enumerate((item or {} for _, item in json_objects(file, True, "data")), 1)
    if titles:
        found = {item["title"]: (i, item) for i, item in articles if item.get("title") in titles}
        if missing := [title for title in titles if title not in found]:
            raise UserError(f"{path} is damaged: it has no article {', '.join(map(shorten, missing))}")
    for i, article in (found[title] for title in titles) if titles else articles:
        for j, paragraph in enumerate(_get(article, "paragraphs", f"{path}, article {i}", list), 1):
            where = f"{path}, article {i}, paragraph {j}"
            for k, asked in enumerate(_get(paragraph, "qas", where, list), 1):
                if not isinstance(asked, dict):
                    raise UserError(f"{where}, question {k} is {json_shown(asked)}, but an object is expected")
                name = asked.get(ID)
                known = isinstance(name, str) and 0 < len(name) < 80 and name.isprintable()
                context = {key: value for key, value in paragraph.items() if key == "context"}
                yield f"{path}, question '{name}'" if known else f"{where}, question {k}", {**context, **asked}


def _get(item: Any, key: str, where: str, kind: Any = object) -> Any:
    """The value of a key: of any kind, a list or text."""
    if not isinstance(item, dict):
        raise UserError(f"{where} is {json_shown(item)}, but an object with '{key}' is expected")
    if key not in item:
        raise UserError(f"{where} has no key '{key}'{nearest(key, item)}")
    value = item[key]
    if not isinstance(value, kind) or (kind is str and not is_unicode(value)):
        wanted = "text" if kind is str else "a list"
        raise UserError(f"{where}: '{key}' is {json_shown(value)}, but {wanted} is expected")
    return value


def _question(record: Record, names: dict[str, str], where: str) -> tuple[Question, bool | None]:
    """The question, and whether an answer was searched and is found in several places; None: it is blank."""
    asked, context = (_get(record, names[side], where, str) for side in ("question", "context"))
    given = _whole(record.get(ID))
    name = str(given) if isinstance(given, int) else _get({ID: given or ""}, ID, where, str)
    if name and f"'{name}'" not in where:
        where += f" ('{shortened(name)}')"
    pieces = _answers(record, names["answer"], where)
    if not asked.strip() or not context.strip():  # it is dropped, whatever its answers are
        return Question(asked, context, id=name), None
    answers = tuple(_in_context(piece, start, context, where) for piece, start in pieces)
    several = any(start is None and context.count(piece.strip()) > 1 for piece, start in pieces)
    return Question(asked, context, answers, name), several


def _answers(record: Record, key: str, where: str) -> list[tuple[str, int | None]]:
    """The answers and where they begin; None: the file does not say. A blank answer is none."""
    impossible = record.get(IMPOSSIBLE) or False
    if impossible not in (True, False):
        raise UserError(f"{where}: '{IMPOSSIBLE}' is {json_shown(impossible)}, but true or false is expected")
    if key not in record and impossible:
        return []
    if key not in record:
        raise UserError(f"{where} has no key '{key}'{nearest(key, record)}; if the context does not tell, give []")
    given, starts = record[key], record.get(START)
    if isinstance(given, dict):  # two lists, as Hugging Face has them, or one answer
        given, starts = _get(given, "text", where), given.get(START)
    elif isinstance(given, list) and any(isinstance(item, dict) for item in given):  # as SQuAD has them
        items = [item if isinstance(item, dict) else {"text": item} for item in given]
        given, starts = [_get(item, "text", where) for item in items], [item.get(START) for item in items]
    texts = given if isinstance(given, list) else [] if given is None else [given]
    starts = starts if isinstance(starts, list) else [starts] * (len(texts) if starts is None else 1)
    if texts and len(texts) != len(starts):
        raise UserError(f"{where} has {len(texts)} answers, but {len(starts)} {START}: give one for each answer")
    pieces = [(_get({key: piece}, key, where, str), _whole(start)) for piece, start in zip(texts, starts)]
    found = [(piece, start) for piece, start in pieces if piece.strip()]
    for _, start in found:
        if start is not None and type(start) is not int:
            raise UserError(
                f"{where}: '{START}' is {shortened(json_shown(start))}, but a whole number is expected: which "
                "character of the context the answer begins with, from 0"
            )
    if found and impossible:
        raise UserError(f"{where}: '{IMPOSSIBLE}' is true, but there is the answer {shorten(found[0][0])}: correct one")
    return found


def _whole(value: Any) -> Any:
    """12 for 12.0, as pandas writes whole numbers if some are missing."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _in_context(piece: str, start: int | None, context: str, where: str) -> tuple[int, str]:
    """The answer in the context."""
    if start is None:
        piece = piece.strip()
        start = context.find(piece)
        if start < 0:
            raise UserError(
                f"{where}: the answer {shorten(piece)} is not in the context {shorten(context)}: give it exactly as it "
                "is written there, or leave it empty if the context does not tell"
            )
    elif start < 0 or not context.startswith(piece, start):
        there = shorten(context[start : start + len(piece)]) if 0 <= start < len(context) else "nothing"
        first = context.find(piece)
        elsewhere = f"it begins at {first}" if first >= 0 else "it is nowhere in the context"
        raise UserError(
            f"{where}: the answer {shorten(piece)} does not begin at {START} {shortened(start)}, where the context has "
            f"{there}; {elsewhere}: correct {START}, which counts characters from 0, or leave it out"
        )
    return start, piece
