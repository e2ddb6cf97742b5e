"""CONTRIBUTING.md: its examples, built from the page in a copy of the library, work."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TOP = Path(__file__).parent.parent
PAGE = (TOP / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## A new (\w+.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks of a text: (language, content)."""
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.M | re.S)


def write(language: str, block: str, top: Path) -> None:
    """A file that is shown whole, or a change of one that is there."""
    first, rest = block.split("\n", 1)
    path = top / first.removeprefix("# ")
    if language != "diff":
        assert not path.exists(), path
        path.parent.mkdir(exist_ok=True)
        path.write_text(rest, encoding="utf-8")
        return
    lines, text = rest.splitlines(), path.read_text(encoding="utf-8")
    before, after = ("".join(f"{line[1:]}\n" for line in lines if line[0] in f" {sign}") for sign in "-+")
    assert text.count(before) == 1, before
    path.write_text(text.replace(before, after), encoding="utf-8")


def test_there_is_a_page_for_each():
    assert set(SECTIONS) == {"model", "task", "data format", "lecture"}


@pytest.mark.slow
@pytest.mark.parametrize("name", SECTIONS)
def test_the_example_works(name, tmp_path):
    shutil.copytree(TOP / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    commands = []
    for language, block in blocks(SECTIONS[name]):
        if language:
            write(language, block, tmp_path)
        else:
            commands += block.splitlines()
    assert any(line.startswith("ayn ") for line in commands)
    ayn = tmp_path / "ayn"
    ayn.write_text(f'#!/bin/sh\nexec {sys.executable} -m allyouneed "$@"\n')
    ayn.chmod(0o755)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "src"), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500
        )
        assert done.returncode == 0, (command, done.stderr)
    if name == "model":
        assert "perplexity" in (tmp_path / "runs" / "lm-bigram" / "scores.json").read_text()
    if name == "task":
        assert json.loads((tmp_path / "runs" / "order-rnn" / "scores.json").read_text())["test"][0]["value"] > 90
    if name == "lecture":
        assert (tmp_path / "runs" / "zipf" / "zipf.png").stat().st_size > 5000
