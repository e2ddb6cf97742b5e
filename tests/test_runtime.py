"""The machine is probed once, explained in one line, stored with the run, and falls back."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from allyouneed import runtime
from allyouneed.config import TrainConfig
from allyouneed.errors import UserError
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.transformer import Transformer, TransformerConfig
from allyouneed.models.word2vec import Word2Vec, Word2VecConfig
from allyouneed.run import train
from allyouneed.runtime import probe
from allyouneed.training import compiling
from allyouneed.training import fit as fit_module
from allyouneed.training.distributed import Ranks
from allyouneed.training.fit import fit
from allyouneed.training.memory import estimate, is_out_of_memory, lasting
from allyouneed.training.starting import choose
from conftest import TINY_LM


def cpu(**values) -> TrainConfig:
    return TrainConfig(steps=1, device="cpu", threads=1, **values)


@pytest.mark.parametrize(("gain", "chosen"), [(0.003, "fp32"), (1.1, "fp32"), (2.0, "bf16")])
def test_bf16_only_where_a_measurement_says_that_it_pays(gain, chosen, monkeypatch):
    monkeypatch.setattr(runtime, "_bf16_gain", lambda device: gain)
    found = probe(cpu())
    assert found.precision == chosen
    assert f"{chosen}: " in found.why


def test_bf16_is_measured_on_this_machine():
    assert runtime._bf16_gain("cpu") > 0


def test_a_device_that_is_not_there_is_said():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(UserError, match="sees no CUDA device"):
        probe(TrainConfig(steps=1, device="cuda"))


def test_processes_share_the_devices_among_them(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for wanted in ("auto", "cuda"):
        assert [runtime.pick_device(wanted, rank) for rank in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert runtime.pick_device("cpu", 3) == "cpu"


@pytest.mark.parametrize("wanted", ["auto", "on"])
def test_without_a_compiler_nothing_is_compiled(wanted, story, tmp_path, monkeypatch):
    monkeypatch.setattr(runtime.shutil, "which", lambda name: None)
    run = train("lm/gpt", *TINY_LM, f"train.compile={wanted}", data=story, out=tmp_path / "run", quiet=True)
    assert not run.config["runtime"]["compile"]
    assert "no C++ compiler" in run.config["runtime"]["why"]


def test_the_choice_is_stored_with_the_run(story, tmp_path):
    fit(choose("lm/gpt", TINY_LM, str(story)), tmp_path / "run", quiet=True)
    stored = json.loads((tmp_path / "run" / "config.json").read_text())
    assert stored["runtime"]["precision"] == "fp32"
    assert stored["runtime"]["threads"] == 1
    assert "not compiled: as asked" in stored["runtime"]["why"]
    assert set(stored["versions"]) >= {"allyouneed", "torch", "python"}


@pytest.mark.parametrize(("wanted", "compiler", "compiled"), [
    ("auto", "", True), ("auto", "there is no C++ compiler", False), ("off", "", False), ("on", "", True),
])  # fmt: skip
def test_a_compiled_run_goes_on_as_asked_or_as_it_can(wanted, compiler, compiled, story, tmp_path, monkeypatch):
    monkeypatch.setattr(compiling, "can_compile", lambda device: compiler)
    monkeypatch.setattr(compiling.torch, "compile", lambda loss, dynamic: loss)
    run = train("lm/gpt", *TINY_LM, data=story, out=tmp_path / "run", quiet=True)
    recipe = run.recipe.with_(train=replace(run.recipe.train, compile=wanted))
    before = {**run.config["runtime"], "compile": True}
    found = fit_module._choose_compile(recipe, run.task, run.model, probe(recipe.train), Ranks(), before, 1)
    assert found.compile == compiled
    assert "as before" in found.why if (wanted, compiler) == ("auto", "") else "as before" not in found.why
    assert compiler in found.why


def test_determinism_is_of_one_run():
    probe(cpu(deterministic=True))
    assert torch.are_deterministic_algorithms_enabled()
    probe(cpu())
    assert not torch.are_deterministic_algorithms_enabled()


def test_resuming_under_other_threads_says_so(story, tmp_path, capsys):
    fit(choose("lm/gpt", TINY_LM, str(story)), tmp_path / "run", quiet=True)
    other = choose("lm/gpt", [*TINY_LM, "train.threads=2", "train.steps=13"], str(story))
    fit(other, tmp_path / "run", resume=True)
    assert "equal to rounding only" in capsys.readouterr().out


@pytest.mark.parametrize("change", [
    {"device": "cuda:0"}, {"precision": "bf16"}, {"compile": True}, {"threads": 2}, {"world": 2},
])  # fmt: skip
def test_a_run_goes_on_bit_for_bit_only_where_everything_that_rounds_is_as_it_was(change):
    before = probe(cpu(precision="fp32"))
    assert before.same_arithmetic({**before.to_dict(), "why": "another sentence"})
    assert not before.same_arithmetic({**before.to_dict(), **change})


def saved_bytes(loss) -> int:
    """What the backward pass remembers, each storage once."""
    kept: dict[int, int] = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss()
    return sum(kept.values())


@pytest.mark.parametrize("kind", ["gpt", "transformer"])
def test_the_memory_estimate_is_right_to_a_factor_of_two(kind):
    if kind == "gpt":
        model = GPT(GPTConfig(vocab=500, context=64, width=64, layers=3, heads=4))
        ids = torch.randint(0, 500, (16, 64))
        loss = lambda: model.loss(ids, ids)
    else:
        model = Transformer(TransformerConfig(vocab=500, target_vocab=500, width=64, layers=2, heads=4))
        ids, lengths = torch.randint(0, 500, (16, 64)), torch.full((16,), 64)
        loss = lambda: model.loss(ids, lengths, ids, ids)
    weights = sum(p.numel() * 4 for p in model.parameters())
    real = saved_bytes(loss) - weights
    guess = estimate(model, model.config, 16 * 64, adam=True, device=torch.device("cpu"), half=False)
    assert 0.5 < guess.activations / real < 2
    assert guess.weights == 2 * weights
    assert guess.optimizer == 2 * weights
    assert guess.available > 1 << 28


def test_what_does_not_learn_has_neither_gradient_nor_optimizer():
    model = GPT(GPTConfig(vocab=500, context=64, width=64, layers=1, heads=4, tie=False))
    total, frozen = sum(p.numel() for p in model.parameters()), model.body.embedding.tokens.weight
    assert lasting(model, adam=True) == (8 * total, 8 * total)
    frozen.requires_grad_(False)
    learned = total - frozen.numel()
    assert lasting(model, adam=True) == (4 * total + 4 * learned, 8 * learned)
    assert lasting(model, adam=False) == (4 * total + 4 * learned, 4 * learned)
    assert lasting(Word2Vec(Word2VecConfig(vocab=50, width=8)), adam=True) == (4 * 2 * 50 * 8, 0)


def test_out_of_memory_is_recognised():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_more_than_there_is_starts_with_more_micro_batches(story, tmp_path, monkeypatch):
    from allyouneed.training import memory

    monkeypatch.setattr(memory, "available", lambda device: 200_000)
    lines: list[str] = []
    recipe = choose("lm/gpt", [*TINY_LM, "train.batch_tokens=256"], str(story))
    fit(recipe, tmp_path / "run", say=lines.append)
    assert any("micro-batches a step" in line for line in lines)
