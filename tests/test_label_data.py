"""Labelled texts and tagged sentences: own files, built-in sets, public ones, and what is said of them."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from allyouneed import catalog
from allyouneed.config import DataConfig
from allyouneed.data.builtin.entities import entities, names
from allyouneed.data.builtin.heldout import words
from allyouneed.data.builtin.opinions import opinions
from allyouneed.data.examples import LabelledText, TaggedSentence, inputs, to_cells
from allyouneed.data.formats.conll import spans
from allyouneed.data.opening import open_data
from allyouneed.data.report import describe
from allyouneed.data.sources import Dataset
from allyouneed.errors import UserError
from allyouneed.text.word_boundaries import find_words
from allyouneed.training.starting import choose

ROWS = [(f"I like it {i}", "good") if i % 3 else (f"I hate it {i}", "bad") for i in range(60)]
OPINIONS_SHA256 = "c60f345e113fff01efd80177daa4c8862998eaae54d5a96873af8ba8284a4914"
ENTITIES_SHA256 = "557285defb22452fd2948974e7bedbac9d937f7dc2af8a6356168ba15e9f915d"


def put(path: Path, content: str | bytes) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def dataset(shape: str, *paths: str, **options: object) -> Dataset:
    return open_data(DataConfig(path=paths, **{"valid_part": 0.0, "test_part": 0.0, **options}), shape)  # type: ignore[arg-type]


def whole(shape: str, *paths: str, **options: object) -> list[Any]:
    return list(dataset(shape, *paths, **options).splits["train"])


def labelled(*rows: tuple[str, str]) -> list[LabelledText]:
    return [LabelledText(*row) for row in rows]


def complaint(shape: str, *paths: str, **options: object) -> str:
    with pytest.raises(UserError) as caught:
        dataset(shape, *paths, **options)
    return str(caught.value)


FILES = {
    "plain.tsv": "".join(f"{text}\t{label}\n" for text, label in ROWS),
    "label first.tsv": "".join(f"{label}\t{text}\n" for text, label in ROWS),
    "numbered.csv": "".join(f'{i},"{text}",{label},en\n' for i, (text, label) in enumerate(ROWS)),
    "named.csv": "id,category,review\n" + "".join(f'{i},{label},"{text}"\n' for i, (text, label) in enumerate(ROWS)),
    "half named.tsv": "tweet_text\tairline_sentiment\n" + "".join(f"{text}\t {label} \n" for text, label in ROWS),
    "numbered.tsv": "category_id\tcategory_name\tabstract\n"
    + "".join(f"{len(label)}\t{label}\t{text}\n" for text, label in ROWS),
    "objects.jsonl": "".join(json.dumps({"n": 1, "label": label, "text": text}) + "\n" for text, label in ROWS),
}


@pytest.mark.parametrize("name", FILES)
def test_the_columns_of_text_and_label_are_found(name, tmp_path):
    data = dataset("labels", put(tmp_path / name, FILES[name]))
    assert list(data.splits["train"]) == labelled(*ROWS)
    assert f"the first example is “{ROWS[0][0]}” → “bad”" in data.understood[0]


def test_columns_can_be_named(tmp_path):
    path = put(tmp_path / "a.tsv", "kind\ttitle\tbody\nx\tone\tlong text\ny\ttwo\tlonger text\n")
    assert whole("labels", path, source="title", target="kind") == labelled(("one", "x"), ("two", "y"))
    assert whole("labels", path, source="3", target="1")[1:] == labelled(("long text", "x"), ("longer text", "y"))
    three = whole("labels", path, source="body", target="kind", second="title")
    assert three == [LabelledText("long text", "x", "one"), LabelledText("longer text", "y", "two")]
    assert "text is column body, label is column kind, second text is column title" in str(
        dataset("labels", path, source="body", target="kind", second="title").understood
    )
    assert "'bodi'; did you mean 'body'" in complaint("labels", path, source="bodi", target="kind")
    assert "each needs a column of its own" in complaint("labels", path, source="body", target="body")


def test_pairs_of_texts_are_found(tmp_path):
    path = put(tmp_path / "a.csv", "premise,hypothesis,label\nA man sleeps.,He rests.,yes\nIt rains.,It is dry.,no\n")
    assert whole("labels", path)[0] == ("A man sleeps.", "yes", "He rests.")
    assert whole("labels", path, source="premise", target="label")[0].second is None  # only one was asked for
    report = describe(dataset("labels", path), {})
    assert (report.parts[0].duplicates, report.parts[0].examples) == (0, 2)


def test_the_second_text_counts_in_duplicates_and_in_what_is_also_in_train(tmp_path):
    head = "premise,hypothesis,label\n"
    rows = "It rains.,It is dry.,no\nIt rains.,It is wet.,no\nIt rains.,It is wet.,no\nHe sleeps.,He rests.,yes\n"
    train = put(tmp_path / "a.csv", head + rows)
    test = put(tmp_path / "b.csv", head + "It rains.,It snows.,no\nIt rains.,It is dry.,yes\n")
    parts = describe(dataset("labels", train, test_path=(test,)), {}).parts
    assert [(part.duplicates, part.in_train) for part in parts] == [(1, None), (0, 1)]


def test_the_fingerprint_follows_the_second_text(tmp_path):
    path = put(tmp_path / "a.tsv", "kind\ttitle\tbody\tnote\nx\tone\tlong text\ta\ny\ttwo\tlonger text\tb\n")
    chosen = {"source": "body", "target": "kind"}
    found = [dataset("labels", path, **chosen, second=second).fingerprint for second in ("", "title", "note")]
    assert len(set(found)) == 3
    assert dataset("labels", path, **chosen, second="note").fingerprint == found[2]


def test_numbers_are_labels_too(tmp_path):
    rows = [{"text": "a b", "label": 1}, {"text": "c d", "label": 0}, {"text": "e", "label": True}]
    path = put(tmp_path / "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert [example.label for example in whole("labels", path)] == ["1", "0", "true"]
    put(tmp_path / "a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": null}\n{"text": "c", "label": 2}\n')
    assert [example.text for example in whole("labels", path)] == ["a", "c"]
    assert dataset("labels", path).splits["train"].empty == 1


def test_labels_are_in_the_order_of_their_numbers_however_long(tmp_path):
    labels = ["x", "10", "9" * 5000, "2", "1" * 5000, "0", "-1"]
    path = put(
        tmp_path / "a.tsv", "text\tlabel\n" + "".join(f"text {i}\t{labels[i % len(labels)]}\n" for i in range(700))
    )
    task = catalog.task("classify")(choose("classify/rnn", [], path))
    assert task.find_labels() == ["0", "2", "10", "1" * 5000, "9" * 5000, "-1", "x"]


def test_texts_and_labels_in_two_files(tmp_path):
    paths = [put(tmp_path / "train.text", "one\ntwo\n"), put(tmp_path / "train.label", "x\ny\n")]
    assert whole("labels", *paths) == labelled(("one", "x"), ("two", "y"))
    put(tmp_path / "train.label", "x\n")
    assert "2 and" in complaint("labels", *paths)


def test_a_text_without_label_is_counted(tmp_path):
    data = dataset("labels", put(tmp_path / "a.tsv", "one\tx\ntwo\t \n\nthree\ty\n"))
    assert list(data.splits["train"]) == labelled(("one", "x"), ("three", "y"))
    assert data.splits["train"].empty == 2


def test_label_files_that_cannot_be_used(tmp_path):
    assert "only one column" in complaint("labels", put(tmp_path / "a.tsv", "one\ntwo\n"))
    assert "no tab and is no JSON object" in complaint("labels", put(tmp_path / "a.txt", "one\ntwo\n"))
    assert "line 2 has 3 columns" in complaint("labels", put(tmp_path / "b.tsv", "one\tx\ntwo\ty\tz\n"))
    assert "texts and labels come from one" in complaint("labels", *[put(tmp_path / f"{i}.tsv", "a\tb") for i in "xyz"])


def test_a_test_file_has_the_columns_of_the_training_file(tmp_path):
    """Where nothing names them, few rows could be read in either way."""
    train = put(tmp_path / "a.tsv", FILES["plain.tsv"])
    test = put(tmp_path / "b.tsv", "ok\tgood\nno\tvery bad\n")
    data = dataset("labels", train, test_path=(test,))
    assert list(data.splits["test"]) == labelled(("ok", "good"), ("no", "very bad"))


def test_files_with_one_text_and_with_two_do_not_mix(tmp_path):
    one = put(tmp_path / "one.tsv", "text\tlabel\n" + "a b\tx\nc d\ty\n" * 20)
    two = put(tmp_path / "two.tsv", "premise\thypothesis\tlabel\n" + "a b\tc\tx\nc d\te\ty\n" * 20)
    assert "two.tsv has two texts per example, the training data one" in complaint("labels", one, test_path=(two,))
    assert "one.tsv has one text per example, the training data two" in complaint("labels", two, valid_path=(one,))


def test_the_split_is_by_the_text(tmp_path):
    path = put(tmp_path / "a.tsv", "".join(f"{text}\t{label}\n{text}\t{label}\n" for text, label in ROWS))
    data = dataset("labels", path, valid_part=0.3, test_part=0.3)
    parts = [{example.text for example in split} for split in data.splits.values()]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 60
    assert any("by a hash of the text" in line for line in data.understood)


def test_settings_of_other_tasks_are_refused(tmp_path):
    path = put(tmp_path / "a.tsv", "one\tx\n")
    assert "data.reverse" in complaint("labels", path, reverse=True)
    assert "data.second" in complaint("pairs", path, second="3")
    with pytest.raises(UserError, match=r"data\.second goes with your own files"):
        open_data(DataConfig(name="opinions", second="3"), "labels")
    with pytest.raises(UserError, match="is labelled texts, but this task needs tagged sentences; these fit: entities"):
        open_data(DataConfig(name="opinions"), "tags")


CONLL = "-DOCSTART- -X- O\n\nAda NNP I-PER\nLovelace NNP I-PER\nleft VBD O\n\n \nParis NNP I-LOC\nLondon NNP B-LOC"


def test_conll_with_blanks(tmp_path):
    data = dataset("tags", put(tmp_path / "a.conll", CONLL))
    assert list(data.splits["train"]) == [
        TaggedSentence(("Ada", "Lovelace", "left"), ("I-PER", "I-PER", "O")),
        TaggedSentence(("Paris", "London"), ("I-LOC", "B-LOC")),
    ]
    told = data.understood[0]
    for what in ("columns between blanks", "the tag column 3", "IOB1 tags", "1 -DOCSTART- lines skipped"):
        assert what in told


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("a b\tO\nc\tB-x\n\t\nd\tI-x\n", "IOB2 tags (entities that begin with I- or E-, read as if with B-: 1)"),
        ("\ufeffa b\tO\r\nc\tB-x\r\n\r\nd\tS-x", "IOBES tags"),
    ],
)
def test_conll_with_tabs(tmp_path, lines, told):
    data = dataset("tags", put(tmp_path / "a.tsv", lines))
    first, second = data.splits["train"]
    assert first == (("a\N{NO-BREAK SPACE}b", "c"), ("O", "B-x"))  # a blank inside a word does not end it
    assert second.words == ("d",)
    assert told in data.understood[0]
    assert "columns between tabs" in data.understood[0]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("a O\nb\n", "line 2 has 1 column, but the first has 2"),
        ("a O\n\nb x O\n", "line 3 has 3 columns, but the first has 2"),
        ("a\tO\nb O\n", "line 2 has 1 column, but the first has 2"),
        ("one\ntwo\n", "line 1 has 1 column, but a word and its tag need two"),
        ("a\tO\n\tB-x\n", "line 2 has no word in column 1"),
        ("a\tO\nb\tDET\n", "line 2: 'DET' is not the tag of an entity"),
        ("a\tO\nb\tB-\n", "line 2: 'B-' is not the tag of an entity"),
        ("a\tO\nb\tB-new type\n", "line 2: 'B-new type' is not the tag of an entity"),
        ("a O\n# a b c\n", "line 2 has 4 columns, but the first has 2: “# a b c”; a comment stands before a sentence"),
        ("a O\n" * 201, "is one sentence of 201 words: a blank line must stand between two sentences"),
        ("-DOCSTART- O\n\n", "has only -DOCSTART- lines"),
        ("\n\n", "only blank lines"),
        ("", "is empty"),
        (b"caf\xe9 O\nna\xc3\xafve O\n", "line 1 is not UTF-8"),
    ],
)
def test_broken_tag_files_name_the_line(tmp_path, lines, told):
    found = complaint("tags", put(tmp_path / "a.conll", lines))
    assert told in found
    assert "a.conll" in found


def test_tagged_sentences_come_from_one_file_or_folder(tmp_path):
    assert "come from one CoNLL file" in complaint("tags", put(tmp_path / "a", "a O\n"), put(tmp_path / "b", "a O\n"))
    folder = tmp_path / "set"
    folder.mkdir()
    for name in ("train", "dev", "test"):
        put(folder / f"{name}.conll", f"{name} B-x\n")
    splits = dataset("tags", str(folder)).splits
    assert {name: list(split) for name, split in splits.items()} == {
        "train": [(("train",), ("B-x",))],
        "valid": [(("dev",), ("B-x",))],
        "test": [(("test",), ("B-x",))],
    }


def test_the_report_tells_the_classes():
    data = open_data(DataConfig(name="opinions"), "labels")
    classes = {name: Counter(example.label for example in split) for name, split in data.splits.items()}
    report = describe(data, {}, classes=classes)
    lines = report.to_lines()
    table = lines[lines.index("label     train  valid  test") :]
    assert [line.split()[0] for line in table[1:]] == ["negative", "positive", "neutral"]  # the most frequent first
    assert table[1].split()[1].replace(",", "") == str(classes["train"]["negative"])
    assert json.loads(json.dumps(asdict(report)))["classes"]["train"] == classes["train"]
    assert lines[lines.index("") + 1].split()[:3] == ["split", "texts", "bytes"]
    assert not any("spell them alike" in line for line in lines)
    twins = describe(data, {}, classes={"train": {"POS": 3, "1": 2, "x": 1}, "valid": {"pos": 1, "1.0": 1}}).to_lines()
    assert "'1' and '1.0' count as 2 classes: spell them alike if they are one" in twins
    assert "'POS' and 'pos' count as 2 classes: spell them alike if they are one" in twins
    many = {"train": {f"c{i}": 100 - i for i in range(50)}}
    assert describe(data, {}, classes=many).to_lines()[-1].split() == ["20", "more", "1,210"]


@pytest.mark.parametrize(
    ("write", "sha256"), [(opinions, OPINIONS_SHA256), (entities, ENTITIES_SHA256)], ids=["opinions", "entities"]
)
def test_built_in_examples_are_the_same_everywhere_and_never_twice(write, sha256):
    splits = write()
    texts = {name: [to_cells(example) for example in split] for name, split in splits.items()}
    everything = [example for split in texts.values() for example in split]
    assert list(splits) == ["train", "valid", "test"]
    assert len({text for text, _ in everything}) == len(everything) > 4000
    assert len(splits["test"]) >= 400 <= 100 + len(splits["valid"])
    known = set().union(*map(words, texts["train"]))
    assert all(words(example) <= known for example in everything)
    assert hashlib.sha256(repr(texts).encode()).hexdigest() == sha256


def test_words_alone_do_not_tell_an_opinion():
    """A bag of words stays far below what a reader reaches."""
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    splits = opinions()
    bag = CountVectorizer()
    train = bag.fit_transform([example.text for example in splits["train"]])
    model = LogisticRegression(max_iter=300).fit(train, [example.label for example in splits["train"]])
    score = model.score(
        bag.transform([example.text for example in splits["test"]]), [example.label for example in splits["test"]]
    )
    assert 0.5 < score < 0.8
    share = Counter(example.label for example in splits["test"])
    assert all(count > 80 for count in share.values())


def test_names_are_ambiguous_and_tags_fit():
    splits = entities()
    found: dict[str, set[str]] = {}
    for example in (example for split in splits.values() for example in split):
        (sentence,), (tokens, marks) = inputs(example), example
        assert len(tokens) == len(marks)
        assert tuple(sentence[start:end] for start, end in find_words(sentence)) == tokens
        for span in spans(marks):
            found.setdefault(" ".join(tokens[span.start : span.end]), set()).add(span.kind)
        for token, tag in zip(tokens, marks):
            if tag == "O":
                found.setdefault(token, set()).add("none")
    assert found["Florence"] == {"person", "place"}
    assert found["Orion"] == {"organisation", "product"}
    assert found["Lincoln"] == {"person", "place"}
    assert found["May"] == found["Will"] == {"person", "none"}
    assert {kind for kinds in found.values() for kind in kinds} == {
        "person",
        "place",
        "organisation",
        "product",
        "none",
    }
    assert set(names()["place"]) <= set(found)


COUNTS = {
    "sst2": {"train": 6_920, "valid": 872, "test": 1_821},
    "trec": {"train": 4_963, "valid": 489, "test": 500},
    "imdb": {"train": 23_791, "valid": 1_209, "test": 25_000},
    "wnut17": {"train": 3_394, "valid": 1_009, "test": 1_287},
}


@pytest.mark.parametrize("name", ["sst2", "trec", "wnut17", pytest.param("imdb", marks=pytest.mark.slow)])
def test_public_sets_have_their_splits(name, mirror):
    data = open_data(DataConfig(name=name, mirror=str(mirror)), "tags" if name == "wnut17" else "labels")
    counts = {split: part.examples for split, part in data.splits.items()}
    assert counts == COUNTS[name]
    assert all(part.empty == 0 for part in data.splits.values())
    parts = [{inputs(example) for example in part} for part in data.splits.values()]
    if name in ("trec", "imdb"):
        assert not parts[0] & parts[1]
        assert any("held out for valid by a hash" in line for line in data.understood)


def test_public_labels_have_names(mirror):
    labels = {
        name: {text.label for text in open_data(DataConfig(name=name, mirror=str(mirror)), "labels").splits["test"]}
        for name in ("sst2", "trec")
    }
    assert labels["sst2"] == {"negative", "positive"}
    assert labels["trec"] == {"ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"}
    tags = open_data(DataConfig(name="wnut17", mirror=str(mirror)), "tags").splits["test"]
    kinds = Counter(span.kind for example in tags for span in spans(example.tags))
    assert kinds == {
        "person": 429, "location": 150, "product": 127, "group": 165, "creative-work": 142, "corporation": 66,
    }  # fmt: skip
