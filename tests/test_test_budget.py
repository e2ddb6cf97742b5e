"""The final test of a part of the test split: train.test_limit, and what fits into train.minutes."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest
import torch

from allyouneed.config import TextConfig, TrainConfig
from allyouneed.metrics import translation_scores
from allyouneed.run import load
from allyouneed.tasks import base as extent_module
from allyouneed.tasks.base import WHOLE, TestBudget
from allyouneed.text import Tokenizer
from allyouneed.training.plan import AFTER, LAST, SPARE, Budget, Pacer, Plan
from commands import ayn, mistake, trained
from conftest import RUNTIME, TINY_LM, TINY_TRANSLATE


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(extent_module, "time", clock)
    return clock


def test_the_whole_split_is_one_piece_in_its_own_order():
    (piece,) = WHOLE.pieces(10)
    assert piece.tolist() == list(range(10))


def test_a_limit_draws_at_random_always_the_same_and_less_is_a_part_of_more():
    drawn = {
        limit: set(np.concatenate(list(TestBudget(limit).pieces(1000))).tolist()) for limit in (10, 100, 1000, 5000)
    }
    assert [len(numbers) for numbers in drawn.values()] == [10, 100, 1000, 1000]
    assert drawn[10] < drawn[100] < drawn[1000]
    assert max(drawn[10]) > 500
    assert drawn[10] == set(np.concatenate(list(TestBudget(10).pieces(1000))).tolist())


def scored(clock: Clock, pace: list[float], seconds: float, total: int = 10_000) -> int:
    """How many examples are scored if those of each piece take so long, the last of `pace` from then on."""
    done = 0
    for number, piece in enumerate(TestBudget(0, clock.now + seconds).pieces(total)):
        clock.now += len(piece) * pace[min(number, len(pace) - 1)]
        done += len(piece)
    return done


def test_as_many_examples_are_scored_as_fit(clock):
    began = clock.now
    done = scored(clock, [0.1], 100)
    assert 900 < done <= 1000
    assert clock.now - began <= 100


def test_all_examples_are_scored_if_they_fit_with_some_room(clock):
    assert scored(clock, [0.1], 100, total=800) == 800


def test_a_machine_that_becomes_slower_still_ends_about_in_time(clock):
    began = clock.now
    scored(clock, [0.01] * 8 + [0.03], 100)
    assert clock.now - began <= 105


def test_a_few_examples_are_scored_even_if_the_time_is_over(clock):
    assert scored(clock, [10.0], -5) == 16


# Tasks


def test_a_translation_score_of_a_part_is_that_of_these_examples(pairs):
    run = load(trained("translate", pairs))
    task, decode = run.task, run.recipe.decode
    every = {row["source"]: row["prediction"] for row in _records(task, run.model, TestBudget())}
    some = _records(task, run.model, TestBudget(5))
    assert task.covered == len(some) == 5 < task.items("test")
    assert all(every[row["source"]] == row["prediction"] for row in some)
    found = {score.name: score.value for score in task.test(run.model, "test", decode, print, TestBudget(5))}
    again = translation_scores([row["prediction"] for row in some], [row["reference"] for row in some])
    assert {score.name: score.value for score in again} == found
    timed = _records(task, run.model, TestBudget(0, time.monotonic() + 60))
    assert timed == _records(task, run.model, TestBudget())  # all fit


def _records(task, model, budget: TestBudget) -> list[dict]:
    task.test(model, "test", task.recipe.decode, lambda line: None, budget)
    return list(task.predictions())


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["classify/rnn", "tag/lstm"])
def test_labels_of_a_part_are_those_of_the_whole(recipe, tmp_path):
    settings = [*RUNTIME, "model.width=16", "train.steps=2", "train.eval_every=2"]
    done = ayn("train", recipe, "--out", tmp_path / "run", *settings, "train.test_limit=20")
    assert done.code == 0, done.err
    run = load(tmp_path / "run")
    every, some = (_records(run.task, run.model, TestBudget(limit)) for limit in (0, 20))
    assert len(some) == 20 < len(every) == run.task.items("test")
    where = [every.index(row) for row in some]
    assert where == sorted(where)
    total = len(every)
    stored = json.loads((tmp_path / "run" / "scores.json").read_text())["test"]
    assert all(f"|examples:20 of {total:,}|" in score["signature"] for score in stored)
    said = f"the test: 20 of {total:,} examples, because train.test_limit = 20; score all with: ayn test"
    assert f"{said} {tmp_path / 'run'}\n" in done.out


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["lm/gpt", "lm/rnn"])
@pytest.mark.parametrize("kind", ["char", "word", "bpe", "wordpiece"])
def test_bits_per_byte_of_a_part_are_of_the_bytes_of_that_part(recipe, kind, tmp_path):
    """Computed here from the text that the predicted tokens of the part stand for."""
    text = tmp_path / "text.txt"
    line = "Così è già più là, Ωμέγα: it was {} o'clock.\n"
    text.write_text("".join(line.format(i % 50) for i in range(2000)), encoding="utf-8")
    settings = [*RUNTIME, "model.width=24", "model.context=16", f"text.kind={kind}", "text.vocab=400",
                "train.steps=1", "train.eval_every=1", "train.batch_tokens=64", "train.test_limit=7"]  # fmt: skip
    done = ayn("train", recipe, "--data", text, "--out", tmp_path / "run", *settings)
    assert done.code == 0, done.err
    run = load(tmp_path / "run")
    loss, _, bits = run.scores()["test"]
    tokens = run.task.stream("test").tokens[: 7 * 16 + 1].tolist()
    assert f"|windows:7 of {len(run.task.examples('test')):,}|" in bits.signature
    assert f"|tokens:{len(tokens) - 1}|" in loss.signature
    written = run.task.tokenizer.decode(tokens).encode()
    first = run.task.tokenizer.decode(tokens[:1]).encode()
    if kind == "bpe":  # the part may end inside a character
        used = sum(run.task.tokenizer.sizes[tokens[1:]])
        assert abs(used - (len(written) - len(first))) <= 4
    else:
        used = len(written) - len(first)
    assert f"|bytes:{used}|" in bits.signature
    assert bits.value == pytest.approx(loss.value * (len(tokens) - 1) / (math.log(2) * used))


def test_the_sizes_of_tokens_add_up_to_the_text():
    text = "Così è già più là, Ωμέγα: ##it was five o'clock.\n\nIt's  so. "
    for kind in ("char", "word", "bpe", "wordpiece"):
        tokenizer = Tokenizer.train([text * 3], TextConfig(kind=kind, vocab=300))
        ids = tokenizer.encode(text)
        assert tokenizer.unk not in ids
        assert int(tokenizer.sizes[ids].sum()) == len(text.encode()), kind


def test_a_part_has_no_bits_per_byte_if_the_tokens_do_not_add_up_to_the_text(story, tmp_path):
    """In lower case, İ has three bytes and not two: the bytes of the part are not known."""
    settings = [*TINY_LM, "train.steps=1", "text.kind=word", "text.lowercase=true", "train.test_limit=3"]
    done = ayn("train", "lm/gpt", "--data", story, "--out", tmp_path / "lower", *settings)
    assert done.code == 0, done.err
    assert "bits per byte" in done.out
    upper = tmp_path / "upper.txt"
    upper.write_text(story.read_text().replace("one", "İone"), encoding="utf-8")
    done = ayn("train", "lm/gpt", "--data", upper, "--out", tmp_path / "upper", *settings)
    assert done.code == 0, done.err
    assert "perplexity" in done.out
    assert "bits per byte" not in done.out


@pytest.mark.parametrize("recipe", ["lm/gpt", "lm/rnn"])
def test_a_language_model_stops_when_the_time_is_over(recipe, story, tmp_path):
    settings = [
        *RUNTIME,
        "model.context=8",
        "text.kind=char",
        "train.steps=1",
        "train.eval_every=1",
        "data.test_part=0.5",
    ]
    done = ayn("train", recipe, "--data", story, "--out", tmp_path / "run", *settings)
    assert done.code == 0, done.err
    run = load(tmp_path / "run")
    run.task.recipe = run.recipe.with_(train=TrainConfig(steps=1, batch_tokens=4096))
    whole = run.task.test(run.model, "test", run.recipe.decode, print)
    assert run.task.covered == run.task.items("test")
    part = run.task.test(run.model, "test", run.recipe.decode, print, TestBudget(0, time.monotonic() - 1))
    assert 0 < run.task.covered < run.task.items("test")
    assert part[0].value == pytest.approx(whole[0].value, rel=0.1)
    assert part[0].value != whole[0].value


def test_word_vectors_are_scored_on_the_first_windows(tmp_path):
    settings = ["train.steps=2", "train.epochs=0", "train.threads=1", "train.test_limit=1"]
    done = ayn("train", "wordvectors/skipgram", "--out", tmp_path / "run", *settings)
    assert done.code == 0, done.err
    assert "|windows:1 of " in done.out


# Runs


def test_no_test(pairs, tmp_path):
    out = tmp_path / "run"
    done = ayn("train", "translate/transformer", "--data", pairs, "--out", out, *TINY_TRANSLATE, "train.test_limit=-1")
    assert done.code == 0, done.err
    assert f"no test, because train.test_limit = -1; score the run with: ayn test {out}" in done.out
    assert "BLEU" not in done.out
    assert not (out / "scores.json").exists()
    assert "train.test_limit = -2 is too small" in mistake("train", "lm/gpt", "train.test_limit=-2")
    done = ayn("test", out)
    assert done.code == 0, done.err
    assert "BLEU" in done.out
    assert " of " not in json.loads((out / "scores.json").read_text())["test"][0]["signature"]


def test_a_limit_above_the_split_is_the_whole_split(pairs, tmp_path):
    done = ayn("train", "translate/transformer", "--data", pairs, "--out", tmp_path / "run", *TINY_TRANSLATE,
               "train.test_limit=100000")  # fmt: skip
    assert done.code == 0, done.err
    assert "the test:" not in done.out
    assert "examples:" not in (tmp_path / "run" / "scores.json").read_text()


def test_a_test_that_does_not_fit_into_the_minutes_is_cut_and_said(pairs, tmp_path, monkeypatch):
    """The time is over when the test begins: the first few examples are scored all the same."""
    monkeypatch.setattr(Budget, "until", property(lambda self: time.monotonic() - 1))
    monkeypatch.setattr(Budget, "first", lambda *_: Plan(4, 4))
    monkeypatch.setattr(Budget, "plan", lambda self, plan, *_: plan)
    monkeypatch.setattr(Budget, "paced", True)
    out = tmp_path / "run"
    done = ayn("train", "translate/transformer", "--data", pairs, "--out", out, *TINY_TRANSLATE, "train.steps=0",
               "train.minutes=2", "data.test_part=0.3")  # fmt: skip
    assert done.code == 0, done.err
    total = load(out).task.items("test")
    assert total > 16
    assert (
        f"the test: 16 of {total} examples, because more do not fit into train.minutes = 2; "
        f"score all with: ayn test {out}" in done.out
    )
    assert f"|examples:16 of {total}|" in (out / "scores.json").read_text()


def test_a_budget_tells_until_when_a_test_may_last():
    now = 1000.0
    budget = Budget(2, 990.0, clock=lambda: now)
    budget.before = 30.0
    assert budget.until == 990 - 30 + 120 - AFTER
    assert not budget.over
    now = 1079.5
    assert budget.until == now + LAST * 120
    assert not budget.over
    now = 1080.0
    assert budget.over
    assert Pacer(TrainConfig(steps=3), 5, 1).budget.until == math.inf


class FakeEvaluator:
    examples = 100

    def seconds(self) -> float:
        return 2.0

    def scoring_seconds(self, evaluation: float) -> float:
        return 4 * evaluation


def test_the_plan_keeps_some_more_time_for_the_test_than_estimated():
    budget = Budget(10, 0.0, clock=lambda: 0.0)
    budget.pace.add(10, 1.0)
    budget.first(1, TrainConfig(minutes=10), FakeEvaluator(), 0.1)
    assert budget.ending == pytest.approx(SPARE * 8.0)


@pytest.mark.parametrize(("limit", "part"), [(0, 1.0), (-1, 0.0), (10, None), (10**6, 1.0)])
def test_the_estimate_knows_the_limit(limit, part, pairs, monkeypatch):
    from allyouneed.training.evaluating import Evaluator

    run = load(trained("translate", pairs))
    train = {**vars(run.recipe.train), "test_limit": limit}
    run.task.recipe = run.recipe.with_(train=TrainConfig(**train))
    monkeypatch.setattr(type(run.task), "scoring_seconds", lambda *_: 100.0)
    evaluator = Evaluator(run.model, run.task, None, None, None, torch.no_grad, print)
    part = 10 / run.task.items("test") if part is None else part
    assert evaluator.scoring_seconds(1.0) == pytest.approx(100 * part)
