"""The loop does what [train] says: clipping, averages, logging, saving; what looks at a run leaves it as it was."""

from __future__ import annotations

import json
import math
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from allyouneed.config import TrainConfig
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.run import load
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.training import trainer as trainer_module
from allyouneed.training.evaluating import Evaluator
from allyouneed.training.fit import fit
from allyouneed.training.interrupt import Interrupted, first_signal
from allyouneed.training.optim import learning_rate, make_optimizer
from allyouneed.training.starting import choose
from allyouneed.training.trainer import Trainer
from conftest import RUNTIME, TINY_ELMO, TINY_LM
from test_classify import SHORT, opinions, write
from test_training import close, rows, run, same

Weights = dict[str, torch.Tensor]

PLAIN_SGD = [
    "train.optimizer=sgd", "train.momentum=0", "train.weight_decay=0", "train.schedule=constant", "train.warmup=0",
]  # fmt: skip
TINY_RNN = [
    *RUNTIME, "model.width=16", "model.context=16", "text.kind=char", "train.steps=6", "train.eval_every=6",
    "train.batch_tokens=64", "train.warmup=2", "decode.max_new=5",
]  # fmt: skip


def checkpoint(out: Path, step: int) -> Weights:
    return read_tensors(out / "checkpoints" / f"step-{step:06d}" / "model.safetensors")


@pytest.fixture(scope="module")
def untrained(story, tmp_path_factory) -> Weights:
    """What every run of the tiny language model begins with."""
    return run("lm/gpt", story, tmp_path_factory.mktemp("untrained") / "run", "train.steps=1", "train.lr=0")


@pytest.fixture(scope="module")
def every_step(story, tmp_path_factory) -> Path:
    """A run that writes down each of its twelve steps."""
    out = tmp_path_factory.mktemp("logged") / "run"
    run("lm/gpt", story, out, "train.log_every=1")
    return out


def after_step(monkeypatch: pytest.MonkeyPatch, number: int, act) -> None:
    """Something happens inside a step, when its work is done."""
    step = Trainer._step

    def and_then(self, work):
        step(self, work)
        if self.at.step == number:
            act()

    monkeypatch.setattr(Trainer, "_step", and_then)


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def crash() -> None:
    raise RuntimeError("the power is gone")


# The optimizer


@pytest.mark.parametrize("clip", [0.01, 0.0])
def test_a_step_of_sgd_is_as_long_as_the_gradient_which_is_clipped(clip, story, untrained, tmp_path):
    settings = [*PLAIN_SGD, "train.lr=1", "train.steps=1", "train.log_every=1", f"train.clip={clip}", "model.dropout=0"]
    after = run("lm/gpt", story, tmp_path / "run", *settings)
    moved = {t.data_ptr(): after[name] - untrained[name] for name, t in after.items()}  # tied ones once
    norm = rows(tmp_path / "run", "train")[0]["norm"]
    assert norm > 0.1  # the log has it as it was before
    length = math.sqrt(sum(float(difference.square().sum()) for difference in moved.values()))
    assert length == pytest.approx(clip or norm, rel=1e-3)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
def test_the_optimizer_has_its_settings_and_only_matrices_decay(kind):
    model = GPT(GPTConfig(vocab=9, context=8, width=8, heads=2, layers=1))
    values = {"beta1": 0.7, "beta2": 0.8, "eps": 1e-3, "momentum": 0.6, "weight_decay": 0.3}
    optimizer = make_optimizer(model, TrainConfig(steps=1, optimizer=kind, lr=0.5, **values))
    own = {"betas": (0.7, 0.8), "eps": 1e-3} if kind == "adamw" else {"momentum": 0.6}
    names = {p: name for name, p in model.named_parameters()}
    found = [([names[p] for p in group["params"]], group["weight_decay"]) for group in optimizer.param_groups]
    matrices = [name for name, p in model.named_parameters() if name.startswith("body.stack.blocks") and p.dim() == 2]
    assert len(matrices) == 4
    assert found == [(matrices, 0.3), ([name for name in names.values() if name not in matrices], 0.0)]
    for group in optimizer.param_groups:
        assert group["lr"] == 0.5
        assert {key: group[key] for key in own} == own


@pytest.mark.parametrize("recipe", ["lm/gpt", "lm/elmo"])
def test_a_vocabulary_may_have_room_for_more_tokens(recipe, story, tmp_path):
    """They are trained as any other, and never answered."""
    tiny = TINY_LM if recipe == "lm/gpt" else TINY_ELMO
    fit(choose(recipe, [*tiny, "model.vocab=99"], str(story)), tmp_path / "run", quiet=True)
    loaded = load(tmp_path / "run")
    assert len(loaded.task.tokenizer) < loaded.model.head.out.out_features == 99
    answer = loaded.predict("one two")
    for value in (1000.0, -1000.0):  # one of them makes their scores the highest
        with torch.no_grad():
            loaded.model.head.out.weight[len(loaded.task.tokenizer) :] = value
        assert loaded.predict("one two") == answer


# Averages


@pytest.mark.parametrize("valid", [0.05, 0.0])
def test_the_model_is_the_moving_average_of_the_weights_after_each_step(valid, story, tmp_path):
    """With decay 0.3 the first three steps are those of a young average, which forgets faster."""
    out, held_out = tmp_path / "run", f"data.valid_part={valid}"
    begin = run("lm/gpt", story, tmp_path / "begin", held_out, "train.steps=1", "train.lr=0")
    result = run(
        "lm/gpt", story, out, held_out, "train.ema=0.3", "train.lr=0.01", "train.save_every=1", "train.checkpoints=99"
    )
    average, averages = begin, {}
    for step, decay in enumerate([1 / 10, 2 / 11, 3 / 12] + [0.3] * 9, start=1):
        live = checkpoint(out, step)
        average = averages[step] = {name: decay * t + (1 - decay) * live[name] for name, t in average.items()}
    seen = rows(out, "valid")
    assert bool(seen) == bool(valid)
    best = min(seen, key=lambda row: row["loss"])["step"] if seen else 12
    close(result, averages[best], atol=1e-6, rtol=1e-5)
    if seen:
        loss, *_ = load(out).test("valid")
        assert loss.value == pytest.approx(min(row["loss"] for row in seen), abs=1e-5)


# The best model


def test_scores_are_of_the_best_model_and_without_dropout(story, tmp_path):
    """The rate grows until the loss does, too, so that the last weights are not the best."""
    settings = ["train.lr=2", "train.warmup=12", "train.eval_every=2", "model.dropout=0.5"]
    run("lm/gpt", story, tmp_path / "run", *settings)
    losses = {row["step"]: row["loss"] for row in rows(tmp_path / "run", "valid")}
    best = min(losses, key=losses.get)
    assert losses[12] > losses[best] + 1
    written = json.loads((tmp_path / "run" / "scores.json").read_text())["test"]
    again = load(tmp_path / "run").test()
    assert [score["name"] for score in written] == [score.name for score in again]
    assert [score["value"] for score in written] == pytest.approx([score.value for score in again], rel=1e-4)
    assert {score["signature"].rpartition("|")[2] for score in written} == {f"step:{best}"}


def test_an_interruption_leaves_the_best_model(story, tmp_path, monkeypatch):
    out = tmp_path / "run"
    after_step(monkeypatch, 6, ctrl_c)
    with pytest.raises(Interrupted):
        run("lm/gpt", story, out)
    assert RunFolder(out).checkpoints.steps() == [4, 6]
    assert same(read_tensors(out / "model.safetensors"), checkpoint(out, 4))


def test_an_interruption_before_there_is_a_best_model_leaves_the_last(story, tmp_path, monkeypatch):
    out = tmp_path / "run"
    after_step(monkeypatch, 3, ctrl_c)
    with pytest.raises(Interrupted):
        run("lm/gpt", story, out)
    assert same(read_tensors(out / "model.safetensors"), checkpoint(out, 3))


def test_how_often_a_classifier_is_scored_changes_nothing_in_what_it_learns(tmp_path):
    data = write(tmp_path / "opinions.tsv", opinions(100))
    settings = [*SHORT, "train.steps=6", "train.log_every=1", "model.dropout=0.5"]
    losses = []
    for every in (1, 6):
        out = tmp_path / f"every {every}"
        fit(choose("classify/rnn", [*settings, f"train.eval_every={every}"], str(data)), out, quiet=True)
        losses.append([row["loss"] for row in rows(out, "train")])
    assert losses[0] == losses[1]


# The log


def test_a_row_of_the_log_is_the_mean_since_the_row_before_and_the_rate_of_its_step(every_step, story, tmp_path):
    run("lm/gpt", story, tmp_path / "run", "train.log_every=5")
    losses = [row["loss"] for row in rows(every_step, "train")]
    found = rows(tmp_path / "run", "train")
    assert [row["step"] for row in found] == [5, 10, 12]
    means = [sum(part) / len(part) for part in (losses[:5], losses[5:10], losses[10:])]
    assert [row["loss"] for row in found] == pytest.approx(means, rel=1e-9)
    config = load(tmp_path / "run").recipe.train
    assert [row["lr"] for row in found] == [learning_rate(step, 12, config) for step in (4, 9, 11)]


def test_the_speed_is_that_of_training_however_slow_an_evaluation_is(story, tmp_path, monkeypatch):
    """On a clock that goes on by one second a step, and by a thousand an evaluation."""
    clock = SimpleNamespace(now=0.0)
    step, evaluate = Trainer._step, Evaluator.loss

    def one_second(self, work):
        clock.now += 1
        step(self, work)

    def slow(self, part):
        clock.now += 1000
        return evaluate(self, part)

    monkeypatch.setattr(trainer_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    monkeypatch.setattr(Trainer, "_step", one_second)
    monkeypatch.setattr(Evaluator, "loss", slow)
    run("lm/gpt", story, tmp_path / "run", "train.log_every=1")
    found = rows(tmp_path / "run", "train")
    assert [row["units_per_s"] for row in found] == [64] * 12
    assert [row["seconds"] for row in found] == list(range(1, 13))


def test_a_run_stopped_before_its_first_checkpoint_logs_each_step_once(every_step, story, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        after_step(patch, 3, crash)
        with pytest.raises(RuntimeError, match="the power is gone"):
            run("lm/gpt", story, tmp_path / "run", "train.log_every=1")
    assert [row["step"] for row in rows(tmp_path / "run", "train")] == [1, 2]
    assert RunFolder(tmp_path / "run").checkpoints.steps() == []
    run("lm/gpt", story, tmp_path / "run", "train.log_every=1", resume=True)
    found, expected = (
        [(row["step"], row["loss"]) for row in rows(out, "train")] for out in (tmp_path / "run", every_step)
    )
    assert found == expected


def test_tensorboard_shows_each_step_once_after_a_crash(story, tmp_path, monkeypatch):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    settings = ["train.log_every=2", "train.tensorboard=true"]
    with monkeypatch.context() as patch:
        after_step(patch, 11, crash)  # step 10 is shown, and the last checkpoint is that of step 8
        with pytest.raises(RuntimeError, match="the power is gone"):
            run("lm/gpt", story, tmp_path / "run", *settings)
    run("lm/gpt", story, tmp_path / "run", *settings, resume=True)
    board = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("train/loss")] == [2, 4, 6, 8, 10, 12]


# Stopping, saving, and where memory ends


def test_a_second_ctrl_c_inside_one_step_ends_it_at_once(story, tmp_path, monkeypatch):
    with first_signal() as received:
        ctrl_c()
        assert received == [signal.SIGINT]
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
    after_step(monkeypatch, 6, lambda: (ctrl_c(), ctrl_c()))
    with pytest.raises(KeyboardInterrupt):
        run("lm/gpt", story, tmp_path / "run")
    assert RunFolder(tmp_path / "run").checkpoints.steps() == [4]


def test_checkpoints_have_a_rhythm_of_their_own(story, tmp_path):
    run("lm/gpt", story, tmp_path / "run", "train.save_every=5", "train.checkpoints=99")
    assert RunFolder(tmp_path / "run").checkpoints.steps() == [5, 10, 12]
    assert [row["step"] for row in rows(tmp_path / "run", "valid")] == [4, 8, 12]


def test_half_an_epoch_is_half_its_steps(story, tmp_path):
    def steps(epochs: float) -> int:
        settings = ["train.steps=0", f"train.epochs={epochs}", "train.batch_tokens=4096", "train.log_every=1"]
        run("lm/gpt", story, tmp_path / f"{epochs} epochs", *settings)
        return rows(tmp_path / f"{epochs} epochs", "train")[-1]["step"]

    whole = steps(1)
    assert whole > 2
    assert steps(1.5) == math.ceil(1.5 * whole) < 2 * whole


@pytest.mark.parametrize(
    ("step", "dropout", "other"),
    [
        (3, 0.0, []),  # the state that windows pass on, which the failed attempt has already moved on
        (0, 0.5, ["train.accumulate=2"]),  # the chance in dropout, which it has already drawn from
    ],
)
def test_an_attempt_that_ends_without_memory_leaves_nothing_behind(step, dropout, other, story, tmp_path, monkeypatch):
    def trained(name: str, *more: str) -> Weights:
        settings = [*TINY_RNN, *PLAIN_SGD, "train.lr=1", f"model.dropout={dropout}", *more]
        fit(choose("lm/rnn", settings, str(story)), tmp_path / name, quiet=True)
        return read_tensors(tmp_path / name / "model.safetensors")

    gradients, failed = Trainer._gradients, []

    def cramped(self, work, carry):
        loss = gradients(self, work, carry)
        if self.at.step == step and not failed:
            failed.append(step)
            raise torch.OutOfMemoryError("tried to allocate")
        return loss

    plain = trained("plain", *other)
    monkeypatch.setattr(Trainer, "_gradients", cramped)
    close(plain, trained("cramped"), atol=1e-6, rtol=1e-5)
    assert failed
