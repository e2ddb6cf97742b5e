"""TAB: commands, recipes, runs, data sets and settings, quickly and without torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from allyouneed.cli import app
from allyouneed.cli import listing as listing_module
from allyouneed.cli.completing import answer
from allyouneed.data.registry import listing
from allyouneed.nn.heads import POOLS
from allyouneed.recipe import recipe_names
from test_house import seconds

Tab = Callable[..., list[str]]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with runs, and with other folders and files."""
    for run in ("runs/first", "runs/second one", "other"):
        (tmp_path / run).mkdir(parents=True)
        (tmp_path / run / "recipe.toml").touch()
    (tmp_path / "runs" / "empty").mkdir()
    (tmp_path / "ruins").mkdir()
    (tmp_path / "corpus.txt").touch()
    return tmp_path


def asked(shell: str, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "allyouneed"],
        env={**os.environ, "_AYN_COMPLETE": f"complete_{shell}", **more},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture
def tab(folder: Path) -> Tab:
    """The words that bash gets for a command line; the last one is unfinished. Bash takes "=" for a word of its own."""

    def press(*words: str) -> list[str]:
        done = asked("bash", folder, COMP_WORDS="\n".join(["ayn", *words]), COMP_CWORD=str(len(words)))
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout.splitlines()

    return press


def test_commands_and_options(tab: Tab) -> None:
    assert tab("") == [
        *("train", "test", "use", "look", "serve", "import", "export", "info", "lecture", "exercise", "list")
    ]
    assert tab("tr") == ["train"]
    assert tab("train", "--res") == ["--resume"]
    assert tab("--deb") == ["--debug"]
    assert tab("nothing", "") == []


def test_recipes(tab: Tab) -> None:
    assert tab("train", "") == recipe_names()
    assert tab("train", "tr") == [name for name in recipe_names() if name.startswith("translate/")]
    assert tab("train", "--resume", "--out", "x", "lm/gp") == ["lm/gpt"]
    assert tab("list", "settings", "wordvectors/s") == ["wordvectors/skipgram"]


def test_runs(tab: Tab) -> None:
    assert tab("export", "runs/first", "out", "--to", "o") == ["onnx"]
    for command in (
        ["use"],
        ["test"],
        ["info"],
        ["export"],
        ["train", "lm/gpt", "--init"],
        ["lecture", "wordmap", "--run"],
    ):
        assert tab(*command, "ru") == ["runs/first", r"runs/second\ one"]
    assert tab("use", "") == ["other", "runs/first", r"runs/second\ one"]
    assert tab("use", "runs/s") == [r"runs/second\ one"]
    assert tab("use", "nowhere/x") == []
    assert tab("use", "other", "--alignment", "") == []  # a file: the shell completes it


def test_data_sets_and_files_beside_them(tab: Tab) -> None:
    assert tab("train", "lm/gpt", "--data", "") == [row.name for row in listing()]
    assert tab("train", "lm/gpt", "--data", "cor") == ["corpus", "corpus.txt"]
    assert tab("test", "other", "--data", "ru") == []  # only files: the shell completes them


def test_settings_and_their_values(tab: Tab) -> None:
    assert tab("train", "lm/gpt", "train.m") == ["train.minutes=", "train.momentum=", "train.min_lr="]
    assert {"model.heads=", "model.positions=", "model.size=", "model.kind="} <= set(tab("train", "lm/gpt", "model."))
    assert "model.heads=" not in tab("train", "lm/rnn", "model.")
    assert "model.cell=" in tab("train", "lm/gpt", "model.kind", "=", "rnn", "model.")
    assert tab("train", "translate/rnn", "task.te") == ["task.teacher_forcing=", "task.teacher_schedule="]
    schedules = ["constant", "linear", "sigmoid"]
    assert tab("train", "translate/rnn", "task.teacher_s") == [f"task.teacher_schedule={name}" for name in schedules]
    assert tab("train", "lm/gpt", "train.precision", "=") == ["auto", "fp32", "tf32", "bf16"]
    assert tab("train", "lm/gpt", "train.lr", "=", "1e-3", "train.precision", "=", "b") == ["bf16"]
    assert tab("train", "lm/gpt", "model.size", "=", "gpt2-m") == ["gpt2-medium"]
    assert tab("train", "lm/gpt", "text.lowercase", "=", "t") == ["true"]
    assert tab("train", "no/recipe", "train.precision", "=", "b") == ["bf16"]
    assert tab("test", "other", "decode.al") == ["decode.alpha="]
    assert tab("use", "other", "--set", "method", "=", "b") == ["beam"]
    assert tab("use", "other", "--precision", "t") == ["tf32"]
    assert tab("use", "other", "text", "--pool", "m") == ["mean", "max"]
    assert set(tab("use", "other", "--pool", "")) == set(POOLS)
    assert tab("list", "s") == ["settings"]
    assert tab("list", "le") == ["lectures"]
    assert tab("list", "lectures", "") == []
    assert tab("lecture", "gr") == ["gradients"]


def test_zsh_and_fish_get_whole_words(folder: Path) -> None:
    typed = {"_TYPER_COMPLETE_ARGS": "ayn train lm/gpt train.precision=b"}
    assert asked("zsh", folder, **typed).stdout == "_arguments '*: :((\"train.precision=bf16\"))'\n"
    assert asked("zsh", folder, _TYPER_COMPLETE_ARGS="ayn use nowhere/").stdout == "_files\n"
    (folder / "it's").mkdir()
    (folder / "it's" / "recipe.toml").touch()
    assert asked("zsh", folder, _TYPER_COMPLETE_ARGS="ayn use it").stdout == "_files\n"  # zsh would evaluate it
    fish = {**typed, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert asked("fish", folder, **fish).stdout == "train.precision=bf16\n"
    fish["_TYPER_COMPLETE_FISH_ACTION"] = "is-args"
    assert asked("fish", folder, **fish).returncode == 0
    fish["_TYPER_COMPLETE_ARGS"] = "ayn use nowhere/"
    assert asked("fish", folder, **fish).returncode == 1


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_bash_asks_through_the_script_that_is_installed(folder: Path) -> None:
    program = folder / "bin" / "ayn"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m allyouneed "$@"\n')
    program.chmod(0o755)
    lines = """
        ayn --install-completion > /dev/null
        source ~/.bashrc
        COMP_WORDS=(ayn train lm/gpt train.precision = b) COMP_CWORD=5
        _ayn_completion ayn
        printf '%s\\n' "${COMPREPLY[@]}"
        complete -p ayn
    """
    env = {**os.environ, "HOME": str(folder), "PATH": f"{program.parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", lines], env=env, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["bf16", "complete -o default -F _ayn_completion ayn"], done
    assert done.stderr == ""


def test_nothing_that_is_typed_is_an_error(tab: Tab, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    for words in (["train", "'lm", ""], ["train", "=", "="], ["", "=", "x"], ["use", "\\"], ["-", "-", "--x="]):
        tab(*words)
    monkeypatch.setenv("COMP_CWORD", "many")
    assert answer(typer.main.get_command(app), "bash") == 0
    assert capsys.readouterr().out == ""


def test_it_is_quick_and_brings_no_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_AYN_COMPLETE", "complete_bash")
    for typed in (["train", "translate/transformer", "model."], ["train", "lm/gpt", "--data", ""]):
        monkeypatch.setenv("COMP_WORDS", "\n".join(["ayn", *typed]))
        monkeypatch.setenv("COMP_CWORD", str(len(typed)))
        assert seconds("-m", "allyouneed") < 0.5  # torch alone takes longer
        program = (
            "import sys, atexit, os; from allyouneed.cli import main;"
            "atexit.register(lambda: os._exit('torch' in sys.modules)); main()"
        )
        assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


def test_the_settings_of_tasks_and_models_are_those_of_their_classes() -> None:
    kept = json.loads(Path(listing_module.__file__).with_name(listing_module.SETTINGS).read_text(encoding="utf-8"))
    found = json.loads(json.dumps(listing_module.values_of_kinds()))
    assert kept == found, "write it again: allyouneed.cli.listing.write_settings()"


def test_a_name_that_would_steer_the_terminal_is_not_offered(folder, tab):
    for run in ("runs/th\x1b]0;ird", "runs/fou\nrth"):
        (folder / run).mkdir()
        (folder / run / "recipe.toml").touch()
    assert tab("info", "runs/") == ["runs/first", r"runs/second\ one"]
