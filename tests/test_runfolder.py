"""The run folder: writes that are whole or not there, checkpoints that verify, one writer at a time."""

from __future__ import annotations

import fcntl
import itertools
import math
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest
import torch

from allyouneed.errors import UserError
from allyouneed.storage.checkpoints import Checkpoint
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import write_text

Say = Callable[[object], object]
ABOUT = {
    "task": "lm",
    "options": {},
    "kind": "gpt",
    "model": {},
    "data": {"name": "x", "fingerprint": "y"},
    "followed": [],
    "versions": {},
}


def content(step: int) -> tuple[dict, dict, dict]:
    """What a checkpoint holds is a function of its step, so any mixture of two steps shows."""
    model = {"a": torch.full((200, 100), float(step)), "b": torch.arange(step, step + 5000)}
    return model, {"optimizer/a": -model["a"]}, {"step": step, "text": "x" * (step % 50)}


def save(run: RunFolder, step: int) -> Path:
    return run.checkpoints.save(step, *content(step))


def check(run: RunFolder, step: int) -> None:
    """`latest` is this step, without complaints, and holds what was saved."""
    complaints: list[str] = []
    found = run.checkpoints.latest(complaints.append)
    assert found is not None
    assert (found.step, complaints) == (step, [])
    same(found)


def same(found: Checkpoint) -> None:
    model, train, state = content(found.step)
    assert found.state == state
    for tensors, expected in ((found.model(), model), (found.train(), train)):
        assert tensors.keys() == expected.keys()
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def leftovers(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob(".*") if path.name != ".lock"]


def start(action: Callable[[Say], None]) -> tuple[int, IO[str]]:
    """Run `action` in a child process: its id, and the lines it says."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action(lambda line: os.write(writer, f"{line}\n".encode()))
        finally:
            os._exit(0)
    os.close(writer)
    return child, open(reader)


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])


def a_run(path: Path) -> RunFolder:
    run = RunFolder.create(path)
    write_text(run.recipe, "[task]\n")
    with run.lock():
        return run


def replace(path: Path) -> None:
    """As a run that begins again does."""
    run = RunFolder.create(path, overwrite=True)
    with run.lock(), run.replacing():
        pass


# Which folders a run may take


def test_a_run_starts_in_a_fresh_or_empty_folder(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path / "a" / "b").path.is_dir()
    run = RunFolder.create(tmp_path / "a" / "b")
    with run.lock():  # killed before it wrote anything whole
        (run.path / ".tmp-recipe.toml-1").touch()
    (run.path / ".tmp-recipe.toml-1").touch()
    RunFolder.create(run.path)
    assert run.checkpoints.latest() is None
    assert run.checkpoints.steps() == []


def test_a_folder_that_holds_a_run_asks_for_a_decision(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    save(run, 3)
    with pytest.raises(UserError, match=r"already holds a run: resume=True .* overwrite=True"):
        RunFolder.create(tmp_path)
    with pytest.raises(UserError, match="exclude each other"):
        RunFolder.create(tmp_path, resume=True, overwrite=True)
    check(RunFolder.create(tmp_path, resume=True), 3)
    run.describe("[task]\n", ABOUT, {"tokenizer.json": b"{}", "anything": b"\0"})
    own, foreign = ("loss.png", "vectors.txt"), ("notes.txt", "vectors.bin", "labels.json", "tokenizer.target.json")
    for path in (run.model, run.metrics, run.scores, *(tmp_path / name for name in (*own, *foreign))):
        path.touch()
    (tmp_path / "tensorboard").mkdir()
    run.record([tmp_path / name for name in own])
    replace(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", *sorted(foreign)]


def test_a_run_that_is_replaced_comes_back_if_the_new_one_does_not_begin(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    save(run, 3)

    def interrupted() -> None:
        with run.lock(), run.replacing():
            assert run.checkpoints.latest() is None
            write_text(run.recipe, "new")
            run.metrics.touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    check(RunFolder.create(tmp_path, resume=True), 3)
    assert run.recipe.read_text() == "[task]\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "checkpoints", "recipe.toml"]


def test_nothing_is_written_through_a_link_in_the_place_of_the_checkpoints(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run")
    other = a_run(tmp_path / "other")
    save(other, 1)
    (tmp_path / "other" / "checkpoints" / ".old-step-000000").mkdir()
    (run.path / "checkpoints").symlink_to(tmp_path / "other" / "checkpoints")
    for attempt in (lambda: save(run, 2), lambda: run.lock().__enter__(), lambda: replace(run.path)):
        with pytest.raises(UserError, match="run/checkpoints is a symbolic link"):
            attempt()
    check(other, 1)
    assert len(leftovers(other.path)) == 1


@pytest.mark.parametrize("names", [("thesis.txt",), ("recipe.toml", "data.tsv"), ("checkpoints", "thesis.txt")])
def test_a_foreign_folder_is_never_touched(tmp_path: Path, names: tuple[str, ...]) -> None:
    for name in names:
        (tmp_path / name).write_text("mine")
    for how in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(UserError, match="holds no run"):
            RunFolder.create(tmp_path, **how)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == dict.fromkeys(names, "mine")


def test_resuming_nothing_makes_a_folder(tmp_path: Path) -> None:
    assert RunFolder.create(tmp_path / "gone", resume=True).path.is_dir()
    run = RunFolder.create(tmp_path / "gone", resume=True)  # now it is empty
    with run.lock():
        pass
    (run.path / ".tmp-recipe.toml-1").touch()
    assert not RunFolder.create(run.path, resume=True).begun()


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(UserError, match="file is a file"):
            RunFolder.create(tmp_path / "file", **options)


# One writer


def test_only_one_process_may_write_and_kill_frees_the_lock(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    save(run, 1)

    # The child forks, as data workers do; the grandchild outlives it and must not keep the run locked.
    def hold(say: Say) -> None:
        with RunFolder(tmp_path).lock():
            worker = os.fork()
            if worker:
                say(worker)
            time.sleep(60)

    child, lines = start(hold)
    with lines:
        worker = int(lines.readline())
    try:
        for attempt in (lambda: run.lock().__enter__(), lambda: replace(tmp_path)):
            with pytest.raises(UserError, match=f"{tmp_path} is in use by process {child}:"):
                attempt()
        check(run, 1)
        kill(child)
        with run.lock():
            check(run, 1)
    finally:
        os.kill(worker, signal.SIGKILL)


def test_the_lock_ends_with_its_block(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    with run.lock(), pytest.raises(UserError, match=f"process {os.getpid()}"), RunFolder(tmp_path).lock():
        pass
    with pytest.raises(ZeroDivisionError), run.lock():
        1 / 0  # noqa: B018
    with run.lock():
        pass


def test_a_folder_with_nothing_but_a_lock_is_removed(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run")
    with run.lock():
        run.drop_if_empty()  # in use
        assert run.path.is_dir()
    run.drop_if_empty()
    assert not run.path.exists()
    run = a_run(tmp_path / "other")
    before = sorted(run.path.rglob("*"))
    run.drop_if_empty()
    assert sorted(run.path.rglob("*")) == before


def test_the_lock_of_a_removed_folder_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder goes away after the lock file was opened, and before it is locked."""
    run = RunFolder.create(tmp_path / "run")

    def removed(handle: int, how: int) -> None:
        if (run.path / ".lock").exists():
            (run.path / ".lock").unlink()
        flock(handle, how)

    flock = fcntl.flock
    monkeypatch.setattr(fcntl, "flock", removed)
    with pytest.raises(UserError, match="has just been removed by another process: try again"), run.lock():
        pass
    monkeypatch.undo()
    with run.lock():
        pass


# Checkpoints


def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    assert save(run, 800) == tmp_path / "checkpoints" / "step-000800"
    save(run, 1_000_000)
    assert run.checkpoints.steps() == [800, 1_000_000]
    check(run, 1_000_000)
    state = {"best": -math.inf, "pi": math.pi, "list": [1, None, "è"]}
    run.checkpoints.save(1_000_001, {}, {}, state)
    found = run.checkpoints.latest()
    assert (found.state, found.model(), found.train()) == (state, {}, {})


def test_a_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    run.checkpoints.save(5, {"a": torch.zeros(3)}, {}, {})
    save(run, 5)
    check(run, 5)
    assert leftovers(tmp_path) == []


def test_a_replacement_killed_between_its_renames_is_finished(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    folder = save(run, 5)
    folder.rename(folder.with_name(".tmp-step-000005"))
    (tmp_path / "checkpoints" / ".old-step-000005").mkdir()
    with run.lock():
        check(run, 5)
    assert leftovers(tmp_path) == []


def test_leftovers_go_when_the_lock_is_taken_and_not_while_another_writes(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    save(run, 1)
    for name in (".tmp-step-000002", ".old-step-000000"):
        (tmp_path / "checkpoints" / name).mkdir()
        (tmp_path / "checkpoints" / name / "model.safetensors").touch()
    (tmp_path / ".tmp-scores.json-77").touch()
    check(run, 1)
    assert len(leftovers(tmp_path)) == 3
    with run.lock():
        assert leftovers(tmp_path) == []
        check(run, 1)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    path.write_bytes(data)


HARM: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: os.truncate(path, path.stat().st_size - 1), "is damaged (size differs)"),
    (lambda path: os.truncate(path, 0), "is damaged (size differs)"),
    (flip, "is damaged (sha256 differs)"),
    (Path.unlink, "is missing"),
    (lambda path: (path.unlink(), path.mkdir()), "cannot be read (it is not a plain file)"),
]
GARBAGE = [b"", b"{", b"\xff\xfe", b"[]", b"{}", b"null", b'{"model.safetensors": 3}']
CASES = [(file, *harm) for harm in HARM for file in ("model.safetensors", "train.safetensors", "state.json")]
CASES += [("manifest.json", *harm) for harm in HARM[3:]]
CASES += [
    ("manifest.json", lambda path, data=data: path.write_bytes(data), "is damaged (not a manifest)") for data in GARBAGE
]


@pytest.mark.parametrize(("file", "harm", "expected"), CASES)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, file: str, harm: Callable[[Path], object], expected: str
) -> None:
    run = a_run(tmp_path)
    for step in (400, 600, 800):
        save(run, step)
    harm(tmp_path / "checkpoints" / "step-000800" / file)
    complaints: list[str] = []
    found = run.checkpoints.latest(complaints.append)
    assert found.step == 600
    same(found)
    assert complaints == [f"checkpoints/step-000800/{file} {expected}; using step 600 instead"]


def test_when_no_checkpoint_verifies_all_are_named(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    flip(save(run, 1) / "model.safetensors")
    (save(run, 2) / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"step-000002/manifest.json is missing; .*step-000001/model.safetensors is "):
        run.checkpoints.latest()


def test_checkpoints_after_the_one_resumed_from_do_not_crowd_out_the_good_ones(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    for step in (600, 800, 1000):
        save(run, step)
    for step in (800, 1000):
        flip(tmp_path / "checkpoints" / f"step-{step:06d}" / "model.safetensors")
    assert run.checkpoints.latest(lambda complaint: None).step == 600
    save(run, 700)
    run.checkpoints.prune(last=2)
    assert run.checkpoints.steps() == [600, 700]
    check(run, 700)


def test_steps_are_in_the_order_of_numbers_not_of_names(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    for step in (999_999, 1_000_000):
        save(run, step)
    assert run.checkpoints.steps() == [999_999, 1_000_000]
    check(run, 1_000_000)
    run.checkpoints.prune(last=1)
    assert run.checkpoints.steps() == [1_000_000]


def test_pruning_keeps_the_last_and_the_chosen(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    for step in range(1, 7):
        save(run, step)
    run.checkpoints.prune(last=2, also={1, 3, 99})
    assert run.checkpoints.steps() == [1, 3, 5, 6]
    run.checkpoints.prune(last=10)
    assert run.checkpoints.steps() == [1, 3, 5, 6]
    check(run, 6)
    assert leftovers(tmp_path) == []


def test_kill_at_any_moment_loses_nothing_that_was_confirmed(tmp_path: Path) -> None:
    run = a_run(tmp_path)
    chance = random.Random(1)
    confirmed = interrupted = 0
    for _ in range(25):
        child, lines = start(lambda say: write_on(run, say))
        with lines:
            said = [lines.readline() for _ in range(chance.randint(1, 4))]  # however slow the machine is today
            time.sleep(chance.uniform(0.0, 0.02))
            kill(child)
            confirmed = max([confirmed, *map(int, said + lines.readlines())])
        interrupted += bool(leftovers(tmp_path))
        with run.lock():
            assert leftovers(tmp_path) == []
            found = run.checkpoints.latest(pytest.fail)
            assert (found.step if found else 0) >= confirmed
            if found:
                same(found)
    assert confirmed > 25
    assert interrupted


def write_on(run: RunFolder, say: Say) -> None:
    """Save, now and then save again, and prune, forever. A step counts as confirmed once it is said."""
    say(0)
    with run.lock():
        found = run.checkpoints.latest()
        for step in itertools.count(found.step + 1 if found else 1):
            for _ in range(1 + step % 2):
                save(run, step)
            say(step)
            run.checkpoints.prune(last=2)


@pytest.mark.slow
def test_kill_before_each_file_operation_loses_nothing(tmp_path: Path) -> None:
    def replace_and_go_on(run: RunFolder, say: Say, end: int) -> None:
        operations = itertools.count()

        def strike(event: str, _: object) -> None:
            if event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and next(operations) == end:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(strike)
        save(run, 2)
        save(run, 3)
        say(3)
        run.checkpoints.prune(last=1)
        say("done")

    for end in itertools.count():
        run = RunFolder.create(tmp_path / str(end))
        save(run, 2)
        child, lines = start(lambda say, run=run, end=end: replace_and_go_on(run, say, end))
        with lines:
            said = lines.read().split()
        os.waitpid(child, 0)
        with run.lock():
            found = run.checkpoints.latest(pytest.fail)
        assert found is not None
        assert found.step >= (3 if said else 2)
        same(found)
        assert leftovers(run.path) == []
        if "done" in said:
            break
    assert end > 20


@pytest.mark.parametrize("name", ["caf\udce9", "a\0b"])
def test_a_folder_whose_name_no_file_can_hold_is_refused(name: str, tmp_path: Path) -> None:
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(UserError, match=r"has a name that is not UTF-8, or has a zero byte: choose another"):
            RunFolder.create(tmp_path / name, **options)
    assert list(tmp_path.iterdir()) == []


def test_importing_the_run_folder_does_not_import_torch() -> None:
    code = "import sys, allyouneed.storage.runfolder; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
