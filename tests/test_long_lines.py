"""Very long lines, rows and values: read in linear time, or refused with the file, the place and the bound."""

from __future__ import annotations

import gzip
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from allyouneed.config import TextConfig
from allyouneed.data.formats.textfile import LONGEST, TextFile
from allyouneed.data.vectors import read_vectors
from allyouneed.errors import UserError
from allyouneed.text.tokenizer import Tokenizer
from test_label_data import complaint, dataset, put, whole

SECONDS = 15.0  # of the processor, for any of these
LONG = b"ab cd, " * (LONGEST // 5)


@pytest.fixture(autouse=True)
def _soon() -> Iterator[None]:
    began = time.process_time()
    yield
    assert time.process_time() - began < SECONDS


LINES = {
    "a.tsv": ("labels", b"text\tlabel\na\tb\n" + LONG),
    "b.csv": ("labels", b"text,label\na,b\n" + LONG),
    "c.jsonl": ("pairs", b'{"en": "a", "it": "b"}\n\n{"en": "' + LONG),
    "d.txt": ("labels", b"x a\ny a\n" + LONG),
    "e.conll": ("tags", b"a O\nb O\n" + LONG),
    "f.tsv.gz": ("pairs", gzip.compress(b"a\tb\n" * 2 + LONG, 1)),
    "g.csv": ("questions", b"question,context,answer\na,b,b\n" + LONG),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_that_is_too_long_is_named(name: str, tmp_path: Path) -> None:
    shape, content = LINES[name]
    path = put(tmp_path / name, content)
    assert complaint(shape, path).startswith(f"{path}, line 3 has more than 16,777,216 characters, which is too long")


def test_long_lines_below_the_bound_are_read(tmp_path: Path) -> None:
    long = "ab cd " * (LONGEST // 12)  # half of it, and more than a cell of CSV usually may have
    for mark, name in (("\t", "a.tsv"), (",", "a.csv")):
        path = put(tmp_path / name, f"text{mark}label\n{long}{mark}x\nshort{mark}y\n")
        assert [len(example.text) for example in whole("labels", path)] == [len(long), 5]
        assert len(str(dataset("labels", path).understood)) < 1000


@pytest.mark.slow
@pytest.mark.parametrize(
    "rest", [b'"' + b"ab, cd\n" * (LONGEST // 6), b'"\n",' * (LONGEST // 3)], ids=["quote", "cells"]
)
def test_a_row_of_csv_that_never_ends(rest: bytes, tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", b"text,label\na,b\n" + rest)
    assert complaint("labels", path) == (
        f"{path}: the row that begins at line 3 has more than 16,777,216 characters, which is too long for one "
        'example: does it open a quote (") and never close it?'
    )


@pytest.mark.slow
@pytest.mark.parametrize(("name", "mark"), [("a.tsv", "\t"), ("a.csv", ","), ("a.conll", " ")])
def test_very_many_columns(name: str, mark: str, tmp_path: Path) -> None:
    row = mark.join(f"c{i}" for i in range(10**6))
    shape = "tags" if name == "a.conll" else "labels"
    assert "1,000,000 columns, but a table has at most 4,096" in complaint(shape, put(tmp_path / name, f"{row}\n" * 2))


def test_very_many_keys(tmp_path: Path) -> None:
    keys = ", ".join(f'"k{i}": "x"' for i in range(300_000))
    said = complaint("labels", put(tmp_path / "a.jsonl", f"{{{keys}}}\n"))
    assert "300,000 keys, but a table has at most 4,096" in said


def test_a_long_cell_that_is_almost_a_number(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", f"text\tlabel\n{'1' * 10**6}x\tgood\nb\tbad\n")
    assert len(whole("labels", path)) == 2


def test_carriage_returns_alone_end_lines(tmp_path: Path) -> None:
    rows = "text,label\rone,x\rtwo,y\r" + "three,x\r" * 200_000  # more than one chunk
    assert len(whole("labels", put(tmp_path / "a.csv", rows))) == 200_002
    tags = dataset("tags", put(tmp_path / "a.conll", "a O\rb B-x\r\rc O\r"), valid_part=0.0, test_part=0.0)
    assert [example.words for example in tags.splits["train"]] == [("a", "b"), ("c",)]
    mixed = Path(put(tmp_path / "b.txt", "a\rb\nc\n"))  # a newline ends lines here, and a return is a character
    assert list(TextFile(mixed).iter_lines()) == ["a\rb", "c"]


def test_a_sentence_of_very_many_words(tmp_path: Path) -> None:
    path = put(tmp_path / "a.conll", "a O\n\n" + "word O\n" * 10**6)
    assert complaint("tags", path).startswith(f"{path}, line 100003: this sentence has more than 100,000 words")


def test_json_that_is_very_long_or_deep(tmp_path: Path) -> None:
    row = b'{"text": "a", "label": "b"}'
    path = put(tmp_path / "a.json", b"[" + row + b',\n{"text": "' + LONG + b'"}]')
    assert complaint("labels", path).startswith(f"{path}, object 2: 'text' has more than 16,777,216 characters")
    many = put(tmp_path / "b.json", b"[" + b",".join([row] * 100_000) + b"]")  # one line
    assert len(whole("labels", many)) == 100_000
    for shape in ("labels", "questions"):
        for content in (b'{"text": ' * 10**6, b"[" * 10**6, b'[{"text": ' + b"[" * 10**6):
            assert "nested too deeply" in complaint(shape, put(tmp_path / "c.json", content))


def test_a_text_may_be_one_line(tmp_path: Path) -> None:
    path = put(tmp_path / "a.txt", LONG)
    data = dataset("text", path, valid_part=0.1, test_part=0.1)
    assert sum(split.bytes for split in data.splits.values()) == len(LONG)


@pytest.mark.parametrize("kind", ["bpe", "bert", "wordpiece", "char"])
def test_a_tokenizer_learns_from_a_text_without_blanks(kind: str) -> None:
    text = "".join(("abc", "acb", "dea", "fab", "ecad")[i * i % 31 % 5] for i in range(70_000))
    tokenizer = Tokenizer.train([text], TextConfig(kind=kind, vocab=300))
    if kind != "bert":
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_word_vectors_that_are_none(tmp_path: Path) -> None:
    long = b"a" * (LONGEST + (1 << 21))
    for content in (long, b"2 3\n" + long, b"2 999999999999\na \0" + long):
        with pytest.raises(
            UserError, match=r"a\.txt: (line 1|vector 1 of 2): a word and its vector have more than 16,777,216 bytes"
        ):
            read_vectors(put(tmp_path / "a.txt", content))
    number = "9" * 5000  # no count of vectors, but a word
    assert read_vectors(put(tmp_path / "b.txt", f"{number} 3\n")).words == [number]
