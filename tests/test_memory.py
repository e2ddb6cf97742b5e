"""Examples in memory: lists, dicts and DataFrames train as files do, and settings come as Python has them."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pandas
import polars
import pytest

import allyouneed
from allyouneed.data.memory import keep
from allyouneed.errors import UserError
from allyouneed.recipe import as_overrides, read_recipe
from allyouneed.run import load, train
from allyouneed.training.starting import choose
from commands import ayn

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
    path = keep(forms()[form], "labels")
    assert path == keep(TEXTS, "labels")
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
    chosen = choose("classify/rnn", SMALL, {"train": TEXTS, "valid": TEXTS[:2], "test": str(keep(TEXTS[:3], "labels"))})
    assert chosen.data.name == ""
    assert len(chosen.data.path) == len(chosen.data.valid_path) == len(chosen.data.test_path) == 1
    with pytest.raises(UserError, match="data has no split 'dev'; there is"):
        choose("classify/rnn", SMALL, {"train": TEXTS, "dev": TEXTS})
    with pytest.raises(UserError, match="data needs a split 'train'"):
        choose("classify/rnn", SMALL, {"test": TEXTS})


def test_pairs_tags_and_texts():
    assert keep([("one", "uno")], "pairs").read_text() == '{"source": "one", "target": "uno"}\n'
    tagged = [(["Ada", "works"], ["B-person", "O"]), (["No", "one"], ["O", "O"])]
    assert keep(tagged, "tags").read_text() == "Ada\tB-person\nworks\tO\n\nNo\tO\none\tO\n\n"
    columns = {"tokens": [words for words, _ in tagged], "ner_tags": [tags for _, tags in tagged]}
    for frame in (pandas.DataFrame, polars.DataFrame):
        assert keep(frame(columns), "tags") == keep(tagged, "tags")
        assert keep(frame({"mine": ["one", "two\n"]}), "text", source="mine").read_text() == "one\ntwo\n"


def test_a_tagger_learns_from_words(tmp_path):
    data = [(["Ada", "works"], ["B-person", "O"]), (["The", "sun", "is", "up"], ["O"] * 4)] * 20
    data += [(["Ada", "and", f"Bob{i}"], ["B-person", "O", "B-person"]) for i in range(60)]
    run = train("tag/lstm", *SMALL, data=data, out=tmp_path / "run", quiet=True)
    assert "Ada" in run.predict("Ada works")


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
        keep(data, shape)


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
