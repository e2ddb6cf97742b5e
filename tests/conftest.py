"""Shared by all tests: a cache of their own, small recipes, and runs in other processes."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from browser import close_browser
from forking import Server

if "PYTEST_XDIST_WORKER" in os.environ:  # as many workers as cores: each, and all that it starts, has one thread
    os.environ["OMP_NUM_THREADS"] = "1"

WORDS = {"one": "uno", "two": "due", "three": "tre", "four": "quattro", "five": "cinque", "six": "sei"}


def pytest_collection_finish() -> None:
    """What thousands of collected tests hold is never garbage: the collector need not look at it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Tests of one file share a browser."""
    if nextitem is None or nextitem.path != item.path:
        close_browser()


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["ALLYOUNEED_CACHE"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(autouse=True, scope="session")
def _hear_ctrl_c() -> None:
    """A shell that starts the tests in the background lets them, and all they start, ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _keep_onednn() -> Iterator[None]:
    """On a CPU without bf16, torch switches oneDNN off for the whole process at the first bf16 product that fails
    there. Results of later tests would then differ in the last bits from those of another process."""
    yield
    if "torch" in sys.modules:
        import torch

        if torch.backends.mkldnn.is_available():
            torch.backends.mkldnn.enabled = True  # type: ignore[misc]


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch counts in one thread, as where results are held equal to the last bit."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def mirror() -> Path:
    """The folder of public data sets, where there is one."""
    folder = os.environ.get("ALLYOUNEED_MIRROR")
    if not folder:
        pytest.skip("needs ALLYOUNEED_MIRROR, a folder with the public data sets")
    return Path(folder)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little language: numbers in words, translated one by one."""
    chance, rows = random.Random(0), set()
    while len(rows) < 300:
        rows.add(tuple(chance.choices(list(WORDS), k=chance.randint(1, 6))))
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    lines = [" ".join(row) + "\t" + " ".join(WORDS[word] for word in row) for row in sorted(rows)]
    chance.shuffle(lines)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def story(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A little text."""
    chance = random.Random(1)
    lines = [" ".join(chance.choices(list(WORDS), k=8)) + "." for _ in range(400)]
    path = tmp_path_factory.mktemp("data") / "story.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Opinions of two kinds."""
    path = tmp_path_factory.mktemp("reviews") / "reviews.tsv"
    rows = [f"the {thing} was {word}, really {word}\t{label}" for thing in ("film", "plot", "music", "end", "hero")
            for label, words in (("good", ("fine", "great", "lovely")), ("bad", ("dull", "poor", "awful")))
            for word in words]  # fmt: skip
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


RUNTIME = ["train.threads=1", "train.compile=off", "train.precision=fp32", "train.device=cpu"]
TINY = ["model.width=16", "model.heads=2", "model.layers=1", *RUNTIME]
TINY_LM = [
    *TINY, "model.context=16", "text.kind=char", "train.steps=12", "train.eval_every=4", "train.batch_tokens=64",
    "train.warmup=2", "decode.max_new=5",
]  # fmt: skip
TINY_TRANSLATE = [
    *TINY, "model.hidden=32", "train.epochs=0", "train.steps=12", "train.eval_every=4", "train.batch_tokens=128",
    "train.warmup=2", "decode.max_new=8",
]  # fmt: skip
TINY_ELMO = [
    "model.width=16", "model.layers=2", "model.filters=2", "model.reader=8", "model.context=16", *RUNTIME,
    "train.steps=8", "train.epochs=0", "train.eval_every=4", "train.batch_tokens=256", "train.warmup=2",
    "decode.max_new=5",
]  # fmt: skip


@pytest.fixture(scope="session")
def command() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run `ayn …` as a person would, in a process of its own."""

    def run(*arguments: object, input: str | bytes | None = None, cwd: Path | None = None, **env: str):
        text = not isinstance(input, bytes)
        return subprocess.run(
            [sys.executable, "-m", "allyouneed", *map(str, arguments)],
            input=input,
            capture_output=True,
            text=text,
            cwd=cwd,
            timeout=300,
            env={**os.environ, "COLUMNS": "100", "OMP_NUM_THREADS": "1", **env},
        )

    return run


@pytest.fixture(scope="session")
def forking() -> Iterator[Server]:
    """Starts processes that need no time to import."""
    server = Server()
    yield server
    server.close()


@pytest.fixture
def quick_command(forking: Server, tmp_path: Path) -> Callable[..., tuple[int, str]]:
    """Run `ayn …` in a folder, in a forked process: its exit code, and what it said on standard error."""

    def run(*arguments: object, cwd: Path) -> tuple[int, str]:
        err = tmp_path / "standard error"
        err.write_bytes(b"")
        code = forking.call("forking", "run_command", [str(word) for word in arguments], str(cwd), os.devnull, str(err))
        return code, err.read_text()

    return run


@pytest.fixture(scope="session")
def lm(story: Path) -> Path:
    from commands import trained

    return trained("lm", story)


@pytest.fixture(scope="session")
def translator(pairs: Path) -> Path:
    from commands import trained

    return trained("translate", pairs)


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty folder to work in, and no mirror."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALLYOUNEED_MIRROR", raising=False)


@pytest.fixture(scope="session")
def pretrained(story: Path) -> Path:
    """A small ELMo language model."""
    from commands import trained

    return trained("elmo", story)
