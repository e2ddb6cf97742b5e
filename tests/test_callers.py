"""Many threads ask one run: each answer is what it is alone."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from allyouneed.predict.answers import Answer
from allyouneed.predict.base import Writing
from families import FAMILIES, made

THREADS, CALLS = 8, 15


def plain(answer: Answer) -> tuple[Any, ...]:
    """What an answer says, with numbers as exact as the order of sums allows."""
    return answer.text, answer.tokens, answer.reason, [plain(other) for other in answer.others]


def settings(name: str, call: int) -> dict[str, Any]:
    """Greedy, sampled and beam search by turns, if it writes."""
    if not isinstance(made(name).predictor, Writing):
        return {}
    ways: list[dict[str, Any]] = [{"method": "greedy"}, {"method": "sample", "seed": call, "n_best": 1 + call % 2}]
    if name != "dalle":
        ways.append({"method": "beam", "beam": 2 + call % 2})
    return ways[call % len(ways)]


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_each_of_many_callers_gets_what_it_gets_alone(name: str) -> None:
    run, inputs = made(name), FAMILIES[name][2]

    def ask(thread: int) -> list[Any]:
        calls = range(thread, thread + CALLS)
        return [plain(*run.answers([inputs[call % len(inputs)]], **settings(name, call))) for call in calls]

    alone = {call: ask_once(name, call) for call in range(THREADS + CALLS)}
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(ask, range(THREADS)))
    for thread, answers in enumerate(found):
        assert answers == [alone[call] for call in range(thread, thread + CALLS)]


def ask_once(name: str, call: int) -> tuple[Any, ...]:
    run, inputs = made(name), FAMILIES[name][2]
    return plain(*run.answers([inputs[call % len(inputs)]], **settings(name, call)))
