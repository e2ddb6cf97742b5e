"""train.minutes on a CPU: as many threads as are fastest, also when the machine becomes busy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from allyouneed.config import TrainConfig
from allyouneed.runtime import Runtime
from allyouneed.training.plan import Pacer, Threads

QUIET, BUSY = {1: 100.0, 2: 160.0, 4: 250.0}, {1: 60.0, 2: 6.0, 4: 1.0}  # steps per second, by the number of threads
MINUTES = 4.0


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def train(threads: Threads, speeds: dict[int, float], seconds: float) -> int:
    """Train for so long on a machine with these speeds; returns the steps."""
    steps = 0
    while seconds > 0:
        took = 1 / speeds[torch.get_num_threads()]
        threads.add(1, 100, took)
        steps, seconds = steps + 1, seconds - took
    return steps


def begin(most: int) -> Threads:
    torch.set_num_threads(most)
    return Threads(most, 60 * MINUTES)


@pytest.mark.parametrize(("most", "speeds", "expected"), [
    (2, QUIET, 2), (2, BUSY, 1), (4, QUIET, 4), (4, BUSY, 1),
    (2, {1: 100.0, 2: 95.0}, 2), (2, {1: 100.0, 2: 80.0}, 1),
])  # fmt: skip
def test_the_fastest_number_is_found_in_seconds(most, speeds, expected):
    threads = begin(most)
    train(threads, speeds, 6.0)
    assert not threads.trying
    assert (threads.used, torch.get_num_threads()) == (expected, expected)
    assert str(threads) == f"{expected} of {most} threads"


@pytest.mark.parametrize(("before", "after"), [(QUIET, BUSY), (BUSY, QUIET)])
def test_a_machine_that_becomes_busy_or_quiet_is_noticed(before, after):
    threads = begin(2)
    train(threads, before, 60)
    steps = train(threads, after, 120)
    assert threads.used == max((1, 2), key=lambda count: after[count])
    assert steps > 0.6 * 120 * after[threads.used]


@pytest.mark.parametrize("speeds", [QUIET, BUSY])
def test_trials_cost_little(speeds):
    threads = begin(2)
    assert train(threads, speeds, 60 * MINUTES) > 0.93 * 60 * MINUTES * max(speeds[1], speeds[2])


def test_steps_that_try_another_number_say_nothing_about_the_pace():
    torch.set_num_threads(2)
    pacer = Pacer(TrainConfig(minutes=MINUTES), 100, 1, threads=2)
    for _ in range(1000):
        pacer.add(1, 100, 1 / BUSY[torch.get_num_threads()])
    assert pacer.budget is not None
    assert pacer.budget.pace.step == pytest.approx(1 / BUSY[1])


@pytest.mark.parametrize(("config", "threads"), [
    (TrainConfig(minutes=1, threads=2), 2), (TrainConfig(minutes=1), 1), (TrainConfig(steps=9), 2),
])  # fmt: skip
def test_a_given_number_stays(config, threads):
    assert Pacer(config, 100, 1, threads=threads).threads is None


def test_compiled_code_a_gpu_and_several_processes_keep_their_threads():
    values = {"device": "cpu", "precision": "fp32", "compile": False, "threads": 4, "world": 1, "deterministic": False}
    assert Runtime(**values, why="").free_threads == 4
    for other in ({"device": "cuda:0"}, {"compile": True}, {"world": 2}, {"deterministic": True}):
        assert Runtime(**values | other, why="").free_threads == 1
