"""The benchmark harness: it measures in turns, counts right, checks before it times, and names who is not there."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import re
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import pytest
import torch

from allyouneed.errors import UserError
from allyouneed.models import gpt
from forking import Server

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from bench import __main__ as command  # noqa: E402
from bench import harness, scores, training  # noqa: E402
from bench.cases import (  # noqa: E402
    all_cases,
    bert_mlm_cuda,
    gpt2_decode_cuda,
    gpt2_train_cuda,
    gpt_train_step,
    sampling_cpu,
    start_up,
    transformer_train_cuda,
    translate_marian,
    vit_train_cuda,
    word2vec_gensim,
)
from bench.harness import OURS, Case, Peer, Prepared, measure, ratio, same, spread, table, write  # noqa: E402


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Clock:
    """Time passes only while a side works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def side(self, name: str, seconds):
        lasting = itertools.cycle(seconds)

        def work() -> None:
            self.calls.append(name)
            self.now += next(lasting)

        return work


PEER = Peer("peer", "torch")


def case(sides: dict, peers=(PEER,), name: str = "fake") -> Case:
    return Case(name, "Nothing.", "tokens", peers, lambda here, folder: Prepared(sides, 100, "nothing"))


def test_sides_take_turns_and_the_warm_up_is_not_counted():
    clock = Clock()
    sides = {OURS: clock.side("a", [9, 1, 2]), "peer": clock.side("b", [9, 3, 4])}
    seconds = measure(sides, repeats=2, warm_up=1, clock=clock)
    assert clock.calls == ["a", "b", "b", "a", "a", "b"]
    assert seconds == {OURS: [1, 2], "peer": [3, 4]}


def test_spread_of_known_times():
    assert spread([4, 1, 3, 2, 100]) == {"median": 3, "q1": 2, "q3": 4, "min": 1, "max": 100}


def test_ratio_is_of_the_medians_and_its_interval_narrows():
    draw = np.random.default_rng(1)
    ours = 1 + 0.1 * draw.random(400)
    few, many = (ratio(2 * draw.permutation(ours)[:n], ours[:n]) for n in (20, 400))
    assert ratio([6, 2, 400], [3, 1, 2])["ratio"] == 3
    for found in (few, many):
        assert found["low"] < found["ratio"] < found["high"]
        assert found["ratio"] == pytest.approx(2, rel=0.1)
    assert many["high"] - many["low"] < few["high"] - few["low"]
    assert ratio([2.0] * 5, [1.0] * 5) == {"ratio": 2.0, "low": 2.0, "high": 2.0}


def test_rounds_are_drawn_whole():
    """A machine that slows down tenfold in the middle disturbs both sides alike: the ratio is still certain."""
    ours = [1.0] * 10 + [10.0] * 10
    found = ratio([2 * x for x in ours], ours)
    assert found == pytest.approx({"ratio": 2.0, "low": 2.0, "high": 2.0})


def test_a_result_is_complete_valid_and_readable(tmp_path):
    clock = Clock()
    sides = {OURS: clock.side("a", [1.0]), "peer": clock.side("b", [2.0])}
    result = harness.run(case(sides), repeats=4, warm_up=1, threads=1, command="python -m bench fake")
    write(result, tmp_path)
    stored = json.loads((tmp_path / "fake.json").read_text(encoding="utf-8"))
    assert stored == result
    assert stored["machine"]["threads"] == 1
    assert stored["machine"]["cpu"]
    assert stored["machine"]["cores"] >= 1
    assert stored["versions"]["torch"] == torch.__version__
    assert len(stored["sides"]["peer"]["seconds"]) == 4
    assert {"commit", "date", "work", "checked"} <= stored.keys()
    text = (tmp_path / "fake.md").read_text(encoding="utf-8")
    assert f"**{OURS} is {result['ratios']['peer']['ratio']:.2f} times as fast as peer**" in text
    assert "`python -m bench fake`" in text
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len({row.count("|") for row in rows}) == 1
    assert len(rows) == 4
    assert str(ROOT) not in text + json.dumps(stored)


def test_the_rate_is_work_over_the_median(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(harness, "measure", lambda sides, repeats, warm_up, _: measure(sides, repeats, warm_up, clock))
    sides = {OURS: clock.side("a", [0.5]), "peer": clock.side("b", [1.0])}
    result = harness.run(case(sides), repeats=2, warm_up=0, threads=1, command="")
    assert [side["rate"] for side in result["sides"].values()] == [200, 100]
    assert result["ratios"]["peer"]["ratio"] == 2
    assert "| allyouneed | 500.0 ms | 500.0 ms to 500.0 ms | 500.0 ms to 500.0 ms | 200 |" in table(result)


def test_a_peer_that_is_not_installed_is_named_and_left_out():
    asked = []

    def prepare(here: set[str], folder: Path) -> Prepared:
        asked.append(here)
        return Prepared({OURS: lambda: None}, 1, "nothing")

    missing = Case("fake", "Nothing.", "tokens", [Peer("peer", "no_such_module")], prepare)
    result = harness.run(missing, repeats=1, warm_up=0, threads=1, command="")
    assert asked == [set()]
    assert result["ratios"] == {}
    assert "no_such_module is not installed: left out" in table(result)


def test_sides_that_differ_are_refused(monkeypatch, capsys, tmp_path):
    assert same("a is a", True) == "a is a"
    with pytest.raises(UserError, match="a is b"):
        same("a is b", False)

    def prepare(here: set[str], folder: Path) -> Prepared:
        return Prepared({OURS: lambda: None}, 1, same("a is b", False))

    monkeypatch.setattr(command, "all_cases", lambda: [Case("fake", "Nothing.", "tokens", [], prepare)])
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    assert command.main(["fake"]) == 1
    assert "a is b" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_command_chooses_by_name_and_quick_writes_nothing(monkeypatch, capsys, tmp_path):
    sides = {OURS: lambda: None}
    monkeypatch.setattr(command, "all_cases", lambda: [case(sides, (), name) for name in ("one-a", "one-b", "two")])
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    assert command.main(["--quick"]) == 0
    assert not list(tmp_path.iterdir())
    assert command.main(["one", "--repeats", "2"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"one-a.json", "one-b.json", "one-a.md", "one-b.md"}
    assert json.loads((tmp_path / "one-a.json").read_text())["command"] == "python -m bench one --repeats 2"
    capsys.readouterr()
    assert command.main(["tow"]) == 2
    assert "did you mean 'two'" in capsys.readouterr().err


def test_without_a_gpu_its_cases_are_left_out(monkeypatch, capsys, tmp_path):
    on_cuda = replace(case({OURS: lambda: 1 / 0}, (), "two"), options={"device": "cuda"})
    cases = [case({OURS: lambda: None}, (), "one"), on_cuda]
    monkeypatch.setattr(command, "all_cases", lambda: cases)
    monkeypatch.setattr(command, "RESULTS", tmp_path)
    monkeypatch.setattr(command.torch.cuda, "is_available", lambda: False)
    assert command.main(["--quick"]) == 0
    assert capsys.readouterr().err == "two: left out, it needs a CUDA GPU and torch sees none\n"
    assert command.main(["two", "--quick"]) == 1
    assert {case.name for case in all_cases() if case.gpu} == {
        case.name for case in all_cases() if "-cuda" in case.name
    }


def test_a_case_with_other_options_has_another_name_and_so_its_own_results():
    case = Case(
        "a", "", "", [], lambda peers, folder: None, options={"device": "cpu", "epochs": "5"}, quick={"epochs": "1"}
    )
    assert command.configure(case, [], False) == case
    assert command.configure(case, [], True).options == {"device": "cpu", "epochs": "1"}
    other = command.configure(case, ["device=cuda"], False)
    assert (other.name, other.options) == ("a-cuda", {"device": "cuda", "epochs": "5"})
    assert command.configure(case, ["device=some/where/cuda"], False).name == "a-cuda"
    with pytest.raises(UserError, match="did you mean 'device'"):
        command.configure(case, ["devise=cuda"], False)


def test_markup_goes_and_words_stay():
    page = (
        "<page><title>T</title><text xml:space='preserve'>''Ann'' [[Bo|saw]] the [[cat]].&lt;ref&gt;no&lt;/ref&gt;\n"
        "{{box|{{in}}}} http://a.b/c [[Image:x.png|a [[dog]]]] 3&amp;nbsp;Caf&eacute;s\n\n[[de:Katze]]</text></page>\n"
        "<text>#REDIRECT [[Ann]]</text>\n<text>Last</text>"
    )
    lines = list(word2vec_gensim.plain(iter([page[:50], page[50:90], page[90:]])))
    assert lines == ["ann saw the cat", "3 caf s", "last"]


@pytest.mark.slow
@pytest.mark.parametrize("noise", word2vec_gensim.NOISE)
def test_a_small_word2vec_case_runs_for_real(noise, mirror, tmp_path):
    pytest.importorskip("gensim")
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        prepared = word2vec_gensim.prepare({"gensim"}, tmp_path, "0.3", "1", "1e-3", "cpu", noise)
        assert "the same words, as often, on both sides" in prepared.checked
        for _ in word2vec_gensim.SEEDS:
            for side in prepared.sides.values():
                side()
    finally:
        torch.set_num_threads(before)
    found = prepared.scores()
    assert all(len(values) == 3 for side in (OURS, "gensim") for values in found[side].values())


@pytest.fixture
def forked(forking: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first training has a process of its own, as each has; the others have forked ones, for speed."""
    real, lock, numbers = subprocess.run, threading.Lock(), itertools.count()

    def run(command: list[str], stdout: IO[str], **how: Any) -> SimpleNamespace | subprocess.CompletedProcess[bytes]:
        if next(numbers) == 0:
            return real(command, stdout=stdout, **how)
        with lock:  # one at a time
            log = stdout.name
            return SimpleNamespace(
                returncode=forking.call("forking", "run_command", command[3:], os.getcwd(), log, log)
            )

    monkeypatch.setattr(scores, "subprocess", SimpleNamespace(run=run, STDOUT=subprocess.STDOUT))


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_table_of_scores_trains_each_row_once_and_again_when_its_settings_change(
    tmp_path, capsys, monkeypatch, story
):
    short = ("train.steps=2", "train.eval_every=2", "train.threads=1", "model.width=8", f"data.path={story}")
    first, second = scores.Row("first", "lm/lstm", short), scores.Row("LSTM", "lm/lstm", init="first")
    tables = {"t": scores.Table("A test", short, (second,), (first,))}
    monkeypatch.setattr(scores, "TABLES", tables)
    monkeypatch.setattr(scores, "RESULTS", tmp_path / "results")
    start = ["t", "--seeds", "2", "--out", str(tmp_path / "runs")]
    assert scores.main(start) == 0
    told = capsys.readouterr().out
    assert "| LSTM (`lm/lstm`) |" in told
    assert "seed 1 | seed 2 | mean | std | minutes" in told
    for seed in (1, 2):  # a row starts from the run of its own seed
        assert f'init = "{tmp_path}/runs/first-{seed}"' in (tmp_path / f"runs/t-LSTM-{seed}/recipe.toml").read_text()
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*/scores.json")}
    assert len(made) == 4
    tables["t"] = replace(tables["t"], rows=(replace(second, settings=("train.lr=1e-4",)),))
    assert scores.main([*start[:2], "1", *start[3:]]) == 0
    assert {path.parent.name for path in made if path.stat().st_mtime_ns != made[path]} == {"t-LSTM-1"}
    assert scores.main(["wnt17"]) == 2


def test_the_signature_of_a_table_is_what_its_runs_share():
    def run(seed: int, value: float, found: int) -> dict[str, object]:
        score = {"name": "F1", "value": value, "signature": f"entities|found:{found}|data:d|step:{found}"}
        return {"row": "RNN", "seed": seed, "seconds": 60.0 * seed, "scores": [score]}

    table = scores.Table("A test", (), (scores.Row("RNN", "tag/rnn"),))
    text = scores.markdown("t", table, [run(1, 50.0, 3), run(2, 60.0, 4)], {}, {})
    assert "signature `entities|data:d`" in text
    assert "| RNN (`tag/rnn`) | 50.00 | 60.00 | 55.00 | 7.07 | 2.0 |" in text


def test_names_of_cases_are_unique_and_in_the_readme():
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names))
    listed = re.findall(r"^\| `([\w-]+)` \|", (ROOT / "bench" / "README.md").read_text(encoding="utf-8"), re.M)
    assert not [name for name in names if not name.startswith(tuple(listed))]
    assert not [name for name in listed if not any(one.startswith(name) for one in names)]


def test_a_small_training_case_runs_for_real(monkeypatch):
    for name, value in {
        "LAYERS": 1,
        "HEADS": 2,
        "WIDTH": 16,
        "CONTEXT": 8,
        "ROWS": 2,
        "STEPS": 2,
        "LETTERS": 2000,
    }.items():
        monkeypatch.setattr(gpt_train_step, name, value)
    for positions in ("learned", "rotary"):
        small = gpt_train_step.case("small", positions)
        result = harness.run(small, repeats=2, warm_up=1, threads=1, command="")
        assert result["amount"] == 2 * 2 * 8
        assert result["ratios"][gpt_train_step.PLAIN]["ratio"] > 0


def test_the_training_case_sees_another_model(monkeypatch):
    monkeypatch.setattr(gpt_train_step, "turned", lambda x, cos, sin: x)
    for name, value in {"LAYERS": 1, "HEADS": 2, "WIDTH": 16, "CONTEXT": 8, "ROWS": 2, "LETTERS": 2000}.items():
        monkeypatch.setattr(gpt_train_step, name, value)
    # Weights so large that attention matters.
    monkeypatch.setattr(gpt, "init_weights", lambda model, table: [p.data.normal_() for p in model.parameters()])
    with pytest.raises(UserError, match="agree to 1e-4"):
        harness.run(gpt_train_step.case("small", "rotary"), repeats=1, warm_up=0, threads=1, command="")


@pytest.mark.parametrize("beam", [1, 3])
def test_a_small_translation_case_runs_for_real(beam, monkeypatch):
    pytest.importorskip("transformers")
    size = translate_marian.Size(layers=1, heads=2, width=16, hidden=32, vocab=40)
    small = {"SIZE": size, "SENTENCES": 5, "ROWS": 3, "MAX_NEW": 6}
    for name, value in small.items():
        monkeypatch.setattr(translate_marian, name, value)
    never = translate_marian.case("small", beam, translate_marian.NEVER)
    result = harness.run(never, repeats=1, warm_up=0, threads=1, command="")
    assert result["amount"] == 5 * 6
    assert set(result["sides"]) == {OURS, translate_marian.HF}


MODULES = gpt2_train_cuda, bert_mlm_cuda, transformer_train_cuda, vit_train_cuda
TRAINING = {case.name: module.CONTEST for module in MODULES for case in module.CASES}


@pytest.mark.parametrize("name", TRAINING)
def test_the_sides_of_a_training_case_learn_the_same(name, tmp_path):
    """Tiny, eager and on the CPU: from the same weights, on the same batches, step by step."""
    contest = TRAINING[name]
    pytest.importorskip(contest.module)
    ours = training.our_loop(contest, "tiny", tmp_path / "run", device="cpu", compile="off")
    theirs = training.HandLoop(contest, ours, ours.model, compile=False)
    batches = [gpt_train_step.first_work(ours, 0, i).pieces[0].tensors for i in range(4)]
    found = [float(theirs.step(batch)) for batch in batches]
    np.testing.assert_allclose(training.our_losses(ours, 4), found, rtol=1e-4)
    assert found[-1] != found[0]
    theirs.some_steps()
    training.our_steps(ours)


def test_the_memory_of_a_side_is_the_least_that_is_free_while_it_trains(monkeypatch):
    free = {"now": 100, "cached": 0}
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: free.update(now=free["now"] + free["cached"], cached=0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free["now"] * training.GIB, 1000 * training.GIB))

    def build() -> Any:
        free.update(now=free["now"] - 50, cached=30)  # what only the building takes
        return lambda: free.update(now=free["now"] - 5)

    assert training._watched(build) == 20 + 4 * 5  # what stands, and 5 per call
    for contest in TRAINING.values():  # sent to another process
        pickle.dumps(partial(training.build_side, contest, OURS, "tiny", "cpu"))


def tiny(name: str) -> Case:
    """The case of this name, as small as it gets and on the CPU, with one round."""
    found = next(case for case in all_cases() if case.name == name)
    options = {**found.options, **found.quick, "device": "cpu"}
    if "precision" in options:
        options["precision"] = "fp32"
    return replace(found, options=options, rounds=1)


@pytest.mark.parametrize(
    "name",
    [
        "gpt2-decode-cuda-greedy-8",
        "gpt2-decode-cuda-sampled-1",
        "gpt2-mixed-cuda",
        "beam-cuda-beam5-8",
        "beam-cuda-greedy-1",
    ],
)
def test_a_case_for_a_gpu_runs_small_on_the_cpu(name, monkeypatch):
    """Compiled sides are traced, and their code runs as it was: no C++ compiler is needed."""
    pytest.importorskip("transformers")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    small = tiny(name)
    result = harness.run(small, repeats=1, warm_up=0, threads=1, command="")
    assert set(result["ratios"]) >= {peer.name for peer in small.peers}
    assert result["amount"] > 0
    assert all(value > 0 for side in result["scores"].values() for values in side.values() for value in values)


def test_the_case_that_decodes_sees_other_weights(monkeypatch):
    pytest.importorskip("transformers")
    real = gpt2_decode_cuda.our_run

    def other(*where: Any) -> Any:
        run = real(*where)
        torch.nn.init.normal_(run.model.body.stack.blocks[0].feed_forward.out.weight)
        return run

    monkeypatch.setattr(gpt2_decode_cuda, "our_run", other)
    with pytest.raises(UserError, match="likeliest tokens of both are equal"):
        harness.run(tiny("gpt2-decode-cuda-greedy-8"), repeats=1, warm_up=0, threads=1, command="")


def test_the_choice_of_tokens_is_that_of_transformers(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    small = {"rows": "3", "vocab": "300"}
    assert "100.00 %" in sampling_cpu.prepare({sampling_cpu.HF}, tmp_path, **small).checked
    monkeypatch.setattr(sampling_cpu, "TOP_K", 3)
    real = sampling_cpu.their_warpers()
    monkeypatch.setattr(sampling_cpu, "TOP_K", 50)
    monkeypatch.setattr(sampling_cpu, "their_warpers", lambda: real)
    with pytest.raises(UserError, match="the distribution of transformers"):
        sampling_cpu.prepare({sampling_cpu.HF}, tmp_path, **small)


def test_a_command_that_starts_prints_what_the_other_side_prints(monkeypatch, tmp_path):
    pytest.importorskip("transformers")
    found = start_up.prepare_use({start_up.HF}, tmp_path)
    assert set(found.sides) == {OURS, start_up.HF}
    monkeypatch.setattr(start_up, "GENERATE", "print('other')")
    with pytest.raises(UserError, match="same text"):
        start_up.prepare_use({start_up.HF}, tmp_path / "again")


def test_tokens_of_the_case_for_a_gpu_can_be_learned():
    tokens = gpt2_train_cuda.draw_tokens(100, 4000)
    assert tokens.max() < 100
    assert (tokens[8:] == tokens[:-8]).mean() > 0.45


@pytest.mark.slow
@pytest.mark.usefixtures("forked")
def test_a_row_that_is_trained_once_serves_all_seeds_and_other_rows_start_from_it(tmp_path, monkeypatch, story):
    short = ("train.steps=2", "train.eval_every=2", "train.threads=1", f"data.path={story}")
    first = scores.Row("first", "lm/lstm", (*short, "model.width=8"), once=True)
    then = scores.Row("then", "lm/lstm", short, init="first", once=True)
    table = scores.Table("A test", short, (scores.Row("LSTM", "lm/lstm", init="then"),), (first, then), seeds=2)
    monkeypatch.setattr(scores, "TABLES", {"t": table, "u": table})
    monkeypatch.setattr(scores, "RESULTS", tmp_path / "results")
    assert scores.main(["t", "u", "--out", str(tmp_path / "runs"), "--parallel", "2"]) == 0
    made = {path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()}
    assert made == {"first-1", "then-1", "t-LSTM-1", "t-LSTM-2", "u-LSTM-1", "u-LSTM-2"}
    assert f'init = "{tmp_path}/runs/first-1"' in (tmp_path / "runs/then-1/recipe.toml").read_text()
    assert f'init = "{tmp_path}/runs/then-1"' in (tmp_path / "runs/u-LSTM-2/recipe.toml").read_text()
    assert "“then” from “first”: `lm/lstm" in (tmp_path / "results/t.md").read_text()
