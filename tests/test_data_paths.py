"""Paths that cannot be read: pipes, devices, links to nothing, names that are too long, and what is not permitted."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from allyouneed.data.vectors import read_vectors
from allyouneed.data.wordtests import read_own
from allyouneed.errors import UserError
from allyouneed.text import Tokenizer
from test_data_files import ROWS, complaint, joined, put, text, tsv


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_what_is_neither_a_file_nor_a_folder_is_refused_and_never_waited_for(tmp_path: Path, shape: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert complaint(str(pipe), shape=shape) == (
        f"{pipe} is a pipe, which can be read only once: save the data to a file and give that file"
    )
    good = put(tmp_path / "good.tsv", tsv(ROWS))
    assert "is a pipe" in complaint(good, shape=shape, valid_path=(str(pipe),))
    read, write = os.pipe()
    assert "is a pipe" in complaint(f"/dev/fd/{read}", shape=shape)
    os.close(read)
    os.close(write)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "folder" / "train.tsv")
    assert "train.tsv is a pipe" in complaint(str(tmp_path / "folder"), shape=shape)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        assert complaint(str(tmp_path / "socket"), shape=shape).endswith("is a socket, but a file is expected here")
    assert complaint("/dev/null", shape=shape) == "/dev/null is empty"
    assert complaint("/dev/zero", shape=shape) == "/dev/zero is a device, but a file is expected here"


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_a_link_to_nothing_is_named(tmp_path: Path, shape: str) -> None:
    (tmp_path / "folder").mkdir()
    put(tmp_path / "folder" / "test.txt", "one\n")
    link = tmp_path / "folder" / "train.txt"
    link.symlink_to("elsewhere.txt")
    expected = f"{link} is a link to elsewhere.txt, which is not there: remove the link or restore the file"
    assert complaint(str(link), shape=shape) == expected
    assert complaint(str(tmp_path / "folder"), shape=shape) == expected


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_a_path_that_is_too_long_is_refused(tmp_path: Path, shape: str) -> None:
    good = put(tmp_path / "good.tsv", tsv(ROWS))
    for long in ("x" * 5000 + ".tsv", "/".join(["x" * 200] * 30)):
        for told in (
            complaint(long, shape=shape),
            complaint(long, long, shape=shape),
            complaint(good, shape=shape, valid_path=(long,)),
        ):
            assert told.endswith("… cannot be opened: File name too long")
            assert len(told) < 300


def test_files_of_word_vectors_and_of_questions_that_cannot_be_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match=r"the tokenizer file .*pipe cannot be read: it is not a plain file"):
        Tokenizer.load(pipe)
    for read in (read_own, read_vectors):
        with pytest.raises(UserError, match="x… cannot be opened: File name too long"):
            read(Path("x" * 5000))
        with pytest.raises(UserError, match=r"there is no file .*pipe"):
            read(pipe)


def test_a_name_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("folder/caf\udce9.txt", "caf\udce9.tsv"):
        put(tmp_path / name, tsv(ROWS))
    good = put(tmp_path / "good.tsv", tsv(ROWS))
    assert r"caf\udce9 is not valid UTF-8: rename it" in complaint(good, mirror=str(tmp_path / "caf\udce9"))
    told = complaint(str(tmp_path / "caf\udce9.tsv"))
    assert told == f"the name {tmp_path}/caf\\udce9.tsv is not valid UTF-8: rename it"
    assert r"caf\udce9.txt is not valid UTF-8: rename it" in complaint(str(tmp_path / "folder"), shape="text")
    assert r"caf\udce9.tsv is not valid UTF-8: rename it" in complaint(str(tmp_path / "nothing" / "caf\udce9.tsv"))


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder, with the rights of a user to whom not everything is open."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as cache:
        os.chmod(folder, 0o777)
        os.chmod(cache, 0o777)
        monkeypatch.setenv("ALLYOUNEED_CACHE", cache)
        root = os.geteuid() == 0
        if root:
            os.seteuid(65534)
        try:
            yield Path(folder)
        finally:
            for path in Path(folder).rglob("*"):
                path.chmod(0o700)
            if root:
                os.seteuid(0)


@pytest.mark.parametrize("shape", ["pairs", "text"])
def test_files_and_folders_without_permission(nobody: Path, shape: str) -> None:
    good = put(nobody / "good.tsv", tsv(ROWS))
    closed = put(nobody / "closed.tsv", tsv(ROWS))
    os.chmod(closed, 0)
    assert complaint(closed, shape=shape) == f"{closed} cannot be read: Permission denied"
    assert complaint(good, shape=shape, test_path=(closed,)) == f"{closed} cannot be read: Permission denied"
    put(nobody / "folder" / "train.tsv", tsv(ROWS))
    os.chmod(nobody / "folder", 0)
    assert complaint(str(nobody / "folder"), shape=shape) == (
        f"the folder {nobody / 'folder'} cannot be read: Permission denied"
    )
    inside = nobody / "folder" / "train.tsv"
    assert complaint(str(inside), shape=shape) == f"{inside} cannot be opened: Permission denied"
    os.chmod(nobody / "folder", 0o700)


def test_nothing_of_a_folder_of_texts_is_silently_left_out(nobody: Path) -> None:
    put(nobody / "texts" / "a", "one\n")
    closed = put(nobody / "texts" / "b", "two\n")
    os.chmod(closed, 0)
    assert complaint(str(nobody / "texts"), shape="text") == f"{closed} cannot be read: Permission denied"
    os.chmod(closed, 0o600)
    put(nobody / "texts" / "inside" / "c", "three\n")
    os.chmod(nobody / "texts" / "inside", 0)
    told = complaint(str(nobody / "texts"), shape="text")
    assert told == f"the folder {nobody / 'texts' / 'inside'} cannot be read: Permission denied"
    os.chmod(nobody / "texts" / "inside", 0o700)
    assert joined(text(str(nobody / "texts"), valid_part=0.0, test_part=0.0)) == "one\ntwo\nthree\n"
