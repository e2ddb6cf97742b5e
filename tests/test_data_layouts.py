"""Tables as people have them: headers, ids, empty columns, labels before or behind the text, and what is said of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allyouneed.data.examples import LabelledText
from allyouneed.data.formats.columns import Column, are_names, unlike_below
from test_label_data import complaint, dataset, put, whole

TEXTS = [f"I {'like' if i % 3 else 'hate'} the film number {i}" for i in range(60)]
LABELS = ["good" if i % 3 else "bad" for i in range(60)]
ROWS = list(zip(TEXTS, LABELS))


def lines(*cells: object, mark: str = "\t") -> str:
    return "".join(mark.join(str(cell) for cell in row) + "\n" for row in zip(*cells))


def zeros(*every: int) -> list[list[int]]:
    """Columns of 0 and 1, each with a one in every n-th row."""
    return [[int(i % n == 0) for i in range(60)] for n in every]


NUMBERS = range(1, 61)
SCORES = [4 if label == "good" else 0 for label in LABELS]
QUOTED = [f'"{text},\nsaid ""she"""' for text in TEXTS]
OTHERS = [f"{text} again" for text in TEXTS]

# file name, content, columns of text and label (and of the second text), whether there is a header
LAYOUTS: dict[str, tuple[str, str, tuple[str, ...], bool]] = {
    "messages, label first, empty columns": (
        "sms.csv", "v1,v2,,,\n" + lines(LABELS, TEXTS, [",,"] * 60, mark=","), ("v2", "v1"), True,
    ),
    "phrases with two ids": (
        "phrases.tsv",
        "PhraseId\tSentenceId\tPhrase\tSentiment\n" + lines(NUMBERS, [i // 3 for i in NUMBERS], TEXTS, SCORES),
        ("Phrase", "Sentiment"), True,
    ),
    "one of many labels": (
        "toxic.csv",
        "id,comment_text,toxic,severe_toxic,obscene\n"
        + lines([f"{i:04x}ab" for i in NUMBERS], TEXTS, *zeros(3, 6, 4), mark=","),
        ("comment_text", "toxic"), True,
    ),
    "two questions": (
        "questions.csv",
        "id,qid1,qid2,question1,question2,is_duplicate\n"
        + lines(NUMBERS, NUMBERS, NUMBERS, TEXTS, OTHERS, zeros(3)[0], mark=","),
        ("question1", "is_duplicate", "question2"), True,
    ),
    "title and description": (
        "news.csv",
        "Class Index,Title,Description\n" + lines(SCORES, [f"Film {i}" for i in NUMBERS], TEXTS, mark=","),
        ("Description", "Class Index"), True,
    ),
    "tweets": (
        "tweets.csv",
        "target,ids,date,flag,user,text\n"
        + lines(SCORES, NUMBERS, [f"Mon Apr {i}" for i in NUMBERS], ["NONE"] * 60, [f"u{i}" for i in NUMBERS], TEXTS,
                mark=","),
        ("text", "target"), True,
    ),
    "tweets without header, sorted by label": (
        "tweets.csv",
        "".join(
            f"{4 * (i >= 1500)},{10**6 + i},Mon Apr {i},NONE,u{i},I saw the film number {i}\n" for i in range(3000)
        ),
        ("6", "1"), False,
    ),
    "a summary before the text": (
        "amazon.jsonl",
        "".join(
            json.dumps({"overall": score, "summary": f"Film {i}", "reviewText": text, "asin": f"B{i}"}) + "\n"
            for i, (text, score) in enumerate(zip(TEXTS, SCORES))
        ),
        ("reviewText", "overall"), False,
    ),
    "a title before the text": (
        "clothes.csv",
        ",Clothing ID,Title,Review Text,Rating\n"
        + lines(NUMBERS, NUMBERS, [f"Film {i}" for i in NUMBERS], TEXTS, SCORES, mark=","),
        ("Review Text", "Rating"), True,
    ),
    "a text that is shorter than another": (
        "tweets.tsv", "description\ttext\tsentiment\n" + lines(OTHERS, TEXTS, LABELS), ("text", "sentiment"), True,
    ),
    "long names": (
        "brands.csv",
        "tweet_text,emotion_in_tweet_is_directed_at,is_there_an_emotion_directed_at_a_brand_or_product\n"
        + lines(TEXTS, ["iPad" if i < 9 else "" for i in NUMBERS], LABELS, mark=","),
        ("tweet_text", "is_there_an_emotion_directed_at_a_brand_or_product"), True,
    ),
    "a list of objects": (
        "a.json", json.dumps([{"text": text, "label": label} for text, label in ROWS]), ("text", "label"), False,
    ),
    "a list of objects on many lines": (
        "a.json",
        json.dumps([{"text": text, "label": label} for text, label in ROWS], indent=2),
        ("text", "label"), False,
    ),
    "a list in an object": (
        "a.json",
        json.dumps({"version": "1", "of": [1], "data": [{"v1": label, "v2": text} for text, label in ROWS], "n": 60}),
        ("v2", "v1"), False,
    ),
    "unusual names": ("a.tsv", "what\twhich\n" + lines(TEXTS, LABELS), ("what", "which"), True),
    "no header, label first": ("a.tsv", lines(LABELS, TEXTS), ("2", "1"), False),
    "no header, label last, ids": ("a.csv", lines(NUMBERS, TEXTS, LABELS, mark=","), ("2", "3"), False),
    "semicolons": ("a.csv", "nr;what;stars\n" + lines(NUMBERS, TEXTS, SCORES, mark=";"), ("what", "stars"), True),
    "quoted newlines": ("a.csv", "what,which\n" + lines(QUOTED, LABELS, mark=","), ("what", "which"), True),
    "an index without a name": ("a.csv", ",review,mood\n" + lines(NUMBERS, TEXTS, LABELS, mark=","),
                                ("review", "mood"), True),
    "names of people": ("a.tsv", lines([f"Name{i}" for i in NUMBERS], ["Italian", "Greek"] * 30), ("1", "2"), False),
    "fastText": ("train.txt", "".join(f"__label__{label} {text}\n" for text, label in ROWS), ("text", "label"), False),
    "TREC": (
        "train_5500.label",
        "".join(f"{'DESC:manner' if label == 'bad' else 'NUM:date'} {text} ?\n" for text, label in ROWS),
        ("text", "label"), False,
    ),
    "objects": (
        "a.jsonl", "".join(json.dumps({"v1": label, "v2": text}) + "\n" for text, label in ROWS), ("v2", "v1"), False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_layout_is_understood(name: str, tmp_path: Path) -> None:
    file, content, columns, header = LAYOUTS[name]
    data = dataset("labels", put(tmp_path / file, content))
    examples, told = list(data.splits["train"]), data.understood[0]
    assert len(examples) == (3000 if "sorted" in name else 60)
    assert len({example.label for example in examples}) == 2
    sides = dict(zip(("text", "label", "second text"), columns))
    place = "key" if ".json" in file else "column"
    if not file.endswith((".txt", ".label")):
        assert ", ".join(f"{side} is {place} {column}" for side, column in sides.items()) in told
        assert (" with a header" in told) == header
    else:
        assert "label is the first word, text is the rest of the line" in told
        assert examples[1].text.startswith(TEXTS[1])
        assert examples[1].label in ("good", "NUM:date")
    by_name = {"text": "source", "label": "target", "second text": "second"}
    if header:  # the same columns, named by the user
        asked = {by_name[side]: column for side, column in sides.items()}
        assert whole("labels", str(tmp_path / file), **asked) == examples


def test_lists_of_objects_that_cannot_be_read(tmp_path: Path) -> None:
    def said(content: str) -> str:
        return complaint("labels", put(tmp_path / "a.json", content)).removeprefix(str(tmp_path / "a.json"))

    row = '{"text": "a", "label": "b"}'
    assert said(f"[{row}, 5]") == ", entry 2 of its list is 5, but an object is expected"
    assert said(f"[{row}, {row}") == ", line 1 is not JSON: Expecting ',' delimiter (column 58); is the file complete?"
    assert said(f"[{row},\n{row[:-2]}\n]").startswith(", line 2 is not JSON: Invalid control character at (column 26)")
    assert said(f"[{row}]\n[{row}]") == ", line 2 is not JSON: Extra data (column 1); is the file complete?"
    assert said("[]") == " has no object in its list"
    assert said(f'{{"train": [{row}], "test": [{row}]}}') == (
        " has several lists of objects ('train', 'test', …): give each in a file of its own"
    )
    assert "nested too deeply" in said('[{"text": ' + "[" * 10**6)
    assert "nested too deeply" in said('{"text": ' + "[" * 10**6)
    assert ", object 2 has no key 'label'" in said(f'[{row}, {{"text": "c"}}]')
    assert ", object 2: 'label' is an object, but text is expected" in said(f'[{row}, {{"text": "c", "label": {{}}}}]')
    assert whole("labels", put(tmp_path / "b.json", f"{row}\n{row}\n")) == [LabelledText("a", "b")] * 2  # JSONL


def test_several_labels_per_text_are_told(tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", '{"text": "one", "labels": [0, 7], "note": "x"}\n' * 9)
    said = (
        f"{path}: 'labels' is a list, but a text has one label here, and several are not supported: write one label "
        "for each text, or name another key with data.target"
    )
    assert complaint("labels", path) == complaint("labels", path, target="labels") == said
    assert len(whole("labels", path, target="note")) == 9
    alone = put(tmp_path / "b.jsonl", '{"text": "one", "labels": [0, 7]}\n' * 9)
    assert "'labels' is a list" in complaint("labels", alone)
    gold = put(tmp_path / "c.jsonl", '{"text": "one", "gold_label": "x", "annotator_labels": ["x", "y"]}\n' * 9)
    assert len(whole("labels", gold)) == 9


# labels, and which of them are none
MISSING: dict[str, tuple[list[str], set[str]]] = {
    "SNLI": (["yes", "no", "maybe"] * 30 + ["-"] * 3, {"-"}),
    "plus and minus": (["+", "-"] * 30, set()),
    "rare minus": (["+"] * 95 + ["-"] * 5, set()),
    "marks": ([".", ",", "!"] * 30 + ["?"] * 2, set()),
    "a dash as often as others": (["yes", "no", "-"] * 20, set()),
    "a dash in every sixth row": (["yes", "no"] * 30 + ["-"] * 12, set()),
    "not known": (["yes", "no"] * 30 + ["?"] * 4, {"?"}),
    "as R writes": (["0", "1"] * 30 + ["NA"] * 4, {"NA"}),
    "as pandas writes": (["0", "1", "nan"] * 30, {"nan"}),
    "one label and one dash": (["yes"] * 30 + ["-"], set()),
    "stance": (["FAVOR", "AGAINST"] * 30 + ["NONE", "none", "None"], set()),
    "numbers": (["0", "1"] * 30 + ["-1"], set()),
    "several": (["0", "1"] * 30 + ["NaN", "n/a", "-"], {"NaN", "n/a", "-"}),
}


@pytest.mark.parametrize("name", MISSING)
def test_marks_of_a_missing_label(name: str, tmp_path: Path) -> None:
    labels, missing = MISSING[name]
    texts = [f"the text number {i}" for i in range(len(labels))]
    data = dataset("labels", put(tmp_path / "a.tsv", "text\tlabel\n" + lines(texts, labels)))
    kept = [label for label in labels if label not in missing]
    assert [example.label for example in data.splits["train"]] == kept
    count = len(labels) - len(kept)
    told = ", ".join(f"'{mark}'" for mark in sorted(missing))
    assert (f"; {count} rows without a label ({told}) left out" in data.understood[0]) == bool(missing)
    assert ("without a label" in data.understood[0]) == bool(missing)
    assert data.splits["train"].empty == count


def test_a_test_file_has_the_missing_labels_of_the_training_file(tmp_path: Path) -> None:
    train = put(tmp_path / "a.tsv", "text\tlabel\n" + lines(TEXTS, [*LABELS[:-1], "-"]))
    test = put(tmp_path / "b.tsv", "text\tlabel\none\tgood\ntwo\t-\nthree\t-\n")
    data = dataset("labels", train, test_path=(test,))
    assert list(data.splits["test"]) == [LabelledText("one", "good")]
    assert "2 rows without a label ('-') left out" in data.understood[1]
    marked = put(tmp_path / "c.tsv", "text\tlabel\n" + lines(TEXTS, ["+", "-"] * 30))
    assert len(list(dataset("labels", marked, test_path=(test,)).splits["test"])) == 3


def test_what_was_guessed_is_told_and_can_be_said_otherwise(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", "v1\tv2\n" + lines(LABELS, TEXTS))
    told = dataset("labels", path).understood[0]
    assert "with a header, guessed because 'v1' stands above labels and is none of them (data.header=false" in told
    assert "text and label guessed from the cells (choose others with data.source and data.target)" in told
    assert (
        "label guessed from the cells (choose others with data.target)"
        in (dataset("labels", path, source="v2").understood[0])
    )
    assert whole("labels", path, header="false")[0] == LabelledText("v2", "v1")
    assert len(whole("labels", path, header="true")) == 60
    plain = put(tmp_path / "b.tsv", lines(TEXTS, LABELS))
    assert "without a header (data.header=true if it has one)" in dataset("labels", plain).understood[0]
    assert len(whole("labels", plain, header="true")) == 59
    assert "data.header=" not in dataset("labels", plain, header="false").understood[0]
    assert dataset("labels", plain).fingerprint != dataset("labels", plain, header="true").fingerprint


@pytest.mark.parametrize(
    ("first", "below"),
    [
        ("Great film\tpos", "A very long text\tpos\nA second one\tneg\n" * 9),  # its label comes again
        ("Bad.\trare", "A very long text\tpos\nA second one\tneg\n" * 9),  # the end of a sentence
        ("a\ta", "A very long text\tpos\nA second one\tneg\n" * 9),  # twice the same
        ("7\tpos", "8\tneg\n9\tneg\n"),  # a number is no name
        ("one\ttwo", "three\tfour\nfive\tsix\n"),  # like what is below
        ("Hi\tCiao", "".join(f"Run {i}\tCorri {i}\nNo{i}\tAnzi{i}\n" for i in range(9))),
    ],
)
def test_a_first_example_is_no_header(first: str, below: str) -> None:
    assert unlike_below(first.split("\t"), [row.split("\t") for row in below.splitlines()]) == ""


@pytest.mark.parametrize(
    ("first", "below", "why"),
    [
        ("what\tn", "one\t1\ntwo\t2.5\nthree\t-3\n", "'n' stands above numbers"),
        ("what\twhich", "one\tx\ntwo\ty\nthree\tx\nfour\ty\n", "'which' stands above labels and is none of them"),
        ("first\tthen", lines(TEXTS, OTHERS), "'first' stands above whole texts"),
        ("first\tthen", lines(TEXTS[:4], OTHERS), ""),  # too few to tell
    ],
)
def test_signs_of_a_header(first: str, below: str, why: str) -> None:
    assert unlike_below(first.split("\t"), [row.split("\t") for row in below.splitlines()]) == why


def test_ids_and_columns_that_are_mostly_empty_are_no_labels(tmp_path: Path) -> None:
    few = put(tmp_path / "a.tsv", "one text\tx\t1\nother text\ty\t2\nthird text\tz\t3\n")
    assert [example.label for example in whole("labels", few)] == ["x", "y", "z"]
    notes = ["" if i > 8 else "odd" if i % 2 else "even" for i in range(60)]
    path = put(tmp_path / "b.tsv", lines(TEXTS, ["x", "y", "z"] * 20, notes))
    assert {example.label for example in whole("labels", path)} == {"x", "y", "z"}


def test_a_name_that_fits_both_is_the_label(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", "review_score\tremark\n" + lines(SCORES, TEXTS))
    assert whole("labels", path)[0] == LabelledText(TEXTS[0], "0")


def test_names_are_short_and_different() -> None:
    assert are_names(["Human (mean)", "word_2", ""])
    assert not any(
        are_names([cell]) for cell in ("", "3", "Go!", "a sentence that has many words", "x" * 50, "x_" * 60)
    )
    column = Column()
    for cell in ("1", "2.5", "-3", "4e5", ""):
        column.add(cell)
    assert column.has_ids
    column.add("4e5")
    assert (column.has_numbers, column.has_ids) == (True, False)


def test_a_header_of_pairs(tmp_path: Path) -> None:
    rows = lines(NUMBERS, TEXTS, OTHERS)
    path = put(tmp_path / "a.tsv", "nr\tfirst\tthen\n" + rows)
    data = dataset("pairs", path)
    assert data.splits["train"].examples == 60
    told = "source is column first, target is column then of 3; source and target guessed from the cells"
    assert told in data.understood[0]
    assert whole("pairs", put(tmp_path / "b.tsv", rows))[0] == (TEXTS[0], OTHERS[0])  # a number is no sentence
    assert len(whole("pairs", put(tmp_path / "c.tsv", lines(TEXTS, OTHERS)))) == 60
    assert len(whole("pairs", path, header="false")) == 61


def test_a_blank_line_before_the_header(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "\ntext,label\none,x\ntwo,y\n")
    assert whole("labels", path) == [LabelledText("one", "x"), LabelledText("two", "y")]


def test_a_test_file_has_the_header_of_the_training_file(tmp_path: Path) -> None:
    train = put(tmp_path / "a.tsv", "v1\tv2\n" + lines(LABELS, TEXTS))
    test = put(tmp_path / "b.tsv", "v1\tv2\ngood\tone\n")
    assert list(dataset("labels", train, test_path=(test,)).splits["test"]) == [LabelledText("one", "good")]
    put(tmp_path / "b.tsv", "v2\tid\tv1\none\t7\tgood\n")  # the same names at other places
    assert list(dataset("labels", train, test_path=(test,)).splits["test"]) == [LabelledText("one", "good")]
    put(tmp_path / "b.tsv", "good\tone\n")  # no names: the same places
    assert list(dataset("labels", train, test_path=(test,)).splits["test"]) == [LabelledText("one", "good")]
    put(tmp_path / "b.tsv", "id\tv2\n" + lines(NUMBERS, TEXTS))  # there is no label
    assert "b.tsv has no column 'v1', which is the label in the training data; did you mean 'v2'?" in complaint(
        "labels", train, test_path=(test,)
    )
    words = put(tmp_path / "a.txt", lines(LABELS, TEXTS, mark=" "))
    test = put(tmp_path / "b.txt", "good what a film\n")
    assert list(dataset("labels", words, test_path=(test,)).splits["test"]) == [LabelledText("what a film", "good")]


def test_lines_that_begin_with_their_label(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", "good one film\nbad a film\nthe last\n")
    told = complaint("labels", path)
    assert "3 words begin its 3 lines" in told
    assert "data.target=1 if the first word of each line is its label" in told
    assert whole("labels", path, target="1")[2] == LabelledText("last", "the")
    two = put(tmp_path / "b.txt", "__label__a one\n__label__a __label__b two\n")
    assert "line 2 has more than one label" in complaint("labels", two)


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "v1,v2\n" + lines(LABELS, TEXTS, mark=","))
    assert "no column 'v3'; did you mean 'v2'?" in complaint("labels", path, source="v3")
    assert "no column 'v2'; did you mean '2'?" in complaint("labels", path, source="v2", header="false")
    put(tmp_path / "a.csv", "v1,v2\n" + lines(LABELS, TEXTS, mark=",") + "good,one, two\n")
    assert "line 62 has 3 columns, but the first row has 2" in complaint("labels", path)
    assert complaint("labels", put(tmp_path / "b.csv", "")).endswith("b.csv is empty")
    assert "nothing is left" in complaint("labels", put(tmp_path / "c.csv", "text,label\n"))
    objects = put(tmp_path / "a.jsonl", '{"text": "a", "label": "b"}\n')
    assert "neither TSV nor CSV" in complaint("labels", objects, header="true")
    assert "this task reads none" in complaint("text", objects, header="true")
