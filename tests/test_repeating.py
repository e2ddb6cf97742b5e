"""One command line, `ayn train … --resume`, from the first start to the end, however often it is killed in between."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from allyouneed.errors import UserError
from allyouneed.storage import runfolder
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import size_and_hash
from allyouneed.training import trainer as trainer_module
from commands import accept_recipe, ayn, mistake, train
from conftest import TINY_LM, TINY_TRANSLATE
from forking import Server

pytestmark = pytest.mark.usefixtures("elsewhere")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def train_in_child(end: int, within: str, cache: str, arguments: list[str]) -> None:
    """The command, killed right before it changes a file in the folder `within` for the `end`-th time."""
    os.environ["ALLYOUNEED_CACHE"], operations = cache, itertools.count()

    def strike(event: str, about: tuple) -> None:
        opened = event == "open" and isinstance(about[2], int) and about[2] & WRITES
        if opened or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir"):
            mine = isinstance(about[0], str | os.PathLike) and within in os.path.abspath(about[0])
            if mine and next(operations) == end:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(strike)
    Figure.savefig = lambda made, file, **how: file.write(b"a figure")  # type: ignore[method-assign] # takes longest
    done = ayn(*arguments)
    sys.stderr.write(done.err)
    os._exit(done.code)


@pytest.fixture
def killed_at(forking: Server, tmp_path: Path) -> Callable[..., bool]:
    """Run a command in a new process with an empty cache, killed before the change of a file with this number; whether
    it was killed before its end, which is with exit code 0."""
    caches = itertools.count()

    def run(end: int, arguments: tuple[object, ...]) -> bool:
        cache = tmp_path / f"cache {next(caches)}"
        words = [str(word) for word in arguments]
        status = forking.call("test_repeating", "train_in_child", end, str(tmp_path), str(cache), words)
        assert status in (-signal.SIGKILL, 0), (end, status)
        shutil.rmtree(cache, ignore_errors=True)
        return status != 0

    return run


def weights(run: Path) -> dict[str, str]:
    """What must not depend on kills: the model, and the last checkpoint with its optimizer."""
    last = max((run / "checkpoints").glob("step-*"))
    files = [run / "model.safetensors", last / "model.safetensors", last / "train.safetensors"]
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def command(data: Path, out: object) -> tuple[object, ...]:
    return (
        "train", "translate/transformer", "--data", data, "--out", out, *TINY_TRANSLATE, "train.steps=6",
        "train.eval_every=3", "model.dropout=0.1", "train.test_limit=-1", "--resume",
    )  # fmt: skip


@pytest.mark.slow
def test_killed_at_any_early_moment_the_same_command_ends_as_if_never_killed(pairs, tmp_path, killed_at):
    """Before each change of a file: no folder, an empty one, the data half tokenized, the lock, the recipe, …"""
    assert not killed_at(-1, command(pairs, tmp_path / "whole"))
    expected = weights(tmp_path / "whole")
    seen: Counter[str] = Counter()
    states = ("no folder", "checkpoints", "config.json", "recipe.toml", ".lock")
    for end in itertools.count():
        out = tmp_path / f"run {end}"
        if not killed_at(end, command(pairs, out)):
            break
        there = {path.name for path in out.iterdir()} if out.exists() else {"no folder"}
        seen[next((name for name in states if name in there), "empty")] += 1
        assert not killed_at(-1, command(pairs, out))
        assert weights(out) == expected, (end, there)
        shutil.rmtree(out)
    print(f"killed by what there was already: {dict(seen)}")
    assert seen.keys() == {*states, "empty"}


@pytest.mark.slow
def test_killed_again_and_again_the_same_command_ends_as_if_never_killed(pairs, tmp_path, killed_at):
    assert not killed_at(-1, command(pairs, tmp_path / "whole"))
    out, chance, kills = tmp_path / "run", random.Random(0), 0
    while killed_at(chance.randrange(5 + 5 * kills), command(pairs, out)):
        kills += 1
    print(f"killed {kills} times")
    assert kills > 3
    assert weights(out) == weights(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("there", ["no folder", "an empty folder", "a lock", "a recipe"])
def test_where_nothing_has_begun_a_resumed_run_starts(there, story, lm, tmp_path):
    out = tmp_path / "run"
    if there != "no folder":
        out.mkdir()
    if there in ("a lock", "a recipe"):
        (out / ".lock").touch()
        (out / ".tmp-recipe.toml-1").touch()
    if there == "a recipe":
        shutil.copy(lm / "recipe.toml", out)
    start = ("train", "lm/gpt", "--data", story, "--out", "run", *TINY_LM, "--resume")
    done = ayn(*start)
    assert done.code == 0, done.err
    assert done.out.count("there is no checkpoint in run to resume: the training starts from the beginning\n") == 1
    again = ayn(*start)  # as a scheduler does that does not know that it has ended
    assert again.code == 0, again.err
    assert "resumed at step 12 of 12\n" in again.out
    assert "from the beginning" not in again.out


def test_a_folder_with_something_else_is_not_a_run_to_resume(story, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    assert "run is not empty and holds no run" in mistake(*train("lm", story, "--resume", out="run"))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["thesis.txt"]


def test_a_mistake_in_a_resumed_run_that_has_not_begun_leaves_nothing(story, tmp_path):
    assert "[train] has no key" in mistake(*train("lm", story, "--resume", "train.stesp=1", out="run"))
    assert "no.txt" in mistake(*train("lm", "no.txt", "--resume", out="run"))
    assert "exclude each other" in mistake(*train("lm", story, "--resume", "--overwrite", out="run"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("more", [("train.init=donor",), ("--init", "donor"), ("model.size=nano", "model.layers=1")])
def test_a_command_with_a_donor_or_a_size_can_be_repeated(more, story, lm, tmp_path):
    shutil.copytree(lm, tmp_path / "donor")
    tiny = [word for word in TINY_LM if not word.startswith("model.") or "donor" in str(more)]
    for said in ("from the beginning", "resumed at step 12 of 12"):
        done = ayn("train", "lm/gpt", "--data", story, "--out", "run", *tiny, *more, "--resume")
        assert done.code == 0, done.err
        assert said in done.out


@pytest.mark.parametrize(
    "more", [("train.save_every=4",), ("train.average=2",), ("train.save_every=4", "train.average=2")]
)
def test_a_run_resumed_with_fewer_steps_than_it_has_made_ends(more, story, tmp_path, monkeypatch):
    """Its model is there, even if it was never evaluated."""
    step = trainer_module.Trainer._step

    def interrupted(self, work):
        step(self, work)
        if self.at.step == 7:
            os.kill(os.getpid(), signal.SIGINT)

    start = ("train", "lm/gpt", "--data", story, "--out", "run", *TINY_LM, "train.eval_every=100", *more, "--resume")
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module.Trainer, "_step", interrupted)
        assert ayn(*start).code == 130
    (tmp_path / "run" / "model.safetensors").unlink()  # as after kill -9
    done = ayn(*start, "train.steps=5")
    assert done.code == 0, done.err
    assert "resumed at step 7; 5 were asked for\n" in done.out
    assert "of 5\n" not in done.out
    assert ayn("use", "run", "one").code == 0


# The recipe of a run has a checksum


def flip(data: bytes, bits: list[int]) -> bytes:
    changed = bytearray(data)
    for bit in bits:
        changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def test_flipped_bits_in_the_recipe_are_noticed(lm, tmp_path):
    shutil.copytree(lm, tmp_path / "run")
    folder, chance, tried = RunFolder(tmp_path / "run"), random.Random(0), Counter[str]()
    data = folder.recipe.read_bytes()
    digits = [8 * place for place, letter in enumerate(data) if chr(letter).isdigit()]  # 2 becomes 3
    kinds = {"one bit": (range(8 * len(data)), 1), "three bits": (range(8 * len(data)), 3), "digits": (digits, 3)}
    for kind, (among, bits) in kinds.items():
        for _ in range(100):
            folder.recipe.write_bytes(flip(data, chance.sample(among, bits)))
            with pytest.raises(UserError, match=r"recipe\.toml is (damaged|not the file)") as caught:
                folder.read_recipe()
            tried[f"{kind}, {'another recipe' if 'not the file' in str(caught.value) else 'no recipe'}"] += 1
    print(f"flipped bits in recipe.toml: {dict(tried)}")
    assert tried["digits, another recipe"] > 30


def test_an_edited_recipe_is_accepted_as_its_error_says(lm, story, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(lm, run)
    text = (run / "recipe.toml").read_text()
    (run / "recipe.toml").write_text(text.replace("max_new = 5\n", "max_new = 3\n"))
    for command in (("use", run, "one"), ("test", run), ("info", run), ("train", "lm/gpt", "--out", run, "--resume")):
        said = mistake(*command)
        assert "recipe.toml is not the file that config.json lists: it is damaged, edited, or from another run" in said
        assert 'to accept this one, set "recipe" to "" in config.json' in said
    assert "not the file" in mistake(*train("lm", story, "--init", run))
    accept_recipe(run)
    assert ayn("use", run, "one").code == 0
    assert ayn("train", "lm/gpt", "--out", run, "--resume", "train.steps=13").code == 0
    assert "max_new = 3\n" in (run / "recipe.toml").read_text()
    assert ayn("info", run).code == 0
    (run / "recipe.toml").write_text(text)  # from now on it has a checksum again
    assert "not the file" in mistake("info", run)


def test_a_run_without_a_checksum_of_its_recipe_loads(lm, tmp_path):
    """As runs were written before there was one."""
    run = tmp_path / "run"
    shutil.copytree(lm, run)
    config = json.loads((run / "config.json").read_text())
    del config["recipe"]
    (run / "config.json").write_text(json.dumps(config))
    assert ayn("info", run).code == 0
    assert ayn("train", "lm/gpt", "--out", run, "--resume", "train.steps=13").code == 0
    assert (
        json.loads((run / "config.json").read_text())["recipe"]
        == size_and_hash((run / "recipe.toml").read_bytes())["sha256"]
    )
    (run / "config.json").write_text(json.dumps({**config, "recipe": 7}))
    assert "'recipe' is not text" in mistake("info", run)


def test_recipe_and_checksum_agree_wherever_a_resumed_run_is_killed(lm, tmp_path, monkeypatch):
    """The folder as a kill before each write would leave it, while the length of the run is changed."""
    run, snapshots = tmp_path / "run", itertools.count()
    shutil.copytree(lm, run, ignore=shutil.ignore_patterns("loss.png", "metrics.jsonl"))

    def watched(write):
        def before(path, *more):
            if path.parent == run:
                shutil.copytree(run, tmp_path / f"before {next(snapshots)}")
            return write(path, *more)

        return before

    for name in ("write_bytes", "write_json"):
        monkeypatch.setattr(f"allyouneed.storage.runfolder.{name}", watched(getattr(runfolder, name)))
    assert ayn("train", "lm/gpt", "--out", run, "--resume", "train.steps=13").code == 0
    monkeypatch.undo()
    seen = set()
    for path in sorted(tmp_path.glob("before *")):
        seen.add(RunFolder(path).read_recipe().train.steps)
        assert ayn("info", path).code == 0
    assert seen == {12, 13}
    assert next(snapshots) > 3
