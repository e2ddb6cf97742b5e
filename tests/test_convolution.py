"""Gated convolutions: equal to the formula, causal, blind to padding, the same step by step as whole, in a batch as
alone; and they learn."""

from __future__ import annotations

import math
import random

import pytest
import torch
import torch.nn.functional as F

from allyouneed.decode import Request
from allyouneed.errors import UserError
from allyouneed.models.convnet import ConvNet, ConvNetConfig
from allyouneed.models.convseq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from allyouneed.nn.convolution import ConvAttention, ConvBlock, ConvConfig, ConvStack, GatedConvolution
from allyouneed.nn.trace import Trace
from allyouneed.predict.processor import store_by_columns
from allyouneed.recipe import read_recipe
from allyouneed.run import train
from generation import beam_search, generate

CLOSE = {"atol": 2e-5, "rtol": 1e-4}


def lively(model):
    """Livelier than at the start of training, so that differences show."""
    torch.manual_seed(1)
    for name, p in model.named_parameters():
        torch.nn.init.normal_(p, mean=float("norm.weight" in name), std=0.3)
    return model.eval()


def convnet(**values) -> ConvNet:
    base = {"vocab": 37, "context": 48, "width": 24, "embedding": 16, "layers": 3, "kernel": 3, "dropout": 0.0}
    return lively(ConvNet(ConvNetConfig(**{**base, **values})))


def convseq2seq(**values) -> ConvSeq2Seq:
    base = {"vocab": 37, "target_vocab": 37, "width": 24, "embedding": 16, "layers": 2, "kernel": 3, "dropout": 0.0}
    return lively(ConvSeq2Seq(ConvSeq2SeqConfig(**{**base, **values})))


def ragged(count: int, seed: int = 0, most: int = 12) -> list[list[int]]:
    torch.manual_seed(seed)
    return [torch.randint(4, 37, (int(torch.randint(1, most, ())),)).tolist() for _ in range(count)]


def request(model, ids: list[int], **values) -> Request:
    return Request(ids, **{"max_new": 12, "stop": {2}, **values})


both = pytest.mark.parametrize("make", [convnet, convseq2seq])


@pytest.mark.parametrize(("kernel", "causal"), [(1, True), (3, True), (4, True), (3, False), (4, False), (5, False)])
def test_the_block_is_its_formula(kernel, causal):
    width, time = 3, 6
    block = lively(ConvBlock(ConvConfig(width=width, kernel=kernel), causal=causal, cross=False))
    x = torch.randn(2, time, width)
    left = kernel - 1 if causal else (kernel - 1) // 2
    weight, bias = block.gated.conv.weight, block.gated.conv.bias
    normal = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    normal = normal * block.norm.weight + block.norm.bias
    expected = torch.zeros(2, time, width)
    for row in range(2):
        for t in range(time):
            both = bias.clone()
            for k in range(kernel):
                at = t - left + k
                if 0 <= at < time:
                    both += weight[:, k * width : (k + 1) * width] @ normal[row, at]
            for c in range(width):
                gated = both[c] * torch.sigmoid(both[width + c])
                expected[row, t, c] = (x[row, t, c] + gated) * math.sqrt(0.5)
    torch.testing.assert_close(block(x, x), expected, atol=1e-6, rtol=1e-5)


def test_a_window_and_a_linear_layer_are_a_convolution():
    gated = lively(GatedConvolution(5, 3, causal=False))
    x = torch.randn(2, 9, 5)
    weight = gated.conv.weight.unflatten(1, (3, 5)).transpose(1, 2)  # (2D, D, kernel)
    expected = F.glu(F.conv1d(x.transpose(1, 2), weight, gated.conv.bias, padding=1), dim=1).transpose(1, 2)
    torch.testing.assert_close(gated(x), expected, atol=1e-5, rtol=1e-5)


def test_attention_between_convolutions_is_its_formula():
    attention = lively(ConvAttention(6, 4))
    h, g, z, e = torch.randn(2, 3, 6), torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 4)
    lengths, half = [5, 2], math.sqrt(0.5)
    real = torch.arange(5) < torch.tensor(lengths)[:, None]
    trace = Trace("weights")
    source = {"keys": z, "values": (z + e) * half, "real": real}
    out = attention(h, g, source, trace)
    torch.testing.assert_close(out, attention(h, g, source), atol=1e-6, rtol=1e-5)
    for row, length in enumerate(lengths):
        for i in range(3):
            d = attention.into.weight @ h[row, i] + attention.into.bias + g[row, i]
            scores = torch.stack([d @ z[row, j] / 2 for j in range(length)]).exp()  # sqrt(4)
            a = scores / scores.sum()
            c = sum(a[j] * (z[row, j] + e[row, j]) for j in range(length)) * half
            torch.testing.assert_close(trace["weights"][row, 0, i, :length], a, atol=1e-6, rtol=1e-5)
            torch.testing.assert_close(out[row, i], attention.out(c), atol=1e-5, rtol=1e-5)
    assert (trace["weights"][1, ..., 2:] == 0).all()


@pytest.mark.parametrize(("layers", "kernel"), [(1, 2), (3, 3), (2, 5)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_receptive_field_is_one_and_the_kernels_less_one_each(layers, kernel, causal):
    stack = lively(ConvStack(ConvConfig(width=8, layers=layers, kernel=kernel), layers, causal=causal))
    x = torch.randn(1, 30, 8, requires_grad=True)
    stack(x)[0, 15].sum().backward()
    seen = x.grad[0].abs().sum(-1).nonzero().flatten().tolist()
    last = 15 if causal else 15 + layers * (kernel - 1 - (kernel - 1) // 2)
    assert seen == list(range(last - layers * (kernel - 1), last + 1))


@pytest.mark.parametrize("positions", ["none", "learned"])
def test_nothing_before_a_changed_future_token_moves(positions):
    model = convnet(positions=positions)
    ids = torch.randint(0, 37, (3, 20))
    other = ids.clone()
    other[:, 11:] = (ids[:, 11:] + 1) % 37
    before, after = model(ids), model(other)
    torch.testing.assert_close(before[:, :11], after[:, :11], atol=1e-6, rtol=1e-5)
    assert not torch.isclose(before[:, 11:], after[:, 11:]).all(-1).any()


@pytest.mark.parametrize("positions", ["none", "learned"])
def test_the_decoder_sees_no_future_and_the_encoder_no_padding(positions):
    model = convseq2seq(positions=positions)
    source, lengths, target = torch.randint(4, 37, (2, 9)), torch.tensor([9, 5]), torch.randint(4, 37, (2, 8))
    out = model(source, lengths, target)
    later = target.clone()
    later[:, 5:] = (later[:, 5:] + 1) % 37
    torch.testing.assert_close(model(source, lengths, later)[:, :5], out[:, :5], atol=1e-6, rtol=1e-5)
    padded = source.clone()
    padded[1, 5:] = 7
    torch.testing.assert_close(model(padded, lengths, target), out, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(model(source[1:, :5], lengths[1:], target[1:]), out[1:], **CLOSE)  # as if alone
    seen = source.clone()
    seen[1, 4] = (seen[1, 4] - 3) % 33 + 4
    assert not torch.allclose(model(seen, lengths, target)[1], out[1])


@pytest.mark.parametrize("kernel", [1, 3, 6])
def test_step_by_step_equals_whole_and_so_do_pieces(kernel):
    model = convnet(kernel=kernel, positions="learned")
    ids = torch.randint(0, 37, (3, 30))
    whole = model(ids)
    for cuts in ([30], [1] * 30, [7, 1, 13, 9]):
        state, outs, at = model.empty(3, 40), [], 0
        for size in cuts:
            outs.append(model.head(model.body(ids[:, at : at + size], state=state)))
            at += size
        torch.testing.assert_close(torch.cat(outs, 1), whole, **CLOSE)
        assert state.length.tolist() == [30] * 3


def test_ragged_prompts_leave_each_row_its_own_last_inputs():
    model = convnet(kernel=4)
    prompts = [[5], [6, 7], [8, 9, 10, 11, 12, 13, 14], [15, 16, 17]]
    logits, state = model.start(prompts, 64)
    assert state.length.tolist() == [1, 2, 7, 3]
    following = torch.tensor([20, 21, 22, 23])
    after = model.step(following, state)
    for row, prompt in enumerate(prompts):
        whole = model(torch.tensor([[*prompt, int(following[row])]]))[0]
        torch.testing.assert_close(logits[row], whole[-2], **CLOSE)
        torch.testing.assert_close(after[row], whole[-1], **CLOSE)


@both
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_ragged_batch_gives_the_ids_of_single_prompts(make, temperature):
    model, inputs = make(), ragged(9)
    wishes = [request(model, ids, temperature=temperature, top_p=0.9, seed=5) for ids in inputs]
    together = [row[1] for row in generate(model, wishes, rows=4)]
    assert together == [next(generate(model, [wish], rows=1))[1] for wish in wishes]
    assert len({tuple(ids) for ids in together}) > 1


@both
def test_greedy_with_a_state_is_argmax_over_the_whole_prefix(make):
    model = make()
    for ids in ragged(4, seed=3):
        fast = next(generate(model, [request(model, ids, stop=set())], rows=1))[1]
        slow: list[int] = []
        for _ in range(12):
            if make is convnet:
                logits = model(torch.tensor([ids + slow]))
            else:
                logits = model(torch.tensor([ids]), torch.tensor([len(ids)]), torch.tensor([[1, *slow]]))
            slow.append(int(logits[0, -1].argmax()))
        assert fast == slow


@both
def test_beams_of_a_ragged_batch_are_those_of_single_sentences(make):
    model, inputs = make(), ragged(5, seed=1)
    together = beam_search(model, inputs, beam=4, max_new=[5, 9, 3, 12, 7], eos=2, n_best=2)
    for ids, most, found in zip(inputs, [5, 9, 3, 12, 7], together):
        alone = beam_search(model, [ids], beam=4, max_new=most, eos=2, n_best=2)[0]
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        assert [h.score for h in found] == pytest.approx([h.score for h in alone], abs=1e-4)
    greedy = [h[0].tokens for h in beam_search(model, inputs, beam=1, max_new=8, eos=2)]
    assert greedy == [r[1] for r in generate(model, [request(model, i, max_new=8) for i in inputs], rows=2)]


def test_beam_scores_are_the_models_own_probabilities():
    model, inputs = convseq2seq(), ragged(3, seed=2)
    for ids, found in zip(inputs, beam_search(model, inputs, beam=3, max_new=6, eos=2, alpha=0.0)):
        best = found[0]
        written = torch.tensor([[1, *best.tokens]])
        logp = model(torch.tensor([ids]), torch.tensor([len(ids)]), written).log_softmax(-1)[0]
        ends = [*best.tokens, 2] if best.finished else best.tokens
        assert best.logprob == pytest.approx(sum(logp[i, t].item() for i, t in enumerate(ends)), abs=1e-4)


def test_alignment_is_the_mean_of_the_layers_and_looking_changes_nothing():
    model, trace = convseq2seq(decoder_layers=3), Trace()
    source, lengths, target = torch.randint(4, 37, (2, 6)), torch.tensor([6, 3]), torch.randint(4, 37, (2, 5))
    weights, shown = model.alignment(source, lengths, target)
    assert shown == f"mean of {len(model.body.decoder.blocks)} decoder layers"
    model(source, lengths, target, trace=trace)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 5))
    assert (weights[1, :, 3:] == 0).all()
    layers = [trace[f"body.decoder.blocks.{i}.cross.weights"] for i in range(3)]
    assert all(w.shape == (2, 1, 5, 6) for w in layers)
    torch.testing.assert_close(weights, sum(layers)[:, 0] / 3)
    torch.testing.assert_close(model(source, lengths, target, trace=trace), model(source, lengths, target), **CLOSE)
    torch.testing.assert_close(model.alignment(source, lengths, target)[0], weights)


@both
def test_gradients_are_finite_and_reach_every_parameter(make):
    torch.manual_seed(0)
    model = make(dropout=0.2, positions="learned").train()
    type(model).__init__(model, model.config)  # as training starts
    ids = torch.randint(4, 37, (3, 10))
    loss = model.loss(ids, ids) if make is convnet else model.loss(ids, torch.tensor([10, 4, 1]), ids, ids, 0.1)
    loss.backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().sum() > 0, name


def test_at_the_start_what_comes_out_is_as_large_as_what_went_in():
    torch.manual_seed(0)
    stack = ConvStack(ConvConfig(width=64, kernel=3, dropout=0.0), 12, causal=True)
    x = torch.randn(4, 50, 64)
    assert 0.5 < stack(x).std() < 1.5
    stack = ConvStack(ConvConfig(width=64, kernel=3, dropout=0.5), 12, causal=True)
    assert 0.7 < stack.train()(x).std() < 1.4  # what dropout enlarges, smaller weights make up for
    kernels = [block.gated.conv for block in stack.blocks]
    assert [conv.weight.std().item() for conv in kernels] == pytest.approx([(4 * 0.5 / (3 * 64)) ** 0.5] * 12, rel=0.05)


@pytest.mark.parametrize(("share", "tie"), [(True, True), (False, True), (False, False)])
def test_weights_are_shared_as_asked(share, tie):
    model = convseq2seq(share=share, tie=tie)
    assert (model.body.source.tokens.weight is model.body.target.tokens.weight) == share
    assert (model.head.out.weight is model.body.target.tokens.weight) == tie


@both
def test_only_learned_positions_have_a_limit(make):
    assert make(positions="learned", context=48).limit == 48
    assert make(positions="none").limit is None


@both
def test_every_size_is_one_of_its_settings(make):
    model = make()
    for values in model.sizes.values():
        assert type(model.config)(**values).layers == values["layers"]


def test_matrices_by_columns_give_the_same():
    model, inputs = convseq2seq(), ragged(3)
    before, _ = model.start(inputs, 64)
    store_by_columns(model)
    torch.testing.assert_close(model.start(inputs, 64)[0], before, **CLOSE)


@pytest.mark.parametrize("name", ["lm/conv", "translate/conv"])
def test_a_wrong_setting_is_a_sentence(name):
    for wrong in ("model.kernel=0", "model.dropout=2", "model.positions=rotary", "model.size=giant"):
        with pytest.raises(UserError, match=wrong.partition("=")[0].partition(".")[2]):
            read_recipe(name, [wrong])


@pytest.mark.slow
def test_sequences_are_copied(tmp_path):
    chance = random.Random(0)
    rows = {tuple(chance.choices("abcdefgh", k=chance.randint(3, 7))) for _ in range(3000)}
    data = tmp_path / "pairs.tsv"
    data.write_text("".join(f"{' '.join(row)}\t{' '.join(row)}\n" for row in sorted(rows)))
    settings = [
        "data.follow=false", "model.width=64", "model.embedding=64", "model.layers=2", "train.steps=200",
        "train.batch_tokens=1024", "train.lr=4e-3", "train.warmup=20", "train.eval_every=200", "train.threads=1",
        "train.device=cpu",
    ]  # fmt: skip
    run = train("translate/conv", *settings, data=str(data), out=tmp_path / "run", quiet=True)
    assert {score.name: score.value for score in run.test()}["exact match"] >= 99.0
    assert run.predict("a b c d") == "a b c d"
    found = run.align("a b c d")
    assert found.weights.shape == (5, 5)
    where = found.weights @ torch.arange(5.0)  # the mean place looked at
    assert (where - torch.arange(5.0)).abs().max() < 1
