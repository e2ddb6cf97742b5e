"""Baselines: the most frequent label and a linear model, beside the score of every classifier and tagger."""

from __future__ import annotations

import json

import numpy as np
import pytest

from allyouneed.metrics import Score
from allyouneed.run import load
from allyouneed.tasks.baselines import beaten, classify_baselines, image_baselines, tag_baselines
from commands import ayn
from conftest import RUNTIME


def reviews(number: int, seed: int) -> tuple[list[tuple[str]], np.ndarray]:
    draw, texts = np.random.default_rng(seed), []
    goals = (draw.random(number) < 0.6).astype(np.int64)
    for goal in goals:
        words = [f"w{draw.integers(0, 50)}" for _ in range(6)]
        words[2:4] = ["Not", "bad"] if goal else ["bad", "not"]  # a pair, not a word, tells the class
        texts.append((" ".join(words),))
    return texts, goals


def test_a_classifier_is_beside_the_most_frequent_label_and_pairs_of_words():
    (train, goals), (test, truth) = reviews(300, 1), reviews(200, 2)
    found = classify_baselines(train, goals, test, 2)
    assert set(found["majority"].tolist()) == {1}
    assert (found["linear"] == truth).mean() > 0.98


def test_pairs_of_texts_are_told_apart():
    draw = np.random.default_rng(3)
    pairs = [(f"a{draw.integers(0, 9)}", f"b{draw.integers(0, 2)}") for _ in range(300)]
    goals = np.array([int(second == "b1") for _, second in pairs])
    found = classify_baselines(pairs[:200], goals[:200], pairs[200:], 2)
    assert (found["linear"] == goals[200:]).mean() == 1


def test_a_tagger_is_beside_the_usual_tag_of_each_word_and_its_neighbours():
    """'duck' is mostly a noun, but a verb after 'to': only the neighbours tell."""
    train = [["the", "duck", "swims"]] * 3 + [["to", "duck", "down"]] * 2
    goals = [[0, 1, 2]] * 3 + [[0, 2, 0]] * 2
    found = tag_baselines(train * 10, goals * 10, [["to", "duck", "down"], ["a", "Duck", "unseen"]], 3)
    assert found["majority"] == [[0, 1, 0], [0, 1, 0]]
    assert found["linear"][0] == [0, 2, 0]


@pytest.mark.parametrize(("side", "channels"), [(8, 1), (40, 3)])
def test_images_are_told_apart_by_their_pixels(side, channels):
    draw = np.random.default_rng(4)
    images = draw.integers(0, 60, (300, side, side, channels), dtype=np.uint8)
    goals = (draw.random(300) < 0.6).astype(np.int64)
    images[goals == 1, : side // 2] += 40  # bright above
    found = image_baselines(images[:200], goals[:200], images[200:], 2)
    assert set(found["majority"].tolist()) == {1}
    assert (found["pixels"] == goals[200:]).mean() > 0.98


def test_it_is_said_when_a_baseline_is_better():
    mine = Score("accuracy", 72.1, "")
    others = [Score("majority baseline", 60.0, ""), Score("linear baseline", 78.9, "")]
    said = "a linear model over words and pairs of words is better than this model: accuracy 78.90 against 72.10; "
    assert beaten([mine, *others]).startswith(said)
    assert beaten([Score("accuracy", 78.9, ""), *others]) == ""
    assert beaten([mine]) == ""


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["classify/rnn", "classify/elmo", "tag/lstm", "tag/elmo", "recognize/vit"])
def test_every_classifier_and_tagger_has_them(recipe, tmp_path):
    settings = [*RUNTIME, "model.width=16", "train.steps=2", "train.eval_every=2", "train.test_limit=40"]
    if recipe.startswith("recognize"):
        settings += ["model.layers=1", "model.heads=2"]
    done = ayn("train", recipe, "--out", tmp_path / "run", *settings)
    assert done.code == 0, done.err
    scores = {score.name: score for score in load(tmp_path / "run").scores()["test"]}
    names = {name for name in scores if name.endswith(" baseline")}
    assert names == {"majority baseline", "pixels baseline" if "vit" in recipe else "linear baseline"}
    for name in names:
        assert f"{name} {scores[name].value:.2f} [" in done.out
        assert "|examples:40 of " in scores[name].signature  # of the same examples
    first = next(iter(scores.values()))
    best = max(scores[name].value for name in names)
    assert ("is better than this model" in done.out) == (best > first.value)
    assert ayn("info", tmp_path / "run").out.count(" baseline ") == len(names)


@pytest.mark.slow
def test_they_are_of_the_examples_that_were_scored(tmp_path):
    settings = [*RUNTIME, "model.width=16", "train.steps=1", "train.eval_every=1"]
    for limit in (30, 0):
        out = tmp_path / str(limit)
        done = ayn("train", "classify/rnn", "--out", out, *settings, f"train.test_limit={limit}")
        assert done.code == 0, done.err
        task = load(out).task
        truth, found = task.goals("test"), task.simple("test")["linear"]
        rows = json.loads((out / "scores.json").read_text())["test"]
        mine = next(row for row in rows if row["name"] == "linear baseline")
        if limit == 0:
            assert mine["value"] == pytest.approx(100 * float((found == truth).mean()))
        assert f"|n:{limit or len(truth)}|" in mine["signature"]
