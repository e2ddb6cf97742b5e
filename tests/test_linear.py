"""The linear model over words and pairs of words: the baseline of a classifier, and what its network begins with."""

from __future__ import annotations

import itertools
import json
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from allyouneed.config import TextConfig
from allyouneed.data.store import Ragged
from allyouneed.predict.linear import Bags, WordPairs, best_shares, cross_entropy, fit_linear, minimize, words_of
from allyouneed.run import load, train
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.text import Tokenizer
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose, resumed
from allyouneed.training.trainer import Trainer
from commands import ayn, mistake
from conftest import RUNTIME

texts = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=6)


def by_hand(rows: list[list[int]], vocab: int) -> list[set[int]]:
    return [{*row, *((a + 1) * 2 * vocab + b for a, b in itertools.pairwise(row))} for row in rows]


@given(texts)
def test_a_bag_has_each_word_and_each_pair_of_neighbours_once(rows):
    bags = Bags.of([Ragged.of(rows)], np.arange(6))
    found = [bags.keys[a:b].tolist() for a, b in itertools.pairwise(bags.offsets)]
    assert found == [sorted(keys) for keys in by_hand(rows, 6)]


def test_the_words_of_a_second_text_are_other_words():
    bags = Bags.of([Ragged.of([[1, 2]]), Ragged.of([[1, 2]])], np.arange(6))
    assert set(bags.keys.tolist()) == {1, 2, 2 * 12 + 2, 7, 8, 8 * 12 + 8}


def test_a_token_that_is_no_word_is_in_no_pair():
    bags = Bags.of([Ragged.of([[1, 0, 2, 3], [0]])], np.array([-1, 1, 2, 1]))  # 0 is no word, and 3 is 1 again
    assert [bags.keys[a:b].tolist() for a, b in itertools.pairwise(bags.offsets)] == [[1, 2, 3 * 8 + 1], []]


def test_a_word_is_one_with_and_without_a_space_and_the_unknown_is_none():
    text = TextConfig(kind="word", vocab=100, min_count=2, lowercase=True)
    tokenizer = Tokenizer.train(["film, a film (film) film", "a rare film"], text)
    words = words_of(tokenizer)
    (film, again), unknown = tokenizer.encode("film film"), tokenizer.unk
    assert film != again
    assert words[film] == words[again] == min(film, again)
    assert words[unknown] == -1
    pieces = Tokenizer.train(["film, a film (film) film"] * 9, TextConfig(kind="bpe", vocab=300))
    assert [word for word in words_of(pieces).tolist() if word >= 0] == [
        id for id in range(len(pieces)) if id != pieces.unk
    ]


def sentences(number: int, seed: int) -> tuple[list[list[int]], np.ndarray]:
    """Words 0 to 9 mean nothing; 10 to 14 and 15 to 19 speak for a class, and the pair (0, 1) for the second."""
    draw = np.random.default_rng(seed)
    goals, rows = draw.integers(0, 2, number), []
    for goal in goals:
        row = draw.integers(2, 10, 12).tolist()
        if draw.random() < 0.5:
            row[3] = int(10 + 5 * goal + draw.integers(0, 5))
        else:
            row[5:7] = [0, 1] if goal else [1, 0]
        rows.append(row)
    return rows, goals


def test_it_learns_words_and_pairs():
    rows, goals = sentences(400, 1)
    fitted = fit_linear(Bags.of([Ragged.of(rows)], np.arange(20)), goals, 2)
    others, truth = sentences(400, 2)
    scores = fitted.scores(Bags.of([Ragged.of(others)], np.arange(20)))
    assert (scores.argmax(1) == truth).mean() > 0.97
    assert fitted.scores(Bags.of([Ragged.of([[0, 1], [1, 0]])], np.arange(20))).argmax(1).tolist() == [1, 0]


@pytest.mark.parametrize("even", [False, True])
def test_the_weights_are_those_of_a_logistic_regression_on_counted_ratios(even):
    rows, goals = sentences(300, 3)
    rows = [row[: 7 + number % 6] for number, row in enumerate(rows)]
    bags = Bags.of([Ragged.of(rows)], np.arange(20))
    fitted = fit_linear(bags, goals, 2, even)
    keep = [key for key, count in Counter(bags.keys.tolist()).items() if count > 1]
    assert sorted(keep) == fitted.keys.tolist()
    x = np.zeros((300, len(keep)))
    for row, keys in zip(x, by_hand(rows, 20)):
        row[[number for number, key in enumerate(fitted.keys) if key in keys]] = 1
    one, other = 1 + x[goals == 1].sum(0), 1 + x[goals == 0].sum(0)
    ratio = np.log(one / one.sum()) - np.log(other / other.sum())
    share = 1 / np.sqrt(x.sum(1, keepdims=True)) if even else np.ones((300, 1))
    values = x * ratio * share / share.mean()
    # Two columns of opposite weights have half the penalty of one column that is their difference.
    right = LogisticRegression(C=2.0, tol=1e-8, max_iter=1000).fit(values, goals)
    found = (fitted.weights[:, 1] - fitted.weights[:, 0]) * share.mean()
    np.testing.assert_allclose(found, ratio * right.coef_[0], atol=0.05)
    scores = fitted.scores(bags)
    np.testing.assert_allclose(scores[:, 1] - scores[:, 0], right.decision_function(values), atol=0.1)


def test_the_linear_model_and_the_network_count_by_what_they_know():
    draw = np.random.default_rng(5)
    goals = draw.integers(0, 3, 8000)
    truth = np.eye(3)[goals]
    noise = draw.normal(size=(8000, 3))
    base, useful = truth + draw.normal(size=(8000, 3)), 5 * (truth + draw.normal(size=(8000, 3)))

    def loss(shares: tuple[float, float]) -> float:
        return cross_entropy(shares[0] * base + shares[1] * useful, truth)[0]

    one, other = best_shares(base, useful, goals)
    assert 0.5 < one < 2
    assert 0.5 < one / (5 * other) < 2  # it is five times as sure of itself, and knows as much
    for near in ((one + 0.2, other), (one - 0.2, other), (one, other + 0.05), (one, other - 0.05)):
        assert loss((one, other)) < loss(near)
    for factor in (0.1, 10.0):  # how sure it is of itself does not matter
        assert best_shares(base, factor * useful, goals)[1] == pytest.approx(other / factor, rel=0.02)
    assert best_shares(base, -truth, goals)[1] == 0
    assert best_shares(base, noise, goals)[1] < 0.2
    assert best_shares(noise, truth, goals)[1] > 1
    assert best_shares(base[:9], useful[:9], goals[:9])[1] < other / 2  # a few examples say little


def test_the_solver_finds_the_lowest_point():
    scale = np.array([1.0, 10.0, 100.0])
    found = minimize(lambda x: (float((scale * (x - 1) ** 2).sum() / 2), scale * (x - 1)), np.zeros(3))
    np.testing.assert_allclose(found, 1, atol=1e-2)


@given(texts, st.integers(0, 2**31))
@settings(max_examples=50, deadline=None)
def test_inside_a_model_it_gives_the_same_scores_in_any_batch(rows, seed):
    draw = np.random.default_rng(seed)
    words = np.array([0, 1, -1, 3, 1, 5])
    known = Bags.of([Ragged.of([draw.integers(0, 6, 9).tolist() for _ in range(8)])], words)
    fitted = fit_linear(known, draw.integers(0, 3, 8), 3, even=True)
    module = WordPairs(len(fitted.keys), 6, 3)
    module.take(fitted, words)
    ids = torch.zeros(len(rows), 9, dtype=torch.int64)
    for row, given_ids in zip(ids, rows):
        row[: len(given_ids)] = torch.tensor(given_ids)
    lengths = torch.tensor([len(row) for row in rows])
    found = module({"ids": ids, "segments": torch.zeros_like(ids), "lengths": lengths})
    np.testing.assert_allclose(found.numpy(), fitted.scores(Bags.of([Ragged.of(rows)], words)), atol=1e-4)


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """Real enough: most words occur once, a class shows in words and in a pair of words."""
    draw, lines = np.random.default_rng(6), []
    for number in range(600):
        good = number % 2
        words = [f"w{draw.integers(0, 4000)}" for _ in range(8)]
        words[2] = ("fine", "poor")[1 - good] if draw.random() < 0.6 else "film"
        words[5:7] = ["not", "bad"] if good else ["bad", "not"]
        lines.append(f"{' '.join(words)}\t{('bad', 'good')[good]}")
    path = tmp_path_factory.mktemp("linear") / "reviews.tsv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module", params=["classify/rnn", "classify/conv"])
def run(request, reviews, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    return train(request.param, *RUNTIME, "train.steps=30", "train.eval_every=10", data=reviews, out=out, quiet=True)


@pytest.mark.slow
def test_own_texts_begin_with_it(run):
    assert run.recipe.task.linear
    assert any("task.linear=true" in line for line in run.config["followed"])
    assert run.scores()["test"][0].value > 90
    tensors = read_tensors(run.folder.model)
    assert "base.weights" in tensors
    assert tensors["shares"].min() >= 0
    lines = [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "valid"] == [0, 10, 20, 30]
    again = load(run.folder.path)
    assert again.predict("w1 w2 fine not bad") == "good"
    assert again.answers(["w1 fine not bad"])[0].score == run.answers(["w1 fine not bad"])[0].score


def test_the_shares_are_those_of_the_validation_split(run):
    model, examples = run.model.eval(), run.task.examples("valid")
    batches = [examples.collate(numbers) for numbers in examples.cover(512)]
    base = torch.cat([model.base(batch.tensors) for batch in batches]).numpy()
    with torch.no_grad():
        hidden = [(model.body.read(batch.tensors), batch.tensors["lengths"]) for batch in batches]
        own = torch.cat([model.head(*vectors) for vectors in hidden]).numpy()
    goals = torch.cat([batch.tensors["targets"] for batch in batches]).numpy()
    model.shares.copy_(torch.tensor([1.0, 0.0]))
    run.task.tune(model, batches)
    np.testing.assert_allclose(model.shares.numpy(), best_shares(base, own, goals), atol=1e-3)


def test_the_network_learns_alone(run):
    examples, losses = run.task.examples("valid"), {}
    tensors = examples.collate(examples.cover(512)[0]).tensors
    for learning in (True, False):
        run.model.train(learning)
        for moved in (100.0, -100.0):
            run.model.base.bias[0] += moved
            torch.manual_seed(1)
            losses[learning, moved] = run.model.loss(tensors, tensors["targets"]).item()
    run.model.eval()
    assert losses[True, 100.0] == losses[True, -100.0]
    assert losses[False, 100.0] > 2 * losses[False, -100.0]


def test_texts_together_get_what_each_gets_alone(run):
    asked = ["w1 fine not bad", "poor", "bad not w5 w6 w7 w8 w9", "never seen words"]
    together = [answer.details["probabilities"] for answer in run.answers(asked)]
    alone = [run.answers([text])[0].details["probabilities"] for text in asked]
    for one, other in zip(together, alone):
        assert one == pytest.approx(other, abs=1e-5)


def test_it_goes_on_as_if_it_had_never_stopped(reviews, tmp_path, monkeypatch):
    settings = [*RUNTIME, "train.steps=20", "train.eval_every=10", "train.test_limit=-1"]
    fit(choose("classify/rnn", settings, str(reviews)), tmp_path / "whole", quiet=True)
    save = Trainer.save

    def stop(self, last: bool) -> None:
        save(self, last)
        if self.at.step == 10:
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(choose("classify/rnn", settings, str(reviews)), tmp_path / "parts", quiet=True)
    monkeypatch.setattr(Trainer, "save", save)
    fit(resumed(tmp_path / "parts", "classify/rnn", [], None), tmp_path / "parts", resume=True, quiet=True)
    whole, parts = (read_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_models_that_are_exported_do_not_have_it(reviews, tmp_path):
    said = mistake("train", "classify/gpt", "--data", reviews, "--out", tmp_path / "run", "task.linear=true")
    assert said == "task.linear = true is for the models rnn and convnet, not for gpt: leave it out"
    done = ayn("train", "classify/gpt", "--data", reviews, "--out", tmp_path / "run", *RUNTIME, "model.width=16",
               "model.heads=2", "model.layers=1", "train.steps=2")  # fmt: skip
    assert done.code == 0, done.err
    assert "features" not in json.loads((tmp_path / "run" / "labels.json").read_text())
