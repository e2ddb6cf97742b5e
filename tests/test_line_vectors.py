"""Vectors of searched lines: each line is embedded once, a cache file that is damaged is made again, and another run or
another way to make vectors never gets them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch

from allyouneed import Run, load, train
from allyouneed.data import line_vectors
from allyouneed.data.line_vectors import CUT, EMPTY, WHOLE, LineVectors, vectors_of
from commands import ayn
from conftest import RUNTIME

LINES = [f"one two {word} {i}" for i in range(20) for word in ("three", "four", "six", "two")] + ["one", "", "   "]
TINY = [*RUNTIME, "train.steps=2", "model.width=16", "model.layers=2", "model.heads=2", "task.group=4"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vectors"


@pytest.fixture(scope="module")
def folders(pairs: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two runs that differ in nothing but their seed."""
    home = tmp_path_factory.mktemp("runs")
    for seed in (1, 2):
        train("embed/bert", *TINY, f"train.seed={seed}", data=str(pairs), out=home / f"run{seed}", quiet=True)
    return [home / "run1", home / "run2"]


@contextmanager
def texts_read(run: Run) -> Iterator[list[int]]:
    """The number of texts in each batch that the body really reads."""
    sizes: list[int] = []
    hook = run.model.body.register_forward_hook(lambda module, given, out: sizes.append(len(out)))
    try:
        yield sizes
    finally:
        hook.remove()


def test_a_line_is_embedded_once(folders, cache):
    run = load(folders[0])
    with texts_read(run) as sizes:
        first = run.nearest("one two", LINES, most=100)
        assert sum(sizes) == 81 + 1, "all that are not blank, and the question"
        sizes.clear()
        assert run.nearest("one two", LINES, most=100) == first, "to the last digit"
        assert sizes == [1], "the question"
        sizes.clear()
        again = run.nearest("one two", [*LINES, "six six", "six six"], most=100)
        assert sum(sizes) == 2, "the new line, and the question"
        assert sorted(one.line for one in again) == sorted([*(one.line for one in first), 84, 85])
        sizes.clear()
        assert load(folders[0]).nearest("one two", LINES, most=100) == first
        assert sizes == [], "that was another one"
    assert len(list(cache.iterdir())) == 1


def test_the_command_embeds_a_line_once(folders, tmp_path, monkeypatch):
    calls: list[int] = []
    (tmp_path / "lines.txt").write_text("\n".join(LINES))
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, given, out: calls.append(len(out)) if type(module).__name__ == "BertBody" else None
    )
    try:
        given = ("use", folders[0], "one two", "--nearest", tmp_path / "lines.txt", "--json")
        first, count = ayn(*given), sum(calls)
        again = ayn(*given)
    finally:
        hook.remove()
    assert (count, sum(calls) - count) == (82, 1)
    assert first.code == 0
    assert (again.out, again.err) == (first.out, first.err)


def test_nobody_gets_the_vectors_of_another(folders, cache):
    """Every way to make vectors has its own, and the right ones, whatever was kept before."""
    one, other = (load(folder) for folder in folders)
    ways = [(one, "last", "mean"), (other, "last", "mean"), (one, "last", "max"), (one, "1", "mean"), (one, "0,1", "")]
    changed = load(folders[0])
    with torch.no_grad():
        next(changed.model.body.parameters()).mul_(1.5)
    ways.append((changed, "last", "mean"))
    for run, layers, pool in [*ways, *reversed(ways)]:
        made = run.embedding(layers, pool)
        made.search(enumerate(LINES), 5, store=True)
        right = run.embedding(layers, pool)
        right.search(enumerate(LINES), 5)
        np.testing.assert_array_equal(made.matrix, right.matrix)
    assert len(list(cache.iterdir())) == len(ways)


DAMAGES = {
    "empty": lambda data: b"",
    "cut off": lambda data: data[: len(data) // 2],
    "a bit of a vector": lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
    "a bit of a digest": lambda data: data.replace(data[-200:-199], bytes([data[-200] ^ 255]), 1),
    "not a file of tensors": lambda data: b"\xff" * 100,
    "a header without tensors": lambda data: (2).to_bytes(8, "little") + b"{}",
    "a header of other tensors": lambda data: (
        (60).to_bytes(8, "little")
        + b'{"vectors":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'.ljust(60)
        + b"\0" * 4
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_made_again(damage, folders, cache):
    run = load(folders[0])
    first = run.nearest("one two", LINES, most=100)
    (path,) = cache.iterdir()
    whole = path.read_bytes()
    path.write_bytes(DAMAGES[damage](whole))
    with texts_read(run) as sizes:
        assert run.nearest("one two", LINES, most=100) == first
        assert sum(sizes) == 82
    assert path.read_bytes() == whole


def test_where_nothing_can_be_kept_lines_are_searched_all_the_same(folders, cache):
    run = load(folders[0])
    cache.parent.mkdir(parents=True)
    cache.write_text("a file where the folder should be")
    first = run.nearest("one two", LINES)
    assert run.nearest("one two", LINES) == first


def _made(texts: list[str]) -> LineVectors:
    """Vectors of two numbers that tell which text they are of."""
    kinds = np.array([EMPTY if not text else CUT if len(text) > 9 else WHOLE for text in texts], np.uint8)
    vectors = np.array([[hash(text) % 1000, len(text)] if text else [0, 0] for text in texts], np.float32)
    return LineVectors(kinds, vectors.reshape(len(texts), 2) if any(texts) else np.zeros((len(texts), 0), np.float32))


def test_kinds_are_kept_and_lines_without_words_have_no_vector():
    assert vectors_of(["", ""], "m", _made).vectors.shape == (2, 0)
    for _ in range(2):
        kinds, vectors = vectors_of(["", "a", "a", "a long long line"], "m", _made)
        assert kinds.tolist() == [EMPTY, WHOLE, WHOLE, CUT]
        assert vectors[:, 1].tolist() == [0, 1, 1, 16]
    assert vectors_of([], "m", _made).kinds.tolist() == []


def test_a_file_has_a_limit_and_keeps_what_was_asked_for_last(monkeypatch, cache):
    monkeypatch.setattr(line_vectors, "MOST_BYTES", 10 * (16 + 1 + 8))
    asked: list[str] = []

    def make(texts: list[str]) -> LineVectors:
        asked.extend(texts)
        return _made(texts)

    vectors_of([f"old {i}" for i in range(8)], "m", make)
    new = [f"new {i}" for i in range(8)]
    vectors_of(new, "m", make)
    asked.clear()
    assert np.array_equal(vectors_of(new, "m", make).vectors, _made(new).vectors)
    assert asked == []
    many = [f"many {i}" for i in range(30)]
    for _ in range(2):
        assert np.array_equal(vectors_of(many, "m", make).vectors, _made(many).vectors)
    assert next(cache.iterdir()).stat().st_size < 1000


def _write_often(cache: str, name: str) -> None:
    os.environ["ALLYOUNEED_CACHE"] = cache
    for i in range(20):
        lines = [f"{name} {j}" for j in range(i + 1)] + ["shared"]
        found = vectors_of(lines, "m", _made)
        if not np.array_equal(found.vectors, _made(lines).vectors):
            os._exit(3)


def test_two_processes_may_write_at_once(cache):
    context = multiprocessing.get_context("fork")
    both = [context.Process(target=_write_often, args=(str(cache.parent), name)) for name in "ab"]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert [one.exitcode for one in both] == [0, 0]
    lines = [f"{name} {j}" for name in "ab" for j in range(20)]
    assert np.array_equal(vectors_of(lines, "m", _made).vectors, _made(lines).vectors)
