"""attend: fused equals explicit, masks mean what they say, and the scores are the lectures' formulas."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.nn import attention
from allyouneed.nn.attention import Attention, attend, self_attend
from allyouneed.nn.cache import KVCache
from allyouneed.nn.masks import Mask, Prepared
from allyouneed.nn.trace import Trace


def make(b=2, h=4, hkv=4, tq=5, tk=5, k=8, kv=8, seed=0):
    torch.manual_seed(seed)
    return torch.randn(b, h, tq, k), torch.randn(b, hkv, tk, k), torch.randn(b, hkv, tk, kv)


def test_the_formula_by_hand():
    q = torch.tensor([[[[1.0, 0.0]]]])
    k = torch.tensor([[[[1.0, 0.0], [0.0, 1.0]]]])
    v = torch.tensor([[[[10.0], [20.0]]]])
    w = math.exp(1 / math.sqrt(2)) / (math.exp(1 / math.sqrt(2)) + 1)
    assert attend(q, k, v).item() == pytest.approx(10 * w + 20 * (1 - w), abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(
    heads=st.sampled_from([(4, 4), (4, 2), (4, 1), (6, 3)]),
    tq=st.integers(1, 7),
    tk=st.integers(1, 7),
    value=st.sampled_from([4, 8, 12]),
    kind=st.sampled_from(["none", "keys", "rows", "causal", "causal+keys", "causal+rows"]),
    seed=st.integers(0, 999),
)
def test_fused_equals_explicit_in_values_and_gradients(heads, tq, tk, value, kind, seed):
    if "causal" in kind:
        tk = tq
    q, k, v = make(2, *heads, tq, tk, 8, value, seed)
    allowed = None
    if "keys" in kind or "rows" in kind:
        allowed = torch.rand(2, 1, tq if "rows" in kind else 1, tk) < 0.6  # some queries may see nothing
    mask = Mask(allowed, "causal" in kind)
    grads = []
    for weights in (False, True):
        a, b, c = (t.clone().requires_grad_() for t in (q, k, v))
        out = attend(a, b, c, mask, weights=True)[0] if weights else attend(a, b, c, mask)
        out.square().sum().backward()
        grads.append((out.detach(), a.grad, b.grad, c.grad))
    for fused, explicit in zip(*grads):
        assert torch.isfinite(fused).all()
        torch.testing.assert_close(fused, explicit, atol=2e-5, rtol=1e-4)


def test_weights_are_a_distribution_over_what_may_be_seen():
    q, k, v = make()
    _, w = attend(q, k, v, Mask(causal=True), weights=True)
    assert torch.allclose(w.sum(-1), torch.ones(2, 4, 5))
    assert (w.triu(1) == 0).all()
    assert (w.tril() > 0)[..., 4, :].all()


@pytest.mark.parametrize("weights", [False, True])
def test_a_row_that_may_look_at_nothing_gives_zeros_and_finite_gradients(weights):
    q, k, v = (t.requires_grad_() for t in make())
    allowed = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    allowed[0, :, 2] = False
    allowed[1] = False
    out = attend(q, k, v, Mask(allowed), weights=True)[0] if weights else attend(q, k, v, Mask(allowed))
    assert (out[0, :, 2] == 0).all()
    assert (out[1] == 0).all()
    assert (out[0, :, 1] != 0).any()
    out.sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (q, k, v))
    assert (q.grad[1] == 0).all()


def test_grouped_heads_are_repeated_heads():
    q, k, v = make(h=6, hkv=2)
    repeated = attend(q, k.repeat_interleave(3, 1), v.repeat_interleave(3, 1))
    torch.testing.assert_close(attend(q, k, v), repeated)


def test_a_callers_bug_is_a_value_error():
    q, k = torch.randn(1, 3, 4, 8), torch.randn(1, 2, 4, 8)
    with pytest.raises(ValueError, match="3 heads of queries cannot share 2"):
        attend(q, k, k)
    with pytest.raises(ValueError, match="score = 'cosin' is not one of dot, scaled_dot, cosine"):
        attend(q, q, q, score="cosin")


def test_the_scores_are_the_formulas_of_the_lectures():
    q, k, v = make(h=1, hkv=1)
    dot = (q @ k.transpose(-1, -2)).softmax(-1) @ v
    torch.testing.assert_close(attend(q, k, v, score="dot"), dot)
    unit = lambda x: x / x.norm(dim=-1, keepdim=True)
    cosine = (unit(q) @ unit(k).transpose(-1, -2)).softmax(-1) @ v
    torch.testing.assert_close(attend(q, k, v, score="cosine"), cosine)
    x = torch.randn(2, 5, 8)
    y = self_attend(x, Mask(causal=True))
    expected = (x[0, :3] @ x[0, 2]).softmax(0) @ x[0, :3]  # y_2 = sum over j <= 2
    torch.testing.assert_close(y[0, 2], expected)


def test_a_prepared_mask_is_the_same_mask_for_every_layer():
    q, k, v = make()
    for mask in (
        Mask(),
        Mask(causal=True),
        Mask.padding(torch.tensor([5, 2]), 5),
        Mask(torch.rand(2, 1, 5, 5) < 0.5, True),
    ):
        prepared = mask.prepare(5, 5, q.device)
        assert prepared.prepare(5, 5, q.device) is prepared
        for weights in (False, True):
            torch.testing.assert_close(
                attend(q, k, v, prepared, weights=weights), attend(q, k, v, mask, weights=weights)
            )
    assert [field.name for field in fields(Mask)] == ["allowed", "causal", "lengths"]


@pytest.mark.parametrize("score", ["scaled_dot", "dot", "cosine", "parameter_free"])
def test_trace_gives_the_weights_that_were_used_and_costs_nothing_otherwise(score):
    torch.manual_seed(0)
    layer = Attention(16, 4, score=score).eval()
    x, trace = torch.randn(2, 5, 16), Trace("weights", "values")
    full = Trace()
    layer(x, Mask(causal=True), trace=full)
    again, w = attend(full["queries"], full["keys"], full["values"], Mask(causal=True), score=layer.score, weights=True)
    torch.testing.assert_close(w, full["weights"])
    torch.testing.assert_close(again, full["weights"] @ full["values"])
    traced = layer(x, Mask(causal=True), trace=trace)
    torch.testing.assert_close(traced, layer(x, Mask(causal=True)), atol=1e-6, rtol=1e-5)
    z = (trace["weights"] @ trace["values"]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(traced, z if score == "parameter_free" else layer.out(z), atol=1e-6, rtol=1e-5)
    assert "queries" not in list(trace)


def test_parameter_free_has_no_parameters_and_is_the_lectures_formula():
    layer = Attention(8, 1, score="parameter_free")
    assert not list(layer.parameters())
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(layer(x, Mask(causal=True)), self_attend(x, Mask(causal=True)))
    across, memory = Attention(8, 1, score="parameter_free", cross=True), torch.randn(2, 3, 8)
    expected = (x @ memory.mT).softmax(-1) @ memory
    torch.testing.assert_close(across(x, memory=across.keys_values(memory)), expected)


def test_free_widths():
    layer = Attention(20, 4, head_width=6, value_width=10, kv_heads=2)
    assert layer.qkv.out_features == 4 * 6 + 2 * 6 + 2 * 10
    assert layer(torch.randn(2, 3, 20)).shape == (2, 3, 20)


def test_multi_head_equals_torch():
    """The same matrices in torch's own layer give the same numbers, self and cross."""
    torch.manual_seed(0)
    theirs = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval()
    ours, cross = Attention(16, 4).eval(), Attention(16, 4, cross=True).eval()
    with torch.no_grad():
        ours.qkv.weight.copy_(theirs.in_proj_weight)
        ours.qkv.bias.copy_(theirs.in_proj_bias)
        cross.q.weight.copy_(theirs.in_proj_weight[:16])
        cross.q.bias.copy_(theirs.in_proj_bias[:16])
        cross.kv.weight.copy_(theirs.in_proj_weight[16:])
        cross.kv.bias.copy_(theirs.in_proj_bias[16:])
        for layer in (ours, cross):
            layer.out.load_state_dict(theirs.out_proj.state_dict())
    x, y = torch.randn(3, 5, 16), torch.randn(3, 7, 16)
    lengths = torch.tensor([7, 4, 1])
    padding = torch.arange(7) >= lengths[:, None]
    torch.testing.assert_close(ours(x), theirs(x, x, x)[0], atol=1e-6, rtol=1e-5)
    mine = cross(x, Mask.padding(lengths, 7), memory=cross.keys_values(y))
    torch.testing.assert_close(mine, theirs(x, y, y, key_padding_mask=padding)[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("weights", [False, True])
def test_a_causal_mask_for_unequal_sides_is_refused_on_both_paths(weights):
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match="as many queries as keys"):
        attend(q, k, k, Mask(causal=True), weights=weights)


def test_a_query_that_sees_nothing_is_opened_for_the_kernels_and_remembered():
    prepared = Mask(torch.tensor([[True, False], [False, False]])[:, None, None]).prepare(2, 2, torch.device("cpu"))
    assert isinstance(prepared, Prepared)
    assert prepared.allowed[:, 0, 0].tolist() == [[True, False], [True, True]]
    assert prepared.sees.flatten().tolist() == [True, False]
    assert prepared.tensor(2, 2, torch.device("cpu"))[:, 0, 0].tolist() == [[True, False], [False, False]]
    cache = KVCache({name: torch.zeros(2, 1, 1, 4, 2) for name in "kv"}, torch.zeros(2, dtype=torch.long))
    given = Mask(torch.tensor([[True] * 4, [False] * 4])[:, None, None])
    made = cache.mask(cache.positions(2), given).prepare(2, 4, torch.device("cpu"))
    assert made.sees[:, 0, :, 0].tolist() == [[True, True], [False, False]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("queries", [7, 40])
def test_compiled_training_tells_rows_apart_by_their_lengths(queries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding that no mask hides: the same vectors and gradients."""
    lengths = torch.tensor([40, 1, 23], device="cuda")
    given = [x.cuda().bfloat16().requires_grad_() for x in make(b=3, tq=queries, tk=40, k=16, kv=16)]
    packed, kernel = [], pytest.importorskip("torch.nn.attention.varlen").varlen_attn

    def count(*args):
        packed.append(1)
        return kernel(*args)

    monkeypatch.setattr(attention, "varlen_attn", count)
    results = []
    for run in (attend, torch.compile(attend, backend="eager")):
        out = run(*given, Mask.padding(lengths, 40))
        results.append([out, *torch.autograd.grad(out.float().square().sum(), given)])
        assert bool(packed) == (run is not attend)
    for a, b in zip(*results):
        torch.testing.assert_close(a.float(), b.float(), atol=0.05, rtol=0.05)
