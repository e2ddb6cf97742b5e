"""The machine is probed once, explained in one line, stored with the run, and falls back."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from allyouneed import runtime
from allyouneed.config import TrainConfig
from allyouneed.errors import UserError
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.word2vec import Word2Vec, Word2VecConfig
from allyouneed.run import load, train
from allyouneed.runtime import probe
from allyouneed.training import compiling, distributed, memory
from allyouneed.training import fit as fit_module
from allyouneed.training.distributed import Ranks
from allyouneed.training.evaluating import Evaluator
from allyouneed.training.fit import fit
from allyouneed.training.memory import is_out_of_memory, lasting
from allyouneed.training.starting import choose, resumed
from commands import ayn, mistake
from conftest import TINY_LM


def cpu(**values) -> TrainConfig:
    return TrainConfig(steps=1, device="cpu", threads=1, **values)


def test_bf16_only_on_a_gpu_that_has_it_or_as_asked():
    found = probe(cpu())
    assert found.precision == "fp32"
    assert found.why.endswith("; fp32")
    assert probe(cpu(precision="bf16")).precision == "bf16"


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "auto"])
def test_training_prints_no_noise_of_torch(precision, story, tmp_path):
    tiny = [*TINY_LM, "train.steps=1", f"train.precision={precision}"]
    command = [sys.executable, "-m", "allyouneed", "train", "lm/gpt", "--data", story, "--out", tmp_path / "run", *tiny]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len([line for line in done.stdout.splitlines() if "bf16" in line]) == (precision == "bf16")


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
    monkeypatch.setattr(compiling.torch, "compile", lambda loss, **options: loss)
    run = train("lm/gpt", *TINY_LM, data=story, out=tmp_path / "run", quiet=True)
    task, recipe = run.task, run.recipe.with_(train=replace(run.recipe.train, compile=wanted))
    task.recipe = recipe
    before = {**run.config["runtime"], "compile": True}
    found = fit_module._choose_compile(task, run.model, probe(recipe.train), Ranks(), before, 1, print)
    assert found.compile == compiled
    assert "as before" in found.why if (wanted, compiler) == ("auto", "") else "as before" not in found.why
    assert compiler in found.why


def test_determinism_is_of_one_run():
    probe(cpu(deterministic=True))
    assert torch.are_deterministic_algorithms_enabled()
    probe(cpu())
    assert not torch.are_deterministic_algorithms_enabled()


def test_determinism_is_not_touched_where_it_is_as_asked(monkeypatch):
    """The call alone imports the compiler, which takes seconds."""
    probe(cpu())
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode: pytest.fail("it was called"))
    probe(cpu())


# Precision


@pytest.fixture
def tf32() -> Iterator[Callable[[], tuple[str, bool]]]:
    """What CUDA may do with fp32 products: in matrix products, and in convolutions and recurrent networks."""
    yield lambda: (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32)
    runtime.allow_tf32("fp32")


def test_tf32_is_on_only_where_it_is_said(tf32, lm):
    probe(cpu(precision="fp32"))
    assert tf32() == ("highest", False)
    for precision in ("tf32", "bf16"):
        runtime.allow_tf32(precision)
        assert tf32() == ("high", True)
    load(lm, "cpu", "fp32").predict("one")
    assert tf32() == ("highest", False)


def test_tf32_needs_a_cuda_gpu(lm):
    with pytest.raises(UserError, match="precision = tf32 is for a CUDA GPU, and the device is cpu"):
        probe(cpu(precision="tf32"))
    with pytest.raises(UserError, match="precision = tf32 is for a CUDA GPU"):
        load(lm, "cpu", "tf32")


def test_a_run_is_bf16_on_a_cuda_gpu_and_fp32_elsewhere(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert runtime.pick_precision("auto", "cuda:0") == "bf16"
    assert runtime.pick_precision("tf32", "cuda:0") == "tf32"
    assert runtime.pick_precision("fp32", "cuda:0") == "fp32"
    assert runtime.pick_precision("auto", "cpu") == runtime.pick_precision("auto", "mps") == "fp32"
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    assert runtime.pick_precision("auto", "cuda:0") == "fp32"


@pytest.mark.parametrize(("device", "expected"), [
    ("gpu", "device = gpu is not auto, cpu, cuda, cuda:NUMBER or mps; did you mean 'cpu'?"),
    ("cuda:x", "device = cuda:x is not auto"),
    ("cpu:1", "device = cpu:1 is not auto"),
    ("cuda:7", "the last CUDA device here is cuda:1"),
])  # fmt: skip
def test_a_device_that_cannot_be(device, expected, lm, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert expected in mistake("use", lm, "one", "--device", device)


def test_a_precision_that_cannot_be(lm):
    for command in ("use", "test", "info"):
        said = mistake(command, lm, "--precision", "bf61")
        assert said == "precision = bf61 is not one of auto, fp32, tf32, bf16; did you mean 'bf16'?"


@pytest.mark.parametrize(("positions", "grown"), [("learned", False), ("sinusoidal", True), ("rotary", True)])
def test_a_run_answers_in_bf16(positions, grown, story, tmp_path):
    settings = [*TINY_LM, f"model.positions={positions}"]
    fit(choose("lm/gpt", settings, str(story)), tmp_path / "run", quiet=True)
    run = load(tmp_path / "run", precision="bf16")
    assert {p.dtype for p in run.model.parameters()} == {torch.bfloat16}
    if grown:  # longer than the table of positions that a model starts with
        assert run.predict("one two " * 80, max_new=40)
    assert run.predict("one two", method="beam", beam=2)
    fp32 = load(tmp_path / "run")
    assert {p.dtype for p in fp32.model.parameters()} == {torch.float32}
    exact, rough = (one.test()[0] for one in (fp32, run))
    assert rough.value == pytest.approx(exact.value, rel=0.02)
    assert rough.value != exact.value
    assert rough.signature == f"{exact.signature}|precision:bf16"
    assert "precision" not in exact.signature


def test_info_says_the_precision(lm):
    said = ayn("info", lm, "--device", "cpu", "--precision", "bf16").out
    assert re.search(r"^loaded +bf16 on cpu$", said, re.M)
    half, whole = (json.loads(ayn("info", lm, "--json", "--precision", p).out) for p in ("bf16", "auto"))
    assert half["loaded"] == {"device": "cpu", "precision": "bf16", "engine": "torch"}
    assert 2 * half["memory"]["weights"] == whole["memory"]["weights"]


@pytest.mark.slow
def test_bf16_on_a_cpu_without_it_prints_no_stack_trace(lm):
    command = [sys.executable, "-m", "allyouneed", "use", lm, "one", "--device", "cpu", "--precision", "bf16"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("one")
    assert done.stderr == ""


def test_an_alignment_in_bf16_is_drawn(translator, tmp_path):
    done = ayn("use", translator, "one two", "--precision", "bf16", "--alignment", tmp_path / "a.png")
    assert done.code == 0, done.err


# Processes


@pytest.mark.parametrize(("given", "expected"), [
    ({"RANK": "abc"}, "RANK = 'abc' in the environment is not a whole number from 0"),
    ({"WORLD_SIZE": "-2"}, "WORLD_SIZE = '-2' in the environment is not a whole number from 1"),
    ({"LOCAL_RANK": "9" * 500}, "LOCAL_RANK = '99"),
    ({"RANK": "1"}, "RANK = 1 is not below WORLD_SIZE = 1"),
    ({"WORLD_SIZE": "2"}, "process 0 of 2 could not join the others at None:None (Error initializing"),
    ({"WORLD_SIZE": "2", "RANK": "0"}, "process 0 of 2 could not join the others at None:None (Error initializing"),
    ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "x"},
     "process 0 of 2 could not join the others at localhost:x (invalid literal"),
])  # fmt: skip
def test_what_another_program_left_in_the_environment_is_told(given, expected, story, tmp_path, monkeypatch):
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    said = mistake("train", "lm/gpt", "--data", story, "--out", tmp_path / "run", *TINY_LM)
    assert said.startswith(expected)
    assert said.endswith("outside torchrun, unset RANK, WORLD_SIZE and LOCAL_RANK")


def test_an_empty_environment_is_one_process(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")
    ranks = Ranks()
    assert (ranks.world, ranks.rank, ranks.local) == (1, 0, 0)


@pytest.mark.slow
def test_a_process_that_waits_in_vain_says_so(monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    stale = {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for name, value in stale.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(distributed, "JOIN", timedelta(seconds=2))
    with pytest.raises(UserError, match=f"process 0 of 2 could not join the others at 127.0.0.1:{port} "):
        Ranks().join("cpu")


LEAVING = """
from pathlib import Path
from allyouneed.training.distributed import Ranks

ranks = Ranks()
ranks.join("cpu")
import torch._dynamo  # as the optimizers of torch do; it imports all of torch.distributed
ranks.wait()
ranks.leave()
threads = [file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")]
Path(f"threads-of-{ranks.rank}").write_text(" ".join(threads))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="the threads of a process are listed by Linux")
def test_no_thread_of_gloo_outlives_a_training(tmp_path):
    (tmp_path / "leaving.py").write_text(LEAVING)
    starter = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*starter, "leaving.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    threads = {file.name: file.read_text() for file in tmp_path.glob("threads-of-*")}
    assert set(threads) == {"threads-of-0", "threads-of-1"}, done.stderr
    assert not any("gloo" in names for names in threads.values()), threads


FORKED = """
import multiprocessing, os, sys
from allyouneed import load
from allyouneed.errors import UserError

def child():
    try:
        run.predict("one")
    except UserError as error:
        print(error, flush=True)
        os._exit(3)
    os._exit(0)

run = load(sys.argv[1])
if sys.argv[2] == "after":
    run.predict("one")
pid = os.fork()
if not pid:
    child()
code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
print(run.predict("one") is not None)
sys.exit(10 * code + process.exitcode)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_forked_process_is_told_and_does_not_hang(when, lm):
    done = subprocess.run(
        [sys.executable, "-c", FORKED, str(lm), when],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "4"},
    )
    assert done.returncode == 33, done.stderr
    first, second, parent = done.stdout.splitlines()
    assert first == second
    assert first.startswith("this process was forked from one that had already loaded or trained a run")
    assert parent == "True"


@pytest.mark.slow
def test_a_process_that_forks_before_it_loads_is_free(lm):
    program = """
import os, sys
import allyouneed
pid = os.fork()
if not pid:
    allyouneed.load(sys.argv[1]).predict("one")
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", program, str(lm)], timeout=120).returncode == 0


def test_resuming_under_other_threads_says_so(story, tmp_path, capsys):
    fit(choose("lm/gpt", TINY_LM, str(story)), tmp_path / "run", quiet=True)
    other = resumed(tmp_path / "run", "lm/gpt", ["train.threads=2", "train.steps=13"], None)
    fit(other, tmp_path / "run", resume=True)
    assert "equal only up to rounding" in capsys.readouterr().out


@pytest.mark.parametrize("change", [
    {"device": "cuda:0"}, {"precision": "bf16"}, {"compile": True}, {"threads": 2}, {"world": 2},
])  # fmt: skip
def test_a_run_goes_on_bit_for_bit_only_where_everything_that_rounds_is_as_it_was(change):
    before = probe(cpu(precision="fp32"))
    assert before.same_arithmetic({**asdict(before), "why": "another sentence"})
    assert not before.same_arithmetic({**asdict(before), **change})


def test_what_does_not_learn_has_neither_gradient_nor_optimizer():
    model = GPT(GPTConfig(vocab=500, context=64, width=64, layers=1, heads=4, tie=False))
    total, frozen = sum(p.numel() for p in model.parameters()), model.body.embedding.tokens.weight
    assert lasting(model, adam=True) == (8 * total, 8 * total)
    frozen.requires_grad_(False)
    learned = total - frozen.numel()
    assert lasting(model, adam=True) == (4 * total + 4 * learned, 8 * learned)
    assert lasting(model, adam=False) == (4 * total + 4 * learned, 4 * learned)
    assert lasting(Word2Vec(Word2VecConfig(vocab=50, width=8)), adam=True) == (4 * 2 * 50 * 8, 0)


REFUSED = """
import resource, sys
import torch
from allyouneed.training.memory import is_out_of_memory
torch.set_num_threads(1)
ones = torch.ones(1000, 1000)
ones @ ones
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20),) * 2)
wide = torch.nn.Linear(1000, 1000)
tries = [
    lambda: torch.empty(1 << 30),
    lambda: ones.repeat(1000, 1) @ ones,
    lambda: wide(torch.ones(1, 1000).expand(400_000, 1000)),
    lambda: torch.nn.functional.conv1d(torch.ones(1, 8, 1).expand(1, 8, 100_000_000), torch.ones(8, 8, 3)),
    lambda: torch.from_numpy(__import__("numpy").ones(1 << 30)),
    lambda: [0] * (1 << 30),
]
for number, act in enumerate(tries):
    try:
        act()
    except BaseException as error:
        print(number, is_out_of_memory(error), type(error).__name__, str(error)[:80].replace(chr(10), " "))
    else:
        print(number, "done")
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc to measure memory")
def test_a_real_refusal_of_memory_is_recognised():
    done = subprocess.run([sys.executable, "-c", REFUSED], capture_output=True, text=True, timeout=120)
    said = done.stdout.splitlines()
    assert [line.split()[:2] for line in said] == [[str(i), "True"] for i in range(6)], (said, done.stderr)


def test_out_of_memory_is_recognised():
    words = "DefaultCPUAllocator: not enough memory: you tried to allocate 68719476736 bytes."  # on Windows and macOS
    assert is_out_of_memory(RuntimeError(words))
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_a_model_that_does_not_fit_is_refused_and_leaves_nothing(story, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: 10_000)
    said = mistake("train", "lm/gpt", "--data", story, "--out", tmp_path / "run", *TINY_LM)
    assert re.match(r"the model has .* parameters: training needs .* KiB for weights and gradients", said)
    assert said.endswith("and 9.8 KiB are free; make the model smaller")
    assert not (tmp_path / "run").exists()


class NoFloat64(TorchDispatchMode):
    """A device that has no float64, as Apple's."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if isinstance(found, torch.Tensor) and found.dtype == torch.float64:
            raise TypeError(f"{function} made float64")
        return found


def test_an_evaluation_needs_no_float64(story, tmp_path, monkeypatch):
    loss = Evaluator.loss

    def guarded(self, part):
        with NoFloat64():
            return loss(self, part)

    monkeypatch.setattr(Evaluator, "loss", guarded)
    run = train("lm/gpt", *TINY_LM, data=story, out=tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in run.folder.metrics.read_text().splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "valid"] == [4, 8, 12]


def test_more_than_there_is_starts_with_more_micro_batches(story, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: 200_000)
    lines: list[str] = []
    recipe = choose("lm/gpt", [*TINY_LM, "train.batch_tokens=256"], str(story))
    fit(recipe, tmp_path / "run", say=lines.append)
    assert any("micro-batches per step" in line for line in lines)
