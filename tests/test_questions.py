"""Questions about texts: every format, every error in a file, splits by context, examples in memory, named sets."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest

from allyouneed.config import DataConfig
from allyouneed.data.builtin.grammar import word_file
from allyouneed.data.builtin.questions import held_out, questions
from allyouneed.data.examples import Question, inputs
from allyouneed.data.facts import gather
from allyouneed.data.in_memory import store_examples
from allyouneed.data.opening import open_data
from allyouneed.data.report import describe
from allyouneed.data.sources import Dataset
from allyouneed.errors import UserError

NAMES, THINGS, COLOURS, PLACES, DAYS = (
    word_file("questions").items(section) for section in ("names", "things", "colours", "places", "days")
)
SHA256 = "89a6e092178fde105164d7e04cef736ddf7235ad1caac320ca4465847b182aae"
ANNA = "Anna bought a red lamp in Oslo. Paul bought a red hat in Rome 😀 with Anna."
CAFE = "Le café est fermé."
EXAMPLES = [
    Question("Who bought the lamp?", ANNA, ((0, "Anna"), (0, "Anna")), "a1"),
    Question("What did Paul buy?", ANNA, ((46, "red hat"), (50, "hat")), "a2"),
    Question("With whom?", ANNA, ((69, "Anna"),), "a3"),
    Question("Who sold the hat?", ANNA, (), "a4"),
    Question("Qu'est-ce qui est fermé ?", CAFE, ((0, "Le café"),), "b1"),
]


def listed(question: Question) -> list[dict[str, Any]]:
    return [{"text": text, "answer_start": start} for start, text in question.answers]


def squad(examples: list[Question] = EXAMPLES, **more: Any) -> dict[str, Any]:
    """As SQuAD 2.0 has it."""
    paragraphs: dict[str, list[Any]] = defaultdict(list)
    for one in examples:
        asked = {"question": one.question, "id": one.id, "answers": listed(one), "is_impossible": not one.answers}
        if not one.answers:
            asked["plausible_answers"] = [{"text": "nonsense", "answer_start": 3}]
        paragraphs[one.context].append({**asked, **more})
    held = [{"context": context, "qas": asked} for context, asked in paragraphs.items()]
    return {"version": "v2.0", "data": [{"title": "A", "paragraphs": held[:1]}, {"title": "B", "paragraphs": held[1:]}]}


def older() -> dict[str, Any]:
    """As SQuAD 1.1 has it."""
    made = squad()
    for asked in (asked for article in made["data"] for held in article["paragraphs"] for asked in held["qas"]):
        del asked["is_impossible"]
        asked.pop("plausible_answers", None)
    return made


def columns(question: Question) -> dict[str, list[Any]]:
    """As Hugging Face has the answers."""
    return {
        "text": [text for _, text in question.answers],
        "answer_start": [start for start, _ in question.answers],
    }


def jsonl(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def objects(answers: Any) -> list[dict[str, Any]]:
    return [{"id": one.id, "question": one.question, "context": one.context, **answers(one)} for one in EXAMPLES]


FILES = {
    "squad2.json": json.dumps(squad()),
    "squad1.json": json.dumps(older()),
    "indented.json": "\ufeff" + json.dumps(squad(), indent=2, ensure_ascii=False).replace("\n", "\r\n"),
    "squad.txt": json.dumps(squad()),
    "listed.jsonl": jsonl(objects(lambda one: {"answers": listed(one)})),
    "columns.jsonl": jsonl(objects(lambda one: {"answers": columns(one)})),
    "lines.json": jsonl(objects(lambda one: {"answers": listed(one)})),
    "texts.ndjson": jsonl(
        objects(lambda one: {"answers": columns(one)["text"], "answer_start": columns(one)["answer_start"]})
    ),
    "impossible.jsonl": jsonl(
        [
            {key: value for key, value in row.items() if row["answers"] or key != "answers"}
            for row in objects(lambda one: {"answers": listed(one), "is_impossible": not one.answers})
        ]
    ),
}


def put(path: Path, content: str | bytes) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def dataset(*paths: str, **options: object) -> Dataset:
    settings = {"valid_part": 0.0, "test_part": 0.0, **options}
    return open_data(DataConfig(path=paths, **settings), "questions")  # type: ignore[arg-type]


def whole(*paths: str, **options: object) -> list[Question]:
    return list(dataset(*paths, **options).splits["train"])


def complaint(*paths: str, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        dataset(*paths, **options)
    return str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_every_form_of_json_gives_the_same_questions(name, tmp_path):
    path = put(tmp_path / name, FILES[name])
    data = dataset(path)
    assert list(data.splits["train"]) == EXAMPLES
    assert list(data.splits["train"]) == EXAMPLES, "it can be read again"
    assert all(one.context[start:].startswith(text) for one in EXAMPLES for start, text in one.answers)
    assert (
        "5 questions about 2 texts, 1 without an answer; the first question is “Who bought the lamp?” → “Anna”"
        in str(data.understood)
    )
    packed = put(tmp_path / f"{name}.gz", gzip.compress(FILES[name].encode()))
    assert whole(packed) == EXAMPLES


PLAIN = [  # the first answer only, and where it is found without its offset
    Question("Who bought the lamp?", ANNA, ((0, "Anna"),)),
    Question("What did Paul buy?", ANNA, ((46, "red hat"),)),
    Question("With whom?", ANNA, ((0, "Anna"),)),
    Question("Who sold the hat?", ANNA),
    Question("Qu'est-ce qui est fermé ?", CAFE, ((0, "Le café"),)),
]


def cells(mark: str, *names: str, **more: list[str]) -> str:
    rows = [[one.question, one.context, one.answers[0][1] if one.answers else ""] for one in EXAMPLES]
    rows = [[*row, *(column[i] for column in more.values())] for i, row in enumerate(rows)]
    return "".join(mark.join(row) + "\n" for row in [[*names, *more], *rows])


def test_tables_and_plain_answers(tmp_path):
    usual = ("question", "context", "answer")
    assert whole(put(tmp_path / "a.tsv", cells("\t", *usual))) == PLAIN
    assert whole(put(tmp_path / "a.csv", cells(",", *usual))) == PLAIN
    assert whole(put(tmp_path / "b.csv", cells(";", "Question", "Context", "Answers"))) == PLAIN
    more = cells(",", *usual, answer_start=["0", "46.0", "69", "", " "], id=[one.id for one in EXAMPLES])
    exact = [one._replace(answers=one.answers[:1]) for one in EXAMPLES]
    assert whole(put(tmp_path / "c.csv", more)) == exact
    for name, form in {
        "string": lambda one: {"answer": one.answers[0][1] if one.answers else ""},
        "null": lambda one: {"answer": one.answers[0][1] if one.answers else None},
        "strings": lambda one: {"answers": [one.answers[0][1]] if one.answers else []},
        "no offset": lambda one: {"answers": [{"text": text} for _, text in one.answers[:1]]},
    }.items():
        found = whole(put(tmp_path / "a.jsonl", jsonl(objects(form))))
        assert [one._replace(id="") for one in found] == PLAIN, name
    one_start = [{"question": "q", "context": "a b a", "answer": "a", "answer_start": 4}]
    assert whole(put(tmp_path / "b.jsonl", jsonl(one_start)))[0].answers == ((4, "a"),)
    none = {"question": "q", "context": "a b a", "is_impossible": True}
    some = {**none, "is_impossible": False, "answers": ["b"]}
    assert [one.answers for one in whole(put(tmp_path / "c.jsonl", jsonl([none, some])))] == [(), ((2, "b"),)]
    frame = {"question": "q", "context": "a b a", "answers": ["b"], "is_impossible": None, "id": 7.0}
    (one,) = whole(put(tmp_path / "e.jsonl", jsonl([frame])))
    assert (one.answers, one.id) == (((2, "b"),), "7")
    spaces = put(tmp_path / "d.csv", "question,context,answer\nq,a b a, b \n")
    assert whole(spaces)[0].answers == ((2, "b"),)
    single = [{"question": "q", "context": "a b a", "answers": {"text": "a", "answer_start": 4}}]
    assert whole(put(tmp_path / "b.jsonl", jsonl(single)))[0].answers == ((4, "a"),)


def test_answers_in_several_places_are_told_once(tmp_path):
    data = dataset(put(tmp_path / "a.tsv", cells("\t", "question", "context", "answer")))
    told = "2 have an answer that occurs several times in its context and has no answer_start: the first place is used"
    assert told in data.understood[0]
    assert "several times" not in dataset(put(tmp_path / "a.json", FILES["squad2.json"])).understood[0]


def test_columns_can_be_named(tmp_path):
    path = put(tmp_path / "a.csv", cells(",", "frage", "absatz", "antwort"))
    assert "no column for the context; it has frage, absatz, antwort: name one 'context'" in complaint(path)
    names = {"source": "absatz", "second": "frage", "target": "antwort"}
    data = dataset(path, **names)
    assert list(data.splits["train"]) == PLAIN
    assert "context is column absatz, question is column frage, answer is column antwort" in data.understood[0]
    assert whole(path, source="2", second="1", target="3", header="true") == PLAIN
    rows = [{"frage": one.question, "absatz": one.context, "antwort": "Anna"} for one in EXAMPLES[:1]]
    assert whole(put(tmp_path / "a.jsonl", jsonl(rows)), **names) == PLAIN[:1]
    assert "'antwrt'; did you mean 'antwort'" in complaint(path, **{**names, "target": "antwrt"})
    assert "each needs a column of its own" in complaint(path, **{**names, "target": "frage"})
    squad_file = put(tmp_path / "a.json", FILES["squad2.json"])
    assert "data.second = frage is for tables and JSONL" in complaint(squad_file, second="frage")
    assert "data.header = true, but" in complaint(squad_file, header="true")
    for shape in ("pairs", "tags", "text"):
        with pytest.raises(UserError, match="or the question of the task answer; this task has neither"):
            open_data(DataConfig(path=(path,), second="frage"), shape)


def one(**changed: Any) -> str:
    """A file with one question, the second line of which has other values; None leaves a key out."""
    row = {"question": "Who?", "context": "Anna met Anna.", "answers": [{"text": "Anna", "answer_start": 0}]}
    return jsonl([row, {key: value for key, value in {**row, **changed}.items() if value is not None}])


def nested(**changed: Any) -> str:
    return json.dumps(squad(EXAMPLES[:1], **changed))


def deep(before: str, after: str = "") -> str:
    return before + "[" * 100_000 + "]" * 100_000 + after


BAD = {
    # what is in the file, and what is said
    "empty.json": ("", "empty.json is empty"),
    "blank.jsonl": ("\n \n", "holds only blank lines"),
    "prose.txt": ("Once upon a time.\n", "does not look like questions: its first line “Once upon a time.”"),
    "cut.json": (FILES["squad2.json"][:300], r"cut.json, line 1 is not JSON: .*column .*is the file complete\?"),
    "cut.jsonl": (one()[:-20], "cut.jsonl, line 2 is not JSON: "),
    "garbage.json": ("{'data': 1}", r"is not JSON: .*is the file complete\?"),
    "deep.json": (deep('{"data": ', "}"), "deep.json: its lists and objects are nested too deeply"),
    "deep.jsonl": (one() + deep('{"question": ', "}"), "deep.jsonl, line 3: its lists and objects are nested too de"),
    "digits.json": ('{"data":\n' + "9" * 5000 + "}", "has a number with too many digits"),
    "list.json": ('[{"question": "q"}]', "no column for the context; it has question"),
    "entry.json": ('[{"question": "q", "context": "c", "answer": "c"}, 3]', "entry 2 of its list is 3, but an object"),
    "torn.json": ('[{"question": "q", "context": "c", "answer": "c"}', "line 1 is not JSON: .*is the file complete"),
    "scalar.json": ('{"data": 3}', "'data' is 3, but a list is expected"),
    "other.json": ('{\n"dta": []}', "has no key 'data'; did you mean 'dta'?"),
    "none.json": ('{"data": []}', "none.json has no question about a text"),
    "article.json": ('{"data": [{"paragraphs": []}, "x"]}', 'entry 2 of its list is "x", but an object is'),
    "flat.json": ('{"data": [{"question": "q"}]}', "no column for the context; it has question"),
    "qas.json": ('{"data": [{"paragraphs": [{"qas": {}}]}]}', "article 1, paragraph 1: 'qas' is an object, but a list"),
    "asked.json": (
        '{"data": [{"paragraphs": [{"qas": [[]]}]}]}',
        "paragraph 1, question 1 is a list, but an object is",
    ),
    "context.json": ('{"data": [{"paragraphs": [{"qas": [{"question": "q"}]}]}]}', "question 1 has no key 'context'"),
    "question.json": (nested(question=None), "question 'a1': 'question' is null, but text is expected"),
    "names.json": (nested(id="a\n1", question=None), "article 1, paragraph 1, question 1: 'question' is null"),
    "answers.json": (nested(answers=7), "question 'a1': 'answers' is 7, but text is expected"),
    "impossible.json": (nested(is_impossible="no"), "'is_impossible' is \"no\", but true or false is expected"),
    "both.json": (nested(is_impossible=True), "'is_impossible' is true, but there is the answer “Anna”"),
    "array.jsonl": (one() + "[1]\n", "line 3 is not a JSON object"),
    "no context.jsonl": (one(context=None), "line 2 has no key 'context'"),
    "no answers.jsonl": (one(answers=None), r"line 2 has no key 'answers'.*if the context does not tell, give \[\]"),
    "number.jsonl": (one(context=3), "line 2: 'context' is 3, but text is expected"),
    "half.jsonl": (one(context="Anna \ud800"), "line 2: 'context' is .*, but text is expected"),
    "id.jsonl": (one(id=[1]), "line 2: 'id' is a list, but text is expected"),
    "mixed.jsonl": (one(answers=[{"text": "Anna"}, 3]), "line 2: 'answers' is 3, but text is expected"),
    "lists.jsonl": (one(answers=[["Anna"]]), "line 2: 'answers' is a list, but text is expected"),
    "texts.jsonl": (one(answers=[{"txt": "Anna"}]), "line 2 has no key 'text'; did you mean 'txt'?"),
    "uneven.jsonl": (
        one(answers={"text": ["Anna", "met"], "answer_start": [0]}),
        "line 2 has 2 answers, but 1 answer_start: give one for each answer",
    ),
    "start.jsonl": (
        one(answers=[{"text": "Anna", "answer_start": "0"}]),
        "'answer_start' is \"0\", but a whole number",
    ),
    "true.jsonl": (one(answers=[{"text": "Anna", "answer_start": True}]), "'answer_start' is true, but a whole number"),
    "part.jsonl": (one(answers=[{"text": "Anna", "answer_start": 0.5}]), "'answer_start' is 0.5, but a whole number"),
    "missing.jsonl": (
        one(answers="anna"),
        "line 2: the answer “anna” is not in the context “Anna met Anna.”: give it exactly as it is written there, or "
        "leave it empty",
    ),
    "elsewhere.jsonl": (
        one(answers=[{"text": "met", "answer_start": 9}]),
        "line 2: the answer “met” does not begin at answer_start 9, where the context has “Ann”; it begins at 5: ",
    ),
    "nowhere.json": (
        nested(answers=[{"text": "Bob", "answer_start": 0}]),
        "question 'a1': the answer “Bob” does not begin at answer_start 0, where the context has “Ann”; it is now",
    ),
    "negative.jsonl": (
        one(answers=[{"text": "Anna.", "answer_start": -5}]),
        "at answer_start -5, .* has nothing; it be",
    ),
    "beyond.jsonl": (
        one(answers=[{"text": "met", "answer_start": 10**300}]),
        r"at answer_start 1000.*has nothing; it be",
    ),
    "no such.csv": ("a,b\nx,y\n", "no such.csv has no column for the context"),
    "two.csv": ("question,context\nq,c\n", "two.csv has no column for the answer; it has question, context"),
    "impossible.csv": ("question,context,is_impossible\nq,c,true\n", "has no column for the answer; it has que"),
    "answer.csv": (
        "question,context,answer\nq,c d,d\nr,e,f\n",
        "answer.csv, row 3: the answer “f” is not in the conte",
    ),
    "start.csv": ("question,context,answer,answer_start\nq,c d,d,x\n", "row 2: 'answer_start' is \"x\", but a whole"),
    "ragged.csv": ("question,context,answer\nq,c d\n", "line 2 has 2 columns, but the first row has 3"),
    "header.csv": ("question,context,answer\n", "has no question about a text"),
    "cyrillic.json": ('{"data": "привет"}'.encode("cp1251"), "line 1 is not UTF-8: .* data.encoding"),
    "cyrillic.csv": ("question,context,answer\nq,привет,привет\n".encode("cp1251"), "line 2 is not UTF-8: .*encoding"),
    "binary.json": (b"{\x00}", "is a binary file"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_file_that_cannot_be_used_is_told_in_one_sentence(name, tmp_path):
    content, said = BAD[name]
    found = complaint(put(tmp_path / name, content))
    assert re.search(said, found), found
    assert "\n" not in found
    assert len(found) < 600


def test_two_files_for_one_split(tmp_path):
    path = put(tmp_path / "a.json", FILES["squad2.json"])
    assert "questions come from one file" in complaint(path, path)


def test_blank_questions_and_contexts_are_dropped_and_counted(tmp_path):
    row = {"question": "Who?", "context": "Anna slept.", "answers": ["Anna"]}
    rows = [row, {**row, "question": " "}, {**row, "context": ""}, {**row, "answers": [" "]}]
    split = dataset(put(tmp_path / "a.jsonl", jsonl(rows) + "\n")).splits["train"]
    assert [one.answers for one in split] == [((0, "Anna"),), ()]
    assert (split.examples, split.empty) == (2, 3)
    table = put(
        tmp_path / "a.csv", "question,context,answer\nWho?,Anna slept.,Anna\n,Anna slept.,Anna\n\nWhen?,Anna slept.,\n"
    )
    split = dataset(table).splits["train"]
    assert [one.answers for one in split] == [((0, "Anna"),), ()]
    assert (split.examples, split.empty) == (2, 2)


def many(contexts: int = 120) -> list[Question]:
    return [
        Question(f"Who is {number}?", f"Person {i} is number {i}.", ((0, f"Person {i}"),), f"{i}-{number}")
        for i in range(contexts)
        for number in range(3)
    ]


def test_no_context_is_in_two_splits(tmp_path):
    path = put(tmp_path / "a.json", json.dumps(squad(many())))
    data = dataset(path, valid_part=0.2, test_part=0.2)
    contexts = {name: {one.context for one in split} for name, split in data.splits.items()}
    assert sorted(contexts) == ["test", "train", "valid"]
    assert sum(map(len, contexts.values())) == len(set.union(*contexts.values())) == 120
    assert sum(split.examples for split in data.splits.values()) == 360
    assert all(len(found) > 10 for found in contexts.values())
    assert (
        "split by a hash of the text, so that no text is in two splits: 20 % for valid, 20 % for test"
        in data.understood
    )
    few = dataset(path, limit=7)
    assert few.splits["train"].examples == len(list(few.splits["train"])) == 7
    assert few.fingerprint != dataset(path).fingerprint


def test_files_of_a_folder(tmp_path):
    for name, examples in (("train", many(3)), ("dev", many(2)), ("test", many(1))):
        put(tmp_path / f"data/{name}.json", json.dumps(squad(examples)))
    data = dataset(str(tmp_path / "data"), valid_part=0.1, test_part=0.1)
    assert {name: split.examples for name, split in data.splits.items()} == {"train": 9, "valid": 6, "test": 3}
    assert len(data.understood) == 3


def test_the_report_and_the_facts(tmp_path):
    data = dataset(put(tmp_path / "a.json", json.dumps(squad([*EXAMPLES, EXAMPLES[0]]))))
    report = describe(data, {})
    assert (report.things, report.parts[0].examples, report.parts[0].duplicates) == ("questions", 6, 1)
    every = [*EXAMPLES, EXAMPLES[0]]
    known = re.findall(r"\w+|[^\w\s]", " ".join([ANNA, CAFE, *(one.question for one in every)]))
    found, letters = gather(data), sum(len(text) for one in every for text in inputs(one))
    once = len(ANNA) + len(CAFE) + sum(len(one.question) for one in every)
    assert found.words == round(len(known) * letters / once), "a context is read again with each question"
    assert found.different == len({*known}) / len(known), "but its words are those of one text"


def memory() -> dict[str, Any]:
    frame = {side: [getattr(one, side) for one in PLAIN] for side in ("question", "context")}
    answers = [one.answers[0][1] if one.answers else None for one in PLAIN]
    rows = list(zip(frame["question"], frame["context"], answers))
    return {
        "tuples": rows,
        "lists": [[*row[:2], row[2] or ""] for row in rows],
        "dicts": [{"question": asked, "context": context, "answer": answer} for asked, context, answer in rows],
        "columns": {**frame, "answer": answers},
        "pandas": pandas.DataFrame({**frame, "answer": answers}),
        "pandas' NA": pandas.DataFrame({**frame, "answer": answers}).astype("string"),
        "polars": polars.DataFrame({**frame, "answer": answers}),
    }


@pytest.mark.parametrize("form", memory())
def test_questions_in_memory(form):
    path = store_examples(memory()[form], "questions")
    assert path.suffix == ".jsonl"
    assert whole(str(path)) == PLAIN


def test_answers_in_memory_have_the_forms_of_jsonl():
    for form in (listed, columns):
        rows = objects(lambda one, form=form: {"answers": form(one)})
        for data in (rows, pandas.DataFrame(rows), polars.DataFrame(rows)):
            assert whole(str(store_examples(data, "questions"))) == EXAMPLES
    arrays = pandas.DataFrame(objects(lambda one: {"answers": columns(one)}))
    arrays["answers"] = [
        {name: pandas.Series(column).to_numpy() for name, column in found.items()} for found in arrays["answers"]
    ]
    assert whole(str(store_examples(arrays, "questions"))) == EXAMPLES, "as pandas reads them from Parquet"
    with pytest.raises(UserError, match=r"row 1 of data is .*; \(question, context, answer\) is expected, or a dict"):
        store_examples([("q", "c")], "questions")
    with pytest.raises(UserError, match="line 1: 'context' is null, but text is expected"):
        dataset(str(store_examples([("q", None, "a")], "questions")))


def test_a_missing_value_of_pandas_is_told():
    with pytest.raises(UserError, match=r"row 2 of data: 'label' is missing \(<NA>\)"):
        store_examples(pandas.DataFrame({"text": ["a", "b"], "label": ["x", pandas.NA]}, dtype=object), "labels")


def test_squad_has_its_splits(mirror):
    data = open_data(DataConfig(name="squad", mirror=str(mirror)), "questions")
    examples = {name: list(split) for name, split in data.splits.items()}
    assert list(examples) == ["train", "valid", "test"]
    assert len(examples["train"]) + len(examples["valid"]) == 8378
    assert len(examples["test"]) == 923
    assert 0.03 < len(examples["valid"]) / 8378 < 0.07
    contexts = [{one.context for one in found} for found in examples.values()]
    assert sum(map(len, contexts)) == len(set.union(*contexts)) == 1619 + 176
    every = [one for found in examples.values() for one in found]
    assert len({one.id for one in every}) == len(every)
    assert all(one.answers for one in every)
    assert all(one.context[start : start + len(text)] == text for one in every for start, text in one.answers)
    assert any("do not compare" in line for line in data.understood)


# The built-in set


@pytest.fixture(scope="module")
def built_in() -> dict[str, list[Question]]:
    return questions()


def test_the_built_in_questions_have_their_sizes(built_in):
    data = open_data(DataConfig(name="questions"), "questions")
    assert {name: split.examples for name, split in data.splits.items()} == {"train": 12000, "valid": 300, "test": 500}
    assert {name: list(split) for name, split in data.splits.items()} == built_in
    assert sum(split.empty for split in data.splits.values()) == 0
    every = [one for found in built_in.values() for one in found]
    assert len({one.id for one in every}) == len({(one.context, one.question) for one in every}) == len(every)
    contexts = [{one.context for one in found} for found in built_in.values()]
    assert sum(map(len, contexts)) == len(set.union(*contexts))


def test_answers_stand_where_they_say_as_whole_words(built_in):
    for one in (one for found in built_in.values() for one in found):
        assert len(one.answers) <= 1
        for start, text in one.answers:
            found = re.compile(rf"\b{re.escape(text)}\b").match(one.context, start)
            assert found is not None, one
            asked = {*NAMES, *THINGS} & set(re.findall(r"\w+", one.question))
            here = one.context[one.context.rfind(".", 0, start) + 1 : one.context.index(".", start)]
            assert asked & set(re.findall(r"\w+", here)), "the sentence with the answer is about what is asked"
            kind = one.question.partition(" ")[0]
            last = text.split()[-1]
            wanted = {"Who": NAMES, "When": DAYS, "Where": [place.split()[-1] for place in PLACES]}
            assert last in wanted.get(kind, (*THINGS, *COLOURS)), one


DEED = re.compile(rf"({'|'.join(NAMES)}) (bought|sold|lost|painted|repaired) a ({'|'.join(COLOURS)}) (\w+)")
ASKED = re.compile(rf"\b({'|'.join(NAMES)})\b.*\b({'|'.join(THINGS)})\b|\b({'|'.join(THINGS)}) that (\w+)")


def test_names_and_things_of_the_test_never_come_together_in_train(built_in):
    def told(split: str) -> set[tuple[str, str]]:
        return {(name, thing) for one in built_in[split] for name, _, _, thing in DEED.findall(one.context)}

    def asked(split: str) -> set[tuple[str, str]]:
        found = [match for one in built_in[split] if (match := ASKED.search(one.question))]
        return {(match[1] or match[4], match[2] or match[3]) for match in found}

    assert not (told("train") | asked("train")) & (told("valid") | told("test"))
    assert all(held_out(*pair) for pair in told("valid") | told("test"))
    assert len(told("train")) == 192, "all that are not held out"
    assert len(told("test")) > 50
    known = {word for one in built_in["train"] for text in inputs(one) for word in re.findall(r"\w+|[^\w\s]", text)}
    for one in built_in["valid"] + built_in["test"]:
        assert known >= {word for text in inputs(one) for word in re.findall(r"\w+|[^\w\s]", text)}


@pytest.mark.parametrize("split", ["train", "valid", "test"])
def test_an_eighth_has_no_answer_whatever_the_kind_of_question(built_in, split):
    kinds: dict[str, list[bool]] = defaultdict(list)
    for one in built_in[split]:
        kinds["colour" if " colour " in one.question else one.question.split()[0]].append(not one.answers)
    every = [flag for flags in kinds.values() for flag in flags]
    assert 0.08 < sum(every) / len(every) < 0.17
    assert all(0.04 < sum(flags) / len(flags) < 0.25 for flags in kinds.values()), kinds


def test_the_kind_of_a_question_does_not_tell_its_answer(built_in):
    """Each context has at least two people, things, colours, places and days that could be meant."""
    for one in built_in["train"][::4]:
        words = set(re.findall(r"\w+", one.context))
        for options in (NAMES, THINGS, COLOURS, PLACES, DAYS):
            assert sum(option.split()[0] in words for option in options) >= 2, one.context


def test_what_is_asked_follows_from_the_text(built_in):
    """Who did it, by a reader of its own: the deeds of a text tell the answer, or that there is none."""
    for one in (one for found in built_in.values() for one in found):
        deeds = DEED.findall(one.context)
        assert len(deeds) == 2
        if match := re.fullmatch(r"Who (\w+) the (\w+)\?", one.question):
            found = [name for name, verb, _, thing in deeds if (verb, thing) == match.groups()]
            assert found == [text for _, text in one.answers], one
        elif match := re.fullmatch(r"What colour is the (\w+) that (\w+) (\w+)\?", one.question):
            found = [colour for name, verb, colour, thing in deeds if (thing, name, verb) == match.groups()]
            assert found == [text for _, text in one.answers], one


def test_a_few_texts_are_long(built_in):
    for split in ("train", "valid", "test"):
        lengths = [len(one.context.split()) for one in built_in[split][::4]]
        assert 0.01 < sum(length > 100 for length in lengths) / len(lengths) < 0.05
        assert all(16 <= length <= 22 or length > 150 for length in lengths)


@pytest.mark.parametrize("hash_seed", ["0", "4711"])
def test_the_built_in_questions_are_the_same_everywhere(hash_seed):
    code = (
        "import hashlib, json, sys; from allyouneed.data.builtin.questions import questions; "
        "print(hashlib.sha256(json.dumps(questions()).encode()).hexdigest(), 'torch' in sys.modules)"
    )
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.split() == [SHA256, "False"]


def test_another_shape_is_told():
    with pytest.raises(UserError, match="is questions about texts, but this task needs labelled texts"):
        open_data(DataConfig(name="questions"), "labels")
    with pytest.raises(UserError, match="needs questions about texts; these fit: questions, squad"):
        open_data(DataConfig(name="opinions"), "questions")
