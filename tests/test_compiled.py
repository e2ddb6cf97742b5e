"""Kernels that are compiled on first use: kept, made anew where they are damaged, done without where they cannot be."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path

import pytest

from allyouneed.word2vec import kernels as compiled
from allyouneed.word2vec.kernels import load_kernel


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "number.c"
    path.write_text("int number(void) { return NUMBER; }\n", encoding="utf-8")
    return path


def test_a_kernel_is_compiled_once_for_its_sizes_and_its_machine(source, tmp_path, monkeypatch):
    kept = tmp_path / "kept"
    for number in (7, 7, 8):
        library, problem = load_kernel(source, kept, {"NUMBER": number})
        assert library is not None, problem
        assert library.number() == number
    assert len(list(kept.iterdir())) == 2
    monkeypatch.setattr(platform, "processor", lambda: "another")  # that may not know these instructions
    assert load_kernel(source, kept, {"NUMBER": 7})[0] is not None
    assert len(list(kept.iterdir())) == 3


def test_a_kernel_that_is_damaged_is_made_anew_or_told(source, tmp_path, monkeypatch):
    load_kernel(source, tmp_path / "kept", {"NUMBER": 7})
    (library,) = (tmp_path / "kept").iterdir()
    for folder in ("first", "second"):  # a library that is loaded is not read again
        (tmp_path / folder).mkdir()
        (tmp_path / folder / library.name).write_bytes(library.read_bytes()[:100])
    found, _ = load_kernel(source, tmp_path / "first", {"NUMBER": 7})
    assert found is not None
    assert found.number() == 7
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert load_kernel(source, tmp_path / "second", {"NUMBER": 7}) == (None, "there is no C compiler")


def test_a_compiler_that_takes_too_long_is_told_and_leaves_nothing(source, tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "SECONDS", 1e-6)
    found, problem = load_kernel(source, tmp_path / "kept", {"NUMBER": 7})
    assert found is None
    assert problem.startswith("number.c cannot be compiled")
    assert not list((tmp_path / "kept").iterdir())
