"""RNN, GRU and LSTM: readable cells in a loop over time, and torch's fused kernels on the same weights.

Shapes: B batch, T time, D width of the state, L layers, R directions (one or two).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from allyouneed.errors import UserError
from allyouneed.nn.layers import last, real
from allyouneed.nn.trace import Trace, record

CELLS = ("rnn", "gru", "lstm")
Hidden = tuple[Tensor, ...]  # (h,), of an LSTM (h, c)
Signal = Tensor | PackedSequence  # what goes from layer to layer


def to_parts(state: Hidden) -> dict[str, Tensor]:
    """(h,) or (h, c), each (L, B, D) -> the parts of a RecurrentState, by name and rows first: (B, L, D)"""
    return {name: t.transpose(0, 1) for name, t in zip("hc", state)}


def from_parts(parts: dict[str, Tensor]) -> Hidden:
    """What `to_parts` was given."""
    return tuple(parts[name].transpose(0, 1) for name in "hc" if name in parts)


class Weights(NamedTuple):
    """One layer in one direction. One matrix holds the rows of all gates, in the order of the cell's formulas; each
    bias is the sum of two, as in torch."""

    x: Tensor  # (gates · D, inputs)
    h: Tensor  # (gates · D, D)
    bias_x: Tensor
    bias_h: Tensor


def rnn_cell(x: Tensor, state: Hidden, w: Weights) -> Hidden:
    """h_t = tanh(W_xh x_t + W_hh h_{t-1} + b)"""
    (h,) = state
    return (torch.tanh(F.linear(x, w.x, w.bias_x) + F.linear(h, w.h, w.bias_h)),)


def gru_cell(x: Tensor, state: Hidden, w: Weights) -> Hidden:
    """A reset gate r controls how the past is used, an update gate z how much of it stays (Cho et al., 2014):

    r = σ(W_xr x_t + W_hr h_{t-1} + b_r)
    z = σ(W_xz x_t + W_hz h_{t-1} + b_z)
    n = tanh(W_xn x_t + b_xn + r ⊙ (W_hn h_{t-1} + b_hn))
    h_t = (1 - z) ⊙ n + z ⊙ h_{t-1}
    """
    (h,) = state
    x_r, x_z, x_n = F.linear(x, w.x, w.bias_x).chunk(3, dim=-1)
    h_r, h_z, h_n = F.linear(h, w.h, w.bias_h).chunk(3, dim=-1)
    r, z = torch.sigmoid(x_r + h_r), torch.sigmoid(x_z + h_z)
    n = torch.tanh(x_n + r * h_n)
    return ((1 - z) * n + z * h,)


def lstm_cell(x: Tensor, state: Hidden, w: Weights) -> Hidden:
    """A cell state c, with an input gate i, a forget gate f and an output gate o (Hochreiter and Schmidhuber, 1997):

    i, f, o = σ(W_x x_t + W_h h_{t-1} + b), each with its own W and b;  g = tanh(W_xg x_t + W_hg h_{t-1} + b_g)
    c_t = f ⊙ c_{t-1} + i ⊙ g
    h_t = o ⊙ tanh(c_t)
    """
    h, c = state
    i, f, g, o = (F.linear(x, w.x, w.bias_x) + F.linear(h, w.h, w.bias_h)).chunk(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


GATES = {"rnn": (), "gru": ("reset", "update"), "lstm": ("input", "forget", "output")}


def gates(cell: str, x: Tensor, h: Tensor, w: Weights) -> Tensor:
    """The gates of a cell that reads x (B, T, inputs) after the states h (B, T, D): (B, T, gates, D), as in GATES."""
    parts = (F.linear(x, w.x, w.bias_x) + F.linear(h, w.h, w.bias_h)).chunk({"gru": 3, "lstm": 4}[cell], dim=-1)
    return torch.stack([torch.sigmoid(parts[i]) for i in ((0, 1) if cell == "gru" else (0, 1, 3))], dim=2)


Cell = Callable[[Tensor, Hidden, Weights], Hidden]
READABLE: dict[str, Cell] = {"rnn": rnn_cell, "gru": gru_cell, "lstm": lstm_cell}
FUSED: dict[str, Any] = {"rnn": nn.RNN, "gru": nn.GRU, "lstm": nn.LSTM}
STEPS: dict[str, Cell] = {  # torch's kernels for a single step
    "rnn": lambda x, state, w: (torch.rnn_tanh_cell(x, state[0], *w),),
    "gru": lambda x, state, w: (torch.gru_cell(x, state[0], *w),),
    "lstm": lambda x, state, w: torch.lstm_cell(x, state, *w),
}


def unroll(
    cell: Cell, x: Tensor, state: Hidden, weights: Weights, tokens: Tensor | None, backward: bool
) -> list[Hidden]:
    """The loop over time: x (B, T, inputs) -> the state (B, D) after each token. It does not change where `tokens`
    (B, T, 1) is False, at padding."""
    states = [state] * x.size(1)
    for t in reversed(range(x.size(1))) if backward else range(x.size(1)):
        new = cell(x[:, t], state, weights)
        state = new if tokens is None else tuple(torch.where(tokens[:, t], n, s) for n, s in zip(new, state))
        states[t] = state
    return states


class Recurrent(nn.Module):
    """L layers of one kind of cell, each reading the layer below, in one direction or in both; the outputs of two
    directions are concatenated. `fused` chooses the kernels; the values are the same."""

    def __init__(
        self,
        cell: str,
        inputs: int,
        width: int,
        layers: int = 1,
        *,
        bidirectional: bool = False,
        dropout: float = 0.0,
        fused: bool = True,
    ) -> None:
        super().__init__()
        if cell not in CELLS:
            raise UserError(f"there is no recurrent cell '{cell}': choose one of {', '.join(CELLS)}")
        self.cell, self.width, self.fused = cell, width, fused
        self.directions = 2 if bidirectional else 1
        self.out_width = width * self.directions
        sizes = [inputs, *[self.out_width] * (layers - 1)]
        self.layers = nn.ModuleList(
            FUSED[cell](size, width, batch_first=True, bidirectional=bidirectional) for size in sizes
        )
        self.dropout = nn.Dropout(dropout)  # between the layers

    def forward(
        self, x: Tensor, lengths: Tensor | None = None, state: Hidden | None = None, trace: Trace | None = None
    ) -> tuple[Tensor, Hidden]:
        """x (B, T, inputs) -> (B, T, R·D) and the state after the last token, (h,) or (h, c), each (L·R, B, D).

        `lengths` (B,), each at least 1, are those of right-padded rows: outputs at the padding are zeros, and no state
        reads it. Without `state` the first state is zero.
        """
        if x.size(1) == 1 and self.directions == 1 and trace is None:
            output, end = self.step(x[:, 0], self.zeros(x.size(0), x) if state is None else state)
            return output[:, None], end
        outputs, end = self._read(x, lengths, state, trace)
        return outputs[-1], end

    def layer_outputs(self, x: Tensor, lengths: Tensor | None = None, trace: Trace | None = None) -> list[Tensor]:
        """The outputs (B, T, R·D) of every layer, the lowest first."""
        return self._read(x, lengths, None, trace)[0]

    def zeros(self, rows: int, like: Tensor) -> Hidden:
        """The state before the first token, with the dtype and device of `like`."""
        shape = (len(self.layers) * self.directions, rows, self.width)
        return tuple(like.new_zeros(shape) for _ in range(2 if self.cell == "lstm" else 1))

    def step(self, x: Tensor, state: Hidden) -> tuple[Tensor, Hidden]:
        """One token, in one direction: x (B, inputs) -> (B, D), and the next state. For loops whose next input depends
        on this output; the kernels for a single step are 2 to 7 times as fast here as those for a sequence."""
        cell = (STEPS if self.fused else READABLE)[self.cell]
        ends: list[Hidden] = []
        for i, layer in enumerate(self.layers):
            weights = Weights(*layer.all_weights[0])  # type: ignore[index]
            ends.append(cell(self.dropout(x) if i else x, tuple(s[i] for s in state), weights))
            x = ends[-1][0]
        return x, tuple(torch.stack(parts) for parts in zip(*ends))

    def _read(
        self, x: Tensor, lengths: Tensor | None, state: Hidden | None, trace: Trace | None
    ) -> tuple[list[Tensor], Hidden]:
        """The outputs of each layer, and the state after the last token. If a trace wants states or gates, the readable
        cells run, otherwise the fused kernels."""
        fused = self.fused and not (trace is not None and trace.wants("states", "gates"))
        state = self.zeros(x.size(0), x) if state is None else state
        if x.device.type == "cpu" and torch.is_autocast_enabled("cpu"):  # not every CPU has these kernels in bf16
            with torch.autocast("cpu", enabled=False):
                return self._read(x.float(), lengths, tuple(s.float() for s in state), trace)
        signal: Signal = x
        # A backward pass reads the padding first, and the last state of a forward pass has read it. Packing prevents
        # both, but the host must know the lengths. Forward RNNs and GRUs do without: their outputs contain the last h.
        if lengths is not None and fused and (self.directions == 2 or self.cell == "lstm"):
            signal = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        outputs, ends = list[Tensor](), []
        for i, layer in enumerate(self.layers):
            record(trace, layer, "inputs", outputs[-1] if i else x)
            if i:
                signal = _dropped(signal, self.dropout)
            begin = tuple(s[i * self.directions : (i + 1) * self.directions].contiguous() for s in state)
            if fused:
                signal, end = self._run_fused(layer, signal, begin, lengths)
            else:
                signal, end = self._run_readable(layer, signal, begin, lengths, trace)
            outputs.append(_padded(signal, lengths, x.size(1)))
            record(trace, layer, "layers", outputs[-1])
            ends.append(end)
        return outputs, tuple(torch.cat(parts) for parts in zip(*ends))

    def _run_fused(self, layer: nn.Module, x: Signal, state: Hidden, lengths: Tensor | None) -> tuple[Signal, Hidden]:
        """One layer in all its directions; the state goes in and comes out as (R, B, D)."""
        lstm = self.cell == "lstm"
        x, end = layer(x, state if lstm else state[0])
        if lstm:
            return x, end
        if lengths is not None and isinstance(x, Tensor):
            end = last(x, lengths)[None]
        return x, (end,)

    def _run_readable(
        self, layer: nn.Module, x: Any, state: Hidden, lengths: Tensor | None, trace: Trace | None
    ) -> tuple[Signal, Hidden]:
        """The same with the readable cells, whose states before each token and gates a trace may record."""
        tokens = None if lengths is None else real(lengths, x.size(1))[..., None]
        outputs, ends, known, found = [], [], [], []
        for r in range(self.directions):
            weights, begin = Weights(*layer.all_weights[r]), tuple(s[r] for s in state)  # type: ignore[index]
            states = unroll(READABLE[self.cell], x, begin, weights, tokens, backward=r == 1)
            outputs.append(torch.stack([h for h, *_ in states], dim=1))
            ends.append(states[0 if r else -1])
            before = [*states[1:], begin] if r else [begin, *states[:-1]]
            known.append(torch.stack([torch.stack(s, dim=1) for s in before], dim=1))  # (B, T, 1 or 2, D)
            if GATES[self.cell]:
                found.append(gates(self.cell, x, known[-1][:, :, 0], weights))
        record(trace, layer, "states", torch.stack(known, dim=2))  # (B, T, R, 1 or 2, D)
        if found:
            record(trace, layer, "gates", torch.stack(found, dim=2))  # (B, T, R, gates, D)
        return torch.cat(outputs, dim=-1), tuple(torch.stack(parts) for parts in zip(*ends))


def _padded(x: Signal, lengths: Tensor | None, time: int) -> Tensor:
    """(B, T, D), zeros at the padding."""
    if isinstance(x, PackedSequence):
        return pad_packed_sequence(x, batch_first=True, total_length=time)[0]
    return x if lengths is None else x.masked_fill(~real(lengths, time)[..., None], 0)


def _dropped(x: Signal, dropout: nn.Dropout) -> Signal:
    if isinstance(x, PackedSequence):
        return PackedSequence(dropout(x.data), x.batch_sizes, x.sorted_indices, x.unsorted_indices)
    return dropout(x)
