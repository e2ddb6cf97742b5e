"""Tokens on disk: exact, streaming, used again only when complete and the same, whoever else is at work."""

from __future__ import annotations

import gzip
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

from allyouneed import catalog
from allyouneed.config import TextConfig
from allyouneed.data import store
from allyouneed.data.store import Ragged, TokenKey, tokenize_rows, tokenize_stream
from allyouneed.text.tokenizer import Tokenizer
from allyouneed.text.word_boundaries import find_words
from allyouneed.training.starting import choose

KEY = TokenKey("f", "train", "text")
TEXTS = [f"Sentence number {i}, with é and 😀.\n\n  Indented." for i in range(300)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tokens are."""
    monkeypatch.setenv("ALLYOUNEED_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(TEXTS, TextConfig(kind="bpe", vocab=400))


def never() -> Iterator[str]:
    raise AssertionError("the texts were read again")
    yield ""


def rows(ragged: Ragged) -> list[list[int]]:
    return [ragged[i].tolist() for i in range(len(ragged))]


def test_rows_are_the_tokens_of_each_text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BATCH", 500)
    texts = [*TEXTS, "", "end"]
    ragged = tokenize_rows(iter(texts), tokenizer, KEY)
    assert rows(ragged) == tokenizer.encode_batch(texts)
    assert ragged.lengths.tolist() == [len(ids) for ids in tokenizer.encode_batch(texts)]
    assert ragged.tokens.dtype == np.uint16
    assert isinstance(ragged.tokens, np.memmap)
    assert ragged[-1].tolist() == tokenizer.encode("end")
    with pytest.raises(IndexError):
        ragged[len(texts)]


@pytest.mark.parametrize("kind", ["bpe", "word", "char"])
@pytest.mark.parametrize("step", [1, 7, 100])
def test_a_stream_in_chunks_is_encoded_as_one_text(kind: str, step: int) -> None:
    text = "\n".join(TEXTS)
    tokenizer = Tokenizer.train([text], TextConfig(kind=kind, vocab=500))
    chunks = [text[i : i + step] for i in range(0, len(text), step)]
    ragged = tokenize_stream([chunks], tokenizer, KEY, tokenizer.eos)
    assert rows(ragged) == [tokenizer.encode(text)]


def test_a_separator_ends_each_of_several_documents(tokenizer: Tokenizer) -> None:
    documents = [["one ", "two"], [], ["three"]]
    ragged = tokenize_stream(documents, tokenizer, KEY, tokenizer.eos)
    expected = [[*tokenizer.encode(text), tokenizer.eos] for text in ("one two", "", "three")]
    assert rows(ragged) == expected
    assert ragged.tokens.tolist() == list(chain(*expected))
    assert tokenizer.eos not in tokenize_stream(documents[:1], tokenizer, replace(KEY, data="g"), tokenizer.eos).tokens


def test_text_without_spaces_does_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "BATCH", 1000)
    pieces = list(store._between_words("x" * 300 for _ in range(50)))
    assert "".join(pieces) == "x" * 15_000
    assert max(map(len, pieces)) < 2000


def test_a_large_vocabulary_takes_four_bytes() -> None:
    class Large:
        fingerprint = "large"

        def __len__(self) -> int:
            return 70_000

        def encode_batch(self, texts: list[str]) -> list[list[int]]:
            return [[69_999, len(text)] for text in texts]

    ragged = tokenize_rows(["ab", "c"], Large(), KEY)
    assert ragged.tokens.dtype == np.uint32
    assert rows(ragged) == [[69_999, 2], [69_999, 1]]


def test_no_text_is_no_rows(tokenizer: Tokenizer) -> None:
    assert rows(tokenize_rows([], tokenizer, KEY)) == []
    assert rows(tokenize_rows(never(), tokenizer, KEY)) == []


def test_the_same_is_used_again_and_another_is_not(tokenizer: Tokenizer, folder: Path) -> None:
    first = rows(tokenize_rows(TEXTS, tokenizer, KEY))
    assert rows(tokenize_rows(never(), tokenizer, KEY)) == first
    for other in (
        replace(KEY, data="g"),
        replace(KEY, split="valid"),
        replace(KEY, side="target"),
        replace(KEY, prefix=" "),
    ):
        assert rows(tokenize_rows(["other"], tokenizer, other)) == [tokenizer.encode(other.prefix + "other")]
    char = Tokenizer.train(TEXTS, TextConfig(kind="char"))
    assert rows(tokenize_rows(["number"], char, KEY)) == [char.encode("number")]
    assert rows(tokenize_stream([["a", "b"], ["c"]], char, KEY, char.eos))[1] == [*char.encode("c"), char.eos]
    assert rows(tokenize_rows(never(), tokenizer, KEY)) == first
    assert len(list(folder.iterdir())) == 7


@pytest.mark.parametrize("constant", ["READING", "VERSION"])
def test_another_way_of_reading_or_writing_does_not_get_old_tokens(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, constant: str
) -> None:
    tokenize_rows(TEXTS, tokenizer, KEY)
    monkeypatch.setattr(store, constant, 1000)
    assert rows(tokenize_rows(["other"], tokenizer, KEY)) == [tokenizer.encode("other")]


def test_the_prefix_stands_before_each_text(tokenizer: Tokenizer) -> None:
    text = "It's  well-known."
    for prefix in ("", " "):
        key, expected = replace(KEY, prefix=prefix), [tokenizer.encode(prefix + text)]
        assert rows(tokenize_rows([text], tokenizer, key)) == expected
        assert rows(tokenize_rows(never(), tokenizer, key)) == expected
    with pytest.raises(ValueError, match="no prefix"):
        tokenize_stream([[text]], tokenizer, replace(KEY, prefix=" "), tokenizer.eos)


def only(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


@pytest.mark.parametrize("damage", ["gone", "empty", "cut", "longer", "garbage", "token", "offset", "meta"])
def test_what_is_damaged_is_made_again(tokenizer: Tokenizer, folder: Path, damage: str) -> None:
    first = rows(tokenize_rows(TEXTS, tokenizer, KEY))
    path = only(folder)
    content = bytearray(path.read_bytes())
    end = len(content) - 8 - int.from_bytes(content[-8:], "little")
    if damage == "gone":
        path.unlink()
    elif damage == "garbage":
        path.write_bytes(random.Random(0).randbytes(len(content)))
    elif damage in ("token", "offset", "meta"):
        content[{"token": 100, "offset": end - 9, "meta": end + 30}[damage]] ^= 1
        path.write_bytes(content)
    else:
        path.write_bytes({"empty": b"", "cut": content[:-1], "longer": content + b"\0"}[damage])
    assert rows(tokenize_rows(TEXTS, tokenizer, KEY)) == first
    assert rows(tokenize_rows(never(), tokenizer, KEY)) == first


def test_an_interrupted_writer_leaves_nothing(tokenizer: Tokenizer, folder: Path) -> None:
    def torn() -> Iterator[str]:
        yield "one"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tokenize_rows(torn(), tokenizer, KEY)
    assert list(folder.iterdir()) == []


KILLED = """
import os, signal
from allyouneed.data.store import TokenKey, tokenize_rows
from allyouneed.config import TextConfig
from allyouneed.text.tokenizer import Tokenizer
def texts():
    yield "x" * (1 << 20)
    os.kill(os.getpid(), signal.SIGKILL)
tokenize_rows(texts(), Tokenizer.train(["x"], TextConfig(kind="char")), TokenKey("f", "train", "text"))
"""


def test_what_a_killed_writer_left_is_removed_but_not_that_of_a_writer_at_work(
    tokenizer: Tokenizer, folder: Path
) -> None:
    subprocess.run([sys.executable, "-c", KILLED], check=False)
    left = only(folder)
    assert left.name.startswith(".tmp-")
    tokenize_rows(["one"], tokenizer, KEY)
    assert left.exists()  # it was written a moment ago: somebody may be at work
    long_ago = time.time() - 2 * store.QUIET
    os.utime(left, (long_ago, long_ago))
    tokenize_rows(["two"], tokenizer, replace(KEY, data="g"))
    assert not left.exists()
    assert len(list(folder.iterdir())) == 2


AT_ONCE = """
import sys, time
from allyouneed.data.store import TokenKey, tokenize_rows
class Letters:
    fingerprint = "letters"
    def __len__(self): return 300
    def encode_batch(self, texts): return [[ord(letter) for letter in text] for text in texts]
texts = [f"text {i}" for i in range(20)]
expected = Letters().encode_batch(texts)
start = float(sys.argv[1])
for number in range(150):
    time.sleep(max(0.0, start + 0.01 * number - time.time()))
    found = tokenize_rows(texts, Letters(), TokenKey(str(number), "train", "text"))
    assert [row.tolist() for row in found] == expected, number
"""


def test_processes_that_start_at_once_all_get_their_tokens(folder: Path) -> None:
    start = str(time.time() + 1.5)
    several = [subprocess.Popen([sys.executable, "-c", AT_ONCE, start], stderr=subprocess.PIPE) for _ in range(3)]
    for process in several:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said.decode()
    assert len(list(folder.iterdir())) == 150


@pytest.mark.parametrize("order", [("rnn", "elmo"), ("elmo", "rnn")])
def test_bodies_that_read_the_same_text_in_another_way_do_not_share_tokens(
    order: tuple[str, str], folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"it's  well-known, {i}\tlabel {i % 2}\n" for i in range(300)))
    counts = {}
    for kind in order:
        task = catalog.task("classify")(choose("classify/rnn", [f"model.kind={kind}", "text.kind=word"], str(path)))
        task.tokenizers = task.make_tokenizers()
        texts = [example.text for example in task.data.splits["train"]]
        if kind == "rnn":
            read = [task.tokenizer.encode(f" {text}") for text in texts]
            assert rows(task.rows("train")[0]) == read
        else:
            read = [[*find_words(text)] for text in texts]
            assert not task.tokenizers
        found = task.rows("train")[0]
        assert found.lengths.tolist() == [len(row) for row in read]
        counts[kind] = len(found.tokens)
    assert counts["rnn"] != counts["elmo"]
    assert len(list(folder.iterdir())) == 1  # words by their letters are no tokens to keep


PREPARE = """
import sys, time
from allyouneed.config import DataConfig, TextConfig
from allyouneed.data.opening import open_data
from allyouneed.data.store import TokenKey, tokenize_stream
from allyouneed.text.tokenizer import Tokenizer
data = open_data(DataConfig(path=(sys.argv[1],)), "text")
tokenizer = Tokenizer.train(["bytes"], TextConfig(kind="bpe", vocab=260))
start, total = time.time(), 0
for name, split in data.splits.items():
    key = TokenKey(data.fingerprint, name, "text")
    ragged = tokenize_stream(split.documents(), tokenizer, key, tokenizer.eos)
    assert len(ragged.tokens) == split.bytes, name
    total += split.bytes
# Not getrusage: its peak begins with that of the process that started this one.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(total, total / 1e6 / (time.time() - start), peak)
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs /proc to measure memory")
def test_twenty_megabytes_are_prepared_in_bounded_memory(mirror: Path, tmp_path: Path) -> None:
    with gzip.open(mirror / "enwik8/enwik8.gz") as file:
        (tmp_path / "text.txt").write_bytes(file.read(20_000_000))
    done = subprocess.run([sys.executable, "-c", PREPARE, tmp_path / "text.txt"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    total, speed, peak = map(float, done.stdout.split())
    print(f"{speed:.1f} MB/s, peak {peak / 1024:.0f} MiB")
    assert total == 20_000_000
    assert peak / 1024 < 450  # MiB; of 2 MB it is 220
