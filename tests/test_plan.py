"""train.minutes: as many steps as fit, however fast the machine is and becomes."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.config import STEPS, TrainConfig
from allyouneed.errors import UserError
from allyouneed.recipe import read_recipe
from allyouneed.run import load
from allyouneed.runfolder import RunFolder
from allyouneed.tensorfile import read_tensors
from allyouneed.training import trainer as trainer_module
from allyouneed.training.fit import fit
from allyouneed.training.optim import learning_rate
from allyouneed.training.plan import Budget, Plan, first_plan, interval
from allyouneed.training.starting import choose, resumed
from commands import ayn, mistake
from conftest import TINY_LM


@dataclass
class Machine:
    """A run without a model, on a clock of its own."""

    step: Callable[[float], float]  # seconds of a step that begins at this time
    evaluation: float = 0.0  # seconds
    ending: float = 0.0
    preparing: float = 0.0
    now: float = 0.0
    rates: list[float] = field(default_factory=list)
    evaluated: list[int] = field(default_factory=list)

    def run(self, minutes: float, least: int = 134, **settings: object) -> Plan:
        config = TrainConfig(**{"minutes": minutes, "eval_every": 0, "lr": 1.0, "min_lr": 0.0, **settings})
        budget, plan = Budget(minutes, self.now, clock=lambda: self.now), first_plan(config, 1000, least)
        budget.evaluation, budget.ending = self.evaluation, self.ending
        self.now += self.preparing
        budget.check()
        for step in itertools.count(1):
            self.rates.append(learning_rate(plan.place(step - 1), plan.total, config))
            seconds = self.step(self.now)
            self.now += seconds
            budget.pace.see(1, seconds)
            if plan.known or budget.paced:
                plan = budget.plan(plan, step, config, least)
            if step >= plan.total or step % plan.every == 0:
                self.evaluated.append(step)
                self.now += self.evaluation
            if step >= plan.total:
                self.now += self.ending + budget.closing
                return plan


PACES = {
    "steady": lambda now: 0.1,
    "slow": lambda now: 4.0,
    "busy from the middle on": lambda now: 0.1 if now < 180 else 0.25,
    "busy until the middle": lambda now: 0.3 if now < 180 else 0.1,
    "busy now and then": lambda now: 0.3 if int(now / 20) % 3 == 0 else 0.1,
}


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("evaluation", [0.0, 3.0])
@pytest.mark.parametrize("ending", [0.0, 30.0])
@pytest.mark.parametrize("preparing", [0.0, 60.0])
def test_the_whole_command_takes_the_minutes_that_it_was_given(pace, evaluation, ending, preparing):
    machine = Machine(PACES[pace], evaluation, ending, preparing)
    machine.run(6)
    assert machine.now == pytest.approx(360, rel=0.05)
    assert len(machine.evaluated) <= 20


@pytest.mark.parametrize("pace", PACES)
@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_learning_rate_falls_to_its_end_without_a_jump(pace, schedule):
    machine = Machine(PACES[pace], evaluation=2.0)
    plan = machine.run(6, schedule=schedule, warmup=10)
    rates = machine.rates
    assert rates[:10] == [pytest.approx((i + 1) / 10) for i in range(10)]
    falls = [before - after for before, after in itertools.pairwise(rates[10:])]
    steps = len(rates)
    assert min(falls) >= 0
    assert max(falls) < 10 / steps
    assert rates[-1] < 0.1
    assert steps == plan.total


def test_a_plan_that_has_no_time_left_has_one_more_step():
    """The step that was just made is logged already, and not as the last one."""
    budget = Budget(1.0, 0.0, clock=lambda: 70.0)
    budget.pace.see(10, 1.0)
    config = TrainConfig(minutes=1.0)
    assert budget.plan(Plan(100, 20), 50, config, 1.0).total == 51
    assert budget.plan(Plan(51, 20), 51, config, 1.0).total == 51  # and then it is over


def test_a_steady_machine_plans_once():
    machine = Machine(lambda now: 0.1)
    plan = machine.run(6, warmup=10)
    assert plan.since <= 60
    assert plan.total == pytest.approx(3600, rel=0.03)


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
    monkeypatch.setattr(Budget, "plan", lambda self, plan, *_: next(plans, plan))
    monkeypatch.setattr(Budget, "paced", True)
    settings = [*TINY_LM, "train.steps=0", "train.minutes=5", "model.dropout=0.1"]
    fit(choose("lm/gpt", settings, str(story)), tmp_path / "whole", quiet=True)

    plans = iter([Plan(STEPS, STEPS), Plan(12, 4)])
    save = trainer_module.Trainer._save

    def stop(self, last: bool) -> None:
        save(self, last)
        if self.at.step == 8:
            raise KeyboardInterrupt

    monkeypatch.setattr(trainer_module.Trainer, "_save", stop)
    with pytest.raises(KeyboardInterrupt):
        fit(choose("lm/gpt", settings, str(story)), tmp_path / "parts", quiet=True)
    monkeypatch.setattr(trainer_module.Trainer, "_save", save)
    state = RunFolder(tmp_path / "parts").checkpoints.latest().state
    assert state["plan"] == {"total": 12, "every": 4, "since": 0, "start": 0.0}
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
