"""A run that replaces another: at every moment one of the two is there, complete, and nothing else is touched."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import write_bytes
from commands import ayn, contents, mistake, train
from test_runfolder import ABOUT, Say, leftovers, start

pytestmark = pytest.mark.usefixtures("elsewhere")


def hold(function: str, when: str, *arguments: object, cwd: Path | None = None) -> subprocess.Popen[str]:
    """`ayn …` in a process of its own, which stops before or after a function of fit.py until there is a file `go`."""
    cwd = cwd or Path.cwd()
    program = f"""
import sys, time
from pathlib import Path
from allyouneed import cli
from allyouneed.training import fit

real = fit.{function}

def held(*arguments, **named):
    result = real(*arguments, **named) if "{when}" == "after" else None
    Path("here").touch()
    while not Path("go").exists():
        time.sleep(0.02)
    return result or real(*arguments, **named)

fit.{function} = held
sys.argv = ["ayn", *{[str(a) for a in arguments]!r}]
cli.main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", program], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 120
    while not (cwd / "here").exists():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


@pytest.mark.slow
def test_a_run_that_came_in_the_meantime_is_not_replaced(story, tmp_path):
    slow = hold("Session._prepare", "after", *train("lm", story, out="run"))
    assert ayn(*train("lm", story, "train.seed=2", out="run")).code == 0
    before = contents(tmp_path / "run")
    Path("go").touch()
    said = slow.communicate(timeout=120)[0]
    assert slow.returncode == 2, said
    assert "ayn: run already holds a run: --resume continues it, --overwrite replaces it" in said
    after = contents(tmp_path / "run")
    lock = str(tmp_path / "run" / ".lock")
    assert {**after, lock: ""} == {**before, lock: ""}


@pytest.fixture(scope="module")
def killed_once(lm, story, tmp_path_factory) -> tuple[Path, dict[str, str]]:
    """A run, without its lock, that was being replaced when kill -9 came: the new one was building its model. And what
    it held before."""
    folder = tmp_path_factory.mktemp("killed")
    shutil.copytree(lm, folder / "run")
    (folder / "run" / ".lock").unlink()
    (folder / "run" / "notes.txt").write_text("mine")
    before = without_lock(folder / "run")
    replacing = train("lm", story, "model.width=32", "--overwrite", out="run")
    process = hold("Session._trainer", "before", *replacing, cwd=folder)
    assert without_lock(folder / "run") != before
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    return folder / "run", before


@pytest.fixture
def killed(killed_once, tmp_path) -> dict[str, str]:
    """A copy of it in the folder of the test; what it held before."""
    run, before = killed_once
    shutil.copytree(run, tmp_path / "run")
    return before


def without_lock(run: Path) -> dict[str, str]:
    """The hash of every file, by its name."""
    return {path.removeprefix(f"{run}/"): digest for path, digest in contents(run).items() if ".lock" not in path}


COMMANDS = {
    "use": lambda story: ayn("use", "run", "one"),
    "info": lambda story: ayn("info", "run"),
    "train": lambda story: ayn(*train("lm", story, out="run")),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_whose_replacement_was_killed_comes_back(name, killed, story, tmp_path):
    done = COMMANDS[name](story)
    assert done.code == (2 if name == "train" else 0), done.err
    assert name != "train" or "already holds a run" in done.err
    assert without_lock(tmp_path / "run") == killed


@pytest.mark.slow
def test_a_run_whose_replacement_was_killed_is_resumed(killed, tmp_path):
    done = ayn("train", "lm/gpt", "--out", "run", "--resume", "train.steps=14")
    assert done.code == 0, done.err
    assert "resumed at step 12 of 14" in done.out
    assert (tmp_path / "run" / "notes.txt").read_text() == "mine"


@pytest.mark.slow
def test_a_run_whose_replacement_was_killed_can_be_replaced(killed, story, tmp_path):
    assert ayn(*train("lm", story, "model.width=32", "--overwrite", out="run")).code == 0
    assert "width = 32" in (tmp_path / "run" / "recipe.toml").read_text()
    assert leftovers(tmp_path / "run") == []


@pytest.mark.slow
def test_a_replacement_under_way_is_left_alone(lm, story, tmp_path):
    shutil.copytree(lm, tmp_path / "run")
    process = hold("Session._trainer", "before", *train("lm", story, "model.width=32", "--overwrite", out="run"))
    assert "has no model yet" in mistake("use", "run", "one")
    Path("go").touch()
    said = process.communicate(timeout=120)[0]
    assert process.returncode == 0, said
    assert ayn("use", "run", "one").code == 0
    assert "width = 32" in (tmp_path / "run" / "recipe.toml").read_text()


OLD = {"tokenizer.json": b"old", "labels.json": b"old"}
NEW = {"tokenizer.json": b"new", "table.json": b"new"}


def write(run: RunFolder, parts: dict[str, bytes]) -> None:
    """A run whose every file says which one it is."""
    word = parts["tokenizer.json"]
    run.describe(word.decode(), {**ABOUT, "task": word.decode()}, parts)
    write_bytes(run.model, word)
    run.record([run.path / f"{word.decode()}.png"])
    write_bytes(run.path / f"{word.decode()}.png", word)
    (run.path / "checkpoints").mkdir()
    (run.path / "checkpoints" / "file").write_bytes(word)


@pytest.mark.slow
def test_kill_before_each_file_operation_leaves_the_old_run_or_the_new_one(tmp_path):
    def replace(path: Path, say: Say, end: int) -> None:
        operations = itertools.count()

        def strike(event: str, _: object) -> None:
            if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and next(operations) == end:
                os.kill(os.getpid(), signal.SIGKILL)

        run = RunFolder.create(path, overwrite=True)
        with run.lock():
            sys.addaudithook(strike)
            with run.replacing():
                write(run, NEW)
        say("done")

    def restore(path: Path, say: Say, end: int) -> None:
        """The next process is killed too, while it brings the old run back."""
        operations = itertools.count()

        def strike(event: str, _: object) -> None:
            if event == "os.rename" and next(operations) == end:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(strike)
        RunFolder(path).recover()

    seen = set()
    for end in itertools.count():
        path = tmp_path / str(end)
        run = RunFolder.create(path)
        with run.lock():
            write(run, OLD)
        (path / "notes.txt").write_text("mine")
        old = without_lock(path)
        child, lines = start(lambda say, path=path, end=end: replace(path, say, end))
        with lines:
            said = lines.read()
        os.waitpid(child, 0)
        child, lines = start(lambda say, path=path, end=end: restore(path, say, end % 7))
        with lines:
            lines.read()
        os.waitpid(child, 0)
        with run.lock():
            assert leftovers(path) == []
        assert (path / "notes.txt").read_text() == "mine"
        word = run.recipe.read_text()
        seen.add(word)
        if word == "old":
            assert without_lock(path) == old, end
            assert run.read_parts() == OLD
        else:
            assert run.read_parts() == NEW
            assert not (path / "labels.json").exists()
            assert not (path / "old.png").exists()
            assert {(path / name).read_bytes() for name in ("new.png", "checkpoints/file")} == {b"new"}
        if said:
            break
    assert end > 40
    assert seen == {"old", "new"}
