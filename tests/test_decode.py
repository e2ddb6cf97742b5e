"""Search over toy steppers: any schedule decodes as if alone, draws follow their distribution, beam search is exact."""

from __future__ import annotations

import itertools
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.decode import Request, choose, greedy, uniform
from allyouneed.decode.stepper import bucket
from allyouneed.errors import UserError
from allyouneed.predict.decoder import AHEAD, Decoder
from allyouneed.run import load
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.storage.wholefile import write_tensors
from commands import mistake
from generation import beam_search, generate
from toy_steppers import ToyLM, ToyTranslator

INF = float("inf")


def draw(logits: torch.Tensor, u: Any, temperature: Any = 1.0, top_k: Any = 0, top_p: Any = 1.0, **more: Any) -> Any:
    rows = len(logits)
    dtypes = (torch.float32, torch.long, torch.float32, torch.float32)
    values = [torch.as_tensor(x, dtype=d).expand(rows) for x, d in zip((temperature, top_k, top_p, u), dtypes)]
    return choose(logits, values[0], values[1], values[2], values[3], **more)


# Uniform numbers


def test_uniform_is_uniform_in_both_arguments() -> None:
    many = torch.arange(20_000)
    for seed, step in ((many, torch.full_like(many, 3)), (torch.full_like(many, 3), many), (-many, many)):
        u = uniform(seed, step)
        assert u.dtype == torch.float32
        assert bool(((u >= 0) & (u < 1)).all())
        counts = torch.histc(u, 50, 0, 1)
        chi_square = float(((counts - 400) ** 2 / 400).sum())
        assert 15 < chi_square < 100  # 49 degrees of freedom
        assert abs(float(np.corrcoef(u[:-1], u[1:])[0, 1])) < 0.03


def test_uniform_is_a_fixed_function_of_seed_and_step() -> None:
    seed, step = torch.tensor([0, 0, 1, 2**63 - 1, -(2**63)]), torch.tensor([0, 1, 0, 5, 5])
    u = uniform(seed, step)
    assert len(set(u.tolist())) == 5
    assert torch.equal(uniform(seed[2:3], step[2:3]), u[2:3])
    mask = 2**64 - 1

    def mix(z: int) -> int:
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        return z ^ (z >> 31)

    golden = 0x9E3779B97F4A7C15
    exact = [
        (mix((mix((s + golden) & mask) + (t + 1) * golden) & mask) >> 40) / 2**24
        for s, t in zip(seed.tolist(), step.tolist())
    ]
    assert u.tolist() == exact


# Choosing a token


def test_temperature_zero_takes_the_lowest_of_the_best() -> None:
    logits = torch.tensor([[0.0, 3.0, 3.0, 1.0], [5.0, -INF, 5.0, 5.0]])
    tokens, logprobs = draw(logits, 0.99, temperature=0.0)
    assert tokens.tolist() == [1, 0]
    assert torch.equal(logprobs, logits.log_softmax(-1)[torch.arange(2), tokens])
    assert all(torch.equal(a, b) for a, b in zip(greedy(logits), (tokens, logprobs)))
    assert draw(logits, 0.3, temperature=1e-30)[0].tolist() == [1, 0]


def test_draws_follow_the_softmax() -> None:
    logits = torch.tensor([0.5, -1.0, 2.0, 0.0, -INF])
    for temperature in (0.7, 1.0, 2.0):
        n = 20_000
        u = uniform(torch.full((n,), 11), torch.arange(n))
        tokens, logprobs = draw(logits.expand(n, 5), u, temperature)
        expected = (logits / temperature).softmax(-1) * n
        counts = torch.bincount(tokens, minlength=5)
        assert counts[4] == 0
        chi_square = float(((counts - expected)[:4] ** 2 / expected[:4]).sum())
        assert chi_square < 16.3  # 3 degrees of freedom, one in a thousand
        assert torch.allclose(logprobs, logits.log_softmax(-1)[tokens])  # of the model, whatever the temperature


@pytest.mark.parametrize("spread", [0.3, 3.0])  # with many equals, and with few
def test_a_choice_among_few_is_the_choice_among_all(spread: float) -> None:
    chance = torch.Generator().manual_seed(5)
    logits = (spread * torch.randn((400, 300), generator=chance)).bfloat16()
    logits[0], logits[1, 7:] = 1.0, -INF
    temperature, top_p = torch.rand(400, generator=chance) * 2, torch.rand(400, generator=chance)
    temperature[:5], top_p[-200:] = 0, 1
    top_k, u = torch.randint(1, 65, (400,), generator=chance), torch.rand(400, generator=chance)
    top_k[:3] = 0  # of greedy rows
    every = choose(logits, temperature, top_k, top_p, u)
    for most in (64, 128, 1024):
        few = choose(logits, temperature, top_k, top_p, u, most=most)
        assert all(torch.equal(a, b) for a, b in zip(every, few))


def reference(logits: np.ndarray, temperature: float, top_k: int, top_p: float, u: float) -> int:
    """The same in plain float64: sort, cut, renormalise, walk along the ids."""
    heat = (logits - logits.max()) / temperature
    p = np.exp(heat) / np.exp(heat).sum()
    order = sorted(range(len(p)), key=lambda i: (-logits[i], i))[: top_k or None]
    kept: list[int] = []
    mass = 0.0
    for i in order:
        if kept and mass >= top_p * p[order].sum():
            break
        kept.append(i)
        mass += p[i]
    passed = 0.0
    for i in sorted(kept):
        passed += p[i]
        if u * mass < passed:
            return i
    return max(kept)


def test_top_k_and_top_p_equal_brute_force() -> None:
    @settings(max_examples=120, deadline=None)
    @given(
        st.lists(st.sampled_from([-2.0, 0.0, 0.25, 0.5, 1.0, 3.0, -30.0]), min_size=1, max_size=9),
        st.sampled_from([0.3, 1.0, 4.0]),
        st.integers(0, 10),
        st.one_of(st.just(0.0), st.just(1.0), st.floats(0.01, 0.99)),
        st.floats(0, 0.999),
    )
    def check(logits: list[float], temperature: float, top_k: int, top_p: float, u: float) -> None:
        token = int(draw(torch.tensor([logits]), u, temperature, top_k, top_p)[0])
        # Within rounding of a boundary either side is right.
        near = {
            reference(np.array(logits), temperature, top_k, p, v)
            for p in (top_p - 1e-6, top_p, top_p + 1e-6)
            for v in (u - 1e-6, u, u + 1e-6)
        }
        assert token in near

    check()


def test_the_nucleus_is_the_smallest_set_that_reaches_p() -> None:
    logits = torch.tensor([[0.2, 0.5, 0.3]]).log()
    grid = torch.arange(200) / 200
    seen = lambda **kw: set(draw(logits.expand(200, 3), grid, **kw)[0].tolist())
    assert seen(top_p=0.0) == {1}
    assert seen(top_p=0.49) == {1}
    assert seen(top_p=0.51) == {1, 2}
    assert seen(top_p=0.79) == {1, 2}
    assert seen(top_p=0.81) == {0, 1, 2}
    assert seen(top_k=2) == {1, 2}
    assert seen(top_k=2, top_p=0.6) == {1}  # 0.5 of the 0.8 that top_k leaves is 0.625
    assert seen(top_k=99) == seen() == {0, 1, 2}


def test_a_batch_draws_what_its_rows_draw_alone() -> None:
    torch.manual_seed(1)
    logits = 3 * torch.randn(64, 5000)
    logits[::3] = logits[::3].round()  # ties
    temperature = torch.tensor([0.0, 0.5, 1.0, 1.7]).repeat(16)
    top_k, top_p = torch.randint(0, 50, (64,)) * torch.randint(0, 2, (64,)), torch.rand(64).clamp(0.2).sqrt()
    u = uniform(torch.arange(64), torch.arange(64))
    tokens, logprobs = choose(logits, temperature, top_k, top_p, u)
    for i in range(64):
        one = slice(i, i + 1)
        alone = choose(logits[one], temperature[one], top_k[one], top_p[one], u[one])
        assert torch.equal(alone[0], tokens[one])
        assert torch.equal(alone[1], logprobs[one])
    assert torch.equal(draw(logits, u)[0], draw(logits, u, cut=False)[0])


def test_rows_nobody_reads_still_give_an_id() -> None:
    logits = torch.tensor([[float("nan")] * 4, [-INF] * 4])
    tokens, _ = draw(logits, 0.999, top_k=2)
    assert 0 <= int(tokens.min()) <= int(tokens.max()) < 4


# The Decoder


def alone(stepper: Any, request: Request) -> tuple[list[int], list[float], str]:
    """One request decoded by itself, step by step."""
    logits, state = stepper.start([request.input], 256)
    most = min(request.max_new, (stepper.limit or 10**9) - (len(request.input) if stepper.prompted else 1) + 1)
    tokens: list[int] = []
    logprobs: list[float] = []
    for n in range(most):
        u = uniform(torch.tensor([request.seed]), torch.tensor([n]))
        token, logprob = draw(logits, u, request.temperature, request.top_k, request.top_p)
        logprobs.append(float(logprob))
        if int(token) in request.stop:
            return tokens, logprobs, "stop"
        tokens.append(int(token))
        if n + 1 < most:
            logits = stepper.step(token, state)
    return tokens, logprobs, "length"


def prompts(size: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 6), min_size=1, max_size=size)


def wishes(max_new: int = 12, prompt: int = 5) -> st.SearchStrategy[Request]:
    return st.builds(
        Request,
        input=prompts(prompt),
        max_new=st.integers(1, max_new),
        temperature=st.sampled_from([0.0, 0.0, 1.0, 1.5]),
        top_k=st.sampled_from([0, 3]),
        top_p=st.sampled_from([1.0, 0.8]),
        seed=st.integers(0, 3),
        stop=st.sampled_from([frozenset(), frozenset({0}), (0, 2)]),
    )


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("kind", [ToyLM, ToyTranslator])
def test_any_schedule_decodes_each_request_as_if_alone(kind: type, lag: int) -> None:
    stepper = kind(7, seed=2, ends=1.0, limit=14)
    stays_for = st.one_of(st.none(), st.none(), st.none(), st.integers(0, 8))

    @settings(max_examples=25, deadline=None)
    @given(st.integers(1, 4), st.lists(st.tuples(st.integers(0, 6), stays_for, wishes()), min_size=1, max_size=9))
    def check(rows: int, plan: list[tuple[int, int | None, Request]]) -> None:
        decoder = Decoder(stepper, rows)
        decoder.lag = lag
        arrivals = sorted(((wait, i) for i, (wait, _, _) in enumerate(plan)), reverse=True)
        got: dict[int, tuple[list[int], list[float]]] = {}
        ends: dict[int, str] = {}
        ids: dict[int, int] = {}
        leaves: dict[int, int] = {}
        for now in itertools.count():
            while arrivals and arrivals[-1][0] <= now:
                i = arrivals.pop()[1]
                id = decoder.add(plan[i][2])
                ids[id], got[id] = i, ([], [])
                if (stays := plan[i][1]) is not None:
                    leaves[id] = now + stays
            for id, when in leaves.items():
                if when == now:
                    decoder.cancel(id)
            for event in decoder.tick():
                assert event.id not in ends, "an event after the end"
                assert leaves.get(event.id, now + 1) > now, "an event after the cancellation"
                assert (event.token is None) == (event.done == "stop")
                got[event.id][1].append(event.logprob)
                if event.token is not None:
                    got[event.id][0].append(event.token)
                if event.done:
                    ends[event.id] = event.done
            if not decoder.busy and not arrivals:
                break
            assert now < 300, "the decoder does not come to an end"
        for id, i in ids.items():
            tokens, logprobs, end = alone(stepper, plan[i][2])
            if id in ends:
                assert (*got[id], ends[id]) == (tokens, logprobs, end)
            else:
                assert id in leaves
                assert got[id] == (tokens[: len(got[id][0])], logprobs[: len(got[id][1])])

    check()


def test_waiting_requests_start_together_and_rows_are_reused() -> None:
    stepper = ToyLM(7)
    decoder = Decoder(stepper, 3)
    for n in (2, 4, 4, 1, 3):
        decoder.add(Request([1], max_new=n))
    ticks = []
    while decoder.busy:
        ticks.append([event.id for event in decoder.tick()])
    assert ticks == [[1, 2, 4], [1, 2, 4], [1, 2, 4], [1, 2, 0], [3, 0]]  # the longest first, then as they came
    assert stepper.starts == [3, 2]  # the last one is read beside the fourth, and waits for a row
    assert stepper.steps == [3, 3, 3, 3]  # nobody steps for nothing: there are as many rows as answers


def test_a_longer_answer_does_not_overtake_those_that_came_before() -> None:
    decoder = Decoder(ToyLM(7), 1)
    ids = [decoder.add(Request([1], max_new=n)) for n in (3, 2)]
    decoder.tick()
    ids.append(decoder.add(Request([1], max_new=9)))
    order = [event.id for _ in range(14) for event in decoder.tick()]
    assert list(dict.fromkeys(order)) == ids


def test_what_is_read_before_a_row_is_free_can_be_cancelled() -> None:
    stepper = ToyLM(7)
    decoder = Decoder(stepper, 2)
    _, _, third, fourth = (decoder.add(Request([1], max_new=n)) for n in (4, 2, 2, 2))
    events = [event for _ in range(3) for event in decoder.tick()]
    assert stepper.starts == [2, 2]
    decoder.cancel(fourth)
    while decoder.busy:
        events += decoder.tick()
    assert [event.id for event in events].count(third) == 2
    assert fourth not in {event.id for event in events}


def test_only_some_tokens_are_read_before_rows_are_free() -> None:
    stepper = ToyLM(7)
    decoder = Decoder(stepper, 4)
    for n, size in ((6, 1), (6, 1), (6, 1), (5, 1), (4, AHEAD - 8), (4, 8), (4, 1)):
        decoder.add(Request([1] * size, max_new=n))
    while decoder.busy:
        decoder.tick()
    assert stepper.starts == [4, 2, 1]


def test_there_are_as_many_rows_as_answers_up_to_the_most() -> None:
    stepper = ToyLM(7)
    decoder = Decoder(stepper, 8)
    decoder.add(Request([1], max_new=20))
    for _ in range(3):
        decoder.tick()
    for _ in range(9):
        decoder.add(Request([2], max_new=4))
    while decoder.busy:
        decoder.tick()
    assert stepper.steps[:2] == [1, 1]
    assert max(stepper.steps) == 8
    assert stepper.steps[-5:] == [1] * 5
    assert decoder.state is None  # an idle decoder holds nothing


def test_several_answers_read_their_input_once() -> None:
    stepper = ToyLM(7, ends=1.0)
    for most in (2, 8):  # some wait for others, or all fit
        stepper.starts.clear()
        decoder = Decoder(stepper, most)
        wish = Request([3, 1], max_new=9, temperature=1.0, seed=5, stop={0}, answers=5)
        other = Request([2], max_new=9)
        first, second = decoder.add(wish), decoder.add(other)
        got: dict[tuple[int, int], list[int]] = {}
        while decoder.busy:
            for event in decoder.tick():
                got.setdefault((event.id, event.answer), []).extend([] if event.token is None else [event.token])
        assert stepper.starts == ([2] if most == 8 else [2, 2])  # once for all answers that fit together
        assert got[second, 0] == alone(stepper, other)[0]
        for number in range(5):
            lonely = Request([3, 1], max_new=9, temperature=1.0, seed=5 + number, stop={0})
            assert got.get((first, number), []) == alone(stepper, lonely)[0]


def test_one_of_several_answers_can_be_cancelled() -> None:
    decoder = Decoder(ToyLM(7), 8)
    id = decoder.add(Request([3], max_new=6, temperature=1.0, answers=3))
    decoder.tick()
    decoder.cancel(id, 1)
    assert {event.answer for event in decoder.tick()} == {0, 2}


@pytest.mark.parametrize("kind", [ToyLM, ToyTranslator])
def test_guided_answers_stand_beside_others(kind: type) -> None:
    stepper = kind(7, seed=3)
    decoder = Decoder(stepper, 4)
    wishes = [
        Request([3, 1], 8, guidance=2.5, free=[6, 6]),
        Request([4, 2], 8),
        Request([5, 5], 8, temperature=0.8, seed=3, guidance=0.5, free=[6, 6], answers=2),
    ]
    ids = [decoder.add(wish) for wish in wishes]
    got: dict[tuple[int, int], list[int]] = {}
    while decoder.busy:
        for event in decoder.tick():
            got.setdefault((event.id, event.answer), []).append(event.token or 0)
    for id, wish in zip(ids, wishes):
        for answer in range(wish.answers):
            asked, state = stepper.start([wish.input], 64)
            free, beside = stepper.start([wish.free or wish.input], 64)
            tokens: list[int] = []
            for n in range(8):
                logits = free + wish.guidance * (asked - free)
                u = uniform(torch.tensor([wish.seed + answer]), torch.tensor([n]))
                token, _ = draw(logits, u, wish.temperature)
                tokens.append(int(token))
                asked, free = stepper.step(token, state), stepper.step(token, beside)
            assert got[id, answer] == tokens


def test_a_long_input_is_read_in_pieces_while_others_go_on() -> None:
    stepper = ToyLM(7)
    stepper.piece = 4
    decoder = Decoder(stepper, 3)
    short, long = Request([1, 2], max_new=12), Request([1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5], max_new=3, answers=2)
    first, second = decoder.add(short), decoder.add(long)
    ticks = []
    got: dict[int, list[int]] = {first: [], second: []}
    while decoder.busy:
        events = decoder.tick()
        ticks.append({event.id for event in events})
        for event in events:
            if not event.answer:
                got[event.id].append(event.token or 0)
    assert ticks[:4] == [{first}, {first}, {first, second}, {first, second}]
    assert stepper.pieces == [[4], [3]]  # after the first four
    assert got == {first: alone(stepper, short)[0], second: alone(stepper, long)[0]}


@pytest.mark.parametrize("lag", [0, 1])
def test_a_stop_frees_its_row_at_once(lag: int) -> None:
    decoder = Decoder(ToyLM(7, ends=99.0), 1)
    decoder.lag = lag
    for i in range(5):
        decoder.add(Request([i], max_new=50, stop={0}))
    ticks = []
    while decoder.busy:
        ticks.append([(event.id, event.done) for event in decoder.tick()])
    assert [event for tick in ticks for event in tick] == [(i, "stop") for i in range(5)]
    assert len(ticks) == 5 + lag * 6  # each is noticed one tick late, and the last unread one lands


def test_a_long_row_grows_the_state_and_a_free_row_never_runs_out_of_room() -> None:
    stepper = ToyLM(7)
    decoder = Decoder(stepper, 3)
    requests = [Request([1] * 50, max_new=100), Request([2], max_new=300), Request([3] * 200, 3)]
    for request in requests:
        decoder.add(request)
    got: dict[int, list[int]] = {0: [], 1: [], 2: []}
    rooms = []
    while decoder.busy:  # the toy complains when any row runs over
        for event in decoder.tick():
            got[event.id].append(event.token or 0)
        rooms.append(decoder.state.room if decoder.state else 0)
    assert (rooms[0], max(rooms)) == (208, 320)
    for id, request in enumerate(requests):
        expected = alone_with_room(stepper, request)
        assert got[id] == expected


def alone_with_room(stepper: ToyLM, request: Request) -> list[int]:
    logits, state = stepper.start([request.input], 1024)
    tokens = []
    for _ in range(request.max_new):
        tokens.append(int(logits.argmax()))
        logits = stepper.step(torch.tensor(tokens[-1:]), state)
    return tokens


def test_the_models_limit_ends_a_row_and_refuses_a_longer_prompt() -> None:
    stepper = ToyLM(7, limit=10)
    [(_, tokens, _, end)] = generate(stepper, [Request([1] * 8, max_new=50)], 2)
    assert (len(tokens), end) == (3, "length")  # after 8, 9 and 10 tokens
    [(_, tokens, _, _)] = generate(stepper, [Request([1] * 10, max_new=50)], 2)
    assert len(tokens) == 1
    with pytest.raises(UserError, match="11 tokens, the model takes at most 10"):
        Decoder(stepper, 1).add(Request([1] * 11, max_new=1))


def test_cancel_frees_the_row_and_forgives() -> None:
    decoder = Decoder(ToyLM(7), 1)
    first, second, third = (decoder.add(Request([i], max_new=5)) for i in range(3))
    decoder.tick()
    decoder.cancel(first)
    decoder.cancel(third)
    decoder.cancel(12345)
    assert [event.id for event in decoder.tick()] == [second]
    while decoder.busy:
        assert {event.id for event in decoder.tick()} <= {second}
    decoder.cancel(second)
    assert not decoder.busy
    assert decoder.tick() == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_new": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": -1},
        {"top_p": 1.5},
        {"top_p": -0.5},
        {"top_p": float("nan")},
        {"seed": 2**64},
    ],
)
def test_a_request_refuses_nonsense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(wrong))} = "):
        Request(**{"input": [1], "max_new": 3, **wrong})


def test_a_decoder_without_rows_is_refused() -> None:
    with pytest.raises(UserError, match="rows = 0"):
        Decoder(ToyLM(7), 0)


def test_the_room_of_a_long_prompt_is_the_models_to_know() -> None:
    [(_, tokens, _, end)] = generate(ToyLM(7), [Request([1] * 60, max_new=30)], 1)
    assert (len(tokens), end) == (30, "length")
    with pytest.raises(UserError, match="no tokens"):
        Decoder(ToyLM(7), 1).add(Request([], max_new=3))


def test_generate_keeps_the_order_and_draws_only_what_it_needs() -> None:
    stepper = ToyLM(7, ends=1.0)
    drawn = 0

    def requests() -> Any:
        nonlocal drawn
        for i in range(100):
            drawn += 1
            yield Request([i % 5, 3], max_new=40 if i == 0 else 1 + i % 7, temperature=1.0, seed=i, stop={0})

    results = []
    for result in generate(stepper, requests(), 3):
        results.append(result)
        assert drawn <= len(results) + 12
    assert [index for index, *_ in results] == list(range(100))
    for result, request in zip(results, requests()):
        assert result[1:] == alone(stepper, request)
    ends = {end for *_, end in results}
    assert ends == {"stop", "length"}
    assert all(len(logprobs) == len(tokens) + (end == "stop") for _, tokens, logprobs, end in results)


# Models that are damaged


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize(
    ("bad", "said"),
    [(float("nan"), "not a number"), (INF, "not a number"), (-INF, "every next token the probability 0")],
)
def test_a_tick_refuses_what_is_no_distribution(bad: float, said: str, temperature: float, lag: int) -> None:
    for after in (0, 1):  # at the start, or after the first token
        toy = ToyLM(7)
        rows = (toy.table != toy.start([[1]], 64)[0]).any(1) | (after == 0)
        toy.table[rows] = bad
        if bad > 0 or bad != bad:
            toy.table[rows, 1:] = -INF  # one is enough
        decoder = Decoder(toy, 2)
        decoder.lag = lag
        decoder.add(Request([1], max_new=5, temperature=temperature, top_p=0.9))
        for _ in range(after + lag):  # the tokens before the damage
            decoder.tick()
        (event,) = decoder.tick()
        assert event.done == "error"
        with pytest.raises(UserError, match=said):
            raise event.error
        while decoder.busy:
            assert decoder.tick() == []  # nothing comes after an error


class Damaged(ToyLM):
    """Gives NaN to rows that begin with the token 5, and cannot read the token 6."""

    def start(self, inputs: Any, room: int) -> Any:
        if any(6 in ids for ids in inputs):
            raise RuntimeError("no six, please")
        return super().start(inputs, room)

    def _logits(self, state: Any) -> torch.Tensor:
        return torch.where(state.tokens[:, :1] == 5, float("nan"), super()._logits(state))


def test_an_error_ends_its_own_request_alone() -> None:
    stepper = Damaged(7)
    decoder = Decoder(stepper, 8)
    wishes = [Request([1], 4), Request([5], 4, answers=2), Request([2, 6], 4), Request([3], 4)]
    ids = [decoder.add(wish) for wish in wishes]
    ends: dict[int, Any] = {}
    got: dict[int, list[int]] = {id: [] for id in ids}
    while decoder.busy:
        for event in decoder.tick():
            assert event.id not in ends
            if event.done:
                ends[event.id] = str(event.error) if event.error else event.done
            if event.token is not None:
                got[event.id].append(event.token)
    assert [ends[id] for id in ids][::2] == ["length", "no six, please"]
    assert "not a number" in ends[ids[1]]
    for id, wish in zip(ids[::3], wishes[::3]):
        assert got[id] == alone(stepper, wish)[0]


def test_rows_that_nobody_uses_may_hold_anything() -> None:
    toy = ToyLM(7)
    toy.table[int(torch.nonzero((toy.table == toy.step(torch.tensor([0]), toy.empty(1, 64))).all(1)))] = float("nan")
    [(_, tokens, _, _)] = generate(toy, [Request([1, 2, 3], max_new=5)], 3)  # the two free rows begin with token 0
    assert len(tokens) == 5


@pytest.mark.parametrize("method", ["greedy", "sample", "beam"])
@pytest.mark.parametrize("kind", ["lm", "translator"])
def test_a_model_whose_weights_are_damaged_says_so(kind: str, method: str, request: Any) -> None:
    run = load(request.getfixturevalue(kind))
    assert run.predict("one two", method=method) is not None
    with torch.no_grad():
        for p in run.model.parameters():
            p.fill_(float("nan"))
    with pytest.raises(UserError, match=r"the model's output is not a number \(NaN\): its weights are damaged"):
        run.predict("one two", method=method)


@pytest.mark.parametrize("kind", ["lm", "translator"])
def test_a_run_whose_weights_are_damaged_is_refused(kind: str, tmp_path: Any, request: Any) -> None:
    run = shutil.copytree(request.getfixturevalue(kind), tmp_path / "run")
    weights = {name: torch.full_like(t, float("nan")) for name, t in read_tensors(run / "model.safetensors").items()}
    write_tensors(run / "model.safetensors", weights, {"run": RunFolder(run).identity()})
    said = mistake("use", run, "one two")
    assert said.startswith(f"{run}/model.safetensors cannot be used: body.")
    assert "holds numbers that are not finite; train again" in said


def test_a_run_whose_finite_weights_overflow_has_no_score(lm: Any, tmp_path: Any) -> None:
    run = shutil.copytree(lm, tmp_path / "run")
    weights = {name: torch.full_like(t, 1e30) for name, t in read_tensors(run / "model.safetensors").items()}
    write_tensors(run / "model.safetensors", weights, {"run": RunFolder(run).identity()})
    assert mistake("test", run).startswith("the model's output is not a number (NaN): its weights are damaged")


# The device


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_decodes_the_same_and_never_waits() -> None:
    requests = [
        Request([i % 7, 3], max_new=5 + i % 90, temperature=i % 3 / 2, top_k=i % 4, seed=i, stop={0}) for i in range(40)
    ]
    on_host, on_device = (list(generate(ToyLM(7, ends=-2.0).to(device), requests, 6)) for device in ("cpu", "cuda"))
    assert [(i, tokens, end) for i, tokens, _, end in on_host] == [(i, t, end) for i, t, _, end in on_device]
    find = lambda device: beam_search(
        ToyTranslator(11, 5, ends=1.0).to(device), [[i] for i in range(9)], beam=4, max_new=20, eos=0, n_best=2
    )
    assert [[h.tokens for h in s] for s in find("cpu")] == [[h.tokens for h in s] for s in find("cuda")]

    decoder = Decoder(ToyLM(7).to("cuda"), 4)
    ids = [decoder.add(Request([i], max_new=40, temperature=0.8, top_p=0.9, seed=i)) for i in range(4)]
    decoder.tick()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            assert len(decoder.tick()) == 4
        decoder.cancel(ids[0])
        assert len(decoder.tick()) == 3
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_with_recorded_steps_the_room_of_a_state_is_a_power_of_two_or_just_above_the_limit():
    assert [bucket(tokens, None, True) for tokens in (1, 64, 65, 129)] == [64, 64, 128, 256]
    assert [bucket(tokens, 100, True) for tokens in (1, 65, 100)] == [64, 112, 112]
    assert [bucket(tokens, 96, True) for tokens in (65, 96)] == [96, 96]


def test_without_recorded_steps_the_room_of_a_state_is_just_above_its_tokens():
    assert [bucket(tokens, None, False) for tokens in (1, 16, 17, 65)] == [16, 16, 32, 80]
    assert [bucket(tokens, 100, False) for tokens in (65, 100)] == [80, 112]
    assert all(tokens <= bucket(tokens, None, False) <= tokens + max(15, tokens // 8) for tokens in range(1, 5000))
