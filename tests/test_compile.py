"""torch.compile: one function for the whole loss, few compilations, the eager numbers, and no trace of it on disk."""

from __future__ import annotations

import json
import random
import re
from copy import deepcopy
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from allyouneed.config import TrainConfig
from allyouneed.data.batches.base import Batch
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.transformer import Transformer, TransformerConfig
from allyouneed.nn import losses
from allyouneed.runtime import can_compile, probe
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.training import compiling
from allyouneed.training.compiling import Cost, Trial, compile_loss, decide, stop_recording
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose
from conftest import TINY_LM, TINY_TRANSLATE

COMPILER = pytest.mark.skipif(bool(can_compile("cpu")), reason=can_compile("cpu"))


@pytest.fixture(autouse=True)
def _deterministic_again():
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def counters():
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    return counters


def gradients(model: nn.Module, value: torch.Tensor) -> list[torch.Tensor]:
    value.backward()
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    return found


@COMPILER
@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["lm/gpt", "translate/transformer"])
def test_a_real_epoch_needs_few_graphs_and_gives_the_eager_weights(recipe, story, pairs, tmp_path, counters):
    lm = recipe == "lm/gpt"
    settings = [*(TINY_LM if lm else TINY_TRANSLATE), "model.dropout=0", "train.optimizer=sgd", "train.lr=0.1"]
    settings += [f"model.layers={1 + lm}", "train.steps=30"]
    found = {}
    for mode in ("off", "on"):
        chosen = choose(recipe, [*settings, f"train.compile={mode}"], str(story if lm else pairs))
        fit(chosen, tmp_path / mode, quiet=True)
        found[mode] = read_tensors(tmp_path / mode / "model.safetensors")
    assert found["on"].keys() == found["off"].keys()
    for name, tensor in found["on"].items():
        torch.testing.assert_close(tensor, found["off"][name], atol=1e-4, rtol=1e-3)
    assert 0 < counters["stats"]["unique_graphs"] <= (1 if lm else 3)  # a block of each stack, and the head
    assert not counters["graph_break"]


@pytest.mark.slow
def test_twenty_shapes_are_compiled_at_most_twice(counters, monkeypatch):
    """Sentences of all lengths, also where two sizes are equal, or one. (How often code is traced does not depend on
    the backend; this one needs no C++ compiler.)"""
    monkeypatch.setattr(compiling.torch, "compile", partial(torch.compile, backend="aot_eager"))
    draw = random.Random(0)
    sizes = [(5, 5, 5), (1, 9, 4), (3, 1, 1), *[[draw.randint(2, 30) for _ in range(3)] for _ in range(17)]]
    model = Transformer(TransformerConfig(vocab=50, target_vocab=50, width=16, layers=1, heads=2, dropout=0.0))
    names, eager = list(model.state_dict()), deepcopy(model)
    compile_loss(model, varied=True)
    for rows, source, target in sizes:
        ids, inputs, goals = (torch.randint(50, (rows, length)) for length in (source, target, target))
        batch = (ids, torch.randint(1, source + 1, (rows,)), inputs, goals, 0.1)
        wanted = eager.loss(*batch)
        found = model.loss(*batch)
        torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-4)
        for a, b in zip(gradients(model, found), gradients(eager, wanted), strict=True):
            torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)
    assert 3 <= counters["stats"]["unique_graphs"] <= 6, "a block of the encoder, one of the decoder, the head"
    assert not counters["graph_break"]
    assert list(model.state_dict()) == names


@COMPILER
@pytest.mark.slow
def test_a_compiled_run_that_is_resumed_equals_one_that_never_stopped(pairs, tmp_path):
    """The code is compiled on the first batches of the run, wherever the run goes on."""
    settings = [*TINY_TRANSLATE, "data.follow=false", "train.compile=on", "train.schedule=constant"]
    whole = choose("translate/transformer", settings, str(pairs))
    fit(whole, tmp_path / "whole", quiet=True)
    torch._dynamo.reset()
    fit(choose("translate/transformer", [*settings, "train.steps=5"], str(pairs)), tmp_path / "parts", quiet=True)
    torch._dynamo.reset()
    fit(whole, tmp_path / "parts", quiet=True, resume=True)
    parts = read_tensors(tmp_path / "parts" / "model.safetensors")
    for name, tensor in read_tensors(tmp_path / "whole" / "model.safetensors").items():
        assert torch.equal(tensor, parts[name]), name


@COMPILER
@pytest.mark.slow
def test_a_second_run_finds_the_code_in_the_cache(story, tmp_path, command, monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)  # torch sets it in this process
    settings = [*TINY_LM, "train.compile=on", "train.steps=2"]
    environment = {"ALLYOUNEED_CACHE": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    seconds = []
    for name in ("first", "second"):
        done = command("train", "lm/gpt", "--data", story, "--out", tmp_path / name, *settings, **environment)
        assert done.returncode == 0, done.stderr
        seconds.append(int(re.search(r"compiled: as asked, (\d+) s to compile", done.stdout)[1]))
    assert any((tmp_path / "cache" / "compiled" / "torch").iterdir())
    assert seconds[1] < seconds[0] / 2


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_recorded_passes_learn_what_compiled_ones_do(story, tmp_path, monkeypatch):
    """With dropout, which is drawn anew in every step."""
    settings = [*TINY_LM, "train.compile=on", "train.device=cuda", "train.steps=12", "model.dropout=0.1"]
    found, plain = {}, compiling.compile_loss
    for recorded in (True, False):
        torch._dynamo.reset()
        if not recorded:
            monkeypatch.setattr(compiling, "compile_loss", lambda model, varied, recorded: plain(model, varied=varied))
        fit(choose("lm/gpt", settings, str(story)), tmp_path / str(recorded), quiet=True)
        found[recorded] = read_tensors(tmp_path / str(recorded) / "model.safetensors")
    for name, tensor in found[True].items():
        torch.testing.assert_close(tensor, found[False][name], atol=1e-5, rtol=1e-4)


def test_several_micro_batches_are_not_recorded(monkeypatch):
    modes = []
    monkeypatch.setattr(compiling.torch, "compile", lambda function, dynamic, mode=None: modes.append(mode) or function)
    model = GPT(GPTConfig(vocab=20, width=8, layers=1, heads=1, context=6))
    stop_recording(model)
    compile_loss(model, varied=False, recorded=True)
    stop_recording(model)
    stop_recording(model)
    assert modes == ["reduce-overhead", None, None], "the whole loss, then the blocks and the loss of the head"


def test_training_is_compiled_and_evaluation_is_not(monkeypatch):
    calls = []

    def fake(function, **options):
        calls.append(options)
        return lambda *args: calls.append("compiled") or function(*args)

    monkeypatch.setattr(compiling.torch, "compile", fake)
    model = GPT(GPTConfig(vocab=20, width=8, layers=1, heads=1, context=6))
    ids = torch.randint(20, (2, 6))
    compile_loss(model, varied=False)
    model.loss(ids, ids)
    model.eval()
    model.loss(ids, ids)
    model(ids)
    model.start([[1, 2]], 4)
    assert calls == [{"dynamic": None, "mode": None}, "compiled"]
    assert not any("_orig_mod" in name for name in model.state_dict())


def test_compiled_code_is_given_all_logits_at_once(monkeypatch):
    """Pieces are for eager code: the compiler fuses the softmax and never holds the logits in fp32."""
    hidden, weight, targets = torch.randn(8, 4, requires_grad=True), torch.randn(9, 4), torch.randint(9, (8,))
    few = {"most_logits": 20}
    assert "Piecewise" in losses.linear_cross_entropy(hidden, weight, None, targets, **few).grad_fn.name()
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert "Piecewise" not in losses.linear_cross_entropy(hidden, weight, None, targets, **few).grad_fn.name()


class Toy(nn.Module):
    """A model on a clock of its own: a pass takes `eager` seconds, compiled `fast`, and `compile` more at first."""

    compiles = True

    def __init__(self, eager: float = 1.0, fast: float = 0.5, compile: float = 40.0, error: Exception | None = None):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.eager, self.fast, self.cost, self.error = eager, fast, compile, error
        self.now, self.compiled = 0.0, 0

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        self.now += self.eager
        return self.weight * x.sum()

    def faster(self, x: torch.Tensor) -> torch.Tensor:
        if self.error is not None:
            raise self.error
        self.compiled += 1
        self.now += self.fast + (self.cost if self.compiled == 1 else 0)
        return self.weight * x.sum()


@pytest.fixture
def tried(monkeypatch, tmp_path):
    """Decides on a toy model, in a cache of its own."""
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "torch"))
    monkeypatch.setattr(compiling, "can_compile", lambda device: "")

    def decided(toy: Toy, wanted: str = "auto", calls: int = 1000, before: bool | None = None, said=None, varied=False):
        monkeypatch.setattr(compiling.torch, "compile", lambda function, dynamic, mode: toy.faster)
        monkeypatch.setattr(compiling, "time", SimpleNamespace(perf_counter=lambda: toy.now))
        batches = [Batch({"x": torch.ones(3 + varied * i)}, {}) for i in range(3)]
        runtime = probe(TrainConfig(steps=1, device="cpu", threads=1, precision="fp32"))
        say = [].append if said is None else said.append
        feed = SimpleNamespace(plan=lambda epoch: batches, split=lambda batch, pieces, key: [batch])
        trial = Trial(toy, feed, lambda batch: toy.loss(batch.tensors["x"]), {"model": "toy"}, runtime, 1, say)
        return decide(wanted, trial, calls, before=before)

    return decided


def test_a_long_run_is_compiled_and_says_what_it_brings(tried):
    toy = Toy()
    assert tried(toy) == (True, "compiled: 2.0x as fast, 40 s to compile")
    assert toy.compiled > 0
    assert "loss" in vars(toy)
    assert toy.weight.grad is None


def test_a_trial_is_announced_and_only_if_there_is_one(tried):
    toy = Toy()

    def announced(line: str) -> None:
        assert toy.compiled == 0  # before it takes its time
        said.append(line)

    said: list[str] = []
    assert tried(toy, said=SimpleNamespace(append=announced)).compile
    assert said == ["trying torch.compile, which takes about 60 s (assumed)"]
    said.clear()
    toy = Toy()
    assert tried(toy, said=said).compile
    assert said == ["trying torch.compile, which takes about 40 s (as in an earlier run)"]
    said.clear()
    assert tried(Toy(), said=said, calls=2000, varied=True).compile
    assert said == ["trying torch.compile, which takes about 60 s (assumed)"]
    said.clear()
    for how in ({"calls": 10}, {"wanted": "off"}, {"before": False}):
        assert not tried(Toy(), said=said, **how).compile
    assert said == []
    assert tried(Toy(), "on", said=said).compile
    assert len(said) == 1


def test_a_first_run_that_saves_less_than_compiling_is_assumed_to_take_is_not_compiled(tried):
    toy = Toy()
    found = tried(toy, calls=200)
    assert found == (False, "not compiled: it saves about 33 s and takes 60 s (assumed)")
    assert toy.compiled == 0
    assert "loss" not in vars(toy)
    assert toy.now == 1  # one pass is enough to know


def test_a_second_run_knows_what_compiling_cost_and_brought(tried):
    assert tried(Toy(compile=20.0)).compile
    assert tried(Toy(), calls=50).compile  # saves 25 s, took 20 s
    found = tried(Toy(), calls=30)
    assert found == (False, "not compiled: it saves about 15 s and takes 40 s (as in an earlier run)")
    assert not tried(Toy(eager=1e-3), calls=10_000).compile


def test_where_compiling_brings_nothing_the_loss_is_eager_again_and_it_is_not_tried_twice(tried):
    toy = Toy(fast=0.99)
    assert tried(toy) == (False, "not compiled: 1.01x the speed in a trial")
    assert "loss" not in vars(toy)
    assert not torch.are_deterministic_algorithms_enabled()
    again = Toy(fast=0.99)
    assert tried(again) == (False, "not compiled: 1.01x the speed, as in an earlier run")
    assert again.now == 0


@pytest.mark.parametrize("how", [{}, {"wanted": "on"}, {"before": True}])
def test_a_compiler_that_fails_leaves_the_eager_model_and_its_reason(how, tried):
    toy = Toy(error=KeyError("no such kernel\nand much more"))
    found = tried(toy, **how)
    assert found == (False, "not compiled: KeyError: 'no such kernel\\nand much more'")
    assert "loss" not in vars(toy)
    toy.loss(torch.ones(3)).backward()


def test_no_memory_for_a_trial_is_not_a_failure(tried):
    for toy in (Toy(error=torch.OutOfMemoryError("CUDA out of memory")), Toy()):
        if toy.error is None:
            toy.loss = Toy(error=torch.OutOfMemoryError()).faster
        found = tried(toy)
        assert found == (False, "not compiled: not enough memory for a trial")


def test_wishes_and_the_run_before_are_followed(tried):
    assert tried(Toy(), "off") == (False, "not compiled: as asked")
    assert tried(Toy(), "on", calls=1) == (True, "compiled: as asked, 40 s to compile")
    assert tried(Toy(), before=True) == (True, "compiled: as before, 40 s to compile")
    assert tried(Toy(), before=False) == (False, "not compiled: as before")
    other = Toy()
    other.compiles = False
    assert tried(other, "on") == (False, "not compiled: this kind of model is always eager")


def trial(about="a", precision="fp32", sizes=(2, 2)) -> Trial:
    batches = [Batch({"x": torch.ones(3, size)}, {}) for size in sizes]
    feed = SimpleNamespace(plan=lambda epoch: batches, split=lambda batch, pieces, key: [batch])
    runtime = probe(TrainConfig(steps=1, device="cpu", threads=1, precision=precision))
    return Trial(nn.Linear(1, 1), feed, lambda batch: torch.ones(()), {"model": about}, runtime)


def test_a_damaged_record_is_no_record(tmp_path, monkeypatch):
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "deep"))
    assert trial().cost.source == "assumed"
    trial().remember(Cost(41.5, 1.9, "measured"))
    assert trial().cost == Cost(41.5, 1.9, "as in an earlier run")
    record = trial().record
    whole = record.read_text(encoding="utf-8")
    other = [whole[:10], "[]", "null", json.dumps({"seconds": 1}), json.dumps({"seconds": 1, "gain": 0})]
    for text in [*other, json.dumps({"seconds": "a", "gain": 2}), json.dumps({"seconds": 1, "gain": None})]:
        record.write_text(text, encoding="utf-8")
        assert trial().cost.source == "assumed", text
    record.unlink()
    record.parent.rmdir()
    record.parent.write_text("a file where a folder should be", encoding="utf-8")
    trial().remember(Cost(1, 1, "measured"))


def test_a_record_depends_on_model_precision_and_shapes(tmp_path, monkeypatch):
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path))
    found = [one.record for one in (trial(), trial("b"), trial(precision="bf16"), trial(sizes=(2, 9)))]
    assert len(set(found)) == 4
    assert trial().record == found[0]
    assert found[0].is_relative_to(tmp_path)


def test_training_says_that_it_tries_before_it_says_what_it_runs_on(story, tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "can_compile", lambda device: "")
    monkeypatch.setattr(compiling.torch, "compile", lambda function, dynamic, mode: function)
    said: list[str] = []
    settings = [*TINY_LM, "train.steps=1", "train.compile=on"]
    fit(choose("lm/gpt", settings, story), tmp_path / "run", say=said.append)
    begun = [line.partition(" ")[0] for line in said if line.startswith(("trying", "runtime:"))]
    assert begun == ["trying", "runtime:"]
