"""Beam search against brute force, alone and in ragged batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from allyouneed.decode import Hypothesis, Request
from allyouneed.decode.beam import CHUNK, BeamSearch, _continued, _Live, penalty
from allyouneed.errors import UserError
from allyouneed.nn.trace import Trace
from generation import beam_search
from test_decode import alone
from toy_steppers import ToyLM, ToyTranslator

INF = float("inf")


def everything(stepper: ToyLM, prompt: Sequence[int], most: int, alpha: float, kind: str) -> list[Hypothesis]:
    """Every hypothesis there is, best first."""
    vocab = stepper.table.shape[1]
    found = []

    def walk(tokens: list[int], logprob: float) -> None:
        logits, state = stepper.start([prompt], 64)
        for token in tokens:
            logits = stepper.step(torch.tensor([token]), state)
        n = len(tokens) + 1
        for token, more in enumerate(logits[0].double().log_softmax(-1).tolist()):
            if not more > -INF:
                continue
            score = (logprob + more) / (((5 + n) / 6) ** alpha if kind == "gnmt" else n**alpha)
            if token == 0:
                found.append(Hypothesis(tokens, score, logprob + more, True))
            elif n == most:
                found.append(Hypothesis([*tokens, token], score, logprob + more, False))
            else:
                walk([*tokens, token], logprob + more)

    assert vocab**most < 2000
    walk([], 0.0)
    return sorted(found, key=lambda h: -h.score)


def same(got: list[Hypothesis], expected: list[Hypothesis]) -> bool:
    return [(h.tokens, h.finished) for h in got] == [(h.tokens, h.finished) for h in expected] and np.allclose(
        [(h.score, h.logprob) for h in got], [(h.score, h.logprob) for h in expected], atol=1e-5
    )


@pytest.mark.parametrize("kind", ["gnmt", "power"])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0, 2.5])
def test_a_large_enough_beam_is_brute_force(kind: str, alpha: float) -> None:
    unfinished_won = 0
    for seed, (vocab, most) in enumerate([(4, 4), (5, 3), (4, 3), (5, 2), (4, 1), (2, 4)] * 2):
        toy = (ToyLM, ToyTranslator)[seed % 2](vocab, seed, ends=0.5 * (seed % 3), ban=(0.0, 0.6)[seed % 4 == 3])
        expected = everything(toy, [2, 3], most, alpha, kind)
        beam = vocab**most
        for n_best in {1, min(3, beam), beam}:
            settings = {"beam": beam, "max_new": most, "alpha": alpha, "length_penalty": kind, "n_best": n_best}
            if not expected:
                with pytest.raises(UserError, match="every next token the probability 0"):
                    beam_search(toy, [[2, 3]], eos=0, **settings)
                continue
            [got] = beam_search(toy, [[2, 3]], eos=0, **settings)
            assert same(got, expected[:n_best])
        unfinished_won += bool(expected) and not expected[0].finished
    assert unfinished_won > 0


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_a_beam_of_one_is_greedy(alpha: float) -> None:
    lengths = set()
    for seed in range(16):
        toy = ToyTranslator(9, seed, ends=0.5)
        toy.table = toy.table.round()  # ties too: both take the lowest id
        [[best]] = beam_search(toy, [[seed, 4]], beam=1, max_new=12, eos=0, alpha=alpha, length_penalty="power")
        tokens, logprobs, end = alone(toy, Request([seed, 4], max_new=12, stop={0}))
        assert best.tokens == tokens
        assert best.finished == (end == "stop")
        assert best.logprob == pytest.approx(sum(logprobs), abs=1e-4)
        lengths.add(len(tokens))
    assert len(lengths) > 4


@pytest.mark.parametrize("toy", [ToyLM, ToyTranslator])
def test_a_ragged_batch_finds_what_its_sentences_find_alone(toy: type) -> None:
    stepper = toy(11, seed=5, ends=1.5)
    inputs = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1], [2, 2], [3], [9, 9, 9, 9], [7, 1]]
    most = [9, 3, 80, 1, 12, 7, 70]
    settings: dict[str, Any] = {"beam": 4, "eos": 0, "alpha": 0.8, "length_penalty": "gnmt", "n_best": 3}
    stepper.steps.clear()
    together = beam_search(stepper, inputs, max_new=most, **settings)
    assert len(set(stepper.steps)) > 2  # sentences left at several times
    assert all(rows % 4 == 0 for rows in stepper.steps)
    for ids, m, hypotheses in zip(inputs, most, together):
        assert beam_search(stepper, [ids], max_new=m, **settings) == [hypotheses]


def by_hand(stepper: ToyLM, ids: list[int], beam: int, most: int, alpha: float) -> Hypothesis:
    """The same search, one sentence, with lists: every step to the end, no bound, no cache."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    ended: list[Hypothesis] = []
    for n in range(1, most + 1):
        candidates = []
        for logprob, tokens in live:
            logits, state = stepper.start([ids], 64)
            for token in tokens:
                logits = stepper.step(torch.tensor([token]), state)
            more = logits[0].double().log_softmax(-1).tolist()
            candidates += [(logprob + m, [*tokens, token]) for token, m in enumerate(more)]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * beam]
        ended += [Hypothesis(t[:-1], s / n**alpha, s, True) for s, t in candidates[:beam] if t[-1] == 0]
        live = [c for c in candidates if c[1][-1] != 0][:beam]
    ended += [Hypothesis(t, s / most**alpha, s, False) for s, t in live]
    return max(ended, key=lambda h: h.score)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 1.6])
def test_stopping_early_changes_nothing(alpha: float) -> None:
    saved = 0
    for seed in range(8):
        toy = ToyTranslator(8, seed, ends=(0.0, 2.0)[seed % 2])
        toy.steps.clear()
        [got] = beam_search(toy, [[seed]], beam=3, max_new=7, eos=0, alpha=alpha, length_penalty="power")
        saved += 6 - len(toy.steps)
        assert same(got, [by_hand(toy, [seed], 3, 7, alpha)])
    assert saved > 0


def test_n_best_are_sorted_distinct_and_as_many_as_there_are() -> None:
    toy = ToyLM(6, seed=1, ends=1.0)
    for hypotheses in beam_search(toy, [[1], [2, 3]], beam=8, max_new=10, eos=0, alpha=0.7, n_best=8):
        assert len(hypotheses) == 8
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({(*h.tokens, h.finished) for h in hypotheses}) == 8
        for h in hypotheses:
            assert 0 not in h.tokens
            n = len(h.tokens) + h.finished
            assert h.score == pytest.approx(h.logprob / penalty(n, 0.7, "gnmt"), abs=1e-5)
    [few] = beam_search(ToyLM(2, ends=0.0), [[1]], beam=6, max_new=2, eos=0, n_best=6)
    assert len(few) == 3  # 0; 1 0; 1 1
    [one] = beam_search(ToyLM(1), [[1]], beam=2, max_new=3, eos=0, n_best=2)
    assert [h.tokens for h in one] == [[]]  # nothing goes on after the end


def test_alpha_zero_scores_by_log_probability() -> None:
    [hypotheses] = beam_search(ToyLM(6, 3, ends=1.0), [[1]], beam=4, max_new=6, eos=0, alpha=0.0, n_best=4)
    assert all(h.score == h.logprob for h in hypotheses)


def test_forbidden_tokens_are_never_taken_and_never_nan() -> None:
    found, dead = 0, 0
    for seed in range(20):
        toy = ToyLM(5, seed, ban=0.6)
        for prompt in ([1], [2], [3, 4]):
            try:
                [hypotheses] = beam_search(toy, [prompt], beam=3, max_new=5, eos=0, n_best=3)
            except UserError as error:
                dead += "every next token the probability 0" in str(error)
                continue
            found += bool(hypotheses)
            assert all(-INF < h.score <= 0 and -INF < h.logprob <= 0 for h in hypotheses)
    assert found > 40
    assert dead > 0
    assert found + dead == 60


def test_where_every_token_is_forbidden_there_is_no_answer() -> None:
    once = ToyLM(5, ends=3.0)  # one token may follow the prompt [1], and nothing after it or after another prompt
    once.table[(once.table != once.start([[1]], 64)[0]).any(1)] = -INF
    [[only]] = beam_search(once, [[1]], beam=3, max_new=5, eos=0)
    assert only.tokens == []
    with pytest.raises(UserError, match="every next token the probability 0"):
        beam_search(once, [[1], [2]], beam=3, max_new=5, eos=0)


@pytest.mark.parametrize("bad", [float("nan"), INF])
@pytest.mark.parametrize("beam", [1, 3])
def test_logits_that_are_no_numbers_are_refused(bad: float, beam: int) -> None:
    toy = ToyLM(5, ends=-9.0)
    first = toy.start([[1]], 64)[0]
    for everywhere in (True, False):  # or only after the first token, and only one of the logits
        toy.table = ToyLM(5, ends=-9.0).table
        rows = torch.ones(len(toy.table), dtype=torch.bool) if everywhere else (toy.table != first).any(1)
        toy.table[rows, 0 if not everywhere else slice(None)] = bad
        with pytest.raises(UserError, match="not a number"):
            beam_search(toy, [[2], [1]] if everywhere else [[1]], beam=beam, max_new=5, eos=0)
        assert len(toy.steps) == (0 if everywhere else 1)  # it stops where it happens
    fine = ToyLM(5)
    assert beam_search(fine, [[1]], beam=beam, max_new=5, eos=0)


def test_equal_scores_go_to_the_lower_ids() -> None:
    flat = ToyLM(6)
    flat.table[:] = 0.0
    [hypotheses] = beam_search(flat, [[1]], beam=3, max_new=2, eos=5, alpha=0.0, n_best=3)
    assert [h.tokens for h in hypotheses] == [[0, 0], [0, 1], [0, 2]]


def of_all(logprob: torch.Tensor, logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` lowest costs of all continuations, of equals the lower index: one key for each of them."""
    cost = (logits.float().log_softmax(-1).view(*logprob.shape, -1) + logprob.unsqueeze(2)).abs().flatten(1)
    key = torch.arange(cost.shape[1]) + cost.view(torch.int32).long() * 2**32
    index = key.topk(min(count, cost.shape[1]), largest=False).indices
    return index, 0 - cost.gather(1, index).nan_to_num(nan=INF, posinf=INF)


@pytest.mark.parametrize("vocab", [1, 9, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 10 * CHUNK + 17])
@pytest.mark.parametrize("beam", [1, 3, 5])
def test_the_best_continuations_are_those_of_all_in_order(vocab: int, beam: int) -> None:
    torch.manual_seed(vocab)
    sentences, count = 40, 2 * beam
    logits = torch.randn(sentences * beam, vocab).bfloat16()  # rounded, so that many are equal
    logits[::7] = logits[::7].round()
    logits[::5, torch.rand(vocab) < 0.5] = -INF
    logits[3::11] = -INF  # nothing may follow: all of them are NaN
    logprob = -torch.randint(0, 3, (sentences, beam)).float()  # equal ones, too
    logprob[::6, 1:] = -INF  # no hypothesis
    zeros = torch.zeros(sentences, beam, dtype=torch.long)
    live = _Live(logprob, zeros, zeros, torch.zeros(sentences, beam, 4, dtype=torch.long))
    found = _continued(live, logits, torch.ones(sentences, 1, dtype=torch.long), count)
    index, expected = of_all(logprob, logits, count)
    assert torch.equal(found.parent * vocab + found.token, index)
    assert torch.equal(found.logprob, expected)
    equal = (expected[:, 1:] == expected[:, :-1]) & (expected[:, 1:] > -INF)
    assert equal.any() or vocab == 1
    assert torch.equal(found.tokens[..., 0], found.token)


def test_the_models_limit_bounds_the_search() -> None:
    [hypotheses] = beam_search(ToyLM(6, limit=70), [[1] * 66], beam=3, max_new=50, eos=99, n_best=3)
    assert {len(h.tokens) for h in hypotheses} == {5}


def test_the_trace_holds_the_tree_of_hypotheses() -> None:
    toy, trace = ToyTranslator(6, 4), Trace("beams")
    found = beam_search(toy, [[1], [2], [3]], beam=3, max_new=[3, 6, 6], eos=99, n_best=3, record=trace.record)
    kept = trace.recorded
    names = {"parents", "tokens", "logprobs"}
    assert set(trace) == {
        "beams.sentences",
        *(f"beams.{n}" for n in names),
        *(f"beams.found.{n}" for n in names | {"score"}),
    }
    assert [x.tolist() for x in kept["beams.sentences"]] == [[0, 1, 2]] * 3 + [[1, 2]] * 3
    for sentence, hypotheses in enumerate(found):
        steps = [
            tuple(kept[f"beams.{name}"][n][at.tolist().index(sentence)] for name in ("parents", "tokens", "logprobs"))
            for n, at in enumerate(kept["beams.sentences"])
            if sentence in at
        ]
        assert steps[-1][2].tolist() == [h.logprob for h in hypotheses]
        for leaf, hypothesis in enumerate(hypotheses):
            tokens: list[int] = []
            at = leaf
            for parents, ids, _ in reversed(steps):
                tokens.insert(0, int(ids[at]))
                at = int(parents[at])
            assert tokens == hypothesis.tokens


@pytest.mark.parametrize(
    "wrong",
    [
        {"beam": 0},
        {"n_best": 4},
        {"alpha": -0.1},
        {"alpha": 500.0},
        {"alpha": float("nan")},
        {"length_penalty": "x"},
        {"max_new": 0},
    ],
)
def test_beam_search_refuses_nonsense(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(wrong))} = "):
        beam_search(ToyLM(5), [[1]], **{"beam": 3, "max_new": 3, "eos": 0, **wrong})
    assert beam_search(ToyLM(5), [], beam=3, max_new=3, eos=0) == []


@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("kind", [ToyLM, ToyTranslator])
def test_sentences_join_and_leave_a_search_and_are_found_as_if_alone(kind: type, records: bool) -> None:
    """With slots that stay, as on CUDA, too."""
    toy = kind(7, seed=4, ends=1.0, limit=40)
    how = [
        {"max_new": 3 + i % 5, "alpha": 0.3 * (i % 3), "n_best": 1 + i % 3, "length_penalty": ("gnmt", "power")[i % 2]}
        for i in range(12)
    ]
    requests = []
    for i, settings in enumerate(how):
        given = {"answers" if name == "n_best" else name: value for name, value in settings.items()}
        requests.append(Request([i % 7, 3][: 1 + i % 2], beam=3, stop={0}, **given))
    beams, found, sizes = BeamSearch(toy, 4), {}, []
    beams.records = records
    for i, request in enumerate(requests):
        beams.add(request)
        for _ in range(i % 3):
            found |= {one.id: one.hypotheses for one in beams.tick()}
            sizes.append(len(beams.sentences))
    while beams.busy:
        found |= {one.id: one.hypotheses for one in beams.tick()}
    assert max(sizes) > 1
    for id, (request, settings) in enumerate(zip(requests, how)):
        assert [found[id]] == beam_search(toy, [request.input], beam=3, eos=0, **settings)


def test_an_error_of_one_sentence_is_its_own() -> None:
    toy = ToyTranslator(6, 4)
    table = toy.table.clone()
    toy.table[:] = float("nan")
    fine = ToyTranslator(6, 4)
    toy.table[(table == fine.start([[1]], 64)[0]).all(1)] = table[(table == fine.start([[1]], 64)[0]).all(1)]
    beams = BeamSearch(toy, 4)
    good, bad = beams.add(Request([1], 1, beam=2, stop={0})), beams.add(Request([2], 1, beam=2, stop={0}))
    found = {one.id: one for one in beams.tick()}
    assert found[good].error is None
    assert found[good].hypotheses
    assert "not a number" in str(found[bad].error)
    cancelled = beams.add(Request([1], 5, beam=2, stop={0}))
    beams.cancel(cancelled)
    assert not beams.busy


@pytest.mark.parametrize("beam", [1, 3])
def test_the_trace_holds_every_hypothesis_that_competes(beam: int) -> None:
    """Those with a score: each answer is one of them, and no other has a better score."""
    for seed in range(8):
        toy, trace = ToyTranslator(6, seed), Trace("beams")
        [answers] = beam_search(toy, [[1]], beam=beam, max_new=6, eos=5, record=trace.record)
        scores, logprobs, tokens = (
            torch.stack(trace.recorded[f"beams.found.{n}"])[:, 0] for n in ("score", "logprobs", "tokens")
        )
        assert scores.shape == (len(trace.recorded["beams.tokens"]), min(2 * beam, 6 * beam))
        competes = scores > float("-inf")
        assert competes.any()
        assert scores.max() == answers[0].score
        assert answers[0].logprob in logprobs[competes].tolist()
        assert (tokens[competes] == 5).all() or not answers[0].finished or len(scores) == 6
