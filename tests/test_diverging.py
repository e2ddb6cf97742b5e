"""A training whose numbers become NaN or infinite: nothing of that is kept, and what is named as good is good."""

from __future__ import annotations

import math
import re
import shutil
import warnings
from pathlib import Path

import pytest
import torch

from allyouneed.errors import UserError
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import not_finite, read_tensors
from allyouneed.storage.wholefile import Metrics
from allyouneed.training import trainer as trainer_module
from allyouneed.training.trainer import Trainer
from commands import ayn, mistake, train
from test_training import run

STEEP = ["train.lr=1e6", "train.warmup=0", "train.schedule=constant", "train.save_every=1", "train.log_every=1"]


def weights_on_disk(out: Path) -> list[dict[str, torch.Tensor]]:
    return [read_tensors(path) for path in out.rglob("*.safetensors")]


def named(said: str) -> int:
    """The step of the checkpoint that is called good; 0 if none is."""
    found = re.search(r"the last good checkpoint is step (\d+)", said)
    assert found or "there is no good checkpoint" in said
    return int(found[1]) if found else 0


@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 2])
@pytest.mark.parametrize("settings", [STEEP, [*STEEP, "train.lr=1e3"], [*STEEP, "train.optimizer=sgd"]])
def test_a_run_with_a_rate_that_is_too_large_goes_on_with_a_smaller_one(settings, keep, story, tmp_path):
    said = mistake(*train("lm", story, *settings, f"train.checkpoints={keep}", out=str(tmp_path / "run")))
    folder = RunFolder(tmp_path / "run")
    assert folder.checkpoints.steps()[-1:] == ([named(said)] if named(said) else [])
    assert not any(map(not_finite, weights_on_disk(tmp_path / "run")))
    done = ayn("train", "lm/gpt", "--out", tmp_path / "run", "--resume", "train.lr=1e-3")
    assert done.code == 0, done.err
    assert ayn("use", tmp_path / "run", "one").code == 0


def after_step(monkeypatch: pytest.MonkeyPatch, number: int, act) -> None:
    step = Trainer._step

    def changed(self, work):
        step(self, work)
        if self.at.step == number:
            act(self)

    monkeypatch.setattr(Trainer, "_step", changed)


@torch.no_grad()
def spoil(trainer: Trainer) -> None:
    next(trainer.model.parameters())[0, 0] = math.nan


@torch.no_grad()
def spoil_optimizer(trainer: Trainer) -> None:
    next(iter(trainer.optimizer.state.values()))["exp_avg"][0] = math.inf


@pytest.mark.parametrize("act", [spoil, spoil_optimizer])
def test_a_checkpoint_that_is_not_finite_is_not_saved(act, story, tmp_path, monkeypatch):
    after_step(monkeypatch, 6, act)
    expected = r"is not finite after step 6; the last good checkpoint is step 4: resume with a smaller train\.lr"
    with pytest.raises(UserError, match=expected):
        run("lm/gpt", story, tmp_path / "run", "train.save_every=2")
    assert RunFolder(tmp_path / "run").checkpoints.steps() == [2, 4]
    assert not any(map(not_finite, weights_on_disk(tmp_path / "run")))


@pytest.mark.parametrize("settings", [[], ["data.valid_part=0"], ["train.steps=4"]])
def test_weights_that_are_not_finite_do_not_become_the_model(settings, story, tmp_path, monkeypatch):
    after_step(monkeypatch, 4, spoil)
    with pytest.raises(
        UserError, match=r"(validation loss became nan at|is not finite after) step 4; there is no good"
    ):
        run("lm/gpt", story, tmp_path / "run", *settings)
    assert not (tmp_path / "run" / "model.safetensors").exists()
    assert RunFolder(tmp_path / "run").checkpoints.steps() == []


def test_a_checkpoint_whose_next_step_fails_is_not_good(story, tmp_path, monkeypatch):
    """Its numbers are finite, but they lead to the same end, whatever the rate."""
    step = Trainer._gradients

    def poisoned(self, work, carry):
        loss = step(self, work, carry)
        return loss * math.nan if self.at.step == 6 else loss

    monkeypatch.setattr(trainer_module.Trainer, "_gradients", poisoned)
    for keep in (1, 3):
        out = tmp_path / str(keep)
        with pytest.raises(UserError, match=r"the loss became nan at step 7 .*; the last good checkpoint is step 5:"):
            run("lm/gpt", story, out, "train.save_every=1", f"train.checkpoints={keep}")
        assert RunFolder(out).checkpoints.steps()[-1] == 5


def test_a_finished_run_keeps_as_many_checkpoints_as_it_was_told(story, tmp_path):
    run("lm/gpt", story, tmp_path / "run", "train.save_every=1", "train.checkpoints=1")
    assert RunFolder(tmp_path / "run").checkpoints.steps() == [12]


def test_every_metrics_file_is_closed(story, tmp_path):
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run("lm/gpt", story, tmp_path / "run", "train.steps=4")
        shutil.rmtree(tmp_path / "run" / "checkpoints")
        run("lm/gpt", story, tmp_path / "run", "train.steps=4", resume=True)
    assert [str(warning.message) for warning in seen if "metrics.jsonl" in str(warning.message)] == []
    with Metrics(tmp_path / "metrics.jsonl") as metrics:
        metrics.write({"step": 1})
    with pytest.raises(ValueError, match="closed file"):
        metrics.write({"step": 2})


def test_the_first_tensor_that_is_not_finite_is_named():
    fine = {"a": torch.ones(3), "ids": torch.tensor([1]), "empty": torch.zeros(0), "half": torch.ones(2).bfloat16()}
    assert not_finite(fine) == ""
    for number in (math.nan, math.inf, -math.inf):
        for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.float8_e5m2):
            assert not_finite({**fine, "b": torch.tensor([1.0, number]).to(kind)}) == "b"
