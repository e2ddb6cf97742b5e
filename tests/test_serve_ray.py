"""`ayn serve --ray`: replicas answer as one process does, at nearly its pace; one that is killed loses none."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from families import ENGLISH, TEXTS, made
from serving import Asked, ask_all

pytestmark = pytest.mark.slow
KEY = "a key"
STARTS = 3  # Ray gives up a start that takes 30 s, as it may on a busy machine


@contextmanager
def started(*options: object) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address and the process of `ayn serve`, with a translator and a language model."""
    runs = [made(name).folder.path for name in ("transformer", "gpt")]
    names = [path.parent / name for path, name in zip(runs, ("en-it", "notes"))]
    for path, name in zip(runs, names):
        if not name.exists():
            name.symlink_to(path)
    command = [sys.executable, "-m", "allyouneed", "serve", *names, "--port", 0, "--device", "cpu", *options]
    for _ in range(STARTS):
        process = subprocess.Popen(
            [*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        said = []
        for line in process.stdout or ():
            said.append(line)
            if found := re.search(r"serving at (http://localhost:\d+)/", line):
                break
        else:
            process.wait(60)
            continue
        try:
            yield found[1], process
        finally:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            process.wait(120)
        return
    pytest.fail("".join(said))


@pytest.fixture(scope="module")
def one() -> Iterator[str]:
    with started() as (address, _):
        yield address


@pytest.fixture(scope="module")
def two() -> Iterator[str]:
    pytest.importorskip("ray")
    with started("--ray", 2) as (address, _):
        yield address


def questions(number: int) -> list[Asked]:
    """Greedy, sampled and beam, of two runs."""
    found: list[Asked] = []
    for i in range(number):
        text = {"model": "notes", "prompt": TEXTS[i % 4], "max_tokens": 4 + i % 12}
        found.append(
            [
                ("/v1/completions", {**text, "temperature": 0}),
                ("/v1/completions", {**text, "temperature": 0.9, "seed": i, "n": 2}),
                ("/translate", {"input": ENGLISH[i % 4], "decode": {"method": "beam", "beam": 3}}),
                ("/translate", {"input": [*ENGLISH[:2]]}),
            ][i % 4]
        )
    return found


def content(answer: tuple[int, str]) -> Any:
    """An answer without what is new each time."""
    status, body = answer
    return status, {name: value for name, value in json.loads(body).items() if name not in ("id", "created")}


def replicas() -> list[int]:
    """The process ids of the replicas on this machine."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if b"ray::ServeReplica:allyouneed" in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def test_answers_are_those_of_one_process(one: str, two: str) -> None:
    assert len(replicas()) == 2
    asked = questions(64)
    alone = [content(answer) for answer in ask_all(one, asked, 1)]
    assert {status for status, _ in alone} == {200}
    assert [content(answer) for answer in ask_all(two, asked, 8)] == alone


def test_little_time_is_added_and_little_throughput_lost(one: str, two: str) -> None:
    """Alternating, since other work on the machine comes and goes."""
    asked = [("/translate", {"input": text}) for text in ENGLISH * 25]
    waits: dict[str, list[float]] = {one: [], two: []}
    paces: dict[str, list[float]] = {one: [], two: []}
    for _ in range(5):
        for address in (one, two):
            begun = time.perf_counter()
            ask_all(address, asked[:40], 1)
            waits[address].append((time.perf_counter() - begun) / 40)
            begun = time.perf_counter()
            ask_all(address, asked, 16)
            paces[address].append(len(asked) / (time.perf_counter() - begun))
    added = statistics.median(waits[two]) - statistics.median(waits[one])
    kept = statistics.median(paces[two]) / statistics.median(paces[one])
    print(f"added {added * 1000:.1f} ms; {kept:.2f} of the throughput")
    assert added <= 0.005
    assert kept >= 0.9


def test_a_killed_replica_loses_no_request_that_is_sent_again(two: str) -> None:
    """The openai client sends a request again after a 5xx or a lost connection."""
    openai = pytest.importorskip("openai")
    client = openai.AsyncOpenAI(base_url=f"{two}/v1", api_key=KEY, max_retries=5)
    asked: dict[str, Any] = {"model": "en-it", "max_tokens": 400, "temperature": 1.0}

    async def ask(seed: int) -> str:
        found = await client.completions.create(prompt=ENGLISH[seed % 4], seed=seed, **asked)
        return str(found.choices[0].text)

    async def ask_and_kill() -> list[str]:
        awaited = [asyncio.ensure_future(ask(seed)) for seed in range(48)]
        await asyncio.sleep(0.3)
        assert not all(one.done() for one in awaited)
        os.kill(before[0], signal.SIGKILL)
        return list(await asyncio.gather(*awaited))

    before = replicas()
    assert len(before) == 2
    under_fire = asyncio.run(ask_and_kill())
    client = openai.AsyncOpenAI(base_url=f"{two}/v1", api_key=KEY)

    async def again() -> list[str]:
        return [await ask(seed) for seed in range(48)]

    assert under_fire == asyncio.run(again())
    late = time.monotonic() + 120
    while len(replicas()) < 2:  # Ray starts another one
        assert time.monotonic() < late
        time.sleep(1)


def test_key_and_limits_hold_and_sigterm_waits_for_answers() -> None:
    pytest.importorskip("ray")
    import httpx

    others = set(replicas())  # of other tests
    with started("--ray", 1, "--key", KEY) as (address, process):
        http = httpx.Client(base_url=address, timeout=60)
        assert http.get("/v1/models").status_code == 401
        http.headers["Authorization"] = f"Bearer {KEY}"
        assert http.get("/v1/models").status_code == 200
        assert http.get("/v1/models", headers={"Host": "elsewhere.org"}).json()["error"]["code"] == "wrong_host"
        assert http.post("/translate", content=b"x" * (3 << 20)).status_code == 413
        assert http.post("/translate", json={"input": "a", "colour": 1}).status_code == 400
        asked = {
            "model": "en-it",
            "prompt": "I am tired.",
            "max_tokens": 2000,
            "stream": True,
            "seed": 1,
            "temperature": 9,
        }
        with http.stream("POST", "/v1/completions", json=asked) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert process.wait(120) == 0
    assert set(replicas()) <= others


def test_more_replicas_than_cores_are_refused(command: Any) -> None:
    pytest.importorskip("ray")
    done = command("serve", made("gpt").folder.path, "--ray", 999, "--port", 0)
    assert done.returncode == 1
    assert re.search(r"999 replicas .* more than|Ray did not start", done.stderr), done.stderr
