"""Runs: what may change when they go on, what their scores are called, and the demo as a newcomer meets it."""

from __future__ import annotations

import gc
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed import catalog
from allyouneed.config import DataConfig, DecodeConfig, TrainConfig
from allyouneed.data.examples import TaggedSentence, TextExample, to_cells
from allyouneed.errors import UserError
from allyouneed.recipe import read_recipe, recipe_names, recipe_text, to_toml
from allyouneed.run import load, train
from allyouneed.storage.wholefile import write_bytes
from allyouneed.training.fit import fit
from allyouneed.training.starting import choose, resumed
from commands import ayn, contents, mistake
from conftest import RUNTIME, TINY_LM, TINY_TRANSLATE
from families import FAMILIES, made


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["optimizer=sgd", "ema=0.9", "seed=2", "batch_tokens=32"])
def test_what_a_checkpoint_hangs_on_cannot_change_and_the_run_stays_whole(setting, story, tmp_path):
    out = tmp_path / "run"
    arguments = ("train", "lm/gpt", "--data", story, "--out", out, *TINY_LM)
    assert ayn(*arguments).code == 0
    done = ayn("train", "lm/gpt", "--out", out, "--resume", f"train.{setting}")
    assert done.code == 2
    assert f"train.{setting.partition('=')[0]} was" in done.err
    assert ayn("train", "lm/gpt", "--out", out, "--resume", "train.steps=16").code == 0


def test_data_that_moved_is_found_again_and_other_data_is_refused(story, tmp_path):
    out, old, new = tmp_path / "run", tmp_path / "old.txt", tmp_path / "new.txt"
    old.write_bytes(story.read_bytes())
    assert ayn("train", "lm/gpt", "--data", old, "--out", out, *TINY_LM).code == 0
    scores = (out / "scores.json").read_text()
    old.rename(new)
    done = ayn("test", out)
    assert done.code == 2
    again = shlex.split(done.err.partition("if it has moved: ")[2])
    assert again[0] == "ayn"
    done = ayn(*again[1:-1], story.parent / "other.txt")
    assert done.code == 2
    (tmp_path / "other.txt").write_text(new.read_text().upper())
    before = contents(out)
    done = ayn(*again[1:-1], tmp_path / "other.txt")
    assert (done.code, contents(out)) == (2, before)
    assert "other.txt is not the data that the run" in done.err
    done = ayn(*again[1:-1], new)
    assert done.code == 0
    assert "the data has changed since" not in done.out + done.err
    assert (out / "scores.json").read_text() == scores.replace("old.txt", "new.txt")
    assert ayn("test", out).code == 0


def test_other_data_to_score_on_is_told_of_and_its_mistakes_too(pairs, tmp_path):
    out, csv, blank = tmp_path / "run", tmp_path / "mine.csv", tmp_path / "blank.csv"
    rows = [line.split("\t") for line in pairs.read_text().splitlines()]
    csv.write_text("id,en,it\n" + "".join(f'{i},"{a}","{b}"\n' for i, (a, b) in enumerate(rows)))
    settings = [*TINY_TRANSLATE, "data.source=en", "data.target=it"]
    assert ayn("train", "translate/transformer", "--data", csv, "--out", out, *settings).code == 0
    blank.write_text("en,it\none two,uno due\n,\nfour,\n")
    done = ayn("test", out, "--data", blank)
    assert done.code == 0
    assert "all: 1 examples; 2 blank or damaged ones left out\n" in done.out
    assert ayn("test", out, "--data", "phrasebook", "decode.max_new=2").code == 0  # which has no columns en and it
    blank.write_text("en,fr\none,un\n")
    before = contents(out)
    assert "it" in mistake("test", out, "--data", blank)
    assert "no.csv" in mistake("test", out, "--data", tmp_path / "no.csv")
    assert "is empty" in mistake("test", out, "--data", "")
    assert contents(out) == before


def lines(examples: Iterable[TextExample]) -> str:
    return "".join("\t".join(to_cells(example)) + "\n" for example in examples)


def conll(examples: Iterable[TaggedSentence]) -> str:
    return "\n".join("".join(f"{word}\t{tag}\n" for word, tag in zip(*example)) for example in examples)


@pytest.mark.parametrize(
    ("recipe", "name", "write"),
    [
        pytest.param("lm/gpt", "mine.txt", "".join, marks=pytest.mark.slow),
        pytest.param("translate/transformer", "mine.tsv", lines, marks=pytest.mark.slow),
        ("classify/rnn", "mine.tsv", lines),
        pytest.param("tag/lstm", "mine.conll", conll, marks=pytest.mark.slow),
    ],
)
def test_a_run_is_scored_on_a_file_of_its_own_as_on_its_test_split(recipe, name, write, tmp_path, capsys):
    settings = ["train.steps=20", "train.eval_every=20", "decode.max_new=8"]
    run = train(recipe, *settings, out=tmp_path / "run", quiet=True)
    own, file = run.test(), tmp_path / "a folder" / name
    file.parent.mkdir()
    file.write_text(write(run.task.data.splits["test"]))
    capsys.readouterr()
    other = run.test(data=file)
    assert [(score.name, score.value) for score in other] == [(score.name, score.value) for score in own]
    assert all("|split:all|" in score.signature and f"|data:{name}@" in score.signature for score in other)
    count = run.task.data.splits["test"].examples
    assert f"all: {count} {'documents' if recipe == 'lm/gpt' else 'examples'}\n" in capsys.readouterr().out
    assert {split: [vars(s) for s in found] for split, found in run.scores().items()} == {
        "test": [vars(s) for s in own],
        f"{file} all": [vars(s) for s in other],
    }
    done = ayn("test", tmp_path / "run", "--data", file, "--split", "valid")
    assert (done.code, done.err) == (2, f"ayn: the data of {file} has no split 'valid'; there is all\n")
    named = ayn("test", tmp_path / "run", "--data", run.recipe.data.name)
    assert own[0].signature in named.out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ("lm/gpt", TINY_LM),
        ("translate/transformer", [*TINY_TRANSLATE, "data.limit=100"]),
        ("classify/rnn", ["train.steps=2", "data.limit=100"]),
        ("tag/lstm", ["train.steps=2", "data.limit=100"]),
        ("wordvectors/skipgram", ["train.steps=2", "model.width=8"]),
    ],
)
def test_a_run_that_nobody_holds_leaves_no_file_open(recipe, settings, tmp_path):
    def opened() -> int:
        out = tmp_path / "run"
        assert ayn("train", recipe, "--out", out, "--overwrite", *settings).code == 0
        assert ayn("test", out).code == 0
        gc.collect()
        return len(os.listdir("/dev/fd"))

    first = opened()  # with what is loaded on first use: fonts, libraries
    assert opened() == first


@pytest.mark.slow
def test_a_run_is_read_without_the_compiler_of_torch(lm):
    """Its import would take longer than all the rest."""
    program = "import sys, allyouneed; allyouneed.load(sys.argv[1], 'cpu').predict('one'); "
    program += "sys.exit('torch._dynamo' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program, lm], timeout=120).returncode == 0


def test_a_run_killed_between_its_tokenizers_makes_them_anew(pairs, tmp_path, monkeypatch):
    settings = [*TINY_TRANSLATE, "text.joint=false", "model.share=false"]
    whole, killed = tmp_path / "whole", tmp_path / "killed"

    def write(path: Path, data: bytes) -> dict:
        if path.name == "tokenizer.target.json":
            shutil.copytree(whole, killed)  # as kill -9 would leave it: one tokenizer is written, the other is not
        return write_bytes(path, data)

    monkeypatch.setattr("allyouneed.storage.runfolder.write_bytes", write)
    fit(choose("translate/transformer", settings, str(pairs)), whole, quiet=True)
    monkeypatch.undo()
    assert sorted(path.name for path in killed.iterdir()) == [".lock", "config.json", "recipe.toml", "tokenizer.json"]
    fit(resumed(killed, "translate/transformer", [], None), killed, resume=True, quiet=True)
    assert {name: t.to_json() for name, t in load(killed).task.tokenizers.items()} == {
        name: (whole / name).read_text(encoding="utf-8") for name in ("tokenizer.json", "tokenizer.target.json")
    }


def test_a_size_that_is_asked_for_replaces_the_recipes_own():
    assert read_recipe("lm/shakespeare").model.width == 128
    recipe = read_recipe("lm/shakespeare", ["model.size=nano", "model.layers=2"])
    assert (recipe.model.width, recipe.model.heads, recipe.model.layers) == (48, 3, 2)
    assert read_recipe("translate/multi30k", ["model.size=tiny"]).model.dropout == 0.3


def test_another_kind_need_not_know_what_the_recipe_said_to_the_one_before():
    """The RNN's recipe says cell and bidirectional; its width ELMo knows, too."""
    recipe = read_recipe("classify/rnn", ["model.kind=elmo", "model.filters=3"])
    assert (recipe.model_kind, recipe.model.width, recipe.model.filters) == ("elmo", 64, 3)
    assert read_recipe("lm/elmo", ["model.kind=gpt"]).model.width == 48  # both have a size of this name
    assert read_recipe("classify/rnn", ["task.kind=tag"]).task.unknown == 0.01
    for name in recipe_names():
        task = read_recipe(name).task_kind
        for kind in catalog.MODELS:
            if task in catalog.model(kind).tasks:
                assert read_recipe(name, [f"model.kind={kind}"]).model_kind == kind


def test_what_is_asked_for_beside_another_kind_is_still_checked(tmp_path):
    for settings, words in {
        ("model.kind=elmo", "model.cell=gru"): r"\[model\] has no key 'cell'",
        ("model.kind=elmo", "model.size=tiny"): "elmo has no size 'tiny'",
        ("model.kind=rnn", "model.filters=3"): r"\[model\] has no key 'filters'",
        ("task.kind=tag", "task.pool=max"): r"\[task\] has no key 'pool'",
        ("model.kind=elmoo",): "did you mean 'elmo'",
    }.items():
        with pytest.raises(UserError, match=words):
            read_recipe("classify/rnn", settings)
    own = tmp_path / "own.toml"
    own.write_text(recipe_text("classify/rnn").replace("width = 64", "widht = 64"), encoding="utf-8")
    with pytest.raises(UserError, match=r"no key 'widht'; did you mean 'width'"):
        read_recipe(str(own), ["model.kind=elmo"])


@given(st.text(st.characters(codec="utf-8")))
def test_any_text_survives_a_recipe(text):
    assert tomllib.loads(to_toml({"decode": {"stop": [text]}})) == {"decode": {"stop": [text]}}


def test_two_ways_of_averaging_are_one_too_many():
    with pytest.raises(UserError, match="choose one"):
        TrainConfig(steps=1, ema=0.9, average=3)


def test_scores_name_their_data_and_their_checkpoint(story, tmp_path, capsys):
    text = tmp_path / "a story.txt"
    text.write_bytes(story.read_bytes())
    run = train("lm/gpt", *TINY_LM, data=text, out=tmp_path / "run", quiet=True)
    (score, *_) = run.test()
    assert score.signature.endswith("|data:a story.txt|step:12")
    assert "splits may be different" not in capsys.readouterr().out
    text.write_text("more.\n" + text.read_text())
    load(tmp_path / "run").test()
    assert "splits may be different" in capsys.readouterr().out


def test_a_text_with_unknown_words_has_no_bits_per_byte(tmp_path):
    words = "".join(f"w{i % 40} " + ("\n" if i % 8 == 7 else "") for i in range(3000))
    path = tmp_path / "text.txt"
    path.write_text(words + " never seen before\n" * 40)
    run = train("lm/gpt", *TINY_LM, "text.kind=word", data=path, out=tmp_path / "run", quiet=True)
    names = [score.name for score in run.test()]
    assert names == ["loss", "perplexity"]
    assert "unknown:" in run.test()[0].signature


def test_other_data_is_read_with_the_settings_of_data(tmp_path, capsys):
    """In Python and in the command; they hold for this test alone."""
    rows = [(f"it is {i}", "good" if i % 2 else "bad") for i in range(60)]
    (tmp_path / "a.tsv").write_text("".join(f"{text}\t{label}\n" for text, label in rows))
    other = tmp_path / "b.csv"
    other.write_text("kind,title,body\n" + "".join(f"{label},it is,{text}\n" for text, label in rows[:20]))
    run = train(
        "classify/rnn",
        *RUNTIME,
        "model.width=16",
        "train.steps=2",
        data=tmp_path / "a.tsv",
        out=tmp_path / "run",
        quiet=True,
    )
    whole = run.test(data=other, source="body", target="kind")
    assert "text is column body, label is column kind" in capsys.readouterr().out
    asked = ["data.source=body", "data.target=kind"]
    done = ayn("test", tmp_path / "run", "--data", other, *asked, "decode.batch=2")
    assert str(whole[0]).split("  ")[0] in done.out
    some = run.test(data=other, source="title", target="1", header=True, limit=5)
    assert "|n:5|" in some[0].signature
    assert {f"{other} all", f"{other} all limit 5"} <= run.scores().keys()
    assert run.recipe.data.limit == 0
    assert "no column 'bodi'; did you mean 'body'?" in mistake(
        "test", tmp_path / "run", "--data", other, "data.source=bodi"
    )
    assert "[data] has no key 'sorce'; did you mean 'source'?" in mistake(
        "test", tmp_path / "run", "--data", other, "data.sorce=body"
    )
    assert "data.header = 'maybe' is not one of auto, true, false" in mistake(
        "test", tmp_path / "run", "--data", other, "data.header=maybe"
    )
    assert "data.limit says how other data is read: name that with --data" in mistake(
        "test", tmp_path / "run", "data.limit=5"
    )


def test_no_setting_is_in_decode_and_in_data():
    assert not {field.name for field in fields(DataConfig)} & {field.name for field in fields(DecodeConfig)}


def test_a_limit_of_examples_is_nothing_for_a_text(story, tmp_path):
    done = ayn("train", "lm/gpt", "--data", story, "--out", tmp_path / "run", "data.limit=3")
    assert done.code == 2
    assert "data.limit" in done.err


ANIMAL = "The animal didn't cross the street because it was too"


def demo(out: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "allyouneed.demo", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.slow
def test_ctrl_c_in_the_demo_says_how_to_go_on(tmp_path):
    process = demo(tmp_path / "run")
    deadline = time.monotonic() + 200
    while not (tmp_path / "run" / "metrics.jsonl").exists() or not (tmp_path / "run" / "metrics.jsonl").stat().st_size:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_the_demo_reaches_its_score_and_leaves_its_images(tmp_path):
    process = demo(tmp_path / "run")
    out, err = process.communicate(timeout=900)
    assert process.returncode == 0, err
    scores = {score["name"]: score for score in json.loads((tmp_path / "run" / "scores.json").read_text())["test"]}
    assert scores["exact match"]["value"] >= 95
    assert "version:" in scores["BLEU"]["signature"]
    assert "version:" in scores["chrF"]["signature"]
    assert "Io sono italiano." in out
    assert "L'attenzione è tutto ciò di cui hai bisogno." in out
    sentences = {
        "Action gets results.": "L'azione porta risultati.",
        "Happy mid autumn festival.": "Buona festa di metà autunno.",
        f"{ANIMAL} tired.": "L'animale non ha attraversato la strada perché era troppo stanco.",
        f"{ANIMAL} wide.": "L'animale non ha attraversato la strada perché era troppo larga.",
    }
    assert load(tmp_path / "run").predict(list(sentences)) == list(sentences.values())
    assert out.count("ayn ") >= 3
    for image in ("loss.png", "alignment.png"):
        assert (tmp_path / "run" / image).read_bytes().startswith(b"\x89PNG")


def test_an_input_that_cannot_be_answered_ends_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    run, (one, bad, *_, two) = made("classify-rnn"), FAMILIES["classify-rnn"][2]
    alone, usual = [run.predict(one), run.predict(two)], run.predictor._answer

    def refusing(inputs: list[Any], decode: DecodeConfig) -> Any:
        if any(read.given == bad for read in inputs):
            raise UserError("not this one")
        return usual(inputs, decode)

    monkeypatch.setattr(run.predictor, "_answer", refusing)
    found = list(run.answer_lines([one, bad, two]))
    assert str(found[1].error) == "not this one"
    assert [line.answer and line.answer.result for line in found] == [alone[0], None, alone[1]]
