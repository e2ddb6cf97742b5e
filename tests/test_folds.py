"""train.folds: cross-validation, in which every example is in a test once."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest

from allyouneed.config import DataConfig
from allyouneed.data.opening import open_data
from allyouneed.data.sources import part_of
from allyouneed.metrics import Score, exact_score
from allyouneed.run import load
from allyouneed.training.folds import pooled_scores
from commands import ayn, mistake
from conftest import RUNTIME


@pytest.fixture(scope="module")
def films(tmp_path_factory):
    draw, lines = random.Random(3), []
    words = {"pos": ("lovely", "great", "fine"), "neg": ("dull", "awful", "poor")}
    for number in range(80):
        label = draw.choice(["pos", "neg"])
        lines.append(f"film {number} was {draw.choice(words[label])}\t{label}")
    path = tmp_path_factory.mktemp("folds") / "films.tsv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize("folds", [2, 5, 7])
def test_every_example_is_in_the_test_of_one_fold(folds, films):
    tested = Counter[str]()
    for fold in range(1, folds + 1):
        data = open_data(DataConfig(path=(str(films),), valid_part=0.1, test_part=1 / folds, fold=fold), "labels")
        splits = {name: [example.text for example in split] for name, split in data.splits.items()}
        tested.update(splits["test"])
        assert sum(map(len, splits.values())) == 80
        assert len({text for split in splits.values() for text in split}) == 80
    assert set(tested.values()) == {1}
    assert len(tested) == 80


def test_without_folds_the_splits_are_what_they_were():
    texts = [f"text {number}" for number in range(200)]
    assert [part_of(text, 0.1, 0.2) for text in texts] == [part_of(text, 0.1, 0.2, fold=1) for text in texts]
    assert [part_of(text, 0.1, 0.2) for text in texts] != [part_of(text, 0.1, 0.2, fold=2) for text in texts]


def test_scores_of_parts_are_pooled_and_others_are_means():
    folds = [
        [exact_score("accuracy", 8, 10, "exact|n:10"), Score("F1", 60.0, "entities|true:9|step:4", 50.0, 70.0)],
        [exact_score("accuracy", 30, 30, "exact|n:30"), Score("F1", 80.0, "entities|true:7|step:8", 70.0, 90.0)],
    ]
    accuracy, f1 = pooled_scores(folds)
    assert accuracy == exact_score("accuracy", 38, 40, "2 folds|exact|n:40")
    assert (f1.value, f1.signature) == (70.0, "2 folds|entities|mean|ci95:of folds")
    assert (f1.low, f1.high) == pytest.approx((70 - 200**0.5 / 2, 70 + 200**0.5 / 2))
    (loss,) = pooled_scores([[Score("loss", 1.0, "nats")], [Score("loss", 3.0, "nats")]])
    assert (loss.value, loss.low) == (2.0, None)


@pytest.mark.slow
def test_a_small_set_is_scored_by_cross_validation(films, tmp_path):
    out = tmp_path / "run"
    command = ["train", "classify/rnn", "--data", films, "--out", out, *RUNTIME, "model.width=16", "train.folds=3",
               "train.steps=20", "train.eval_every=10"]  # fmt: skip
    done = ayn(*command)
    assert done.code == 0, done.err
    assert [f"fold {fold} of 3: accuracy" in done.out for fold in (1, 2, 3)] == [True] * 3
    assert "cross-validation: 3 runs have scored every example once" in done.out
    scores = {score.name: score for score in load(out).scores()["folds"]}
    assert "|n:80|" in scores["accuracy"].signature
    assert scores["accuracy"].value > scores["majority baseline"].value
    assert "test" not in load(out).scores()
    assert load(out).predict("film 3 was great") == "pos"
    counted = [json.loads((tmp_path / "run-folds" / str(fold) / "scores.json").read_text()) for fold in (1, 2, 3)]
    sizes = [int(found["test"][0]["signature"].partition("|n:")[2].partition("|")[0]) for found in counted]
    assert sum(sizes) == 80
    before = {fold: (tmp_path / "run-folds" / str(fold) / "model.safetensors").read_bytes() for fold in (1, 2, 3)}
    again = ayn(*command, "--resume")  # all is there: it only says so
    assert again.code == 0, again.err
    assert before == {f: (tmp_path / "run-folds" / str(f) / "model.safetensors").read_bytes() for f in (1, 2, 3)}
    assert {score.name: score.value for score in load(out).scores()["folds"]} == {
        name: score.value for name, score in scores.items()
    }


def test_folds_that_make_no_sense_are_refused(films, story, tmp_path):
    out = tmp_path / "run"
    own = ["train", "classify/rnn", "--data", films, "--out", out]
    assert mistake(*own, "train.folds=1") == "train.folds = 1: give 2 or more, 5 for example"
    assert "train.test_limit = -1 leaves it out" in mistake(*own, "train.folds=3", "train.test_limit=-1")
    assert "opinions has one" in mistake("train", "classify/rnn", "--out", out, "train.folds=3")
    assert "a text has none" in mistake("train", "lm/gpt", "--data", story, "--out", out, "train.folds=3")
    assert not out.exists()
