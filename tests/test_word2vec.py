"""word2vec: the kernel and the blocks take the steps of the formula, and random draws depend on a key and a place."""

from __future__ import annotations

import itertools
import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from allyouneed.errors import UserError
from allyouneed.models import word2vec
from allyouneed.models.word2vec import Word2Vec, Word2VecConfig
from allyouneed.nn.losses import MOST_LOGITS
from allyouneed.randomness import draw, make_key
from allyouneed.word2vec import kernels as compiled
from allyouneed.word2vec.blocks import learn_block, learn_full_softmax, neighbours, scatter_to_neighbours
from allyouneed.word2vec.kernels import Kernel
from allyouneed.word2vec.sampling import (
    ALWAYS,
    SampledText,
    alias_table,
    draw_negatives,
    draw_radii,
    keep_thresholds,
)
from plain_word2vec import learn_plain

KINDS = [("skipgram", True), ("skipgram", False), ("cbow", True)]
RATE, KEY = 0.05, 77


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


pytestmark = pytest.mark.usefixtures("one_thread")


def small(
    method: str = "skipgram", shared: bool = True, vocab: int = 40, width: int = 13, sample: float = 0.0, **options
) -> Word2Vec:
    """Large weights, and so few words that negative samples are drawn twice."""
    torch.manual_seed(0)
    config = Word2VecConfig(vocab=vocab, width=width, method=method, shared=shared, sample=sample, window=3, **options)
    model = Word2Vec(config)
    model.count(torch.arange(1, vocab + 1))
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return model


def text(vocab: int = 40, seed: int = 1) -> torch.Tensor:
    """Three lines of different words."""
    words = torch.randperm(vocab, generator=torch.Generator().manual_seed(seed))[:18].int()
    end = torch.tensor([-1], dtype=torch.int32)
    return torch.cat([words[:2], end, words[2:9], end, end, words[9:]])


def long_text(count: int, vocab: int = 40) -> torch.Tensor:
    """In lines of eight words."""
    words = torch.randint(0, vocab, (count,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    words[8::9] = -1
    return words


def only(sampled: SampledText, word: int) -> SampledText:
    """No other word has neighbours."""
    radii = torch.zeros_like(sampled.radii)
    radii[word] = sampled.radii[word]
    return sampled._replace(radii=radii)


def stepped(model: Word2Vec, sampled: SampledText) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Both matrices after a step along autograd's gradient, and the loss before it."""
    model.zero_grad()
    loss, _ = model.loss(sampled, KEY)
    if loss.requires_grad:
        loss.backward()
    after = [p.detach() - RATE * (p.grad if p.grad is not None else 0) for p in model.parameters()]
    return after[0], after[1], float(loss.detach())


@pytest.mark.slow
@pytest.mark.parametrize(("method", "shared"), KINDS)
@pytest.mark.parametrize("width", [3, 13, 32])
def test_the_kernel_takes_the_gradient_step_of_one_window(method, shared, width, kernels):
    model = small(method, shared, width=width)
    kernel = model.kernel(kernels)
    assert not kernel.problem
    sampled = model.read(text(), KEY)
    for word in range(len(sampled.radii)):
        one = only(sampled, word)
        if not shared:  # one pair: with more, each neighbour learns from what the one before it has left
            one.radii[word] = min(1, int(one.radii[word]))
            if neighbours(one, word, word + 1)[1].sum() != 1:
                continue
        v, u, expected = stepped(model, one)
        mine = [p.detach().clone() for p in model.parameters()]
        loss, made = kernel.learn(one, *mine, model.table, make_key(KEY, 2), RATE)
        torch.testing.assert_close(mine[0], v, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(mine[1], u, atol=1e-5, rtol=1e-5)
        assert loss == pytest.approx(expected, rel=1e-5)
        assert made == (1 if method == "cbow" else neighbours(one, word, word + 1)[1].sum())


def by_hand(model: Word2Vec, sampled: SampledText) -> tuple[list[torch.Tensor], float, int]:
    """Both matrices after the oracle's steps, the loss and the number of predictions."""
    c, (v, u) = model.config, (p.detach().clone() for p in model.parameters())
    options = {"negatives": c.negatives, "cbow": c.method == "cbow", "noise_sets": c.noise_sets}
    loss, predictions = learn_plain(sampled, v, u, model.table, make_key(KEY, 2), RATE, **options)
    return [v, u], loss, predictions


@pytest.mark.parametrize(("method", "shared"), KINDS)
@pytest.mark.parametrize("width", [3, 13, 32, 100])
def test_the_kernel_is_the_plain_loop_of_the_paper(method, shared, width, kernels):
    """On a text whose words come again, next to each other, too."""
    model = small(method, shared, vocab=12, width=width)
    tokens = long_text(300, 12)
    sampled = model.read(tokens, KEY)
    (v, u), loss, predictions = by_hand(model, sampled)
    found = model.learn(tokens, KEY, RATE, model.kernel(kernels))
    assert (v - small(method, shared, vocab=12, width=width).inputs.weight).abs().max() > 0.1  # it did learn
    torch.testing.assert_close(model.inputs.weight.detach(), v, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(model.outputs.weight.detach(), u, atol=2e-5, rtol=1e-4)
    assert float(found[0]) == pytest.approx(loss, rel=1e-5)
    assert int(found[1]) == predictions


@pytest.mark.parametrize(("method", "shared"), KINDS)
def test_a_block_of_one_word_is_the_plain_loop_of_the_paper(method, shared):
    """Words that differ. A block has one set of samples: where each pair has its own, the pairs are blocks."""
    model, compared = small(method, shared), 0
    sampled = model.read(text(), KEY)
    for word in range(len(sampled.radii)):
        words, near = neighbours(sampled, word, word + 1)
        drawn, centre = model._samples(near, word, make_key(KEY, 2))[0], words[sampled.window]
        if centre in drawn:  # a block does not leave it out
            continue
        (v, u), loss, predictions = by_hand(model, only(sampled, word))
        mine, sums = [p.detach().clone() for p in model.parameters()], torch.zeros(2)
        pairs = near[0].nonzero().flatten().tolist()
        if not shared:
            assert len({tuple(drawn[place].tolist()) for place in pairs}) == len(pairs)
        for place in [None] if shared else pairs:
            one = sampled
            if place is not None:
                lines = torch.full_like(sampled.lines, -2).index_fill_(0, torch.tensor([word + 3, word + place]), 7)
                one = sampled._replace(lines=lines)
            samples = drawn[0 if place is None else place]
            sums += learn_block(one, word, word + 1, *mine, samples, negatives=5, rate=RATE, cbow=method == "cbow")
        torch.testing.assert_close(mine, [v, u], atol=1e-5, rtol=1e-5)
        assert sums.tolist() == pytest.approx([loss, predictions], rel=1e-5)
        compared += predictions
    assert compared > 10


BAD_TENSORS = {
    "words": [
        lambda t: t.long(),
        lambda t: t.float(),
        lambda t: t[:-1],
        lambda t: t.repeat_interleave(2)[::2],
        lambda t: t.to("meta"),
        lambda t: t.clone().fill_(-1),
        lambda t: t.clone().fill_(40),
        lambda t: torch.cat([t[:-1], torch.tensor([2**31 - 1], dtype=torch.int32)]),
    ],
    "lines": [lambda t: t.long(), lambda t: t[:-2], lambda t: t.repeat_interleave(2)[::2]],
    "radii": [
        lambda t: t.long(),
        lambda t: t.repeat_interleave(2)[::2],
        lambda t: t.clone().fill_(4),
        lambda t: t.clone().fill_(-1),
    ],
    "v": [lambda t: t.double(), lambda t: t.half(), lambda t: t.mT, lambda t: t[:, :-1].contiguous()],
    "u": [lambda t: t.double(), lambda t: t[:-1], lambda t: t[:, ::2], lambda t: t.mT.contiguous().mT],
    "table": [
        lambda t: t.long(),
        lambda t: t[:-1],
        lambda t: t.mT,
        lambda t: t.clone().fill_(40),
        lambda t: t.clone().fill_(-(2**31)),
    ],
}


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, bad in BAD_TENSORS.items() for i in range(len(bad))])
def test_a_tensor_that_does_not_fit_never_reaches_the_kernel(name, number, kernels, monkeypatch):
    model = small()
    kernel, sampled = model.kernel(kernels), model.read(text(), KEY)
    given = sampled._asdict() | {"v": model.inputs.weight.detach(), "u": model.outputs.weight.detach()}
    given |= {"table": model.table}
    monkeypatch.setattr(kernel, "_learn", lambda *arguments: pytest.fail("the kernel was called"))

    def learn() -> None:
        sampled = SampledText(given["words"], given["lines"], given["radii"])
        kernel.learn(sampled, given["v"], given["u"], given["table"], KEY, RATE)

    with pytest.raises(pytest.fail.Exception):
        learn()
    given[name] = BAD_TENSORS[name][number](given[name])
    if (name in ("words", "lines") and number == 2) or given[name].device.type == "meta":
        name = r"\w+"  # of several lengths that do not fit, one is named
    with pytest.raises(ValueError, match=f"^{name} must "):
        learn()


def test_tokens_of_another_type_are_refused(kernels):
    model = small()
    before = model.inputs.weight.detach().clone()
    with pytest.raises(ValueError, match=r"words must be torch\.int32 .* it is torch\.int64"):
        model.learn(text().long(), KEY, RATE, model.kernel(kernels))
    assert torch.equal(model.inputs.weight, before)


@pytest.mark.slow
def test_the_sizes_of_the_kernel_and_the_ranges_of_the_options_are_one(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "FLAGS", (("-O1",),))  # quick to compile
    sizes = {"width": compiled.MAX_WIDTH, "window": compiled.MAX_WINDOW, "negatives": compiled.MAX_NEGATIVES}
    limits = {f.name: f.metadata["high"] for f in fields(Word2VecConfig) if f.name in sizes}
    assert limits == sizes
    largest = Word2VecConfig(vocab=64, method="skipgram", shared=False, **limits)
    for config in (largest, replace(largest, shared=True), replace(largest, method="cbow")):
        model = Word2Vec(config)
        model.count(torch.arange(1, 65))
        kernel = model.kernel(tmp_path)
        assert not kernel.problem
        tokens = torch.arange(64, dtype=torch.int32)  # those in the middle have 60 neighbours
        sampled = model.read(tokens, KEY, every=True)
        loss, made = kernel.learn(sampled, *(p.detach() for p in model.parameters()), model.table, KEY, RATE)
        assert math.isfinite(loss)
        assert made == (64 if config.method == "cbow" else neighbours(sampled, 0, 64)[1].sum())
    sizes = {"width": 8, "negatives": 5, "cbow": False, "noise_sets": 1}
    wrong = {"width": [0, limits["width"] + 1, 3_000_000], "negatives": [0, limits["negatives"] + 1], "noise_sets": [2]}
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        assert "cannot compile" in Kernel(tmp_path, **sizes | {name: value}).problem
    for name, value in (("MAX_WINDOW", 33), ("MAX_NEIGHBOURS", 62), ("MAX_WIDTH", 10**6), ("MAX_NEGATIVES", 1000)):
        with monkeypatch.context() as patch:
            patch.setattr(compiled, name, value)
            assert "cannot compile" in Kernel(tmp_path, **sizes).problem


def test_a_window_beyond_the_kernels_arrays_is_refused(kernels):
    model = Word2Vec(replace(small().config, window=200))
    model.count(torch.arange(1, 41))
    with pytest.raises(ValueError, match="radii must hold numbers from 0 to 30"):
        model.learn(torch.zeros(1000, dtype=torch.int32), KEY, RATE, model.kernel(kernels))


@pytest.mark.parametrize("bad", [-1, -(2**63)])
def test_counts_that_cannot_be_are_refused_from_a_caller_and_from_a_file(bad):
    model = small()
    wrong = torch.arange(40).index_fill(0, torch.tensor([7]), bad)
    for counts in (wrong, torch.zeros(40, dtype=torch.long), torch.ones(39, dtype=torch.long)):
        with pytest.raises(ValueError, match="counts must be 40 numbers of at least 0, and not all 0"):
            model.count(counts)
    for counts in (wrong, torch.zeros(40, dtype=torch.long)):
        with pytest.raises(UserError, match="the model file is damaged"):
            small().load_state_dict(model.state_dict() | {"counts": counts})


def test_a_file_holds_the_counts_alone_and_what_follows_from_them_is_computed():
    model, other = small(sample=1e-2), small(sample=1e-2)
    model.count(torch.arange(40) ** 2)
    assert set(model.state_dict()) == {"inputs.weight", "outputs.weight", "counts"}
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.table, alias_table(model.counts))
    assert torch.equal(other.thresholds, keep_thresholds(model.counts, 1e-2))
    assert not torch.equal(other.table, small().table)


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_the_kernel_goes_through_a_text_word_by_word(method, kernels):
    model, before = small(method, vocab=20), small(method, vocab=20)
    sampled = model.read(text(20), KEY)
    total = 0.0
    for word in range(len(sampled.radii)):
        v, u, loss = stepped(model, only(sampled, word))
        model.inputs.weight.data, model.outputs.weight.data, total = v, u, total + loss
    loss, _ = before.learn(text(20), KEY, RATE, before.kernel(kernels))
    torch.testing.assert_close(before.inputs.weight, model.inputs.weight, atol=2e-5, rtol=1e-4)
    torch.testing.assert_close(before.outputs.weight, model.outputs.weight, atol=2e-5, rtol=1e-4)
    assert float(loss) == pytest.approx(total, rel=1e-4)


def test_the_kernels_loss_is_finite_where_everything_is_unlikely(kernels):
    """The product of 240 probabilities of e^-12 is no number that a double holds."""
    model = Word2Vec(replace(small().config, window=20))
    model.count(torch.arange(1, 41))
    for p in model.parameters():
        torch.nn.init.constant_(p, math.sqrt(12 / 13))
    tokens = torch.arange(40, dtype=torch.int32)
    loss, made = model.learn(tokens, KEY, 0.0, model.kernel(kernels))
    expected, _ = model.loss(model.read(tokens, KEY), KEY)
    assert float(loss) / float(made) == pytest.approx(12 * 5, rel=0.1)
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-5)


@pytest.mark.parametrize(("method", "shared"), KINDS)
def test_parts_one_after_the_other_are_the_whole(method, shared, kernels, monkeypatch):
    whole, parts = small(method, shared), small(method, shared)
    expected = whole.learn(text(), KEY, RATE, whole.kernel(kernels))
    monkeypatch.setattr(compiled, "CHUNK", 5)
    monkeypatch.setattr(compiled, "ThreadPoolExecutor", lambda threads: ThreadPoolExecutor(1))
    torch.set_num_threads(2)
    found = parts.learn(text(), KEY, RATE, parts.kernel(kernels))
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), parts.parameters()))
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_a_block_takes_the_gradient_step_of_its_formula(method):
    model = small(method, vocab=40)
    sampled = model.read(text(), KEY)
    count, window, rate, negatives = len(sampled.radii), sampled.window, 0.01, 4
    drawn = torch.tensor([3, 9, 9, 30, 12, 0])
    words, near = neighbours(sampled, 0, count)
    loss = torch.zeros(())
    for i in range(count):
        v = [model.inputs.weight[words[i + o]] for o in range(2 * window + 1) if near[i, o]]
        xs = v if method == "skipgram" else [torch.stack(v).mean(0)] if v else []
        for x in xs:
            loss = loss - F.logsigmoid(x @ model.outputs.weight[words[i + window]])
            loss = loss - negatives / len(drawn) * F.logsigmoid(-model.outputs.weight[drawn] @ x).sum()
    loss.backward()
    v, u = (p.detach() - rate * p.grad for p in model.parameters())
    mine = [p.detach().clone() for p in model.parameters()]
    seen = learn_block(sampled, 0, count, *mine, drawn, negatives=negatives, rate=rate, cbow=method == "cbow")
    torch.testing.assert_close(mine[0], v, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine[1], u, atol=1e-5, rtol=1e-5)
    assert float(seen[0]) == pytest.approx(float(loss.detach()), rel=1e-5)


@pytest.mark.parametrize("loss", ["negative", "softmax"])
def test_the_loss_of_a_long_text_is_that_of_all_its_words(loss, monkeypatch):
    model = small(loss=loss)
    sampled = model.read(long_text(2500), KEY)
    in_pieces = model.loss(sampled, KEY)
    monkeypatch.setattr(word2vec, "ROWS", 2500)
    torch.testing.assert_close(in_pieces, model.loss(sampled, KEY))
    assert in_pieces[1] == neighbours(sampled, 0, len(sampled.radii))[1].sum()


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_blocks_learn_one_after_the_other_each_with_its_own_negatives(method):
    model, tokens = small(method), long_text(700)
    sampled, (v, u) = model.read(tokens, KEY), (p.detach().clone() for p in model.parameters())
    seen = torch.zeros(2)
    for number, start in enumerate(range(0, len(sampled.radii), 256)):
        drawn = draw_negatives(model.table, make_key(KEY, 2), torch.arange(128 * number, 128 * (number + 1)))
        stop = min(start + 256, len(sampled.radii))
        seen += learn_block(sampled, start, stop, v, u, drawn, negatives=5, rate=RATE, cbow=method == "cbow")
    found = model.learn(tokens, KEY, RATE)
    torch.testing.assert_close(torch.stack(found), seen)
    torch.testing.assert_close(model.inputs.weight.detach(), v)
    torch.testing.assert_close(model.outputs.weight.detach(), u)


def test_a_frequent_word_of_a_block_does_not_overshoot():
    model = small(vocab=4)
    tokens = torch.zeros(2000, dtype=torch.int32)
    mine = [p.detach().clone() for p in model.parameters()]
    learn_block(model.read(tokens, KEY), 0, 2000, *mine, torch.tensor([1, 2]), negatives=5, rate=0.1, cbow=False)
    for before, after in zip(model.parameters(), mine):
        assert (after - before).norm(dim=1).max() < 3 * max(p.norm(dim=1).max() for p in model.parameters())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_graphed_blocks_learn_what_blocks_learn(method, kernels):
    tokens = torch.randint(0, 40, (5000,), dtype=torch.int32, device="cuda")  # two blocks and a piece of one
    tokens[::9] = -1
    plain, graphed = small(method).cuda(), small(method).cuda()
    graph = graphed.kernel(kernels)
    for key in (KEY, KEY + 1):
        expected = plain.learn(tokens, key, RATE)
        found = graphed.learn(tokens, key, RATE, graph)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-2)
        for a, b in zip(graphed.parameters(), plain.parameters()):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)  # atomic additions come in any order


def test_scatter_adds_to_the_places_around():
    weights, x = torch.randn(5, 3), torch.randn(5, 2)
    expected = torch.zeros(7, 2)
    for i, m in itertools.product(range(5), range(3)):
        expected[i + m] += weights[i, m] * x[i]
    torch.testing.assert_close(scatter_to_neighbours(weights, x), expected)


def test_neighbours_are_on_one_line(kernels):
    model = small()
    kernel = model.kernel(kernels)
    first, other = text(), text()
    other[-3:] = torch.tensor([31, 32, 33], dtype=torch.int32)  # of the last line alone
    after = []
    for tokens in (first, other):
        sampled = only(model.read(tokens, KEY), 4)  # a word of the second line
        mine = [p.detach().clone() for p in model.parameters()]
        kernel.learn(sampled, *mine, model.table, KEY, RATE)
        after.append(mine)
    assert all(torch.equal(a, b) for a, b in zip(*after))
    every = model.read(first, KEY, every=True)
    assert (every.radii == 3).all()
    assert (model.read(first, KEY).radii < 3).any()
    _, near = neighbours(every, 0, 2)  # the first line has two words
    assert near.sum(1).tolist() == [1, 1]


def test_a_word_is_read_as_often_as_the_formula_says():
    counts = torch.tensor([0, 60_000, 30_000, 9_000, 1_000])
    t, n = 1e-2, 40_000
    for word, f in enumerate((counts / counts.sum()).tolist()):
        chance = min(1.0, (math.sqrt(f / t) + 1) * t / f) if f else 0.0
        read = ((draw(5, torch.arange(n)) & ALWAYS) <= keep_thresholds(counts, t)[word]).double().mean()
        assert abs(float(read) - chance) < 4 * math.sqrt(0.25 / n)
    assert (keep_thresholds(counts, 0.0) == torch.tensor([-1, ALWAYS, ALWAYS, ALWAYS, ALWAYS])).all()


def test_a_frequent_word_is_read_less_but_in_every_reading_always():
    model = small(vocab=4, sample=1e-2)
    counts = torch.tensor([0, 9000, 900, 100])
    model.count(counts)
    tokens = torch.arange(4, dtype=torch.int32).repeat(10_000)
    read, every = (torch.bincount(model.read(tokens, KEY, every).words[3:-3], minlength=4) for every in (False, True))
    assert every.tolist() == [
        0,
        10_000,
        10_000,
        10_000,
    ]  # a token that is not a word of the training text is never kept
    chances = [(math.sqrt(f / 1e-2) + 1) * 1e-2 / f for f in (0.9, 0.09)]
    assert (read / 10_000).tolist() == pytest.approx([0, *chances, 1], abs=0.02)


def test_negatives_are_drawn_by_the_count_to_the_three_quarters():
    counts = torch.cat([torch.zeros(5, dtype=torch.long), torch.arange(1, 96) ** 2])
    drawn = draw_negatives(alias_table(counts), 9, torch.arange(400_000))
    expected = counts.double() ** 0.75
    expected *= len(drawn) / expected.sum()
    seen = torch.bincount(drawn, minlength=len(counts))
    assert seen[:5].sum() == 0
    chi = ((seen - expected) ** 2 / expected)[5:].sum()
    assert abs(float(chi) - 94) < 5 * math.sqrt(2 * 94)


def test_all_radii_are_equally_likely_and_all_keys_differ():
    seen = torch.bincount(draw_radii(50_000, 5, 3, torch.device("cpu")), minlength=7)
    assert seen[0] == seen[6] == 0
    assert (seen[1:6] - 10_000).abs().max() < 500
    assert len({make_key(a, b, c) for a, b, c in itertools.product(range(10), repeat=3)}) == 1000


def test_the_softmax_loss_is_minus_log_softmax():
    model = small(loss="softmax")
    sampled = model.read(text(), KEY)
    words, near = neighbours(sampled, 0, len(sampled.radii))
    expected = 0.0
    for i, o in near.nonzero().tolist():
        logits = model.outputs.weight @ model.inputs.weight[words[i + o]]
        expected -= logits.log_softmax(0)[words[i + sampled.window]].item()
    loss, made = model.loss(sampled, KEY)
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-5)
    assert made == near.sum()


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_the_softmax_takes_the_gradient_step_of_its_formula(method):
    model = small(method, loss="softmax")
    sampled = model.read(text(), KEY)
    loss, made = model.loss(sampled, KEY)
    loss.backward()
    rate = 0.01
    v, u = (p.detach() - rate * p.grad for p in model.parameters())
    mine = [p.detach().clone() for p in model.parameters()]
    bias = torch.zeros(40)
    seen = learn_full_softmax(sampled, *mine, bias, size=100, rate=rate, cbow=method == "cbow")
    torch.testing.assert_close(mine[0], v, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(mine[1], u, atol=1e-5, rtol=1e-5)
    assert seen.tolist() == pytest.approx([float(loss.detach()), float(made)], rel=1e-5)


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_the_softmax_is_over_the_words_of_the_text_alone(method):
    model = small(method, loss="softmax")
    model.count((torch.arange(40) >= 5).long())
    torch.nn.init.zeros_(model.outputs.weight)
    before = model.inputs.weight.detach().clone()
    tokens = text().masked_fill(text() < 5, -1)
    loss, made = model.loss(model.read(tokens, KEY), KEY)
    assert float(loss.detach()) == pytest.approx(float(made) * math.log(35), rel=1e-5)
    learned, _ = model.learn(tokens, KEY, RATE)
    assert float(learned) == pytest.approx(float(loss.detach()), rel=1e-5)
    assert not model.outputs.weight[:5].any()
    assert torch.equal(model.inputs.weight[:5], before[:5])
    assert model.outputs.weight[5:].any()


@pytest.mark.parametrize("method", ["skipgram", "cbow"])
def test_the_softmax_stays_finite_where_one_word_is_nearly_all(method):
    torch.manual_seed(0)
    model = Word2Vec(Word2VecConfig(vocab=4, width=20, method=method, loss="softmax", sample=0.0))
    tokens = torch.multinomial(torch.tensor([0.7, 0.1, 0.1, 0.1]), 6000, replacement=True).int()
    model.count(torch.bincount(tokens.long()))
    losses = [float(loss / made) for loss, made in (model.learn(tokens, key, 0.1) for key in range(2))]
    assert losses[1] < losses[0] < math.log(4)


def test_the_softmax_learns_block_after_block():
    model, tokens = small(loss="softmax"), long_text(700)
    sampled, (v, u) = model.read(tokens, KEY), (p.detach().clone() for p in model.parameters())
    seen = torch.zeros(2)
    for start in range(0, len(sampled.radii), 128):
        stop = min(start + 128, len(sampled.radii))
        around = slice(start, stop + 2 * sampled.window)
        block = SampledText(sampled.words[around], sampled.lines[around], sampled.radii[start:stop])
        seen += learn_full_softmax(block, v, u, torch.zeros(40), size=128, rate=RATE, cbow=False)
    torch.testing.assert_close(torch.stack(model.learn(tokens, KEY, RATE)), seen)
    torch.testing.assert_close(model.inputs.weight.detach(), v)
    torch.testing.assert_close(model.outputs.weight.detach(), u)


def test_the_softmax_takes_smaller_blocks_for_a_very_large_vocabulary():
    for vocab in (0, 1000, 200_000, 10**7, 10**9):
        config = Word2VecConfig(vocab=vocab, loss="softmax")
        assert 1 <= config.softmax_block <= 128
        assert config.softmax_block == 1 or config.softmax_block * config.context * vocab <= MOST_LOGITS
    assert Word2VecConfig(vocab=1000).softmax_block == 128
