"""Text files and folders: chunks, documents, and splits in order."""

from __future__ import annotations

import gzip
from itertools import chain, pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.data import records
from allyouneed.data.formats import textfile
from allyouneed.data.formats.textfile import TextFile
from allyouneed.data.sources import Text
from test_data_files import joined, put, text


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab\né😀\r", min_size=1, max_size=60), st.integers(1, 9), st.booleans())
def test_chunks_joined_are_the_text_whatever_their_size(
    tmp_path_factory: pytest.TempPathFactory, content: str, size: int, mark: bool
) -> None:
    path = tmp_path_factory.mktemp("t") / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" * mark + content.encode())
    expected = content.replace("\r\n", "\n")
    before = textfile.CHUNK
    try:
        textfile.CHUNK = size + 3  # a byte order mark is never torn apart
        file = TextFile(path)
        assert "".join(file.text()) == expected
        if "\r" not in expected:  # the end of a line, if no newline comes before it in the first chunk
            assert "\n".join(file.iter_lines()) == expected.removesuffix("\n")
    finally:
        textfile.CHUNK = before


@settings(max_examples=60, deadline=None)
@given(st.text(alphabet="ab\né😀", min_size=1, max_size=60), st.integers(4, 9))
def test_the_pieces_of_a_document_joined_are_the_document(content: str, size: int) -> None:
    before = records.PIECE
    try:
        records.PIECE = size
        rows = records.Records.of({"train": [(content,), ("",), (content,)]}, ())
        made = Text(rows, list(pairwise(rows.ends.tolist())))
        assert ["".join(document) for document in made.documents()] == [content, "", content]
        assert all(len(piece.encode()) <= size for piece in made)
    finally:
        records.PIECE = before


def test_a_cut_at_the_start_of_a_line_stays(tmp_path: Path) -> None:
    data = text(put(tmp_path / "a.txt", "123456789\n" * 100), valid_part=0.25, test_part=0.25)
    assert [split.bytes for split in data.splits.values()] == [500, 250, 250]


def test_text_is_split_in_order_at_line_starts(tmp_path: Path) -> None:
    content = "".join(f"line number {i} è qui\n" for i in range(300))
    data = text(put(tmp_path / "a.txt", content), valid_part=0.1, test_part=0.1)
    parts = [joined(data, name) for name in ("train", "valid", "test")]
    assert "".join(parts) == content
    assert all(part.startswith("line") and part.endswith("qui\n") for part in parts)
    assert abs(len(parts[0]) - 0.8 * len(content)) < 30
    for name, part in zip(data.splits, parts):
        assert data.splits[name].bytes == len(part.encode())


def test_text_without_lines_is_split_between_characters(tmp_path: Path) -> None:
    content = "è" * 1001
    data = text(put(tmp_path / "a.txt", content), valid_part=0.25, test_part=0.25)
    parts = [joined(data, name) for name in ("train", "valid", "test")]
    assert "".join(parts) == content
    assert [len(part) for part in parts] == [500, 250, 251]


def test_nothing_held_out_gives_train_alone(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", "x" * 1000)
    assert list(text(path, valid_part=0.0, test_part=0.0).splits) == ["train"]
    data = text(path, valid_part=0.1, test_part=0.0)
    assert [split.bytes for split in data.splits.values()] == [int(0.9 * 1000), 100]


def test_a_long_text_comes_in_chunks_of_about_a_megabyte(tmp_path: Path) -> None:
    content = ("x" * 99 + "\n") * 35_000
    data = text(put(tmp_path / "a.txt.gz", gzip.compress(content.encode(), 1)), valid_part=0.0, test_part=0.0)
    chunks = list(data.splits["train"])
    assert "".join(chunks) == content
    assert len(chunks) == 4
    assert all(chunk.endswith("\n") and len(chunk) <= records.PIECE for chunk in chunks)


def test_each_file_of_a_folder_is_a_document(tmp_path: Path) -> None:
    put(tmp_path / "b/2.md", "two\n")
    put(tmp_path / "a/1.txt", "one\n")
    put(tmp_path / "c.text", "\n\n")
    put(tmp_path / ".hidden/3.txt", "no\n")
    put(tmp_path / ".4.txt", "no\n")
    put(tmp_path / "5.py", "no\n")
    split = text(str(tmp_path), valid_part=0.0, test_part=0.0).splits["train"]
    assert isinstance(split, Text)
    assert ["".join(document) for document in split.documents()] == ["one\n", "two\n"]
    assert (split.examples, split.empty, split.bytes) == (2, 1, 8)
    next(iter(split.documents()))
    assert [1 for _ in split.documents()] == [1, 1]  # unread documents are skipped
    assert split.bytes == 8


def test_a_cut_may_fall_inside_a_document_of_many(tmp_path: Path) -> None:
    for i in range(5):
        put(tmp_path / f"{i}.txt", f"document {i}\n" * 20)
    data = text(str(tmp_path), valid_part=0.3, test_part=0.1)
    documents = {name: ["".join(d) for d in split.documents()] for name, split in data.splits.items()}  # type: ignore[attr-defined]
    assert [len(listed) for listed in documents.values()] == [3, 2, 1]
    assert "".join(chain(*documents.values())) == "".join(f"document {i}\n" * 20 for i in range(5))


def test_without_txt_every_text_file_counts(tmp_path: Path) -> None:
    put(tmp_path / "a.py", "print()\n")
    put(tmp_path / "b.bin", b"\x00\x01")
    assert joined(text(str(tmp_path), valid_part=0.0, test_part=0.0)) == "print()\n"


def test_text_folder_with_named_splits(tmp_path: Path) -> None:
    for name in ("train", "valid", "test"):
        put(tmp_path / f"{name}.txt", f"{name}\n")
    data = text(str(tmp_path))
    assert [joined(data, name) for name in data.splits] == ["train\n", "valid\n", "test\n"]
