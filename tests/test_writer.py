"""The writer of a run: one for all who ask, from any thread."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from allyouneed.decode import Request
from allyouneed.errors import UserError
from allyouneed.predict.writer import Writer
from generation import beam_search
from test_decode import alone
from toy_steppers import ToyLM, ToyTranslator


def ask(writer: Writer, requests: list[Any], most: int = 4) -> list[Any]:
    """The tokens of each request, or its hypotheses, or its error."""
    with writer.session(most) as session:
        found: dict[int, Any] = {session.add(request): [] for request in requests}
        while events := session.wait():
            for event in events:
                if event.error is not None:
                    found[event.id] = event.error
                elif event.hypotheses:
                    found[event.id] = event.hypotheses
                else:
                    found[event.id] += [event.token] if event.token is not None else []
    return list(found.values())


@pytest.mark.parametrize("kind", [ToyLM, ToyTranslator])
def test_many_threads_each_get_what_they_get_alone(kind: type) -> None:
    toy = kind(7, seed=2, ends=1.0)
    writer = Writer(toy)

    def requests(thread: int) -> list[Any]:
        return [
            Request([thread % 7, i % 5], max_new=1 + (thread + i) % 9, temperature=i % 2, seed=i, stop={0})
            if i % 4
            else Request([thread % 7, i % 5], max_new=5, beam=2 + thread % 2, stop={0})
            for i in range(50)
        ]

    def all_of(thread: int) -> list[Any]:
        return [one for request in requests(thread) for one in ask(writer, [request])]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(all_of, range(8)))
    for thread, got in enumerate(found):
        for request, answer in zip(requests(thread), got, strict=True):
            if request.beam is None:
                assert answer == alone(toy, request)[0]
            else:
                how = {"beam": request.beam, "max_new": 5, "eos": 0}
                assert [answer] == beam_search(toy, [request.input], **how)
    assert not writer._owners
    assert not writer._sessions


def test_sessions_share_the_rows() -> None:
    toy = ToyLM(7)
    writer, together = Writer(toy), threading.Barrier(2)

    def write(first: int) -> list[int]:
        with writer.session(4) as session:
            session.add(Request([first], max_new=30))
            together.wait()
            tokens = []
            while events := session.wait():
                tokens += [event.token for event in events if event.token is not None]
        return tokens

    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(write, (1, 2)))
    assert found == [alone(toy, Request([first], max_new=30))[0] for first in (1, 2)]
    assert 2 in toy.steps


def test_who_stops_asking_frees_its_rows() -> None:
    writer = Writer(ToyLM(7))
    with writer.session(4) as session:
        session.add(Request([1], max_new=50))
        session.add(Request([1], max_new=50, beam=2, stop={99}))
        assert session.wait()
    assert not any(engine.busy for engine in writer._engines.values())
    assert ask(writer, [Request([1], max_new=2)]) == [alone(writer.stepper, Request([1], max_new=2))[0]]


class Breaks(ToyLM):
    """Its steps fail after a while."""

    left = 3
    error: BaseException = RuntimeError("the machine is on fire")

    def step(self, tokens: torch.Tensor, state: Any) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            raise self.error
        return super().step(tokens, state)


def test_a_step_that_fails_ends_what_was_being_written_and_nothing_after() -> None:
    toy = Breaks(7)
    writer = Writer(toy)
    found = ask(writer, [Request([1], max_new=9), Request([2], max_new=2)])
    assert str(found[0]) == "the machine is on fire"
    assert len(found[1]) == 2
    assert ask(writer, [Request([1], max_new=2)]) == [alone(toy, Request([1], max_new=2))[0]]


class Refuses(ToyTranslator):
    """Cannot read an input with a 5 in it."""

    def start(self, inputs: Any, room: int) -> Any:
        if any(5 in ids for ids in inputs):
            raise UserError("a five")
        return super().start(inputs, room)


def test_an_input_that_cannot_be_read_ends_no_other_search() -> None:
    toy = Refuses(7, ends=1.0)
    one, bad, two = (Request(ids, max_new=5, beam=2, stop={0}) for ids in ([1, 2], [5], [3]))
    found = ask(Writer(toy), [one, bad, two])
    assert str(found[1]) == "a five"
    assert [found[0], found[2]] == beam_search(toy, [[1, 2], [3]], max_new=5, beam=2, eos=0)


def test_ctrl_c_ends_what_was_being_written_for_others_with_a_sentence() -> None:
    toy = Breaks(7)
    toy.error = KeyboardInterrupt()
    writer = Writer(toy)
    with writer.session(4) as other:
        other.add(Request([2], max_new=9))
        with pytest.raises(KeyboardInterrupt):
            ask(writer, [Request([1], max_new=9)])
        events = other.wait()
        assert isinstance(events[-1].error, UserError)
        assert other.wait() == []


def test_a_cancelled_answer_does_not_arrive_and_the_others_do() -> None:
    toy = ToyLM(7)
    writer = Writer(toy)
    with writer.session(4) as session:
        number = session.add(Request([3], max_new=4, temperature=1.0, answers=3))
        assert {event.answer for event in session.wait()} == {0, 1, 2}
        writer.tick()  # for another session
        session.cancel(number, 1)
        rest: list[Any] = []
        while events := session.wait():
            rest += events
    assert {event.answer for event in rest} == {0, 2}
    assert len(rest) == 6


def test_more_answers_than_rows_come_in_turns() -> None:
    toy = ToyLM(7)
    (found,) = ask(Writer(toy), [Request([3], max_new=4, answers=9)], most=2)
    assert len(found) == 36
    assert max(toy.steps) == 2
