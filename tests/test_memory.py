"""Examples in memory: lists, dicts and DataFrames train as files do, and settings come as Python has them."""

from __future__ import annotations

import itertools
import pickle
import re
from pathlib import Path
from typing import Any

import numpy
import pandas
import polars
import pytest

import allyouneed
from allyouneed.data import in_memory
from allyouneed.data.fetch import cache_folder
from allyouneed.data.in_memory import store_examples
from allyouneed.errors import UserError
from allyouneed.recipe import as_overrides, read_recipe
from allyouneed.run import load, train
from allyouneed.training.starting import choose
from commands import ayn, mistake

TEXTS = [(f"a {how} one number {i}", label) for i in range(12) for how, label in (("good", "yes"), ("bad", "no"))]
SMALL = ["model.width=8", "train.threads=1", "train.steps=3", "train.eval_every=3", "train.batch_tokens=64",
         "train.warmup=1", "data.valid_part=0.2", "data.test_part=0.2"]  # fmt: skip


def forms() -> dict[str, Any]:
    texts, labels = [text for text, _ in TEXTS], [label for _, label in TEXTS]
    return {
        "tuples": TEXTS,
        "lists": [list(row) for row in TEXTS],
        "dicts": [{"text": text, "label": label} for text, label in TEXTS],
        "columns": {"text": texts, "label": labels},
        "pandas": pandas.DataFrame({"text": texts, "label": labels}),
        "polars": polars.DataFrame({"text": texts, "label": labels}),
    }


@pytest.mark.parametrize("form", forms())
def test_labelled_texts_in_every_form_are_the_same_file(form):
    path = store_examples(forms()[form], "labels")
    assert path == store_examples(TEXTS, "labels")
    assert path.read_text(encoding="utf-8").splitlines()[0] == '{"text": "a good one number 0", "label": "yes"}'


def test_a_classifier_learns_from_a_list(tmp_path):
    run = train("classify/rnn", *SMALL, data=TEXTS, out=tmp_path / "run", quiet=True)
    assert run.predict("good") in ("yes", "no")
    again = load(tmp_path / "run")
    assert again.test(data=TEXTS[:4], say=lambda line: None)[0].name == "accuracy"


def test_the_files_of_a_run_are_found_from_every_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = choose("classify/rnn", ["data.valid_path=dev.tsv", "data.test_path=~/test.tsv"], "train.tsv").data
    assert (data.path, data.valid_path) == ((str(tmp_path / "train.tsv"),), (str(tmp_path / "dev.tsv"),))
    assert data.test_path == (str(Path.home() / "test.tsv"),)
    assert choose("classify/rnn", ["data.path=train.tsv"], None).data.path == data.path


def test_splits_may_be_given_one_by_one(tmp_path):
    chosen = choose(
        "classify/rnn", SMALL, {"train": TEXTS, "valid": TEXTS[:2], "test": str(store_examples(TEXTS[:3], "labels"))}
    )
    assert chosen.data.name == ""
    assert len(chosen.data.path) == len(chosen.data.valid_path) == len(chosen.data.test_path) == 1
    with pytest.raises(UserError, match="data has no split 'dev'; there is"):
        choose("classify/rnn", SMALL, {"train": TEXTS, "dev": TEXTS})
    with pytest.raises(UserError, match="data needs a split 'train'"):
        choose("classify/rnn", SMALL, {"test": TEXTS})


def test_pairs_tags_and_texts():
    assert store_examples([("one", "uno")], "pairs").read_text() == '{"source": "one", "target": "uno"}\n'
    tagged = [(["Ada", "works"], ["B-person", "O"]), (["No", "one"], ["O", "O"])]
    assert store_examples(tagged, "tags").read_text() == "Ada\tB-person\nworks\tO\n\nNo\tO\none\tO\n\n"
    columns = {"tokens": [words for words, _ in tagged], "ner_tags": [tags for _, tags in tagged]}
    for frame in (pandas.DataFrame, polars.DataFrame):
        assert store_examples(frame(columns), "tags") == store_examples(tagged, "tags")
        assert store_examples(frame({"mine": ["one", "two\n"]}), "text", source="mine").read_text() == "one\ntwo\n"


def test_a_tagger_learns_from_words(tmp_path):
    data = [(["Ada", "works"], ["B-person", "O"]), (["The", "sun", "is", "up"], ["O"] * 4)] * 20
    data += [(["Ada", "and", f"Bob{i}"], ["B-person", "O", "B-person"]) for i in range(60)]
    run = train("tag/lstm", *SMALL, data=data, out=tmp_path / "run", quiet=True)
    assert "Ada" in run.predict("Ada works")


class Raising:
    """An object of the user with an error in it."""

    def __iter__(self):
        raise ArithmeticError("no rows today")

    def __repr__(self):
        raise ArithmeticError("not even a name")


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


BAD = {
    "no rows": ([], "labels", "data is empty: there is no row in it"),
    "a number": (3, "labels", "data is int; give a path, a list of tuples or dicts, or a DataFrame"),
    "too few cells": ([("a", "b"), ("c",)], "labels", r"row 2 of data is \('c',\); \(text, label\) is expected"),
    "too many": ([("a",) * 5], "pairs", r"row 1 of data is .*; \(source, target\) is expected, or a dict"),
    "no such key": ([{"text": "a", "label": "b"}, {"text": "c", "lable": "d"}], "labels", "did you mean 'lable'"),
    "mixed": ([{"text": "a", "label": "b"}, ("c", "d")], "labels", "row 2 of data is not a dict as the first one is"),
    "missing": ([("a", "b"), ("c", None)], "labels", r"row 2 of data: 'label' is missing \(None\)"),
    "pandas' nan": (
        pandas.DataFrame({"text": ["a", None], "label": ["b", "c"]}),
        "labels",
        "row 2 .*'text' is missing",
    ),
    "polars' null": (
        polars.DataFrame({"text": ["a", None], "label": ["b", "c"]}),
        "labels",
        "row 2 .*'text' is missing",
    ),
    "NaN": ([("a", "b"), ("c", float("nan"))], "labels", r"row 2 of data: 'label' is missing \(nan\)"),
    "an object": ([("a", object())], "labels", "row 1 of data holds a value that is neither text nor a number"),
    "ragged columns": ({"text": ["a"], "label": []}, "labels", "different lengths: 'text' has 1, 'label' has 0"),
    "words and tags": ([(["a", "b"], ["O"])], "tags", "row 1 of data has 2 words and 1 tags: give one tag per word"),
    "text, not words": ([("a b", "O O")], "tags", "row 1 of data: a list of words and a list of tags are expected"),
    "numbers, not words": ([(1, 2)], "tags", "a list of words and a list of tags are expected, not 1$"),
    "endless words": ([(itertools.count(), ["O"])], "tags", r"a list of tags are expected, not count\(0\)"),
    "a tag of two words": ([(["a"], ["O O"])], "tags", "is not a word with its tag"),
    "a column that is a number": ({"text": 5}, "labels", "column 'text' of data is 5, but a list of its cells is"),
    "a column that is text": ({"text": "abc", "label": "xyz"}, "labels", "column 'text' of data is 'abc', but a list"),
    "a column that is a dict": ({"text": {0: "a"}}, "text", r"column 'text' of data is \{0: 'a'\}, but a list"),
    "an endless column": ({"text": itertools.repeat("a")}, "text", "column 'text' of data is repeat"),
    "columns of one name": (
        pandas.DataFrame([["a", "b"]], columns=["text", "text"]),
        "labels",
        "data has 2 columns called 'text'",
    ),
    "an array without rows": (numpy.array(5), "labels", r"data is ndarray and cannot be read \(TypeError"),
    "a set": ({("a", "b")}, "labels", "data is set, whose rows have no order: give a list"),
    "a LazyFrame": (
        polars.LazyFrame({"text": ["a"], "label": ["b"]}),
        "labels",
        r"data is LazyFrame, which has not computed its rows yet: give data.collect\(\)",
    ),
    "bytes": ([(b"a", "b")], "labels", "row 1 of data holds a value that is neither text nor a number"),
    "texts alone": (pandas.Series(["a", "b"]), "labels", r"row 1 of data is 'a'; \(text, label\) or"),
    "a row of None": ([None], "labels", r"row 1 of data is None; \(text, label\) or"),
    "half of a character": (
        [("a", "b"), ("a\ud800", "b")],
        "labels",
        r"row 2 of data has a zero character or half of a surrogate pair.*ud800",
    ),
    "a zero": ([("a",), ("b\0",)], "text", "row 2 of data has a zero character"),
    "what cannot be read": (
        Raising(),
        "labels",
        r"data is Raising and cannot be read \(ArithmeticError: no rows today",
    ),
    "a value that cannot show itself": ([("a", Raising())], "labels", "neither text nor a number"),
    "a deep list": ([("a", deep(100_000))], "labels", "row 1 of data holds a value that is neither text nor"),
    "no rows in columns": ({"words": [], "tags": []}, "tags", "data has no rows"),
    "no columns": ({}, "text", "data has no rows"),
    "a tab in a word": ([(["a\tb"], ["O"])], "tags", "is not a word with its tag"),
    "no column": (
        pandas.DataFrame({"a": ["x"], "b": ["y"]}),
        "tags",
        "data has no column for the words; it has a, b: name one 'words'",
    ),
    "no text": ([(3,)], "text", "row 1 of data: 3 is not text"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_told(name):
    data, shape, said = BAD[name]
    with pytest.raises(UserError, match=said):
        store_examples(data, shape)


@pytest.mark.slow
def test_rows_without_end_are_stopped(monkeypatch):
    monkeypatch.setattr(in_memory, "MOST", 1 << 20)
    for data, shape in (
        (itertools.repeat(("a", "b")), "labels"),
        (itertools.repeat("a"), "text"),
        (itertools.repeat({"words": [], "tags": []}), "tags"),
    ):
        with pytest.raises(UserError, match=r"data has more than 1.0 MiB after [\d,]+ rows; if it ever ends"):
            store_examples(data, shape)
    with pytest.raises(UserError, match=r"data has more than 1.0 MiB of images: give the paths"):
        store_examples(itertools.repeat((numpy.zeros((8, 8)), "a")), "images")
    assert not list((cache_folder() / "given").glob(".tmp*"))


IMAGES = {
    "ragged": ([([[1, 2], [3]], "a")], "the image in row 1 of data: its rows have different lengths"),
    "text in it": ([(numpy.array([["a"]]), "a")], "the image in row 1 of data: values of the type <U1 are no pixels"),
    "objects in it": ([(numpy.array([[None]]), "a")], "values of the type object are no pixels"),
    "a ragged label": ([(numpy.zeros((2, 2)), [[1], [1, 2]])], "data has several labels for an image"),
    "an object as label": ([(numpy.zeros((2, 2)), object())], "the label is neither text nor a number: <object"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_that_are_none(name):
    data, said = IMAGES[name]
    with pytest.raises(UserError, match=said):
        store_examples(data, "images")


# Nothing given


def nothing() -> dict[str, Any]:
    return {
        "a list": [],
        "a tuple": (),
        "a text": "",
        "a text in a list": [""],
        "a dict": {},
        "a DataFrame": pandas.DataFrame(),
        "a DataFrame with columns": polars.DataFrame({"text": [], "label": []}),
        "a generator": iter(()),
        "a split": {"train": []},
        "a split in a text": {"train": ""},
        "a split that is None": {"train": None},
        "a second split": {"train": TEXTS, "test": []},
    }


@pytest.mark.parametrize("recipe", ["classify/rnn", "lm/gpt", "tag/lstm", "recognize/vit"])
@pytest.mark.parametrize("form", nothing())
def test_nothing_is_not_the_data_of_the_recipe(form, recipe):
    if form == "a second split" and recipe != "classify/rnn":
        return
    with pytest.raises(UserError, match=r"empty|no rows|needs a split"):
        choose(recipe, [], nothing()[form])
    assert choose(recipe, [], None).data.name


def test_nothing_is_not_the_data_of_a_run(lm):
    run = load(lm)
    for form in ("a list", "a text", "a dict", "a generator"):
        with pytest.raises(UserError, match=r"empty|no rows"):
            run.test(data=nothing()[form], say=lambda line: None)
    assert "the name of the data is empty" in mistake("test", lm, "--data", "")
    assert "the name of the data is empty" in mistake("train", "lm/gpt", "--data", "", "--out", lm.parent / "none")


@pytest.mark.parametrize(
    "setting", ["data.path=", "data.valid_path=", "data.test_path= ", 'data.path=""', "data.path=,"]
)
def test_a_path_that_is_empty(setting, lm):
    key = setting.partition("=")[0]
    with pytest.raises(UserError, match=f"{key} is empty: name a file or a folder, or leave {key} out"):
        choose("lm/gpt", [setting], None)
    with pytest.raises(UserError, match=f"{key} is empty"):
        train("lm/gpt", setting, out=lm, resume=True)


# A list of strings


def test_strings_in_a_list_are_files_or_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("one").write_text("a b c\n" * 50)
    assert choose("lm/gpt", [], ["one"]).data.path == (str(tmp_path / "one"),)
    texts = choose("lm/gpt", [], ["two words", "three"]).data.path
    assert [Path(path).read_text() for path in texts] == ["two words\nthree\n"]
    assert choose("lm/gpt", [], iter(["two words", "three"])).data.path == texts
    assert choose("lm/gpt", [], pandas.Series(["two words", "three"])).data.path == texts
    with pytest.raises(UserError, match="'thre' is neither a file here nor a data set"):
        choose("lm/gpt", [], ["thre"])
    assert choose("lm/gpt", [], ["a/b", "c"]).data.path == (str(tmp_path / "a/b"), str(tmp_path / "c"))  # paths
    for recipe, wanted in (("classify/rnn", "(text, label)"), ("translate/transformer", "(source, target)")):
        with pytest.raises(UserError, match=f"none is a file here .'a', …., but the task .*{re.escape(wanted)}"):
            choose(recipe, [], ["a", "b"])
        assert choose(recipe, [], ["a.en", "a.de"]).data.path[0].endswith("a.en")
    with pytest.raises(UserError, match="the split 'train' of data is the data set 'corpus'"):
        choose("lm/gpt", [], {"train": "corpus"})
    assert "'some words' is neither a file here nor a data set" in mistake("train", "lm/gpt", "--data", "some words")


def test_a_column_that_is_not_there():
    with pytest.raises(UserError, match="has no column 'lable'; did you mean 'label'"):
        train("classify/rnn", *SMALL, "data.target=lable", data=forms()["pandas"], quiet=True)


# Settings


def test_settings_are_strings_dicts_or_keywords():
    flat = as_overrides("train.lr=0.5", {"train.steps": 5, "text.lowercase": True}, {"decode": {"stop": ["a", "b"]}})
    assert flat == ["train.lr=0.5", "train.steps=5", "text.lowercase=true", 'decode.stop=["a", "b"]']
    recipe = read_recipe("lm/gpt", flat)
    assert (recipe.train.lr, recipe.train.steps, recipe.text.lowercase) == (0.5, 5, True)
    assert recipe.decode.stop == ("a", "b")


def test_sections_are_keywords(tmp_path):
    run = train("classify/rnn", *SMALL, {"train.steps": 2}, train={"batch_tokens": 32, "eval_every": 2},
                data=TEXTS, out=tmp_path / "run", quiet=True)  # fmt: skip
    assert (run.recipe.train.steps, run.recipe.train.batch_tokens) == (2, 32)
    with pytest.raises(UserError, match=r"a recipe has no section \[trian\]; did you mean 'train'"):
        train("classify/rnn", trian={"steps": 2})


def test_errors_name_arguments_in_python_and_options_on_the_command_line(lm, story):
    with pytest.raises(UserError, match="already holds a run: resume=True continues it, overwrite=True replaces it"):
        train("lm/gpt", data=story, out=lm)
    assert "--resume continues it, --overwrite replaces it" in ayn("train", "lm/gpt", "--data", story, "--out", lm).err
    with pytest.raises(UserError, match="resume=True continues it"):
        train("lm/gpt", data=story, out=lm)


def test_a_run_pickles(lm):
    run = load(lm)
    again = pickle.loads(pickle.dumps(run))
    assert again.predict("one", method="greedy") == run.predict("one", method="greedy")


def test_what_a_run_is_can_be_seen(lm):
    run = allyouneed.load(lm)
    score = run.scores()["test"][0]
    assert re.fullmatch(rf"Run\('{lm}': lm, gpt, [\d.k]+ parameters, test loss {score.value:.4f}\)", repr(run))
    shown = run._repr_html_()
    assert all(part in shown for part in (f"<td>{lm}</td>", "<th>test perplexity</th>", score.signature))
    assert '<img alt="loss" src="data:image/png;base64,iVBOR' in shown
