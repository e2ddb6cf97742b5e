"""Recurrent layers: the readable cells, torch's kernels and plain torch are one thing, and nothing reads padding."""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from allyouneed.decode import Request
from allyouneed.errors import UserError
from allyouneed.nn.cache import RecurrentState
from allyouneed.nn.layers import pad, real
from allyouneed.nn.recurrent import CELLS, Recurrent
from allyouneed.predict.decoder import Decoder
from generation import beam_search, generate

LENGTHS = torch.tensor([4, 7, 1, 6])
PLAIN = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}


def net(cell: str, layers: int = 2, *, dtype: torch.dtype = torch.float32, **values) -> Recurrent:
    torch.manual_seed(0)
    return Recurrent(cell, 5, 6, layers, **values).to(dtype)


def inputs(dtype: torch.dtype = torch.float32, time: int = 7) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(4, time, 5, dtype=dtype)


def some_state(layer: Recurrent, x: Tensor) -> tuple[Tensor, ...]:
    torch.manual_seed(2)
    return tuple(torch.randn_like(s) for s in layer.zeros(x.size(0), x))


def results(layer: Recurrent, x: Tensor, lengths: Tensor | None, state) -> list[Tensor]:
    """Outputs and state, and the gradients of a function of all of them."""
    x = x.clone().requires_grad_()
    state = None if state is None else tuple(s.clone().requires_grad_() for s in state)
    outputs, end = layer(x, lengths, state)
    values = [outputs, *end]
    torch.manual_seed(3)
    loss = sum((v * torch.randn(v.shape, dtype=v.dtype)).mean() for v in values)
    leaves = [x, *(state or ()), *layer.parameters()]
    return [*values, *torch.autograd.grad(loss, leaves)]


def same(a: Sequence[Tensor], b: Sequence[Tensor], atol: float = 1e-6) -> None:
    assert len(a) == len(b)
    for left, right in zip(a, b):
        torch.testing.assert_close(left, right, atol=atol, rtol=0)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("stateful", [False, True])
@pytest.mark.parametrize("time", [1, 7])
def test_readable_cells_equal_the_fused_kernels_in_values_and_gradients(cell, bidirectional, ragged, stateful, time):
    for dtype, atol in ((torch.float32, 1e-6), (torch.float64, 1e-12)):
        fused = net(cell, bidirectional=bidirectional, dtype=dtype)
        readable = copy.deepcopy(fused)
        readable.fused = False
        x = inputs(dtype, time)
        lengths = LENGTHS.clamp(max=time) if ragged else None
        state = some_state(fused, x) if stateful else None
        same(results(fused, x, lengths, state), results(readable, x, lengths, state), atol)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("ragged", [False, True])
def test_they_are_plain_torch(cell, bidirectional, fused, ragged):
    ours = net(cell, bidirectional=bidirectional, fused=fused)
    plain = PLAIN[cell](5, 6, 2, batch_first=True, bidirectional=bidirectional)
    names = {
        name.replace("_l0", f"_l{i}"): p for i, layer in enumerate(ours.layers) for name, p in layer.named_parameters()
    }
    plain.load_state_dict({name: p.detach() for name, p in names.items()})
    x = inputs().requires_grad_()
    state = some_state(ours, x)
    begin = state if cell == "lstm" else state[0]
    if ragged:
        packed, end = plain(pack_padded_sequence(x, LENGTHS, batch_first=True, enforce_sorted=False), begin)
        expected = pad_packed_sequence(packed, batch_first=True)[0]
    else:
        expected, end = plain(x, begin)
    outputs, found = ours(x, LENGTHS if ragged else None, state)
    same([outputs, *found], [expected, *(end if cell == "lstm" else (end,))])
    weight = torch.randn(outputs.shape) / 10
    order = [names[name] for name, _ in plain.named_parameters()]
    ours_grad = torch.autograd.grad((outputs * weight).sum() + found[-1].mean(), [x, *order])
    last = end[-1] if cell == "lstm" else end
    same(ours_grad, torch.autograd.grad((expected * weight).sum() + last.mean(), [x, *plain.parameters()]))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_padding_gives_zeros_is_never_read_and_a_batch_is_its_rows(cell, bidirectional, fused):
    layer, x = net(cell, bidirectional=bidirectional, fused=fused), inputs()
    state = some_state(layer, x)
    outputs, end = layer(x, LENGTHS, state)
    layers = layer.layer_outputs(x, LENGTHS)
    other = x.clone()
    for row, length in enumerate(LENGTHS.tolist()):
        other[row, length:] = 9.0
        assert not outputs[row, length:].any()
        assert not any(found[row, length:].any() for found in layers)
        alone = x[row : row + 1, :length]
        single, single_end = layer(alone, None, tuple(s[:, row : row + 1] for s in state))
        same([outputs[row, :length], *(s[:, row] for s in end)], [single[0], *(s[:, 0] for s in single_end)])
        same([found[row, :length] for found in layers], [found[0] for found in layer.layer_outputs(alone)])
    again, again_end = layer(other, LENGTHS, state)
    same([outputs, *end, *layers], [again, *again_end, *layer.layer_outputs(other, LENGTHS)], atol=0)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("fused", [False, True])
def test_one_direction_never_reads_the_future_and_two_do(cell, fused):
    x = inputs()
    other = x.clone()
    other[:, 4:] += 1
    forward, both = net(cell, fused=fused), net(cell, fused=fused, bidirectional=True)
    assert torch.equal(forward(x)[0][:, :4], forward(other)[0][:, :4])
    assert not torch.allclose(forward(x)[0][:, 4:], forward(other)[0][:, 4:])
    moved = (both(x)[0] - both(other)[0]).abs().amax(dim=(0, 2))
    assert (moved[:4] > 1e-4).all()


@pytest.mark.parametrize("cell", CELLS)
def test_a_text_read_in_pieces_is_the_text_read_at_once(cell):
    layer, x = net(cell), inputs()
    whole, end = layer(x)
    for cuts in ([1] * 7, [3, 1, 3]):
        state, outputs = None, []
        for piece in x.split(cuts, dim=1):
            output, state = layer(piece, None, state)
            outputs.append(output)
        same([torch.cat(outputs, dim=1), *state], [whole, *end])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_layer_outputs_are_those_of_each_layer_on_the_one_below(cell, bidirectional):
    layer, x = net(cell, layers=3, bidirectional=bidirectional), inputs()
    found = layer.layer_outputs(x, LENGTHS)
    assert [f.shape for f in found] == [(4, 7, layer.out_width)] * 3
    same([found[-1]], [layer(x, LENGTHS)[0]])
    below = x
    for i in range(3):
        one = Recurrent(cell, below.size(2), 6, bidirectional=bidirectional)
        one.layers[0].load_state_dict(layer.layers[i].state_dict())
        below = one(below, LENGTHS)[0]
        same([found[i]], [below])


@pytest.mark.parametrize("lengths", [None, LENGTHS])
@pytest.mark.parametrize("fused", [False, True])
def test_dropout_is_between_the_layers_and_only_in_training(lengths, fused):
    layer, x = net("lstm", dropout=0.5, bidirectional=True, fused=fused), inputs()
    first, second = (layer.layer_outputs(x, lengths) for _ in range(2))
    assert torch.equal(first[0], second[0])
    assert not torch.allclose(first[1], second[1])
    assert (first[1][:, 0] != 0).all()  # nothing of what comes out at the top is dropped
    layer.eval()
    assert torch.equal(layer(x, lengths)[0], layer(x, lengths)[0])


def test_an_unknown_cell_is_named():
    with pytest.raises(UserError, match="'ltsm'"):
        Recurrent("ltsm", 4, 4)


class Rememberer:
    """A Stepper on a RecurrentState: logits are a random function of the tokens so far and the source's real ones."""

    limit = None
    prompted = False
    compiled = False
    piece = None
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.table = 2 * torch.randn(997, 11, generator=torch.Generator().manual_seed(0))

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, RecurrentState]:
        source, lengths = pad(inputs, torch.device("cpu"), value=9)
        state = RecurrentState(
            {"seen": torch.zeros(len(inputs), 2, dtype=torch.long)},
            torch.zeros(len(inputs), dtype=torch.long),
            {"ids": source, "real": real(lengths, source.size(1))},
        )
        return self.step(torch.ones(len(inputs), dtype=torch.long), state), state

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        seen = state.parts["seen"]
        seen = torch.stack([(seen[:, 0] * 31 + tokens + 1) % 65521, seen[:, 1] + tokens], dim=1)
        state.advance(1, seen=seen)
        place = torch.arange(1, state.source["ids"].size(1) + 1)
        read = (state.source["ids"] * place * state.source["real"]).sum(1).repeat_interleave(state.beams)
        return self.table[(seen.sum(1) + 7 * read + 3 * state.length) % 997]

    def empty(self, rows: int, room: int) -> RecurrentState:
        zeros = torch.zeros(rows, dtype=torch.long)
        source = {"ids": zeros[:, None].clone(), "real": torch.zeros(rows, 1, dtype=torch.bool)}
        return RecurrentState({"seen": torch.zeros(rows, 2, dtype=torch.long)}, zeros, source)


SOURCES = [[3], [5, 8, 2, 2, 9, 1, 4], [7, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2], [6, 1, 5], [2, 9]]


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_a_recurrent_state_join_and_leave(seed):
    """Short sources after long ones and long after short: the stored source grows, and nothing of the old row stays."""
    stepper, chance = Rememberer(), random.Random(seed)
    order = chance.choices(range(len(SOURCES)), k=14)

    def request(i: int) -> Request:
        return Request(SOURCES[i], max_new=3 + i, temperature=0.8 * (i % 2), seed=i, stop={0})

    decoder, found, waiting = Decoder(stepper, 3), {}, list(order)
    ids = {}
    while waiting or decoder.busy:
        for _ in range(chance.randint(0, 2)):
            if waiting:
                i = waiting.pop(0)
                ids[decoder.add(request(i))] = i
        for event in decoder.tick():
            found.setdefault(event.id, []).append(event.token)
    alone = {i: next(generate(stepper, [request(i)], rows=1))[1] for i in set(order)}
    for id, i in ids.items():
        assert [t for t in found[id] if t is not None] == alone[i]


@pytest.mark.parametrize("beam", [1, 3])
def test_beams_over_a_recurrent_state_are_those_of_each_input_alone(beam):
    how = {"beam": beam, "max_new": 9, "eos": 0, "n_best": beam}
    together = beam_search(Rememberer(), SOURCES, **how)
    alone = [beam_search(Rememberer(), [source], **how)[0] for source in SOURCES]
    assert together == alone
    assert len({tuple(answer[0].tokens) for answer in together}) > 3
    if beam == 1:
        requests = [Request(source, max_new=9, stop={0}) for source in SOURCES]
        assert [answer[0].tokens for answer in together] == [r[1] for r in generate(Rememberer(), requests, rows=2)]


def test_a_recurrent_state_is_its_rows():
    parts = {"h": torch.arange(6.0).view(3, 2)}
    state = RecurrentState(parts, torch.tensor([1, 2, 3]), {"ids": torch.tensor([[1, 2], [3, 4], [5, 6]])})
    twice = state.expand(2)
    assert twice.parts["h"][:, 0].tolist() == [0, 0, 2, 2, 4, 4]
    assert twice.length.tolist() == [1, 1, 2, 2, 3, 3]
    twice.parts["h"] = torch.arange(6.0)[:, None]
    some = twice.select(torch.tensor([2, 0]))
    assert some.parts["h"][:, 0].tolist() == [4, 5, 0, 1]
    assert some.source["ids"].tolist() == [[5, 6], [1, 2]]
    some.reorder(torch.tensor([1, 1, 2, 3]))
    assert some.parts["h"][:, 0].tolist() == [5, 5, 0, 1]
    assert some.length.tolist() == [3, 3, 1, 1]
    assert some.source["ids"].tolist() == [[5, 6], [1, 2]]
    state.put(
        torch.tensor([1]),
        RecurrentState({"h": torch.ones(1, 2)}, torch.tensor([9]), {"ids": torch.tensor([[7, 8, 9]])}),
    )
    assert state.source["ids"][:, :3].tolist() == [[1, 2, 0], [7, 8, 9], [5, 6, 0]]
    state.put(
        torch.tensor([1]), RecurrentState({"h": torch.ones(1, 2)}, torch.tensor([4]), {"ids": torch.tensor([[6]])})
    )
    assert state.source["ids"][1].tolist() == [6, *[0] * 15]  # room for whole vectors of a processor
    assert (state.parts["h"].tolist(), state.length.tolist()) == ([[0, 1], [1, 1], [4, 5]], [1, 4, 3])
    assert state.room > 1 << 40


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("time", [1, 7])
def test_mixed_precision_works_on_a_cpu(cell, time):
    layer, x = net(cell, bidirectional=time > 1), inputs(time=time)
    lengths = LENGTHS.clamp(max=time)
    expected, _ = layer(x, lengths)
    with torch.autocast("cpu", torch.bfloat16):
        outputs, _ = layer(x.bfloat16().float(), lengths)
        outputs.sum().backward()
    torch.testing.assert_close(outputs.float(), expected, atol=0.02, rtol=0)
