"""The topic on decoding: steps, beams, draws, and teacher forcing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from allyouneed import lectures
from allyouneed.errors import UserError
from allyouneed.figures.bars import share_bars, spread_bars
from allyouneed.figures.tree import place_nodes
from allyouneed.lectures import decoding
from allyouneed.lectures.base import Lecture
from allyouneed.run import Run, load, train
from commands import ayn, trained

PNG = b"\x89PNG"
SMALL = ("model.width=16", "train.eval_every=8", "train.warmup=1", "train.threads=1", "train.test_limit=10")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("decoding") / "run"
    settings = ("data.name=french", "train.steps=8", "train.batch_tokens=256", "model.layers=1", "decode.max_new=8")
    return train("translate/transformer", *SMALL, *settings, out=out, quiet=True)


@pytest.fixture(scope="module")
def shown(run: Run, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    out, said = tmp_path_factory.mktemp("shown"), list[str]()
    lectures.show("decoding", Lecture(out, said.append, run=str(run.folder.path)))
    return out, json.loads((out / "decoding.json").read_text())["numbers"], "\n".join(said)


def test_each_step_tells_what_is_read_looked_at_and_likely(run, shown):
    out, numbers, _ = shown
    answer = run.answers([decoding.SENTENCE], method="greedy")[0]
    steps, token = numbers["steps"], run.processor.tokenizer.token
    assert [step["likely"][0][0] for step in steps] == [token(id).strip() for id in answer.whole]
    assert sum(step["likely"][0][2] for step in steps) == pytest.approx(answer.logprob, abs=1e-3)
    for at, step in enumerate(steps):
        assert len(step["read"]) == at + 1
        assert sum(step["attends"]) == pytest.approx(1, abs=1e-4)
        (_, logit, logp), (_, other, below), _ = step["likely"]
        assert logit - other == pytest.approx(logp - below, abs=1e-4)
    assert (out / "decoding-steps.png").read_bytes().startswith(PNG)


def test_the_tree_ends_in_the_answer_of_the_beam_search(run, shown):
    out, numbers, _ = shown
    beam = numbers["beam"]
    tokenizer, path, at = run.processor.tokenizer, list[str](), beam["winner"]
    while at >= 0:
        path.insert(0, beam["nodes"][at]["token"])
        at = beam["nodes"][at]["parent"]
    answer = run.answers([decoding.SENTENCE], method="beam", beam=decoding.BEAM)[0]
    assert path == [tokenizer.token(id) for id in answer.tokens] + path[len(answer.tokens) :]
    assert beam["nodes"][beam["winner"]]["logprob"] == pytest.approx(answer.logprob, abs=1e-3)
    assert (out / "decoding-beam.png").read_bytes().startswith(PNG)


def test_what_is_drawn_has_the_probability_of_its_temperature(run, shown):
    out, numbers, _ = shown
    (drawn,) = [run.answers([decoding.SENTENCE], method="sample", temperature=1.0, n_best=decoding.DRAWS, top_k=0)[0]]
    by_text = {answer.text: answer for answer in [drawn, *drawn.others]}
    assert numbers["drawn"]["1"]
    for text, p, count in numbers["drawn"]["1"]:
        assert p == pytest.approx(math.exp(by_text[text].logprob), rel=1e-2, abs=0)
        assert 1 <= count <= decoding.DRAWS
    assert (out / "decoding-drawn.png").read_bytes().startswith(PNG)


def test_leaves_are_below_one_another_and_others_in_their_middle():
    assert place_nodes([-1, 0, 0, 1, 1, 2]) == [1.25, 0.5, 2.0, 0.0, 1.0, 2.0]


def test_bars_begin_at_zero_and_name_what_they_show(tmp_path):
    share_bars([("one", [("a dog", 0.7), ("rest", 0.3)])], tmp_path / "a.svg", "A title", "share", "rest")
    text = (tmp_path / "a.svg").read_text()
    assert all(f">{word}<" in text for word in ("A title", "one", "a dog", "70.0 %", "30.0 %", "share"))
    groups = {"few": {"x": [50.0, 60.0], "y": [0.25, 0.27]}}
    spread_bars(groups, {"x": "#0072b2", "y": "#e69f00"}, tmp_path / "b.svg", "Means", "points", guess=40.0)
    text = (tmp_path / "b.svg").read_text()
    assert all(f">{word}<" in text for word in ("Means", "few", "55", "0.26", "points", "0", "x", "y"))


@pytest.mark.parametrize(
    ("text", "message"),
    [("Je suis 狗.", "the model has never seen '狗'"), (" ", "empty")],
)
def test_a_sentence_that_it_cannot_read_is_said(tmp_path, run, text, message):
    with pytest.raises(UserError, match=message):
        lectures.show("decoding", Lecture(tmp_path, lambda said: None, run=str(run.folder.path), text=text))


def test_a_run_that_does_not_translate_is_said(tmp_path, story):
    done = ayn("lecture", "decoding", "--run", trained("lm", story), "--out", tmp_path)
    assert done.code == 2
    assert "'decoding' needs one of translate" in done.err


@pytest.mark.slow
def test_teacher_forcing_compares_p_over_seeds(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "FORCED", (0.0, 1.0))
    settings = (*SMALL, "data.name=french", "train.steps=8", "train.batch_tokens=256", "model.width=8")
    lecture = Lecture(tmp_path, lambda said: None, name="decoding")
    numbers = decoding.force(lecture, settings)
    for p, seed in ((0.0, 1), (0.0, 2), (1.0, 1), (1.0, 2)):
        run = load(tmp_path / "models" / f"forcing-{p:g}-{seed}")
        assert (run.processor.options.teacher_forcing, run.recipe.train.seed) == (p, seed)
        assert numbers[f"p = {p:g}"]["BLEU"][seed - 1] == run.scores()["test"][0].value
    assert numbers["p = 0"]["validation loss"] != numbers["p = 1"]["validation loss"]
    for part in ("bleu", "loss"):
        assert (tmp_path / f"decoding-forcing-{part}.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_the_student_is_written_in_six_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(decoding, "force", lambda *rest: {})
    lectures.show("decoding", Lecture(tmp_path, lambda said: None))
    numbers = json.loads((tmp_path / "decoding.json").read_text())["numbers"]
    assert [step["likely"][0][0] for step in numbers["steps"]][:5] == ["I", "am", "a", "student", "."]
    assert len(numbers["steps"]) == 6
    for step, word in zip(numbers["steps"], ("Je", "suis")):
        assert step["likely"][0][2] > math.log(0.4), word
    low, high = (max(p for _, p, _ in found) for found in numbers["drawn"].values())
    assert low > high
