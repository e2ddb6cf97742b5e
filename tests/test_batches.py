"""Batches: a plan is a function of (seed, epoch), shows every example once, and keeps its token budget."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.batch import IGNORE
from allyouneed.data.batches.pairs import SentencePairs
from allyouneed.data.batches.windows import CHUNK, Streams, TokenChunks, Windows
from allyouneed.data.store import Ragged


def ragged(rows: list[list[int]]) -> Ragged:
    offsets = np.cumsum([0, *map(len, rows)])
    return Ragged(np.array([t for row in rows for t in row], dtype=np.uint16), offsets)


def pairs(sources, targets, max_length=20) -> SentencePairs:
    return SentencePairs(
        ragged(sources), ragged(targets), source_eos=2, target_bos=1, target_eos=3, max_length=max_length
    )


rows = st.lists(st.tuples(*[st.lists(st.integers(4, 99), max_size=30)] * 2), min_size=1, max_size=40)


@settings(max_examples=80, deadline=None)
@given(rows=rows, budget=st.integers(1, 200), seed=st.integers(0, 9), epoch=st.integers(0, 9))
def test_pairs_are_each_shown_once_within_the_budget(rows, budget, seed, epoch):
    examples = pairs(*zip(*rows))
    for plan in (examples.plan(seed, epoch, budget), examples.cover(budget)):
        assert sorted(np.concatenate(plan).tolist()) == list(range(len(rows)))
        for numbers in plan:
            batch = examples.collate(numbers)
            for name in ("source", "target"):
                assert batch.tensors[name].numel() <= budget or len(numbers) == 1
    again = pairs(*zip(*rows)).plan(seed, epoch, budget)
    assert [n.tolist() for n in again] == [n.tolist() for n in examples.plan(seed, epoch, budget)]


@settings(max_examples=80, deadline=None)
@given(rows=rows)
def test_collated_pairs_are_the_sentences(rows):
    batch = pairs(*zip(*rows)).collate(np.arange(len(rows)))
    t, total = batch.tensors, 0
    for i, (source, target) in enumerate(rows):
        source, target = [*source[:19], 2], [*target[:19], 3]
        total += len(target)
        assert t["source"][i].tolist() == source + [0] * (t["source"].size(1) - len(source))
        assert t["lengths"][i] == len(source)
        padding = t["targets"].size(1) - len(target)
        assert t["targets"][i].tolist() == target + [IGNORE] * padding
        assert t["target"][i, : len(target)].tolist() == [1, *target[:-1]]
        assert (t["target"][i] >= 0).all()
    assert (batch.size.counts, batch.size.units) == ({"tokens": total}, total)


@settings(max_examples=60, deadline=None)
@given(size=st.integers(2, 200), context=st.integers(1, 40), budget=st.integers(1, 300), seed=st.integers(0, 5))
def test_windows_predict_every_token_once(size, context, budget, seed):
    windows = Windows(np.arange(size), context)
    seen = []
    for numbers in windows.cover(budget):
        batch = windows.collate(numbers)
        ids, targets = batch.tensors["ids"], batch.tensors["targets"]
        real = targets != IGNORE
        assert (targets[real] == ids[real] + 1).all()
        assert batch.size.counts["tokens"] == int(real.sum())
        seen += targets[real].tolist()
    assert seen == list(range(1, size))
    if size > context:
        for epoch in range(2):
            plan = windows.plan(seed, epoch, budget)
            starts = np.concatenate(plan)
            assert len(set(starts.tolist())) == len(starts)
            assert starts.max() + context < size
            assert len({int(s) % context for s in starts}) == 1


def test_epochs_differ_and_seeds_differ():
    windows = Windows(np.arange(1000), 10)
    plans = [np.concatenate(windows.plan(*key, 40)).tolist() for key in ((1, 0), (1, 1), (2, 0))]
    assert plans[0] != plans[1]
    assert plans[0] != plans[2]


def test_windows_are_cut_at_every_place_and_come_in_any_order():
    windows = Windows(np.arange(1000), 10)
    starts = [np.concatenate(windows.plan(1, epoch, 40)) for epoch in range(100)]
    assert {int(of[0]) % 10 for of in starts} == set(range(10))  # no token always stands first
    orders = {tuple((of // 10).tolist()) for of in starts}
    assert len(orders) == 100
    assert not any(order == tuple(sorted(order)) for order in orders)


def of_lengths(lengths: list[int]) -> SentencePairs:
    rows = [[9] * length for length in lengths]
    return pairs(rows, rows, max_length=100)


def test_pairs_of_about_one_length_come_in_any_order_with_other_neighbours_every_epoch():
    examples = of_lengths(np.random.default_rng(0).integers(1, 60, 400).tolist())
    sizes, plans = examples.sizes, [examples.plan(1, epoch, 300) for epoch in range(3)]
    mates = [{frozenset(batch.tolist()) for batch in plan} for plan in plans]
    assert not mates[0] & mates[1]
    for plan in plans:
        longest = [int(sizes[batch].max()) for batch in plan]
        first, last = np.mean(longest[: len(plan) // 2]), np.mean(longest[len(plan) // 2 :])
        assert abs(first - last) < 12  # neither the long ones first nor the short ones
        assert sum(len(batch) * most for batch, most in zip(plan, longest)) < 1.15 * sizes.sum()  # little padding


def test_pairs_of_exactly_one_length_have_other_neighbours_too():
    plans = [of_lengths([6] * 100).plan(1, epoch, 35) for epoch in (0, 1)]
    mates = [{frozenset(batch.tolist()) for batch in plan} for plan in plans]
    assert not mates[0] & mates[1]


def test_stretches_come_in_another_order_every_epoch():
    chunks = TokenChunks(np.arange(60 * CHUNK + 5), ends=[], unknown=-1)
    cover = [batch.tolist() for batch in chunks.cover(2 * CHUNK)]
    orders = [[batch.tolist() for batch in chunks.plan(1, epoch, 2 * CHUNK)] for epoch in (0, 1)]
    assert all(sorted(order) == cover for order in orders)
    assert cover not in orders
    assert orders[0] != orders[1]
    assert orders[0] == [batch.tolist() for batch in chunks.plan(1, 0, 2 * CHUNK)]


@pytest.mark.parametrize("position", [0, 3])
def test_a_feed_starts_anywhere_at_once(position):
    from allyouneed.training.distributed import Ranks
    from allyouneed.training.feed import Feed

    feed = Feed(Windows(np.arange(500), 10), Ranks(), torch.device("cpu"), seed=1, batch_tokens=40)
    whole = feed.steps(0, 0, 1)
    for _ in range(position):
        next(whole)
    there = feed.steps(0, position, 1)
    for _ in range(20):  # over the end of the epoch
        a, b = next(whole), next(there)
        assert (a.epoch, a.batch, a.last) == (b.epoch, b.batch, b.last)
        assert torch.equal(a.pieces[0].tensors["ids"], b.pieces[0].tensors["ids"])


# Streams


@settings(max_examples=150, deadline=None)
@given(size=st.integers(2, 300), context=st.integers(1, 40), budget=st.integers(1, 300))
def test_streams_cover_every_token_once_in_lanes_that_go_on(size, context, budget):
    streams = Streams(np.arange(size), context)
    seen: dict[int, list[int]] = {}
    for t, numbers in enumerate(streams.cover(budget)):
        batch = streams.collate(numbers)
        ids, targets, lanes = (batch.tensors[name] for name in ("ids", "targets", "lanes"))
        assert ids.numel() <= max(budget, context)
        assert lanes.tolist() == list(range(len(lanes)))  # whoever works on a lane once works on it always
        assert batch.tensors["fresh"].tolist() == [t == 0] * len(lanes)
        assert batch.size.counts["tokens"] == int((targets != IGNORE).sum())
        for lane, row, goal in zip(lanes.tolist(), ids, targets):
            real = goal[goal != IGNORE].tolist()
            assert real == (row[: len(real)] + 1).tolist()
            seen.setdefault(lane, []).extend(real)
    assert [token for lane in sorted(seen) for token in seen[lane]] == list(range(1, size))


@settings(max_examples=150, deadline=None)
@given(
    size=st.integers(2, 400),
    context=st.integers(1, 40),
    budget=st.integers(1, 300),
    seed=st.integers(0, 5),
    epoch=st.integers(0, 5),
)
def test_an_epoch_of_streams_goes_on_row_by_row(size, context, budget, seed, epoch):
    if size <= context:
        return
    streams = Streams(np.arange(size), context)
    plan = streams.plan(seed, epoch, budget)
    assert [n.tolist() for n in plan] == [
        n.tolist() for n in Streams(np.arange(size), context).plan(seed, epoch, budget)
    ]
    batches = [streams.collate(numbers).tensors for numbers in plan]
    assert all(batch["fresh"].all() == (i == 0) and batch["fresh"].any() == (i == 0) for i, batch in enumerate(batches))
    for batch, following in pairwise(batches):
        assert torch.equal(following["ids"][:, 0], batch["targets"][:, -1])
        assert torch.equal(following["lanes"], batch["lanes"])
    tokens = torch.cat([batch["targets"] for batch in batches]).flatten()
    assert IGNORE not in tokens
    assert len(tokens.unique()) == len(tokens)
    lanes = len(plan[0])
    assert lanes == max(1, min(budget // context, (size - 1) // context))
    assert size - 1 - len(tokens) < (lanes + 1) * context  # less than one more batch, and the phase, is left out


def test_epochs_and_seeds_have_their_own_phase_and_reach_every_token():
    streams = Streams(np.arange(1000), 10)
    assert len({int(streams.plan(*key, 40)[0][0, 0]) for key in ((1, 0), (1, 1), (2, 0), (3, 0))}) > 1
    plans = [streams.plan(1, epoch, 40) for epoch in range(400)]
    assert min(int(plan[0].min()) for plan in plans) == 0
    assert max(int(plan[-1][:, 0].max()) for plan in plans) == 1000 - 1 - 10
