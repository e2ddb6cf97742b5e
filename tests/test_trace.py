"""What a model computes, recorded under the paths of its modules: for every family, from its own inputs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.errors import UserError
from allyouneed.models.dvae import DVAE
from allyouneed.models.elmo import ELMoBody
from allyouneed.models.word2vec import Word2Vec
from allyouneed.nn.attention import Attention
from allyouneed.nn.block import Block, Stack
from allyouneed.nn.convolution import SQRT_HALF, ConvBlock, ConvStack
from allyouneed.nn.recurrent import Recurrent
from allyouneed.nn.trace import KINDS, Trace, kind_of
from allyouneed.predict.base import Traced
from allyouneed.run import Run
from families import FAMILIES, made

ATTENDS = {"queries", "keys", "values", "scores", "weights", "heads"}
RECURRENT = {"embeddings", "inputs", "layers", "states", "gates", "logits"}
STACK = {"embeddings", "layers", "logits", "feed_forward", *ATTENDS}
# What each family has to show.
SHOWS = {
    "gpt": STACK,
    "rnn": RECURRENT - {"gates"},  # its cell has no gates
    "lstm": RECURRENT,
    "conv": {"embeddings", "layers", "logits", "gates"},
    "elmo": RECURRENT,
    "bert": STACK,
    "seq2seq": RECURRENT,
    "attention": {*RECURRENT, *ATTENDS},
    "convseq2seq": {"embeddings", "layers", "logits", "gates", *ATTENDS},
    "transformer": STACK,
    "classify-rnn": RECURRENT,
    "classify-conv": {"embeddings", "layers", "logits", "gates"},
    "classify-bert": STACK,
    "tag-lstm": RECURRENT,
    "tag-elmo": RECURRENT,
    "tag-bert": STACK,
    "answer": STACK,
    "embed": STACK - {"logits"},
    "word2vec": {"embeddings", "logits"},
    "vit": STACK,
    "dvae": {"embeddings", "layers", "logits", "codes"},
    "dalle": {*STACK, "codes"},
}


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    """For each family; those that take seconds to train are slow."""
    given = [pytest.param(name, marks=pytest.mark.slow) if name in ("dvae", "dalle") else name for name in names]
    return pytest.mark.parametrize("name", given)


def asked(name: str) -> Any:
    """A single text, where a family is asked about two."""
    given = FAMILIES[name][2][0]
    return given.partition(" ||| ")[0] if name == "embed" else given


def looked(run: Run, name: str, *kinds: str) -> dict[str, Tensor]:
    """The values of a trace, with their batch of one."""
    return {key: found.value[None] for key, found in run.trace(asked(name), *kinds).items()}


@each(SHOWS)
def test_a_trace_changes_nothing_and_shows_everything(name: str) -> None:
    run = made(name)
    found = run.trace(asked(name))
    assert {kind_of(key) for key in found} == SHOWS[name]
    modules = dict(run.model.named_modules())
    for key, traced in found.items():
        assert key.removesuffix(kind_of(key)).rstrip(".") in modules  # a name is the path of a module
        check_axes(traced, kind_of(key))
    for key, few in run.trace(asked(name), "logits", "codes").items():
        torch.testing.assert_close(few.value, found[key].value, atol=1e-4, rtol=1e-4)


def check_axes(traced: Traced, kind: str) -> None:
    names = [axis.name for axis in traced.axes]
    assert names == list(KINDS[kind][-traced.value.dim() :])
    for axis, size in zip(traced.axes, traced.value.shape, strict=True):
        assert len(axis.labels) in (0, size), (kind, axis)
        assert axis.labels or axis.name not in ("tokens", "seen", "gates") or kind == "gates"


@each(SHOWS)
def test_each_value_follows_from_its_neighbours(name: str) -> None:
    run = made(name)
    with torch.inference_mode():
        checked = recomputed(run, looked(run, name))
    assert checked


@each(sorted(SHOWS.keys() - {"word2vec", "dvae"}))  # which have no forward pass
def test_what_is_recorded_is_what_the_model_gives_without_a_trace(name: str) -> None:
    run, calls = made(name), list[Any]()
    hook = run.model.register_forward_hook(lambda *call: calls.append(call[1:]), with_kwargs=True)
    try:
        found = looked(run, name, "logits")
    finally:
        hook.remove()
    plain = []
    with torch.inference_mode():
        for args, named, traced in calls:
            again = leaves(run.model(*args, **{**named, "trace": None}))
            for one, other in zip(leaves(traced), again, strict=True):
                torch.testing.assert_close(one, other)
            plain += again
    assert plain
    for value in found.values():
        assert any(value.shape == leaf.shape and torch.allclose(value, leaf, atol=1e-4) for leaf in plain)


def leaves(output: Any) -> list[Tensor]:
    """The tensors that a model gives."""
    return [output] if isinstance(output, Tensor) else [leaf for part in output for leaf in leaves(part)]


def recomputed(run: Run, values: dict[str, Tensor]) -> int:
    """How many modules were checked."""
    checked = 0
    for path, module in run.model.named_modules():
        mine = {key: values.get(f"{path}.{key}") for key in KINDS}
        if mine["weights"] is not None:
            check_attention(mine, module if isinstance(module, Attention) else None)
            checked += 1
        if isinstance(module, Stack):
            checked += check_stack(path, module, values)
        elif isinstance(module, ConvStack):
            checked += check_convolutions(path, module, values)
        elif isinstance(module, Recurrent):
            checked += check_recurrent(path, module, values)
        elif isinstance(module, ELMoBody) and f"{path}.forward_layers.0.layers" in values:
            checked += check_elmo(path, module, values)
        elif isinstance(module, Word2Vec):
            close(values["outputs.logits"], values["inputs.embeddings"] @ module.outputs.weight.T)
            checked += 1
        elif isinstance(module, DVAE):
            checked += check_codes(module, values)
    return checked


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def check_attention(mine: dict[str, Tensor | None], module: Attention | None) -> None:
    q, k, v, scores, weights, heads = (mine[key] for key in ("queries", "keys", "values", "scores", "weights", "heads"))
    assert q is not None
    assert k is not None
    assert v is not None
    assert scores is not None
    assert weights is not None
    close(weights.sum(-1), torch.ones_like(weights.sum(-1)))
    close(scores.softmax(-1), weights)
    close(weights @ v, heads)
    if module is not None:
        products = q @ k.mT / math.sqrt(q.size(-1))
        allowed = scores.isfinite()
        close(scores[allowed], products[allowed])
        assert (weights[~allowed] == 0).all()


def check_stack(path: str, stack: Stack, values: dict[str, Tensor]) -> int:
    """Each layer from the one below it, through what its heads and its feed-forward layer gave."""
    side = {"body.encoder": "body.source", "body.decoder": "body.target"}.get(path, path.rpartition(".")[0])
    x = values[f"{side}.embeddings"]
    for i, block in enumerate(stack.blocks):
        assert isinstance(block, Block)
        own = f"{path}.blocks.{i}"
        for part in ("attention", "cross"):
            if f"{own}.{part}.heads" not in values:
                continue
            y = getattr(block, part).out(values[f"{own}.{part}.heads"].transpose(1, 2).flatten(2))
            x = x + y if block.prenorm else getattr(block, f"{part}_norm")(x + y)
        y = block.feed_forward(block.feed_forward_norm(x) if block.prenorm else x)
        close(values[f"{own}.feed_forward"], y)
        x = x + y if block.prenorm else block.feed_forward_norm(x + y)
        close(values[f"{own}.layers"], x)
    return len(stack.blocks)


def check_convolutions(path: str, stack: ConvStack, values: dict[str, Tensor]) -> int:
    side = {"body.encoder": "body.source", "body.decoder": "body.target"}.get(path, path.rpartition(".")[0])
    e = values[f"{side}.embeddings"]
    x = stack.into(e)
    for i, block in enumerate(stack.blocks):
        assert isinstance(block, ConvBlock)
        own, gated = f"{path}.blocks.{i}", block.gated
        wide = F.pad(block.norm(x), (0, 0, gated.before, gated.kernel - 1 - gated.before))
        window = torch.cat([wide[:, j : j + x.size(1)] for j in range(gated.kernel)], dim=-1)
        a, b = gated.conv(window).chunk(2, dim=-1)
        close(values[f"{own}.gated.gates"][:, :, 0, 0], b.sigmoid())
        h = a * values[f"{own}.gated.gates"][:, :, 0, 0]
        if block.cross is not None:
            h = (h + block.cross.out(values[f"{own}.cross.heads"][:, 0])) * SQRT_HALF
        x = (x + h) * SQRT_HALF
        close(values[f"{own}.layers"], x)
    return len(stack.blocks)


def check_recurrent(path: str, recurrent: Recurrent, values: dict[str, Tensor]) -> int:
    """The gates and the next state, step by step, from what the layer reads and from its state before."""
    if f"{path}.layers.0.layers" not in values:  # another direction
        return 0
    for i, layer in enumerate(recurrent.layers):
        x, h, states = (values[f"{path}.layers.{i}.{kind}"] for kind in ("inputs", "layers", "states"))
        if i:
            close(x, values[f"{path}.layers.{i - 1}.layers"])
        found = values.get(f"{path}.layers.{i}.gates", torch.empty(0))
        for r, own in enumerate(h.chunk(recurrent.directions, dim=-1)):
            w_x, w_h, b_x, b_h = layer.all_weights[r]
            backward = r == 1 or ".backward_layers." in path
            order = list(reversed(range(x.size(1))) if backward else range(x.size(1)))
            known = states[:, order[0], r].unbind(1)
            if not path.endswith("decoder"):  # which begins with what the encoder knows
                assert not torch.stack(known).any()
            for t in order:
                close(states[:, t, r], torch.stack(known, dim=1))
                before, cell = known[0], known[-1]
                from_x, from_h = x[:, t] @ w_x.T + b_x, before @ w_h.T + b_h
                if recurrent.cell == "rnn":
                    new = (from_x + from_h).tanh()
                elif recurrent.cell == "gru":
                    x_r, x_z, x_n = from_x.chunk(3, dim=-1)
                    h_r, h_z, h_n = from_h.chunk(3, dim=-1)
                    reset, update = (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid()
                    close(found[:, t, r], torch.stack([reset, update], dim=1))
                    new = (1 - update) * (x_n + reset * h_n).tanh() + update * before
                else:
                    i_, f_, g_, o_ = (from_x + from_h).chunk(4, dim=-1)
                    close(found[:, t, r], torch.stack([i_.sigmoid(), f_.sigmoid(), o_.sigmoid()], dim=1))
                    cell = f_.sigmoid() * cell + i_.sigmoid() * g_.tanh()
                    new = o_.sigmoid() * cell.tanh()
                close(own[:, t], new)
                known = (own[:, t], cell) if recurrent.cell == "lstm" else (own[:, t],)
    return len(recurrent.layers)


def check_elmo(path: str, body: ELMoBody, values: dict[str, Tensor]) -> int:
    """Each layer of each direction adds what its LSTM gives to what it reads, but for the first."""
    sides = [side for side in ("forward_layers", "backward_layers") if f"{path}.{side}.0.layers" in values]
    for side in sides:
        for k in range(len(body.forward_layers)):
            inner = values[f"{path}.{side}.{k}.layers.0.layers"]
            below = values[f"{path}.{side}.{k - 1}.layers"] if k else torch.zeros_like(inner)
            close(values[f"{path}.{side}.{k}.layers"], below + inner)
    return len(sides)


def check_codes(model: DVAE, values: dict[str, Tensor]) -> int:
    scores, levels = values["choose.logits"], model.config.levels
    digits = ((scores.tanh() + 1) / 2 * (levels - 1)).round().long()
    codes = (digits * levels ** torch.arange(model.config.digits)).sum(-1)
    assert torch.equal(values["codes"].flatten(1), codes)
    return 1


def test_the_directions_of_elmo_stand_at_their_own_words() -> None:
    """What the backward direction knows of a word depends on the words behind it, not on those before."""
    run = made("tag-elmo")
    one, other = (run.trace(text, "layers") for text in ("Anna left Rome", "Paul left Rome"))
    for side, same in (("forward_layers", [0, 0, 0]), ("backward_layers", [0, 1, 1])):
        a, b = (found[f"body.{side}.0.layers"].value for found in (one, other))
        assert [bool(torch.allclose(x, y, atol=1e-6)) for x, y in zip(a, b)] == [bool(word) for word in same]


@pytest.mark.parametrize("name", ["gpt", "transformer", "seq2seq"])
def test_a_beam_search_is_a_tree_of_hypotheses(name: str) -> None:
    run = made(name)
    found = run.trace(asked(name), "beams", method="beam", beam=3)
    parents, tokens, logprobs = (found[f"beams.{key}"] for key in ("parents", "tokens", "logprobs"))
    assert [axis.name for axis in parents.axes] == ["steps", "beams"]
    steps = tokens.value.size(0)
    assert parents.value.shape == tokens.value.shape == logprobs.value.shape == (steps, 3)
    for step in range(1, steps):
        alive = logprobs.value[step].isfinite()
        assert (logprobs.value[step][alive] <= logprobs.value[step - 1][parents.value[step]][alive] + 1e-5).all()
    assert not run.trace(asked(name), "beams", method="greedy")


def test_a_trace_follows_one_model() -> None:
    trace = Trace("layers")
    first, second = made("gpt").model, made("transformer").model
    first(torch.ones(1, 3, dtype=torch.long), trace=trace)
    assert list(trace) == ["body.stack.blocks.0.layers", "body.stack.blocks.1.layers"]
    assert trace.get(first.body.stack.blocks[1], "layers") is trace["body.stack.blocks.1.layers"]
    with pytest.raises(KeyError):
        second(
            *(torch.ones(1, 3, dtype=torch.long), torch.tensor([3]), torch.ones(1, 2, dtype=torch.long)), trace=trace
        )
    with pytest.raises(UserError, match="a Trace records embeddings, queries"):
        Trace("wieghts")
    with pytest.raises(KeyError, match="nothing was recorded under 'nowhere'"):
        trace["nowhere"]


def test_a_trace_of_the_body_alone_has_the_names_of_its_parts() -> None:
    trace, body = Trace("weights"), made("gpt").model.body
    body(torch.ones(1, 3, dtype=torch.long), trace=trace)
    assert list(trace) == ["stack.blocks.0.attention.weights", "stack.blocks.1.attention.weights"]


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_padding_changes_no_state_of_a_recurrent_layer(cell: str) -> None:
    torch.manual_seed(0)
    layers, x = Recurrent(cell, 3, 4, 2, bidirectional=True).eval(), torch.randn(2, 5, 3)
    padded, alone = Trace("states", "gates").at(layers), Trace("states", "gates").at(layers)
    first = tuple(torch.randn_like(s) for s in layers.zeros(2, x))
    with torch.inference_mode():
        layers(x, torch.tensor([5, 3]), first, trace=padded)
        layers(x[1:, :3], torch.tensor([3]), tuple(s[:, 1:] for s in first), trace=alone)
    assert len(list(alone)) == (2 if cell == "rnn" else 4)
    for name in alone:
        close(padded[name][1:, :3], alone[name])
