"""train.minutes: as many steps as fit, however fast the machine is and becomes."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.config import STEPS, TrainConfig
from allyouneed.errors import UserError
from allyouneed.recipe import read_recipe
from allyouneed.run import load
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.training import trainer as trainer_module
from allyouneed.training.fit import fit
from allyouneed.training.optim import learning_rate
from allyouneed.training.plan import ENOUGH, FEWEST, Budget, Pacer, Plan, first_plan, interval, validation
from allyouneed.training.starting import choose, resumed
from commands import ayn, mistake
from conftest import TINY_LM


@dataclass
class Machine:
    """A run without a model, on a clock of its own: a step costs 1, all other work so many steps."""

    step: Callable[[float], float]  # seconds of a step that begins at this time
    evaluation: float = 0.0  # steps of an evaluation of the whole validation split
    test: float = 0.0  # steps of a test of the whole test split
    preparing: float = 0.0  # seconds
    wrong: float = 1.0  # an evaluation takes so many times what was estimated
    examples: int = 2000
    now: float = 0.0
    rates: list[float] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)
    training: float = 0.0  # seconds
    tested: float = 0.0  # the part of the test split

    def seconds(self) -> float:
        return self.evaluation * self.step(self.now)

    def scoring_seconds(self, evaluation: float) -> float:
        return self.test * self.step(self.now)

    def work(self, steps: float) -> float:
        """Do this work; returns its seconds."""
        began = self.now
        while steps > 1e-9:
            some = min(1.0, steps)
            self.now += some * self.step(self.now)
            steps -= some
        return self.now - began

    def run(self, minutes: float, least: int = 134, **settings: object) -> Plan:
        config = TrainConfig(**{"minutes": minutes, "eval_every": 0, "lr": 1.0, "min_lr": 0.0, **settings})
        budget, plan = Budget(minutes, self.now, clock=lambda: self.now), first_plan(config, 1000, least)
        self.now += self.preparing
        budget.begin(0.0)
        for step in itertools.count(1):
            self.rates.append(learning_rate(plan.place(step - 1), plan.total, config))
            seconds = self.work(1)
            self.training += seconds
            budget.pace.add(1, seconds)
            if plan.known:
                plan = budget.plan(plan, step, config)
            elif budget.paced:
                plan = budget.first(step, config, self, 0.1)
            if step >= plan.total or step % plan.every == 0:
                self.evaluated.append(step)
                budget.evaluated(self.work(plan.valid * self.evaluation * self.wrong))
            if step >= plan.total:
                self._test(budget.until)
                self.now += budget.closing - 1
                return plan

    def _test(self, until: float) -> None:
        """As `TestBudget` does it: pieces that take a quarter of the time that is left."""
        done, piece = 0.0, 1 / max(1.0, self.test)  # the first examples are always scored
        while done < 1 and piece * self.test > 0.01:
            took = self.work(min(piece, 1 - done) * self.test)
            done += piece
            piece = min(2 * piece, 0.25 * max(0.0, until - self.now) / max(1e-9, took) * piece)
        self.tested = min(1.0, done)


PACES = {
    "steady": lambda now: 0.1,
    "slow": lambda now: 4.0,
    "three times slower from the middle on": lambda now: 0.1 if now < 180 else 0.3,
    "three times slower after its first seconds": lambda now: 0.1 if now < 30 else 0.3,
    "three times slower at the end": lambda now: 0.1 if now < 310 else 0.3,
    "busy until the middle": lambda now: 0.3 if now < 180 else 0.1,
    "busy now and then": lambda now: 0.3 if int(now / 20) % 3 == 0 else 0.1,
}


@pytest.mark.slow
@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("evaluation", [0, 10, 100, 1000, 10_000])
@pytest.mark.parametrize("test", [0, 100, 10_000])
@pytest.mark.parametrize("preparing", [0.0, 40.0])
def test_training_gets_most_of_a_budget_and_the_whole_command_keeps_it(pace, evaluation, test, preparing):
    machine = Machine(PACES[pace], evaluation, test, preparing)
    machine.run(6)
    assert machine.now == pytest.approx(360, rel=0.1)
    assert machine.training >= 0.7 * 360
    assert 1 <= len(machine.evaluated) <= 30
    assert machine.tested > 0 or not test


@pytest.mark.parametrize("wrong", [0.2, 3.0])
@pytest.mark.parametrize("pace", PACES)
def test_evaluations_that_take_longer_than_estimated_come_less_often(pace, wrong):
    machine = Machine(PACES[pace], evaluation=500, test=500, wrong=wrong)
    machine.run(6)
    assert machine.now == pytest.approx(360, rel=0.1)
    unlucky = pace == "three times slower after its first seconds"  # then an evaluation takes nine times as long
    assert machine.training >= (0.5 if unlucky else 0.65) * 360


def test_preparing_that_takes_most_of_the_time_leaves_some_for_scores():
    machine = Machine(lambda now: 0.1, 1000, 1000, preparing=200.0)
    machine.run(6)
    assert machine.now == pytest.approx(360, rel=0.1)
    assert machine.training >= 0.7 * 160
    assert machine.tested > 0.05


def test_little_validation_data_is_read_whole_and_much_is_cut():
    small, large = Machine(lambda now: 0.1, 10, 100), Machine(lambda now: 0.1, 10_000, 100, examples=100_000)
    assert small.run(6).valid == 1
    plan = large.run(6)
    assert 0 < plan.valid < 0.05
    assert len(large.evaluated) >= FEWEST


@given(st.floats(1, 1e4), st.floats(0, 1e5), st.integers(1, 10**6))
def test_evaluations_take_no_more_than_they_may(seconds, whole, examples):
    times, part = validation(seconds, whole, examples)
    assert FEWEST <= times <= 10
    assert 0 < part <= 1
    assert times * part * whole <= seconds * 1.001
    if part * examples < ENOUGH and part < 1:
        assert times == FEWEST


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [10, 213])
def test_the_learning_rate_falls_to_its_end_without_a_jump(pace, schedule, warmup):
    """However long the warm-up of the recipe is, a shorter plan has a shorter one."""
    machine = Machine(PACES[pace], evaluation=20)
    plan = machine.run(6, schedule=schedule, warmup=warmup)
    rates = machine.rates
    steps, peak = len(rates), rates.index(max(rates))
    assert peak <= max(0.25 * steps, 2)
    falls = [before - after for before, after in itertools.pairwise(rates[peak:])]
    assert min(falls) >= 0
    assert max(falls) < max(0.1, 10 / steps)
    assert rates[-1] < 0.1
    assert steps == plan.total


@given(st.integers(2, 10**5), st.integers(0, 10**5), st.sampled_from(["cosine", "linear", "noam"]), st.booleans())
def test_every_run_ends_with_a_falling_rate(total, warmup, schedule, minutes):
    length = {"minutes": 1} if minutes else {"steps": total}
    config = TrainConfig(warmup=warmup, schedule=schedule, lr=1.0, **length)
    rates = [learning_rate(step, total, config) for step in (total - 2, total - 1)]
    assert rates[1] < rates[0] or total < 4


def test_a_plan_that_has_no_time_left_has_one_more_step():
    """The step that was just made is logged already, and not as the last one."""
    budget = Budget(1.0, 0.0, clock=lambda: 70.0)
    budget.pace.add(10, 1.0)
    config = TrainConfig(minutes=1.0)
    assert budget.plan(Plan(100, 20), 50, config).total == 51
    assert budget.plan(Plan(51, 20), 51, config).total == 51  # and then it is over


def test_a_steady_machine_plans_once():
    machine = Machine(lambda now: 0.1)
    plan = machine.run(6, warmup=10)
    assert plan.since <= 60
    assert plan.total == pytest.approx(3580, rel=0.03)


@given(st.integers(1, 10**6), st.integers(0, 10**5))
def test_evaluations_are_ten_or_far_enough_apart(total, least):
    every = interval(total, least)
    assert 1 <= every <= total
    times = -(-total // every)
    assert times <= 10
    assert times == 1 or every >= min(least, total)


def test_a_plan_that_does_not_change_is_the_step_itself():
    plan = first_plan(TrainConfig(epochs=1.5, eval_every=0), 100, 40)
    assert (plan.total, plan.every) == (150, 50)
    assert [plan.place(step) for step in (0, 7, 150)] == [0, 7, 150]
    assert first_plan(TrainConfig(steps=40, eval_every=7), 100, 6).every == 7


def test_a_plan_that_changes_in_the_warm_up_goes_on_with_it():
    config = TrainConfig(minutes=6, warmup=10, lr=1.0)
    before, after = Plan(1000, 100), Plan(1000, 100).changed(5, 500, config)
    assert after.total == 500
    rates = [learning_rate(plan.place(5), plan.total, config) for plan in (before, after)]
    assert rates[0] == rates[1]


def test_a_plan_is_told_once_and_again_if_it_changes_much():
    pacer = Pacer(TrainConfig(minutes=6), 100, 1)
    task, evaluator = SimpleNamespace(recipe=read_recipe("lm/gpt"), item_name="texts"), SimpleNamespace(
        limit=lambda part: 50 if part < 1 else 0, examples=100
    )  # fmt: skip
    assert pacer.budget is not None
    pacer.budget.pace.add(10, 1.0)
    told = []
    for total in (4000, 4100, 3900, 4900, 5100, 5000, 3000):
        pacer.plan = Plan(total, 400, valid=0.5)
        told.append(pacer.news(task, evaluator))  # type: ignore[arg-type]
    assert told[0] == [
        "plan: 4,000 steps, an evaluation every 400, because a step takes 0.1 s",
        "validation: 50 of 100 texts, because more do not fit into train.minutes = 6",
    ]
    assert [len(lines) for lines in told] == [2, 0, 0, 0, 1, 0, 1]


@pytest.mark.parametrize(("total", "warned"), [(299, True), (300, False)])
def test_too_few_steps_are_told_with_what_would_help(total, warned):
    pacer, recipe = Pacer(TrainConfig(minutes=6), 100, 1), read_recipe("lm/gpt")
    pacer.plan = Plan(total, 30)
    evaluator = SimpleNamespace(limit=lambda part: 0)
    said = pacer.news(SimpleNamespace(recipe=recipe), evaluator)[1:]  # type: ignore[arg-type]
    expected = "warning: train.minutes = 6 allows only about 299 steps, too few to learn much: try train.minutes=7, "
    assert [line.startswith(expected) for line in said] == [True] * warned
    if warned:
        assert f"a smaller train.batch_tokens (now {recipe.train.batch_tokens:,})" in said[0]
        assert f"a smaller model.width (now {recipe.model.width})" in said[0]


def test_a_budget_that_is_shorter_than_preparing():
    with pytest.raises(UserError, match=r"train\.minutes = 0\.5 is over before the first step: preparing took 00:40"):
        Machine(lambda now: 0.1, preparing=40).run(0.5)


# Steps, epochs and minutes


def test_what_the_user_asks_for_replaces_what_the_recipe_has():
    assert read_recipe("lm/gpt").train.steps
    for asked in ("steps", "epochs", "minutes"):
        train = read_recipe("lm/gpt", [f"train.{asked}=5"]).train
        assert {name: getattr(train, name) for name in ("steps", "epochs", "minutes")} == {
            "steps": 0, "epochs": 0, "minutes": 0, asked: 5
        }  # fmt: skip


def test_two_lengths_contradict_each_other(story):
    said = mistake("train", "lm/gpt", "--data", story, "train.epochs=2", "train.minutes=3")
    assert said == "train.epochs = 2 and train.minutes = 3 both say how long to train: give one of them"
    assert "train.steps = 9" in mistake("train", "lm/gpt", "--data", story, "train.steps=9", "train.epochs=1")


# Real runs


def rows(out: Path, kind: str) -> list[dict]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.slow
def test_a_run_ends_with_its_minutes(story, tmp_path):
    began = time.monotonic()
    done = ayn("train", "lm/gpt", "--data", story, "--out", tmp_path / "run", *TINY_LM, "train.steps=0",
               "train.minutes=0.2", "train.eval_every=0")  # fmt: skip
    assert done.code == 0, done.err
    assert 9 < time.monotonic() - began < 16
    assert "parameters; 0.2 minutes" in done.out
    (first, *_) = rows(tmp_path / "run", "plan")
    assert f"plan: {first['total']:,} steps, an evaluation every {first['every']:,}, because a step takes" in done.out
    last = rows(tmp_path / "run", "train")[-1]
    assert last["step"] == rows(tmp_path / "run", "plan")[-1]["total"]
    assert last["lr"] < 0.2 * load(tmp_path / "run").recipe.train.lr


def test_a_run_with_a_budget_resumes_with_its_plan(story, tmp_path, monkeypatch):
    """Stopped after its plan was made, it goes on with that plan, and ends as a run that was never stopped."""
    plans = iter([Plan(STEPS, STEPS), Plan(12, 4)])
    monkeypatch.setattr(Budget, "first", lambda *_: next(plans))
    monkeypatch.setattr(Budget, "plan", lambda self, plan, *_: plan)
    monkeypatch.setattr(Budget, "paced", True)
    settings = [*TINY_LM, "train.steps=0", "train.minutes=5", "model.dropout=0.1"]
    fit(choose("lm/gpt", settings, str(story)), tmp_path / "whole", quiet=True)

    plans = iter([Plan(STEPS, STEPS), Plan(12, 4)])
    save = trainer_module.Trainer.save

    def stop(self, last: bool) -> None:
        save(self, last)
        if self.at.step == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module.Trainer, "save", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(choose("lm/gpt", settings, str(story)), tmp_path / "parts", quiet=True)
    monkeypatch.setattr(trainer_module.Trainer, "save", save)
    state = RunFolder(tmp_path / "parts").checkpoints.latest().state
    assert state["plan"] == {"total": 12, "every": 4, "since": 0, "start": 0.0, "valid": 1.0}
    assert 0 < state["position"]["elapsed"] < 60
    fit(resumed(tmp_path / "parts", "lm/gpt", [], None), tmp_path / "parts", resume=True, quiet=True)
    whole, parts = (read_tensors(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert rows(tmp_path / "parts", "train")[-1]["step"] == 12


def test_a_run_with_a_spent_budget_ends_at_once(story, tmp_path):
    said = mistake("train", "lm/gpt", "--data", story, "--out", tmp_path / "run", *TINY_LM, "train.steps=0",
                   "train.minutes=0.0001")  # fmt: skip
    assert said.startswith("train.minutes = 0.0001 is over before the first step: preparing took")
    assert not (tmp_path / "run").exists()  # not even its lock
