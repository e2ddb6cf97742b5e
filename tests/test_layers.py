"""Positions, norms, feed-forward and losses against their formulas."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.batch import IGNORE
from allyouneed.nn.init import ZERO, as_made, init_weights, normal
from allyouneed.nn.layers import FeedForward, last, make_norm, real
from allyouneed.nn.losses import cross_entropy, divergence, linear_cross_entropy
from allyouneed.nn.positions import Rotary, Sinusoidal, rotate, sinusoid


def test_sinusoid_is_the_papers_table_in_both_layouts():
    table = sinusoid(torch.arange(50), 8)
    half = sinusoid(torch.arange(50), 8, "half")
    for pos in (0, 1, 7, 49):
        for i in range(4):
            angle = pos / 10000 ** (2 * i / 8)
            assert table[pos, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[pos, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-5)
            assert half[pos, i] == table[pos, 2 * i]
            assert half[pos, 4 + i] == table[pos, 2 * i + 1]


def test_sinusoidal_takes_any_length():
    layer = Sinusoidal(8, size=4)
    torch.testing.assert_close(layer(torch.arange(1000), 1000), sinusoid(torch.arange(1000), 8))
    assert not layer.state_dict()


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_a_table_that_grows_keeps_its_layout(layout):
    grown = Sinusoidal(8, layout, size=4)(torch.arange(10), 10)
    torch.testing.assert_close(grown, sinusoid(torch.arange(10), 8, layout))


def test_rotary_keeps_lengths_and_sees_only_distances():
    torch.manual_seed(0)
    rotary = Rotary(8, size=4)
    q, k = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)

    def score(i, j):
        turn = lambda x, p: rotate(x, rotary(torch.tensor([p]), 200))
        return (turn(q, i) * turn(k, j)).sum()

    torch.testing.assert_close(score(5, 3), score(105, 103), atol=1e-4, rtol=1e-4)
    assert abs(score(5, 3) - score(5, 4)) > 1e-3
    turned = rotate(q, rotary(torch.tensor([77]), 200))
    torch.testing.assert_close(turned.norm(), q.norm())
    torch.testing.assert_close(rotate(q, rotary(torch.tensor([0]), 1)), q)


def test_norms_are_the_formulas():
    x = torch.randn(3, 8)
    layer = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(make_norm("layer", 8)(x), layer)
    torch.testing.assert_close(make_norm("rms", 8)(x), x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    far = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 0.5).sqrt()
    torch.testing.assert_close(make_norm("layer", 8, eps=0.5)(x), far)
    torch.testing.assert_close(make_norm("rms", 8, eps=0.5)(x), x / (x.square().mean(-1, keepdim=True) + 0.5).sqrt())
    assert make_norm("none", 8)(x) is x
    assert [name for name, _ in make_norm("layer", 8, bias=False).named_parameters()] == ["weight"]
    assert [name for name, _ in make_norm("layer", 8).named_parameters()] == ["weight", "bias"]


@pytest.mark.parametrize(
    ("kind", "formula"),
    [
        ("relu", lambda x: x.clamp(min=0)),
        ("gelu", lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))),
        ("gelu_tanh", lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("silu", lambda x: x / (1 + (-x).exp())),
    ],
)
def test_feed_forward_is_the_formula(kind, formula):
    layer = FeedForward(6, 10, activation=kind)
    x = torch.randn(4, 6)
    expected = formula(x @ layer.into.weight.T + layer.into.bias) @ layer.out.weight.T + layer.out.bias
    torch.testing.assert_close(layer(x), expected, atol=1e-6, rtol=1e-5)


def test_swiglu_is_the_formula():
    layer = FeedForward(6, 10, activation="swiglu", bias=False)
    x = torch.randn(4, 6)
    gate, up = x @ layer.into.weight[:10].T, x @ layer.into.weight[10:].T
    torch.testing.assert_close(layer(x), (F.silu(gate) * up) @ layer.out.weight.T)


def test_real_and_last_find_the_tokens_of_padded_rows():
    lengths = torch.tensor([3, 1, 4])
    assert real(lengths, 4).tolist() == [[True, True, True, False], [True, False, False, False], [True] * 4]
    assert last(torch.arange(12).view(3, 4, 1), lengths).tolist() == [[2], [4], [11]]


def test_loss_is_a_sum_with_smoothing_that_ignores_padding():
    torch.manual_seed(0)
    logits, targets = torch.randn(5, 7), torch.tensor([1, IGNORE, 3, 6, IGNORE])
    logp = logits.log_softmax(-1)
    expected = sum(-(0.9 * logp[i, t] + 0.1 * logp[i].mean()) for i, t in enumerate(targets.tolist()) if t != IGNORE)
    torch.testing.assert_close(cross_entropy(logits, targets, 0.1), expected)
    assert cross_entropy(logits, torch.full((5,), IGNORE)).item() == 0


def test_divergence_is_the_mean_of_both_kl_divergences_and_ignores_padding():
    torch.manual_seed(0)
    logits, others, targets = torch.randn(5, 7), torch.randn(5, 7), torch.tensor([1, IGNORE, 3, 6, IGNORE])
    p, q = (some[targets != IGNORE].softmax(-1) for some in (logits, others))
    expected = (F.kl_div(p.log(), q, reduction="sum") + F.kl_div(q.log(), p, reduction="sum")) / 2
    torch.testing.assert_close(divergence(logits, others, targets), expected)
    torch.testing.assert_close(divergence(others, logits, targets), expected)
    assert divergence(logits, logits + 2, targets).item() == pytest.approx(0, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(1, 20),
    piece=st.integers(1, 60),
    smoothing=st.sampled_from([0.0, 0.1]),
    bias=st.booleans(),
    align=st.booleans(),
    seed=st.integers(0, 99),
)
def test_pieces_and_aligned_products_equal_the_whole_in_value_and_gradients(rows, piece, smoothing, bias, align, seed):
    torch.manual_seed(seed)
    hidden, weight, b = torch.randn(rows, 6), torch.randn(11, 6), torch.randn(11) if bias else None
    targets = torch.randint(0, 11, (rows,))
    targets[torch.rand(rows) < 0.3] = IGNORE
    results = []
    for most, aligned in ((piece, align), (10**9, align), (10**9, False)):
        leaves = [t.clone().requires_grad_() for t in (hidden, weight, b) if t is not None]
        own = leaves[2] if bias else None
        loss = linear_cross_entropy(leaves[0], leaves[1], own, targets, smoothing, most, aligned)
        (3 * loss).backward()
        results.append([loss.detach(), *(t.grad for t in leaves)])
    for pieces, whole, plain in zip(*results):
        torch.testing.assert_close(pieces, plain, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(whole, plain, atol=1e-4, rtol=1e-4)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_an_aligned_product_has_its_rows_in_bf16_and_gradients_in_the_dtype_of_the_weights(smoothing):
    torch.manual_seed(0)
    hidden, weight, targets = torch.randn(20, 32), torch.randn(101, 32), torch.randint(101, (20,))
    found, widths = [], []
    real = F.linear
    for align in (True, False):
        leaves = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
        with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", torch.bfloat16):
            patch.setattr(F, "linear", lambda x, w, b=None: widths.append((len(w), w.dtype)) or real(x, w, b))
            linear_cross_entropy(*leaves, None, targets, smoothing, align=align).backward()
        assert leaves[1].grad.dtype == torch.float32
        found.append([leaf.grad for leaf in leaves])
    assert set(widths) == {(128, torch.bfloat16), (101, torch.float32)}
    for aligned, plain in zip(*found):
        torch.testing.assert_close(aligned, plain, atol=0.05, rtol=0.02)


def test_products_on_a_cpu_are_not_aligned():
    from allyouneed.nn.losses import _pays

    with torch.autocast("cpu", torch.bfloat16):
        assert not _pays(torch.ones(2, 4), torch.ones(50_257, 4))
    on_gpu = SimpleNamespace(is_cuda=True, device=torch.device("cpu"))
    assert not _pays(on_gpu, torch.ones(50_257, 4))
    assert _pays(on_gpu, torch.ones(50_257, 4, dtype=torch.bfloat16))
    assert not _pays(on_gpu, torch.ones(65, 4, dtype=torch.bfloat16))


def test_piecewise_loss_needs_no_gradient():
    hidden, weight, targets = torch.randn(20, 8), torch.randn(50, 8), torch.randint(0, 50, (20,))
    with torch.inference_mode():
        pieces = linear_cross_entropy(hidden, weight, None, targets, most_logits=130)
        torch.testing.assert_close(pieces, cross_entropy(hidden @ weight.T, targets), atol=1e-4, rtol=1e-4)
        bias = torch.randn(50)
        pieces = linear_cross_entropy(hidden, weight, bias, targets, 0.1, most_logits=130)
        whole = cross_entropy(hidden @ weight.T + bias, targets, 0.1)
        torch.testing.assert_close(pieces, whole, atol=1e-4, rtol=1e-4)


def test_piecewise_loss_never_holds_all_logits():
    """A vocabulary of 50,000 and 2,000 tokens would be 400 MB of logits; the largest tensor ever made is far less."""
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in out if isinstance(out, tuple | list) else (out,):
                if isinstance(t, torch.Tensor):
                    largest = max(largest, t.numel())
            return out

    hidden = torch.randn(2000, 4, requires_grad=True)
    weight = torch.randn(50_000, 4, requires_grad=True)
    with Watch():
        linear_cross_entropy(hidden, weight, None, torch.randint(0, 50_000, (2000,)), most_logits=1 << 20).backward()
    assert largest <= 1 << 20


def test_the_first_row_that_fits_says_how_a_weight_starts():
    def made() -> torch.nn.Module:
        torch.manual_seed(1)
        parts = {"norm": torch.nn.LayerNorm(4), "into": torch.nn.Linear(400, 300), "out": torch.nn.Linear(4, 4)}
        return torch.nn.ModuleDict(parts)

    plain, module = made(), made()
    init_weights(module, {"*norm*": as_made, "into.weight": normal(0.5), "into.*": normal(9.0), "*.bias": ZERO})
    assert torch.equal(module["norm"].weight, plain["norm"].weight)
    assert torch.equal(module["out"].weight, plain["out"].weight)
    assert float(module["into"].weight.detach().std()) == pytest.approx(0.5, rel=0.01)
    assert float(module["into"].bias.detach().std()) == pytest.approx(9.0, rel=0.2)
    assert not module["out"].bias.any()
