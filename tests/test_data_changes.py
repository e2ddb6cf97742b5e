"""Files that change while a run uses them: each pass over a split notices."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from allyouneed.config import DataConfig
from allyouneed.data.opening import open_data
from allyouneed.data.pairs import PairTable
from allyouneed.data.watch import WatchedFile
from allyouneed.errors import UserError
from test_data_files import ROWS, complaint, pairs, put, tsv

FORMS = {"pairs": "a.tsv", "labels": "a.tsv", "tags": "a.conll", "text": "a.txt"}


@pytest.mark.parametrize("shape", FORMS)
@pytest.mark.parametrize("change", ["shuffled", "shorter", "longer", "replaced", "gone"])
def test_a_file_that_changes_after_it_was_opened_is_noticed(tmp_path: Path, shape: str, change: str) -> None:
    lines = [f"word{i} O\n\n" if shape == "tags" else f"text {i}\tlabel {i % 2}\n" for i in range(300)]
    path = put(tmp_path / FORMS[shape], "".join(lines))
    data = open_data(DataConfig(path=(path,), valid_part=0.3), shape)
    before = {name: list(split) for name, split in data.splits.items()}
    assert {name: list(split) for name, split in data.splits.items()} == before
    if change == "gone":
        os.unlink(path)
    elif change == "replaced":  # by another file of the same size and time
        stat = os.stat(path)
        os.replace(put(tmp_path / "new", "".join(lines[::-1])), path)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    else:
        put(Path(path), "".join({"shuffled": lines[::-1], "shorter": lines[:100], "longer": lines * 2}[change]))
    for split in data.splits.values():
        with pytest.raises(UserError, match=r"is not there any more|has changed since this run first read it"):
            list(split)


def test_a_file_that_changes_during_a_pass_is_noticed(tmp_path: Path) -> None:
    rows = [(f"The cat {i}", "x" * 2000) for i in range(3000)]  # more than is read at once
    path = put(tmp_path / "a.tsv", tsv(rows))
    data = pairs(path, valid_part=0.0, test_part=0.0)
    several = iter(data.splits["train"])
    next(several)
    put(Path(path), tsv(rows)[:-9] + "\t\t\n")  # no table any more, and that is not the point
    with pytest.raises(UserError, match=r"a\.tsv has changed since this run first read it: start again"):
        list(several)


def test_a_file_that_is_only_touched_or_copied_back_has_not_changed(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", tsv(ROWS))
    data = pairs(path)
    before = list(data.splits["train"])
    os.utime(path, ns=(1, 1))
    assert list(data.splits["train"]) == before
    os.replace(put(tmp_path / "copy", tsv(ROWS)), path)
    assert list(data.splits["train"]) == before
    put(Path(path), tsv(ROWS).replace("cat", "dog"))
    with pytest.raises(UserError, match="has changed"):
        list(data.splits["train"])


def test_a_file_that_changes_while_it_is_opened_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.tsv", tsv(ROWS))
    understood = PairTable.understood

    def meddle(self: PairTable) -> str:
        put(Path(path), tsv(ROWS[::-1]))
        return understood(self)

    monkeypatch.setattr(PairTable, "understood", meddle)
    assert complaint(path) == f"{path} changed while it was being read: wait until it is complete, then start"


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_a_file_that_vanishes_after_it_was_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: str) -> None:
    path = put(tmp_path / "a.tsv", tsv(ROWS))

    def vanish(self: WatchedFile, path: Path) -> None:
        os.unlink(path)
        init(self, path)

    init = WatchedFile.__init__
    monkeypatch.setattr(WatchedFile, "__init__", vanish)
    assert complaint(path, shape=shape) == f"{path} is not there any more: put it back and start again"
