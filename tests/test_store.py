"""Tokens on disk: exact, streaming, used again only when whole and the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from allyouneed.config import TextConfig
from allyouneed.data import store
from allyouneed.data.store import Ragged, tokenize_rows, tokenize_stream
from allyouneed.text.tokenizer import Tokenizer

TEXTS = [f"Sentence number {i}, with é and 😀.\n\n  Indented." for i in range(300)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, TextConfig(kind="bpe", vocab=400))


def never() -> Iterator[str]:
    raise AssertionError("the texts were read again")
    yield ""


def rows(ragged: Ragged) -> list[list[int]]:
    return [ragged[i].tolist() for i in range(len(ragged))]


def test_rows_are_the_tokens_of_each_text(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BATCH", 500)
    texts = [*TEXTS, "", "end"]
    ragged = tokenize_rows(iter(texts), tokenizer, tmp_path / "a", "f")
    assert rows(ragged) == tokenizer.encode_batch(texts)
    assert ragged.lengths.tolist() == [len(ids) for ids in tokenizer.encode_batch(texts)]
    assert ragged.tokens.dtype == np.uint16
    assert isinstance(ragged.tokens, np.memmap)
    assert ragged[-1].tolist() == tokenizer.encode("end")
    with pytest.raises(IndexError):
        ragged[len(texts)]


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
@pytest.mark.parametrize("step", [1, 7, 100])
def test_a_stream_in_chunks_is_encoded_as_one_text(kind: str, step: int, tmp_path: Path) -> None:
    text = "\n".join(TEXTS)
    tokenizer = Tokenizer.train([text], TextConfig(kind=kind, vocab=500))
    chunks = [text[i : i + step] for i in range(0, len(text), step)]
    ragged = tokenize_stream([chunks], tokenizer, tmp_path / "a", "f", tokenizer.eos)
    assert rows(ragged) == [tokenizer.encode(text)]


def test_a_separator_ends_each_of_several_documents(tokenizer: Tokenizer, tmp_path: Path) -> None:
    documents = [["one ", "two"], [], ["three"]]
    ragged = tokenize_stream(documents, tokenizer, tmp_path / "a", "f", tokenizer.eos)
    expected = [[*tokenizer.encode(text), tokenizer.eos] for text in ("one two", "", "three")]
    assert rows(ragged) == expected
    assert ragged.tokens.tolist() == list(chain(*expected))
    assert tokenizer.eos not in tokenize_stream(documents[:1], tokenizer, tmp_path / "b", "f", tokenizer.eos).tokens


def test_text_without_spaces_does_not_pile_up(
    tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "BATCH", 1000)
    pieces = list(store._between_words("x" * 300 for _ in range(50)))
    assert "".join(pieces) == "x" * 15_000
    assert max(map(len, pieces)) < 2000


def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    class Large:
        fingerprint = "large"

        def __len__(self) -> int:
            return 70_000

        def encode_batch(self, texts: list[str]) -> list[list[int]]:
            return [[69_999, len(text)] for text in texts]

    ragged = tokenize_rows(["ab", "c"], Large(), tmp_path / "a", "f")
    assert ragged.tokens.dtype == np.uint32
    assert rows(ragged) == [[69_999, 2], [69_999, 1]]


def test_no_text_is_no_rows(tokenizer: Tokenizer, tmp_path: Path) -> None:
    assert rows(tokenize_rows([], tokenizer, tmp_path / "a", "f")) == []
    assert rows(tokenize_rows(never(), tokenizer, tmp_path / "a", "f")) == []


def test_the_same_is_used_again_and_another_is_not(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "deep/a"
    first = rows(tokenize_rows(TEXTS, tokenizer, path, "f"))
    assert rows(tokenize_rows(never(), tokenizer, path, "f")) == first
    assert rows(tokenize_rows(["other"], tokenizer, path, "g")) == [tokenizer.encode("other")]
    char = Tokenizer.train(TEXTS, TextConfig(kind="char"))
    assert rows(tokenize_rows(["number"], char, path, "g")) == [char.encode("number")]
    assert rows(tokenize_stream([["number"]], char, path, "g", char.eos)) == [char.encode("number")]
    assert sorted(p.name for p in path.parent.iterdir()) == ["a"]


@pytest.mark.parametrize("damage", ["tokens.bin", "offsets.npy", "meta.json", "folder", "cut", "garbage"])
def test_what_is_damaged_is_made_again(tokenizer: Tokenizer, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a"
    first = rows(tokenize_rows(TEXTS, tokenizer, path, "f"))
    if damage == "folder":
        for file in path.iterdir():
            file.unlink()
    elif damage == "cut":
        os.truncate(path / "tokens.bin", 100)
    elif damage == "garbage":
        (path / "offsets.npy").write_bytes(b"\x93NUMPY garbage")
    else:
        (path / damage).unlink()
    assert rows(tokenize_rows(TEXTS, tokenizer, path, "f")) == first
    assert rows(tokenize_rows(never(), tokenizer, path, "f")) == first


def test_an_interrupted_writer_leaves_nothing(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def torn() -> Iterator[str]:
        yield "one"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize_rows(torn(), tokenizer, tmp_path / "a", "f")
    assert list(tmp_path.iterdir()) == []


PREPARE = """
import sys, time
from pathlib import Path
from allyouneed.config import DataConfig, TextConfig
from allyouneed.data.opening import open_data
from allyouneed.data.store import tokenize_stream
from allyouneed.text.tokenizer import Tokenizer
data = open_data(DataConfig(name="enwik8"), "text")
tokenizer = Tokenizer.train(["bytes"], TextConfig(kind="bpe", vocab=260))
start, total = time.time(), 0
for name, split in data.splits.items():
    ragged = tokenize_stream(split.documents(), tokenizer, Path(sys.argv[1]) / name, data.fingerprint, tokenizer.eos)
    assert len(ragged.tokens) == split.bytes, name
    total += split.bytes
# Not getrusage: its peak begins with that of the process that started this one.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(total, total / 1e6 / (time.time() - start), peak)
"""


@pytest.mark.slow
@pytest.mark.skipif("ALLYOUNEED_MIRROR" not in os.environ, reason="ALLYOUNEED_MIRROR is not set")
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc to measure memory")
def test_a_hundred_megabytes_are_prepared_in_bounded_memory(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PREPARE, str(tmp_path)], capture_output=True, text=True, check=True)
    total, speed, peak = map(float, done.stdout.split())
    print(f"{speed:.1f} MB/s, peak {peak / 1024:.0f} MiB")
    assert total == 100_000_000
    assert peak / (1 << 20) < 1.5  # KiB -> GiB
