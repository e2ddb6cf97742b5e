"""`ayn …` inside this process, where a process of its own is not what is tested; and one small run of each task."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from allyouneed import cli
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.storage.wholefile import size_and_hash, write_json, write_tensors
from conftest import TINY_ELMO, TINY_LM, TINY_TRANSLATE


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


def ayn(*arguments: object) -> Done:
    """`main` itself, so that a traceback is a traceback here, too."""
    out, err, code, before = io.StringIO(), io.StringIO(), 0, sys.argv
    sys.argv = ["ayn", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        sys.argv = before
    return Done(code, out.getvalue(), err.getvalue())


@cache
def trained(task: str, data: Path) -> Path:
    """A run of "lm", "translate" or "elmo", made once."""
    recipe, tiny = {
        "lm": ("lm/gpt", TINY_LM),
        "translate": ("translate/transformer", TINY_TRANSLATE),
        "elmo": ("lm/elmo", TINY_ELMO),
    }[task]
    out = data.parent / f"runs of {task}" / task
    done = ayn("train", recipe, "--data", data, "--out", out, *tiny)
    assert done.code == 0, done.err
    return out


def mistake(*arguments: object) -> str:
    """What is said of a mistake: one sentence."""
    done = ayn(*arguments)
    assert done.code == 2, done
    assert "Traceback" not in done.err
    lines = done.err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("ayn: ")
    return lines[0].removeprefix("ayn: ")


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder by its hash."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def reseal(run: Path) -> None:
    """Make the checksums of a changed run agree again, as whoever wants to deceive would."""
    config = json.loads((run / "config.json").read_text())
    config["parts"] = {name: size_and_hash((run / name).read_bytes()) for name in config["parts"]}
    config["recipe"] = size_and_hash((run / "recipe.toml").read_bytes())["sha256"]
    write_json(run / "config.json", config)
    folder = RunFolder(run)
    write_tensors(folder.model, read_tensors(folder.model), {"step": "1", "run": folder.identity()})
    saved = []
    for step in folder.checkpoints.steps():
        path = run / "checkpoints" / f"step-{step:06d}"
        state = {**json.loads((path / "state.json").read_text()), "run": folder.identity()}
        saved.append((step, folder.checkpoints.weights(step), read_tensors(path / "train.safetensors"), state))
    for checkpoint in saved:  # each removes the later ones
        folder.checkpoints.save(*checkpoint)


def accept_recipe(run: Path) -> None:
    """Accept an edited recipe.toml, as its error says."""
    write_json(run / "config.json", {**json.loads((run / "config.json").read_text()), "recipe": ""})


NUMBERS = itertools.count()


def train(task: str, data: object, *more: object, out: str = "") -> tuple[object, ...]:
    recipe, tiny = ("lm/gpt", TINY_LM) if task == "lm" else ("translate/transformer", TINY_TRANSLATE)
    return ("train", recipe, "--data", data, "--out", out or f"run {next(NUMBERS)}", *tiny, *more)
