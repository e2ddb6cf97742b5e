"""The loop: what it computes does not depend on micro-batches, processes, memory, or interruptions."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed.config import TrainConfig
from allyouneed.errors import UserError
from allyouneed.metrics import Score
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.run import load
from allyouneed.storage.tensorfile import read_header, read_tensors
from allyouneed.training import trainer as trainer_module
from allyouneed.training.evaluating import Evaluator
from allyouneed.training.fit import fit
from allyouneed.training.optim import learning_rate, parameter_groups
from allyouneed.training.starting import choose
from allyouneed.training.state import Position
from commands import ayn
from conftest import RUNTIME, TINY_LM, TINY_TRANSLATE
from forking import run_command


def run(recipe: str, data: Path, out: Path, *more: str, **options) -> dict[str, torch.Tensor]:
    tiny = TINY_LM if recipe.startswith("lm") else TINY_TRANSLATE
    fit(choose(recipe, [*tiny, *more], str(data)), out, quiet=True, **options)
    return read_tensors(out / "model.safetensors")


def rows(out: Path, kind: str) -> list[dict]:
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == kind]


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], **how: float) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(
            a[name], b[name], **(how or {"atol": 1e-5, "rtol": 1e-4}), msg=lambda m, n=name: f"{n}: {m}"
        )


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("recipe", ["lm/gpt", "translate/transformer"])
def test_four_micro_batches_are_one_large_batch(recipe, story, pairs, tmp_path):
    data = story if recipe == "lm/gpt" else pairs
    one = run(recipe, data, tmp_path / "one", "model.dropout=0", "train.optimizer=sgd", "train.lr=0.1")
    four = run(
        recipe, data, tmp_path / "four", "model.dropout=0", "train.optimizer=sgd", "train.lr=0.1", "train.accumulate=4"
    )
    close(one, four)


def torchrun(processes: int, *arguments: object, code: int = 0) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*starter, "-m", "allyouneed", "train", *map(str, arguments)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stderr


@pytest.mark.slow
def test_a_mistake_is_told_by_one_of_two_processes(tmp_path):
    said = torchrun(2, "lm/gpt", "--data", tmp_path / "no.txt", "--out", tmp_path / "run", *TINY_LM, code=1)
    assert said.count("ayn: there is no") == 1
    assert "[rank1]" not in said


@pytest.mark.slow
def test_two_processes_give_one_processs_weights(pairs, tmp_path):
    settings = ["model.dropout=0", "train.optimizer=sgd", "train.lr=0.1"]
    one = run("translate/transformer", pairs, tmp_path / "one", *settings)
    torchrun(2, "translate/transformer", "--data", pairs, "--out", tmp_path / "two", *TINY_TRANSLATE, *settings)
    close(one, read_tensors(tmp_path / "two" / "model.safetensors"))
    losses = [[row["loss"] for row in rows(tmp_path / name, "valid")] for name in ("one", "two")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)


def test_out_of_memory_halves_the_micro_batch_and_changes_nothing_else(story, tmp_path, monkeypatch):
    settings = ["model.dropout=0", "train.optimizer=sgd", "train.lr=0.1"]
    plain = run("lm/gpt", story, tmp_path / "plain", *settings)
    seen = []
    losses = trainer_module.Trainer._gradients

    def cramped(self, work, carry):
        seen.append([len(piece.tensors["ids"]) for piece in work.pieces])
        if max(seen[-1]) > 1 and self.at.step >= 2:
            self.model(work.pieces[0].tensors["ids"]).sum().backward()  # a part of the gradient is there already
            raise torch.OutOfMemoryError("tried to allocate")
        return losses(self, work, carry)

    monkeypatch.setattr(trainer_module.Trainer, "_gradients", cramped)
    close(plain, run("lm/gpt", story, tmp_path / "cramped", *settings))
    assert seen[0] == [4]
    assert seen[-1] == [1, 1, 1, 1]


def test_out_of_memory_with_one_example_is_an_error(story, tmp_path, monkeypatch):
    def never(self, work, carry):
        raise torch.OutOfMemoryError("tried to allocate")

    monkeypatch.setattr(trainer_module.Trainer, "_gradients", never)
    with pytest.raises(UserError, match="memory"):
        run("lm/gpt", story, tmp_path / "run")


VARIANTS = {
    "plain": [],
    "dropout, clipping, adamw": ["model.dropout=0.3", "train.clip=0.5"],
    "moving average": ["train.ema=0.9", "model.dropout=0.1"],
    "mean of the last": ["train.average=2", "train.accumulate=2"],
}


@cache
def uninterrupted(variant: str, pairs: Path) -> Path:
    """A run that was never stopped."""
    out = pairs.parent / f"never interrupted, {variant}"
    run("translate/transformer", pairs, out, *VARIANTS[variant])
    return out


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("stop", [2, pytest.param(4, marks=pytest.mark.slow), 7])
def test_interrupted_and_resumed_equals_never_interrupted_bit_for_bit(variant, stop, pairs, tmp_path, monkeypatch):
    settings, never = VARIANTS[variant], uninterrupted(variant, pairs)
    step = trainer_module.Trainer._step

    def interrupted(self, work):
        step(self, work)
        if self.at.step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "_step", interrupted)
        with pytest.raises(trainer_module.Interrupted) as caught:
            run("translate/transformer", pairs, tmp_path / "cut", *settings)
    assert caught.value.exit_code == 130
    assert caught.value.step == stop
    resumed = run("translate/transformer", pairs, tmp_path / "cut", *settings, resume=True)
    assert same(read_tensors(never / "model.safetensors"), resumed)
    for file in ("checkpoints/step-000012/model.safetensors", "checkpoints/step-000012/train.safetensors"):
        assert (never / file).read_bytes() == (tmp_path / "cut" / file).read_bytes()
    for kind in ("train", "valid"):
        values = [[(r["step"], r["loss"]) for r in rows(out, kind)] for out in (never, tmp_path / "cut")]
        assert values[0] == values[1]


@pytest.mark.slow
def test_killed_at_any_moment_and_resumed_equals_never_killed(pairs, tmp_path, forking):
    settings = ["train.steps=90", "train.eval_every=3", "model.dropout=0.1", "train.log_every=1"]
    whole = run("translate/transformer", pairs, tmp_path / "whole", *settings)
    out = tmp_path / "killed"
    data = ["--data", str(pairs), "--out", str(out)]
    arguments = ["train", "translate/transformer", *data, *TINY_TRANSLATE, *settings, "--resume"]
    err = tmp_path / "standard error"
    log = out / "metrics.jsonl"

    def logged():
        return log.stat().st_size if log.exists() else 0

    kills = 0
    for i in range(10):
        before = logged()
        process = forking.start("forking", "run_command", arguments, str(tmp_path), os.devnull, str(err))
        if i == 9:  # the last one may finish
            break
        while not forking.ended() and i not in (0, 4) and logged() == before:  # two are killed while they start
            time.sleep(0.02)
        time.sleep(0.05 * (i % 4))
        if forking.ended():
            break
        os.kill(process, signal.SIGKILL if i % 3 else signal.SIGTERM)
        forking.wait()
        kills += 1
    assert forking.wait() == 0, err.read_text()
    assert kills >= 3
    assert same(whole, read_tensors(out / "model.safetensors"))
    last = "checkpoints/step-000090/train.safetensors"
    assert (tmp_path / "whole" / last).read_bytes() == (out / last).read_bytes()
    assert [r["step"] for r in rows(out, "train")] == list(range(1, 91))


@pytest.mark.slow
def test_two_runs_cannot_write_one_folder(story, tmp_path, forking):
    out, err = tmp_path / "run", tmp_path / "standard error"
    arguments = ["train", "lm/gpt", "--data", str(story), "--out", str(out), *TINY_LM, "train.steps=100000"]
    first = forking.start("forking", "run_command", arguments, str(tmp_path), os.devnull, str(err))
    try:
        for _ in range(600):
            if (out / "metrics.jsonl").exists():
                break
            time.sleep(0.1)
        second = ayn(*arguments, "--resume")
        assert second.code == 2
        assert str(first) in second.err
    finally:
        os.kill(first, signal.SIGTERM)
        code = forking.wait()
    assert code == 143
    assert "--resume" in err.read_text()  # the command to go on with


def test_a_loss_that_is_no_number_stops_the_run_and_keeps_the_last_good_checkpoint(story, tmp_path, monkeypatch):
    step = trainer_module.Trainer._gradients

    def poisoned(self, work, carry):
        loss = step(self, work, carry)
        return loss * math.nan if self.at.step == 6 else loss

    monkeypatch.setattr(trainer_module.Trainer, "_gradients", poisoned)
    with pytest.raises(UserError, match=r"nan at step 7 \(epoch 0, batch 6\); the last good checkpoint is step 4"):
        run("lm/gpt", story, tmp_path / "run")
    assert [p.name for p in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-000004"]
    assert all(torch.isfinite(t).all() for t in read_tensors(tmp_path / "run" / "model.safetensors").values())


def test_a_damaged_checkpoint_is_named_and_the_previous_one_used(story, tmp_path):
    out = tmp_path / "run"
    whole = run("lm/gpt", story, out)
    damaged = out / "checkpoints" / "step-000012" / "train.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-9] ^= 1
    damaged.write_bytes(content)
    done = ayn("train", "lm/gpt", "--out", out, "--resume")
    assert done.code == 0, done.err
    assert "step-000012/train.safetensors is damaged" in done.out
    assert "resumed at step 8" in done.out
    assert same(whole, read_tensors(out / "model.safetensors"))


def run_limited(limit: int, *command: Any) -> None:
    """A command whose files cannot be larger."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    run_command(*command)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [10_000, 25_000])
def test_a_full_disk_is_reported_as_that_with_nothing_lost(limit, story, tmp_path, forking):
    """A limit on the size of files stands in for the disk; first the weights do not fit, then the optimizer."""
    out = tmp_path / "run"
    run("lm/gpt", story, out, "train.steps=4", "model.width=16")
    before = {p: p.read_bytes() for p in (out / "checkpoints").rglob("*") if p.is_file()}
    arguments, err = ["train", "lm/gpt", "--out", str(out), "--resume", "train.steps=8"], tmp_path / "standard error"
    code = forking.call("test_training", "run_limited", limit, arguments, str(tmp_path), os.devnull, str(err))
    assert code == 2, err.read_text()
    assert "disk is full" in err.read_text()
    assert "Traceback" not in err.read_text()
    assert {p: p.read_bytes() for p in before} == before
    assert not list(out.rglob(".tmp-*"))
    run("lm/gpt", story, out, "train.steps=8", resume=True)


def test_a_tie_of_the_score_goes_to_the_lower_loss_and_then_to_the_later_step():
    at, best = Position(), []
    for at.step, (accuracy, loss) in enumerate(
        [(60.0, 0.7), (66.67, 0.687), (66.67, 0.494), (66.67, 0.6), (66.67, 0.494), (50.0, 0.1)], 1
    ):
        best.append(at.rank(-accuracy, loss))
    assert best == [True, True, True, False, True, False]
    assert (at.best, at.best_loss, at.best_step) == (-66.67, 0.494, 5)
    assert at.waited == 3  # since the last improvement; the same once more is none


def test_the_model_of_a_run_is_that_of_the_lower_loss_if_the_scores_are_the_same(tmp_path, monkeypatch):
    """The accuracy of a small validation set often stays the same while the loss falls."""
    losses = iter([[0.687], [0.494], [0.6]])
    monkeypatch.setattr(Evaluator, "loss", lambda self, part: next(losses))
    monkeypatch.setattr(Evaluator, "score", lambda self, part: Score("accuracy", 66.67, "exact"))
    settings = [*RUNTIME, "model.width=16", "train.steps=6", "train.eval_every=2", "train.test_limit=-1"]
    run = fit(choose("classify/rnn", settings, None), tmp_path / "run", quiet=True)
    assert read_header(run.model).notes["step"] == "4"


def test_early_stopping_waits_for_its_patience(story, tmp_path):
    settings = ["train.steps=400", "train.eval_every=2", "train.patience=3", "train.lr=0", "train.warmup=0"]
    run("lm/gpt", story, tmp_path / "run", *settings)
    assert [r["step"] for r in rows(tmp_path / "run", "valid")] == [2, 4, 6, 8]


def test_best_and_last_checkpoints_stay(story, tmp_path, monkeypatch):
    losses = ([float(value)] for value in range(1, 100))
    monkeypatch.setattr(Evaluator, "loss", lambda self, part: next(losses))
    settings = ["train.steps=24", "train.eval_every=2", "train.checkpoints=2"]
    run("lm/gpt", story, tmp_path / "run", *settings)
    names = sorted(p.name for p in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["step-000002", "step-000022", "step-000024"]


def test_the_mean_of_the_last_checkpoints_is_the_result(story, tmp_path):
    result = run("lm/gpt", story, tmp_path / "run", "train.average=3")
    models = [read_tensors(tmp_path / f"run/checkpoints/step-{s:06d}/model.safetensors") for s in (4, 8, 12)]
    for name, tensor in result.items():
        torch.testing.assert_close(tensor, torch.stack([m[name] for m in models]).mean(0))


def test_validation_covers_every_token_once(story, tmp_path):
    """The logged loss is the mean over the whole split, computed here one window after another."""
    run("lm/gpt", story, tmp_path / "run")
    loaded = load(tmp_path / "run")
    tokens = torch.tensor(loaded.task.stream("valid").tokens.astype("int64"))
    total = 0.0
    for start in range(0, len(tokens) - 1, 16):
        window = tokens[start : start + 17]
        logits = loaded.model(window[None, :-1])[0]
        total += torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item()
    assert rows(tmp_path / "run", "valid")[-1]["loss"] == pytest.approx(total / (len(tokens) - 1), abs=1e-5)


def test_files_hold_no_wrapper_names_and_tied_tensors_once(pairs, tmp_path):
    run("translate/transformer", pairs, tmp_path / "run")
    raw = (tmp_path / "run" / "model.safetensors").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert not [name for name in header if "_orig_mod" in name or name.startswith("module.")]
    tied = ("body.source.tokens.weight", "body.target.tokens.weight", "head.out.weight")
    assert set(tied) <= read_tensors(tmp_path / "run" / "model.safetensors").keys()
    assert sum(name in header for name in tied) == 1


def test_decay_groups_are_the_matrices_only():
    model = GPT(GPTConfig(vocab=9, context=8, width=8, heads=2, layers=1))
    names = {p: name for name, p in model.named_parameters()}
    groups = parameter_groups(model, TrainConfig(steps=1, weight_decay=0.3))
    assert sorted((group["weight_decay"], group["factor"]) for group in groups) == [(0.0, 1.0), (0.3, 1.0)]
    decayed, plain = (
        [names[p] for g in groups if g["weight_decay"] == decay for p in g["params"]] for decay in (0.3, 0)
    )
    assert decayed == [
        f"body.stack.blocks.0.{name}.weight"
        for name in ("attention.qkv", "attention.out", "feed_forward.into", "feed_forward.out")
    ]
    assert "body.embedding.tokens.weight" in plain
    assert "body.embedding.positions.table.weight" in plain
    assert all(name.endswith((".bias", "norm.weight", "tokens.weight", "table.weight")) for name in plain)


def test_lower_layers_learn_at_lower_rates():
    model = GPT(GPTConfig(vocab=9, context=8, width=8, heads=2, layers=2, tie=False))
    groups = parameter_groups(model, TrainConfig(steps=1, layer_decay=0.5))
    factors = {id(p): group["factor"] for group in groups for p in group["params"]}
    by_part = {
        part: {factors[id(p)] for p in module.parameters()}
        for part, module in (
            ("embedding", model.body.embedding), ("first", model.body.stack.blocks[0]),
            ("second", model.body.stack.blocks[1]), ("norm", model.body.stack.norm), ("head", model.head),
        )
    }  # fmt: skip
    assert by_part == {"embedding": {0.125}, "first": {0.25}, "second": {0.5}, "norm": {1.0}, "head": {1.0}}


def test_the_rate_of_a_group_is_the_schedule_times_its_factor(story, tmp_path):
    """With a factor of nearly nothing the body stays where it began, and the head does not."""
    settings = ["model.tie=false", "train.weight_decay=0"]
    fast = run("lm/gpt", story, tmp_path / "a", *settings)
    held = run("lm/gpt", story, tmp_path / "b", *settings, "train.layer_decay=1e-9")
    start = run("lm/gpt", story, tmp_path / "c", *settings, "train.lr=0")
    block = "body.stack.blocks.0.attention.qkv.weight"
    assert (held[block] - start[block]).abs().max() < 1e-6 < (fast[block] - start[block]).abs().max()
    assert (held["head.out.weight"] - start["head.out.weight"]).abs().max() > 1e-4


def test_schedules_are_their_formulas():
    def rate(step, **values):
        return learning_rate(step, 1000, TrainConfig(steps=1000, lr=2.0, warmup=100, **values))

    assert [rate(0), rate(49), rate(99)] == pytest.approx([0.02, 1.0, 2.0])
    assert rate(999, schedule="constant") == 2.0
    assert rate(550, schedule="linear", min_lr=0.1) == pytest.approx(2 * (0.1 + 0.9 * 0.5))
    assert rate(550, schedule="cosine", min_lr=0.0) == pytest.approx(1.0)
    assert rate(1000, schedule="cosine", min_lr=0.1) == pytest.approx(0.2)
    noam = lambda step: 512**-0.5 * min(step**-0.5, step * 100**-1.5)  # the paper's formula, steps from 1
    ratio = [rate(step - 1, schedule="noam") / noam(step) for step in (1, 50, 100, 101, 400, 1000)]
    assert ratio == pytest.approx([ratio[0]] * 6)


def test_one_seed_gives_one_result_and_another_another(story, tmp_path):
    first, second = (run("lm/gpt", story, tmp_path / name) for name in "ab")
    assert same(first, second)
    assert not same(first, run("lm/gpt", story, tmp_path / "c", "train.seed=2"))
    assert same(first, run("lm/gpt", story, tmp_path / "d", "train.deterministic=true"))


def test_tensorboard_when_asked_for(story, tmp_path):
    pytest.importorskip("tensorboard")
    run("lm/gpt", story, tmp_path / "run", "train.tensorboard=true")
    assert list((tmp_path / "run" / "tensorboard").glob("events*"))
