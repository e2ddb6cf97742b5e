"""Questions about texts: SQuAD's JSON (1.1 and 2.0), JSONL, a list of objects in JSON, CSV or TSV. Answers are pieces
of the text, the context.

Where a file does not say at which character an answer begins, it is searched in the context.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allyouneed.data.examples import Question, digest, is_blank
from allyouneed.data.formats.compressed import plain_name
from allyouneed.data.formats.file_paths import form_of
from allyouneed.data.formats.objects import LINES, is_listed, is_unicode, json_objects, json_told
from allyouneed.data.formats.roles import Role, by_names, find_columns
from allyouneed.data.formats.table import JSON, Table, likely_form, open_table
from allyouneed.data.formats.textfile import TextFile, shorten
from allyouneed.errors import UserError, nearest, shortened
from allyouneed.format import human_bytes

Record = dict[str, Any]  # one question as its file has it
ROLES = (
    Role("context", "data.source", ("context", "text", "passage", "paragraph", "document", "article")),
    Role("question", "data.second", ("question", "query")),
    Role("answer", "data.target", ("answers", "answer", "answer_text")),
)
SQUAD = {"context": "context", "question": "question", "answer": "answers"}
MOST = 1 << 29  # characters of SQuAD's JSON, which is read as a whole
START, ID, IMPOSSIBLE = "answer_start", "id", "is_impossible"


@dataclass
class Survey:
    """What one pass over a file saw; blank examples do not count."""

    questions: int = 0
    contexts: int = 0
    unanswered: int = 0
    searched: int = 0  # questions with an answer that was searched and is found in several places
    first: Question | None = None

    def told(self) -> str:
        """For the user."""
        several = (
            f"; {self.searched:,} have an answer that occurs several times in its context and has no {START}: the "
            "first place is used"
        )
        return (
            f"{self.questions:,} questions about {self.contexts:,} texts, {self.unanswered:,} without an answer"
            f"{several if self.searched else ''}"
        )


@dataclass
class QuestionFile:
    """Questions in a file. While it is read, they are counted."""

    file: TextFile
    names: dict[str, str]  # of the columns or keys with context, question and answer
    table: Table | None  # of CSV and TSV
    form: str  # csv, tsv, jsonl, json (a list of objects), or squad
    survey: Survey = field(default_factory=Survey)
    titles: Sequence[str] = ()  # of the articles to read from SQuAD's JSON, in this order; none: all

    def rows(self) -> Iterator[tuple[str, ...]]:
        """The cells of each question; every error in the file is found."""
        found, contexts = self.survey, set()
        for question, several in self._questions():
            yield question.cells
            if is_blank(question):
                continue
            found.first = found.first or question
            found.questions += 1
            found.unanswered += not question.answers
            found.searched += several
            contexts.add(digest(question.context))
        found.contexts = len(contexts)
        if not found.questions:
            raise UserError(
                f"{self.file.path} has no question about a text: give a file with questions and their contexts"
            )

    def _questions(self) -> Iterator[tuple[Question, bool]]:
        """Each question, and whether an answer was searched and is found in several places."""
        if self.table is not None:
            records = _rows(self.table, self.names)
        else:
            records = _squad(self.file, self.titles) if self.form == "squad" else self._objects()
        return (_question(record, self.names, where) for where, record in records)

    def _objects(self) -> Iterator[tuple[str, Record]]:
        for where, item in json_objects(self.file, self.form == "json"):
            yield where, dict.fromkeys(self.names.values(), "") if item is None else item

    def understood(self) -> str:
        """One sentence for the user, with the first question."""
        if self.table is not None:
            columns = {role: self.table.names.index(name) for role, name in self.names.items()}
            return self.table.understood(columns, "example", f"; {self.survey.told()}")
        keys = ", ".join(f"{role} is key {name}" for role, name in self.names.items())
        listed = "JSON (a list of objects)" if self.form == "json" else "JSONL (one object per line)"
        form = "SQuAD's JSON" if self.form == "squad" else f"{listed}, {keys}"
        first = self.survey.first
        assert first is not None  # a file without any question is refused
        answer = shorten(first.answers[0][1]) if first.answers else "no answer"
        return (
            f"{self.file.path.name}: {form}, {self.file.encoding}; {self.survey.told()}; "
            f"the first is {shorten(first.question)} → {answer}"
        )


def open_questions(
    file: TextFile, context: str = "", answer: str = "", question: str = "", header: str = "auto"
) -> QuestionFile:
    """The columns, or the keys of JSONL, are those that the user names, else those with usual names."""
    path, wanted = file.path, {"context": context, "question": question, "answer": answer}
    form = _form(file)
    table = None
    if form in ("csv", "tsv"):
        table = open_table([file], tuple(wanted.values()), lambda first: len(_usual(first)) > 1, header)
        names = _names(table.names, wanted, path)
    elif header == "true":
        raise UserError(f"data.header = true, but {path} is neither TSV nor CSV and has no header: leave it out")
    elif form in JSON:
        keys = list(next((item for _, item in json_objects(file, form == "json") if item is not None), {}))
        if IMPOSSIBLE in keys and "answer" not in _usual(keys):  # this one has no answer, and needs no key for it
            keys.append(SQUAD["answer"])
        names = _names(keys, wanted, path)
    else:
        for role in ROLES:
            if given := wanted[role.name]:
                raise UserError(
                    f"{role.setting} = {given} is for tables and JSONL; {path} is SQuAD's JSON: leave it out"
                )
        names = SQUAD
    return QuestionFile(file, names, table, form)


def _form(file: TextFile) -> str:
    """csv, tsv, jsonl, json or squad, as the ending of the name and the beginning of the file tell."""
    path, line = file.path, file.first_line()
    form = form_of(path) or likely_form(line)
    if form in ("csv", "tsv"):
        return form
    if line.lstrip()[:1] not in ("{", "["):
        raise UserError(
            f"{path} does not look like questions: its first line {shorten(line)} has no tab and is no JSON object; "
            "give SQuAD's JSON, or a JSONL, CSV or TSV file with that ending and with question, context and answer"
        )
    if line.lstrip().startswith("["):
        return "json"
    if Path(plain_name(path)).suffix.lower() in LINES:
        return "jsonl"
    try:
        item = json.loads(line)
    except (ValueError, RecursionError):
        item = None  # one object over many lines, or a very long one, or broken: reading it tells
    if isinstance(item, dict) and (len(_usual(list(item))) > 1 or not ("data" in item or is_listed(file))):
        return "jsonl"
    first: Record | None = None
    with suppress(UserError):
        first = next((found for _, found in json_objects(file, is_listed(file))), None)
    return "json" if first and "question" in _usual(list(first)) else "squad"


def _usual(names: Sequence[str]) -> dict[str, int]:
    """The columns with usual names."""
    return by_names(names, ROLES)


def _names(names: Sequence[str], wanted: dict[str, str], path: Path) -> dict[str, str]:
    """The column or key of each role."""
    found = find_columns(names, ROLES, wanted, str(path), kind="column or key")
    return {role.name: names[found.columns[role.name]] for role in ROLES}


def _rows(table: Table, names: dict[str, str]) -> Iterator[tuple[str, Record]]:
    """The rows of a table, numbered as a spreadsheet numbers them."""
    used = [*names.values(), *(name for name in (START, ID) if name in table.names and name not in names.values())]
    for number, cells in enumerate(table.rows([table.names.index(name) for name in used]), 1 + table.header):
        record: Record = dict(zip(used, cells))
        if START in used[len(names) :]:
            record[START] = _number(record[START].strip())
        yield f"{table.where}, row {number}", record


def _number(cell: str) -> Any:
    """A cell as a number, None if it is empty; anything else stays text, which is told as an error later."""
    try:
        return float(cell) if cell else None
    except ValueError:
        return cell


def _squad(file: TextFile, titles: Sequence[str] = ()) -> Iterator[tuple[str, Record]]:
    """Articles have paragraphs, and a paragraph is a context with its questions. `titles`: the articles to read."""
    path, pieces, size = file.path, [], 0
    for piece in file.text():
        pieces.append(piece)
        size += len(piece)
        if size > MOST:
            raise UserError(f"{path} has more than {human_bytes(MOST)} of JSON in one value: write it as JSONL")
    try:
        document = json.loads("".join(pieces))
    except json.JSONDecodeError as error:
        raise UserError(
            f"{path} is not JSON: {error.msg} (line {error.lineno}, column {error.colno}); is the file complete? "
            "If it has one object per line, end its name with .jsonl"
        ) from None
    except RecursionError:
        raise UserError(f"{path}: its lists and objects are nested too deeply") from None
    except ValueError:
        raise UserError(f"{path} has a number with too many digits: write it as text") from None
    articles = list(enumerate(_listed(document, "data", str(path)), 1))
    if titles:
        found = {article.get("title"): (i, article) for i, article in articles if isinstance(article, dict)}
        if missing := [title for title in titles if title not in found]:
            raise UserError(f"{path} is damaged: it has no article {', '.join(map(shorten, missing))}")
        articles = [found[title] for title in titles]
    for i, article in articles:
        for j, paragraph in enumerate(_listed(article, "paragraphs", f"{path}, article {i}"), 1):
            where = f"{path}, article {i}, paragraph {j}"
            for k, asked in enumerate(_listed(paragraph, "qas", where), 1):
                if not isinstance(asked, dict):
                    raise UserError(f"{where}, question {k} is {json_told(asked)}, but an object is expected")
                name = asked.get(ID)
                known = isinstance(name, str) and 0 < len(name) < 80 and name.isprintable()
                told = f"{path}, question '{name}'" if known else f"{where}, question {k}"
                yield told, {**{key: value for key, value in paragraph.items() if key == "context"}, **asked}


def _listed(holder: Any, key: str, where: str) -> list[Any]:
    if not isinstance(holder, dict):
        raise UserError(f"{where} is {json_told(holder)}, but an object with '{key}' is expected")
    found = _value(holder, key, where)
    if not isinstance(found, list):
        raise UserError(f"{where}: '{key}' is {json_told(found)}, but a list is expected")
    return found


def _value(holder: Record, key: str, where: str) -> Any:
    if key not in holder:
        raise UserError(f"{where} has no key '{key}'{nearest(key, holder)}")
    return holder[key]


def _text(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not is_unicode(value):
        raise UserError(f"{where}: '{key}' is {json_told(value)}, but text is expected")
    return value


def _question(record: Record, names: dict[str, str], where: str) -> tuple[Question, bool]:
    """The question, and whether an answer was searched and is found in several places."""
    asked, context = (_text(_value(record, names[side], where), names[side], where) for side in ("question", "context"))
    given = record.get(ID)
    given = int(given) if isinstance(given, float) and given.is_integer() else given  # as pandas writes numbers
    name = str(given) if isinstance(given, int) else _text(given or "", ID, where)
    if name and f"'{name}'" not in where:
        where += f" ('{shortened(name)}')"
    pieces = _answers(record, names["answer"], where)
    question = Question(asked, context, id=name)
    if is_blank(question):  # it is dropped, whatever its answers are
        return question, False
    answers = tuple(_placed(piece, start, context, where) for piece, start in pieces)
    several = any(start is None and context.count(piece.strip()) > 1 for piece, start in pieces)
    return question._replace(answers=answers), several


def _answers(record: Record, key: str, where: str) -> list[tuple[str, int | None]]:
    """The answers and where they begin; None: the file does not say. A blank answer is none."""
    impossible = record.get(IMPOSSIBLE) or False
    if impossible not in (True, False):
        raise UserError(f"{where}: '{IMPOSSIBLE}' is {json_told(impossible)}, but true or false is expected")
    if key not in record and impossible:
        return []
    if key not in record:
        raise UserError(f"{where} has no key '{key}'{nearest(key, record)}; if the context does not tell, give []")
    given, starts = record[key], record.get(START)
    if isinstance(given, dict):  # two lists, as Hugging Face has them, or one answer
        given, starts = _value(given, "text", where), given.get(START)
    elif isinstance(given, list) and any(isinstance(item, dict) for item in given):  # as SQuAD has them
        items = [item if isinstance(item, dict) else {"text": item} for item in given]
        given, starts = [_value(item, "text", where) for item in items], [item.get(START) for item in items]
    texts = given if isinstance(given, list) else [] if given is None else [given]
    places = starts if isinstance(starts, list) else [starts] * (len(texts) if starts is None else 1)
    if texts and len(texts) != len(places):
        raise UserError(f"{where} has {len(texts)} answers, but {len(places)} {START}: give one for each answer")
    pieces = [(_text(piece, key, where), place) for piece, place in zip(texts, places)]
    found = [(piece, _start(place, where)) for piece, place in pieces if piece.strip()]
    if found and impossible:
        raise UserError(f"{where}: '{IMPOSSIBLE}' is true, but there is the answer {shorten(found[0][0])}: correct one")
    return found


def _start(value: Any, where: str) -> int | None:
    """Whole numbers may be written as 12.0: pandas does so if some are missing."""
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise UserError(
        f"{where}: '{START}' is {shortened(json_told(value))}, but a whole number is expected: which character of the "
        "context the answer begins with, from 0"
    )


def _placed(piece: str, start: int | None, context: str, where: str) -> tuple[int, str]:
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
