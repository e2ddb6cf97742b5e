"""Run folders that are damaged, foreign or in the way: a clear sentence, exit code 2, and nothing lost."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from commands import ayn, contents, mistake, train
from conftest import TINY_LM

pytestmark = pytest.mark.usefixtures("elsewhere")


def test_a_run_that_is_there_is_kept(lm, story):
    before = contents(lm)
    start = ("train", "lm/gpt", "--data", story, "--out", lm, *TINY_LM)
    assert "--resume continues it, --overwrite replaces it" in mistake(*start)
    assert "exclude each other" in mistake(*start, "--resume", "--overwrite")
    assert "[train] has no key" in mistake(*start, "--overwrite", "train.stesp=1")
    assert contents(lm) == before


def test_a_run_is_not_replaced_by_a_mistake(lm, tmp_path):
    shutil.copytree(lm, tmp_path / "run")
    before = contents(tmp_path / "run")
    (tmp_path / "short.txt").write_text("one\ntwo\nsix\n")
    for data in ("nowhere.txt", "short.txt"):
        mistake(*train("lm", data, "--overwrite", out="run"))
    mistake(*train("lm", "short.txt", "text.path=no.json", "--overwrite", out="run"))
    assert contents(tmp_path / "run") == before


@pytest.mark.parametrize(("failure", "code"), [(KeyboardInterrupt, 130), (SystemExit, 1)])
def test_a_run_is_not_replaced_before_the_new_one_stands(failure, code, lm, story, tmp_path, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise failure

    shutil.copytree(lm, tmp_path / "run")
    before = contents(tmp_path / "run")
    monkeypatch.setattr(import_module("allyouneed.training.fit"), "Trainer", fails)
    done = ayn(*train("lm", story, "model.width=32", "--overwrite", out="run"))
    assert (done.code, done.err) == (code, "\nstopped before it began\n")
    assert contents(tmp_path / "run") == before


def test_a_run_without_tensorboard_is_refused_before_anything_is_lost(lm, story, tmp_path, monkeypatch):
    shutil.copytree(lm, tmp_path / "run")
    before = contents(tmp_path / "run")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    said = mistake(*train("lm", story, "train.tensorboard=true", "--overwrite", out="run"))
    assert said == "train.tensorboard = true needs TensorBoard: pip install 'allyouneed[track]'"
    assert contents(tmp_path / "run") == before


def test_a_score_names_the_checkpoint_that_the_model_is(lm, tmp_path, monkeypatch):
    shutil.copytree(lm, tmp_path / "run")
    assert "|step:12" in (tmp_path / "run" / "scores.json").read_text()
    fit = import_module("allyouneed.training.fit")
    conclude = fit._conclude

    def killed(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(fit, "_conclude", killed)
    done = ayn("train", "lm/gpt", "--out", "run", "--resume", "train.steps=40")
    assert done.code == 143
    assert done.err.endswith("continue with:\n  ayn train lm/gpt --out run --resume\n")
    assert not (tmp_path / "run" / "scores.json").exists()  # those of another model
    assert "|step:40)" in ayn("test", "run").out
    monkeypatch.setattr(fit, "_conclude", conclude)
    done = ayn(
        "train", "lm/gpt", "--out", "run", "--resume", "train.average=2", "train.checkpoints=2", "train.steps=44"
    )
    assert "|step:mean of 40, 44)" in done.out, done.out


@pytest.mark.slow
def test_a_disk_that_is_full_when_the_image_is_drawn(story, tmp_path):
    words = shlex.join(map(str, [sys.executable, "-m", "allyouneed", *train("lm", story, out="run")]))
    done = subprocess.run(["bash", "-c", f"ulimit -f 40; {words}"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 2, done.stderr
    assert "the disk is full: could not write run/loss.png" in done.stderr
    assert "Traceback" not in done.stderr
    done = ayn("train", "lm/gpt", "--out", "run", "--resume")  # there is space again
    assert done.code == 0, done.err
    assert (tmp_path / "run" / "scores.json").exists()


def test_a_mistake_mended_is_no_second_mistake(story, pairs):
    for data in ("nowhere.txt", "corpuss", "phrasebook"):
        mistake(*train("lm", data, out="run"))
    mistake(*train("lm", story, "model.context=100000", out="run"))
    assert not Path("run").exists()  # nor does it leave an empty folder
    Path("run").mkdir()
    mistake(*train("lm", "nowhere.txt", out="run"))
    assert Path("run").exists()  # unless that was there before
    assert ayn(*train("lm", story, out="run")).code == 0


def test_where_no_run_can_be(story, tmp_path):
    (tmp_path / "file").write_text("mine")
    start = ("train", "lm/gpt", "--data", story, *TINY_LM, "--out")
    assert "is a file; a run needs a folder" in mistake(*start, tmp_path / "file")
    assert "Not a directory" in mistake(*start, tmp_path / "file" / "run")
    assert "holds no run; choose another folder" in mistake(*start, tmp_path)
    assert (tmp_path / "file").read_text() == "mine"


def test_resume_goes_on_with_what_the_run_began_with(lm, story, pairs, tmp_path):
    shutil.copytree(lm, tmp_path / "run")
    again = ("train", "lm/gpt", "--out", "run", "--resume")
    before = contents(tmp_path / "run")
    assert "model.width was 16 when the run in run began, and cannot become 32" in mistake(*again, "model.width=32")
    assert "pairs.tsv is not the data that the run in run began with" in mistake(*again, "--data", pairs)
    assert "is a gpt for lm" in mistake("train", "translate/transformer", "--out", "run", "--resume")
    assert "there is no recipe 'lm/gtp'" in mistake("train", "lm/gtp", "--out", "run", "--resume")
    assert contents(tmp_path / "run") == before
    done = ayn(*again, "--data", story, *TINY_LM, "train.steps=14")
    assert done.code == 0, done.err
    assert "resumed at step 12 of 14" in done.out


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(lm, tmp_path):
    shutil.copytree(lm, tmp_path / "run")
    damaged = tmp_path / "run" / "checkpoints" / "step-000012" / "train.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    done = ayn("train", "lm/gpt", "--out", "run", "--resume", "train.steps=14")
    assert done.code == 0, done.err
    assert "checkpoints/step-000012/train.safetensors is damaged" in done.out
    assert "resumed at step 8 of 14" in done.out


def test_when_every_checkpoint_is_damaged(lm, tmp_path):
    shutil.copytree(lm, tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("*/model.safetensors"):
        path.write_bytes(b"")
    said = mistake("train", "lm/gpt", "--out", "run", "--resume", "train.steps=14")
    assert "step-000012/model.safetensors is damaged" in said
    assert "step-000008/model.safetensors is damaged" in said


def test_a_run_that_is_not_there(lm, story, tmp_path):
    assert mistake("use", lm.with_name("ml"), "one").endswith("ml; did you mean 'lm'?")
    assert mistake("info", "nowhere/nothing") == "there is no run folder nowhere/nothing"
    assert "is a file; a run is a folder" in mistake("test", lm / "model.safetensors")
    assert "it has no recipe.toml" in mistake("info", tmp_path)


def cut(path: Path) -> None:
    """The first half, up to an open quote: a recipe that ends after a line is still one."""
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(half if half.count(b'"') % 2 else half[: half.rindex(b'"')])


HARM: dict[str, Callable[[Path], object]] = {
    "cut": cut,
    "empty": lambda path: path.write_bytes(b""),
    "not text": lambda path: path.write_bytes(b"\xff\xfe\0"),
    "gone": lambda path: path.unlink(),
    "one bit": lambda path: path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1])),
}


@pytest.mark.parametrize("harm", HARM)
@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "recipe.toml", "tokenizer.json"])
def test_a_damaged_run_names_the_file(file, harm, lm, tmp_path):
    shutil.copytree(lm, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    HARM[harm](tmp_path / "run" / file)
    for command in (["use", "run", "one"], ["test", "run"], ["info", "run"]):
        said = mistake(*command)
        assert file in said or (file, harm) == ("model.safetensors", "gone")


def test_files_of_two_runs_do_not_fit(lm, translator, tmp_path):
    shutil.copytree(lm, tmp_path / "run")
    shutil.copy(translator / "tokenizer.json", tmp_path / "run")
    assert "tokenizer.json is damaged, or belongs to another run" in mistake("use", "run", "one")
    (tmp_path / "run" / "config.json").write_text("[]")
    assert "config.json is damaged" in mistake("info", "run")


def test_damaged_scores_stop_only_those_who_need_them(lm, tmp_path):
    shutil.copytree(lm, tmp_path / "run")
    for text in ("{", "[]", "5"):
        (tmp_path / "run" / "scores.json").write_text(text)
        assert ayn("use", "run", "one").code == 0
        for command in ("test", "info"):
            assert "scores.json is damaged" in mistake(command, "run")
    (tmp_path / "run" / "scores.json").unlink()
    assert ayn("test", "run").code == 0


def test_a_damaged_config_does_not_break_a_resumed_run(lm, tmp_path):
    shutil.copytree(lm, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{")
    assert "config.json is damaged" in mistake("train", "lm/gpt", "--out", "run", "--resume")
