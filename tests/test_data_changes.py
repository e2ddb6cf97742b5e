"""Files are read once: what becomes of them later changes nothing, and how often a training opens one is counted."""

from __future__ import annotations

import gzip
import os
import sys
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from allyouneed.config import DataConfig
from allyouneed.data import files
from allyouneed.data.formats.table import Examples
from allyouneed.data.opening import open_data, read_data
from allyouneed.run import train
from conftest import RUNTIME
from test_data_files import ROWS, complaint, pairs, put, tsv

FORMS = {"pairs": "a.tsv", "labels": "a.tsv", "tags": "a.conll", "text": "a.txt"}


@pytest.mark.parametrize("shape", FORMS)
@pytest.mark.parametrize("change", ["shuffled", "shorter", "longer", "gone"])
def test_a_file_that_changes_after_it_was_read_changes_nothing(tmp_path: Path, shape: str, change: str) -> None:
    lines = [f"word{i} O\n\n" if shape == "tags" else f"text {i}\tlabel {i % 2}\n" for i in range(300)]
    path = put(tmp_path / FORMS[shape], "".join(lines))
    config = DataConfig(path=(path,), valid_part=0.3)
    source = read_data(config, shape)
    data = source.split(config)
    before = {name: list(split) for name, split in data.splits.items()}
    if change == "gone":
        os.unlink(path)
    else:
        put(Path(path), "".join({"shuffled": lines[::-1], "shorter": lines[:100], "longer": lines * 2}[change]))
    assert {name: list(split) for name, split in data.splits.items()} == before
    assert {name: list(split) for name, split in source.split(config).splits.items()} == before


def test_a_file_with_other_contents_is_other_data(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", tsv(ROWS))
    before = pairs(path)
    os.utime(path, ns=(1, 1))
    assert pairs(path).fingerprint == before.fingerprint
    put(Path(path), tsv(ROWS).replace("cat", "dog"))
    after = pairs(path)
    assert after.fingerprint != before.fingerprint
    assert list(after.splits["train"]) != list(before.splits["train"])


def test_a_file_that_changes_while_it_is_read_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "meddled.tsv", tsv(ROWS))
    understood = Examples.understood

    def meddle(self: Examples) -> str:
        put(Path(path), tsv(ROWS[::-1]))
        return understood(self)

    monkeypatch.setattr(Examples, "understood", meddle)
    assert complaint(path) == f"{path} changed while it was being read: wait until it is complete, then start"


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_a_file_that_vanishes_after_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    path = put(tmp_path / "a.tsv", tsv(ROWS))
    stamp = files._stamp
    monkeypatch.setattr(files, "_stamp", lambda path: (path.unlink(missing_ok=True), stamp(path))[1])
    assert complaint(path, shape=shape) == f"{path} is not there any more: put it back and start again"


def test_what_was_read_is_used_again_without_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.tsv", tsv(ROWS))
    before = pairs(path)
    monkeypatch.setattr(files, "TextFile", None)
    again = pairs(path)
    assert (again.understood, again.fingerprint) == (before.understood, before.fingerprint)
    assert list(again.splits["train"]) == list(before.splits["train"])
    assert list(pairs(path, valid_part=0.5).splits["valid"])  # a split is no reason to read a file again


# How often a training opens the files of the user, counted by what Python itself tells of each.

WATCHED: list[str] = []  # folders
OPENED: Counter[str] = Counter()


def watch(event: str, details: Any) -> None:
    if WATCHED and event == "open" and isinstance(details[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.fsdecode(details[0]))
        if path.startswith(tuple(WATCHED)):
            OPENED[path] += 1


sys.addaudithook(watch)  # for good: there is no way to remove one
SMALL = [*RUNTIME, "train.steps=2", "train.epochs=0", "model.width=16", "data.follow=true"]


def table(folder: Path) -> str:
    rows = (
        f"the {i} film was {word},{label}" for i in range(1500) for word, label in (("fine", "good"), ("dull", "bad"))
    )
    return put(folder / "films.csv", "text,label\n" + "\n".join(rows))


def packed(folder: Path) -> str:
    path = Path(table(folder))
    (folder / "films.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.unlink()
    return str(folder / "films.csv.gz")


def western(folder: Path) -> str:
    path = Path(table(folder))
    path.write_bytes(path.read_bytes().replace(b"film", "café".encode("latin-1")))
    return str(path)


def parallel(folder: Path) -> str:
    lines = [f"word {i}" for i in range(300)]
    return "|".join(put(folder / f"train.{side}", "\n".join(lines) + "\n") for side in ("en", "it"))


def documents(folder: Path) -> str:
    for i in range(5):
        put(folder / f"{i}.txt", "one two three four five six.\n" * 200)
    return str(folder)


def tagged(folder: Path) -> str:
    return put(folder / "names.conll", "".join(f"Ann{i} B-PER\nleft O\n\nwe O\nleft{i} O\n\n" for i in range(100)))


def asked(folder: Path) -> str:
    rows = (f'{{"question": "who {i}?", "context": "Ann {i} left.", "answer": "Ann"}}' for i in range(100))
    return put(folder / "asked.jsonl", "\n".join(rows))


def images(folder: Path) -> str:
    for name in ("red", "blue"):
        (folder / name).mkdir()
        for i in range(12):
            Image.new("RGB", (16, 16 + i), name).save(folder / name / f"{name} {i}.png")
    return str(folder)


INPUTS = {
    "table": ("classify/rnn", table, []),
    "packed": ("classify/rnn", packed, []),
    "western": ("classify/rnn", western, []),
    "parallel": ("translate/rnn", parallel, []),
    "documents": ("lm/rnn", documents, []),
    "tagged": ("tag/lstm", tagged, []),
    "asked": ("answer/bert", asked, ["model.layers=1", "model.heads=2"]),
    "images": ("recognize/vit", images, ["model.layers=1", "model.heads=2"]),
}


@pytest.mark.parametrize("kind", INPUTS)
def test_a_training_opens_each_file_twice_at_most(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, make, more = INPUTS[kind]
    folder = tmp_path / "own"
    folder.mkdir()
    data = make(folder)
    counts = []
    monkeypatch.setattr(sys.modules[__name__], "WATCHED", [str(folder)])
    for number in range(2):
        OPENED.clear()
        files._digest.cache_clear()  # as in another process
        train(recipe, *SMALL, *more, data=data.split("|"), out=tmp_path / f"run {number}", quiet=True)
        counts.append(max(OPENED.values()))
    assert counts == [2, 1]  # hashed and read; then hashed


@pytest.mark.slow
def test_memory_grows_with_the_rows_not_with_their_texts(tmp_path: Path) -> None:
    """Of a row stay where its texts end, their hashes, and whether it is blank."""
    peaks = {}
    for rows in (20_000, 80_000):
        lines = (f"{'word ' * 90}{i},{i % 3}\n" for i in range(rows))
        path = put(tmp_path / f"{rows}.csv", "text,label\n" + "".join(lines))
        tracemalloc.start()
        data = open_data(DataConfig(path=(path,)), "labels")
        peaks[rows] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert sum(split.examples for split in data.splits.values()) == rows
    assert (peaks[80_000] - peaks[20_000]) / 60_000 < 150
