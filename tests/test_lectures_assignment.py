"""The topic on assignment 3: prefixes and labels, and a classifier on a pretrained body."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allyouneed.data.builtin.corpus import corpus
from allyouneed.errors import UserError
from allyouneed.lectures import assignment
from allyouneed.lectures.base import Lecture
from allyouneed.run import Run, load, train
from commands import ayn, trained
from notebooks import shown

PNG = b"\x89PNG"
HELD = assignment.TEST + assignment.VALID
SMALL = ("model.width=12", "train.steps=3", "train.eval_every=3", "train.warmup=1", "train.threads=1")


def read(out: Path) -> dict[str, Any]:
    return json.loads((out / "assignment.json").read_text())["numbers"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("assignment")
    text = assignment.write_text(out / "text.txt", assignment.plain_opinions())
    return train("lm/gpt", *SMALL, "data.follow=false", data=text, out=out / "run", quiet=True)


def test_every_prefix_has_its_label_and_what_the_model_says(tmp_path, run):
    found = assignment.predict(Lecture(tmp_path, lambda text: None, name="assignment"), run, assignment.SENTENCE)
    words = assignment.SENTENCE.replace(".", " .").split(" ")
    assert [row["prefix"] for row in found] == [words[:at] for at in range(1, len(words))]
    assert [row["label"] for row in found] == words[1:]
    table = run.table(assignment.SENTENCE, most=3)
    for row, guess in zip(found, table):
        assert [word for word, _ in row["likely"]] == [word.replace("\n", "↵").strip() for word, _ in guess.likely]
        assert [p for _, p in row["likely"]] == pytest.approx([p for _, p in guess.likely], abs=1e-4)
        assert (row["rank"] == 1) == (row["label"] == row["likely"][0][0])
        assert 0 < row["p"] <= row["likely"][0][1] + 1e-6
    assert (tmp_path / "assignment-prefixes.png").read_bytes().startswith(PNG)


def test_the_text_has_no_label_and_nothing_that_is_held_out(tmp_path):
    plain = assignment.plain_opinions()
    held_out, rest = (plain[i] for i in (slice(HELD), slice(HELD, None)))
    lines = assignment.write_text(tmp_path / "text.txt", rest).read_text(encoding="utf-8").splitlines()
    assert assignment.SENTENCE in lines
    assert len(set(corpus()["train"].splitlines()) & set(lines)) > 12_000 / assignment.PART - 100
    said = {f"{opinion.strip()}." for line in lines for opinion in line.split(".")}
    assert {example.text for example in rest} <= said
    assert not {example.text for example in held_out} & said
    assert not [line for line in lines if {"positive", "negative"} & set(line.split())]
    assert len(rest) >= max(assignment.COUNTS)


def test_plain_opinions_have_a_label_and_no_turn():
    plain = assignment.plain_opinions()
    assert {example.label for example in plain} == {"positive", "negative"}
    good = [example for example in plain if "wonderful" in example.text]
    assert len(good) > 5
    assert {example.label for example in good} == {"positive"}
    assert {example.label for example in plain if "awful" in example.text} == {"negative"}


def test_labelled_examples_are_drawn_by_their_seed(tmp_path):
    plain, files = assignment.plain_opinions(), [tmp_path / f"{name}.tsv" for name in "abc"]
    for path, seed in zip(files, (1, 1, 2)):
        assignment.write_labelled(plain, 50, seed, path)
    one, again, other = (path.read_text(encoding="utf-8") for path in files)
    assert one == again != other
    assert len(one.splitlines()) == 50
    assert set(one.splitlines()) <= {f"{example.text}\t{example.label}" for example in plain}


def test_the_part_of_unknown_words():
    assert assignment.unknown_part("a dog runs.", ["A dog runs.", "a cat"]) == 2 / 6


def test_a_sentence_that_it_cannot_use_is_said(tmp_path, run):
    lecture = Lecture(tmp_path, lambda text: None, name="assignment")
    with pytest.raises(UserError, match="has never seen 'zebra'"):
        assignment.predict(lecture, run, "The zebra runs.")
    with pytest.raises(UserError, match="no word after its first"):
        assignment.predict(lecture, run, "The")


def test_a_run_of_another_task_is_said(tmp_path, pairs):
    done = ayn("lecture", "assignment", "--run", trained("translate", pairs), "--out", tmp_path)
    assert done.code == 2
    assert "'assignment' needs one of lm/gpt or pretrain/bert" in done.err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lm/gpt", "pretrain/bert"])
def test_a_given_body_is_taken(tmp_path, run, kind, monkeypatch):
    monkeypatch.setattr(assignment, "COUNTS", (20,))
    monkeypatch.setattr(assignment, "SEEDS", (1, 2))
    monkeypatch.setattr(assignment, "FINE", SMALL[1:])
    given = run if kind == "lm/gpt" else train(kind, *SMALL, "model.heads=2", out=tmp_path / "run", quiet=True)
    lecture = Lecture(tmp_path, lambda text: None, run=str(given.folder.path))
    with lecture.topic("assignment", ("lm/gpt", "pretrain/bert")):
        numbers = assignment.show(lecture, fine=SMALL[1:])
    assert ("prefixes" in numbers) == (kind == "lm/gpt")
    for name, of in numbers["accuracy"]["20 labelled opinions"].items():
        for seed, value in zip((1, 2), of, strict=True):
            made = load(tmp_path / "models" / f"assignment-{name.replace(' ', '-')}-20-{seed}")
            assert made.recipe.train.init == (str(given.folder.path) if name == assignment.PRETRAINED else "")
            assert made.recipe.train.seed == seed
            assert value == made.scores()["test"][0].value
    assert (tmp_path / "assignment-accuracy.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_pretraining_helps_where_labels_are_few(tmp_path_factory):
    few = read(shown("assignment", tmp_path_factory))["accuracy"][f"{min(assignment.COUNTS)} labelled opinions"]
    scratch, pretrained = (sum(few[name]) / len(few[name]) for name in (assignment.SCRATCH, assignment.PRETRAINED))
    assert pretrained > scratch + 2
