"""How much of the gradient at the last position reaches the position k steps before it: ‖∂h_T / ∂x_(T-k)‖.

A recurrent network multiplies by one Jacobian per step, so that the norm falls (or grows) geometrically with k. An
untrained LSTM forgets half at each step and is little better; but it can learn to keep its forget gate open, here by a
bias of 4, and then the gradient survives. Attention reaches every position in one step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from allyouneed.figures.curves import Panel, plot_curves
from allyouneed.lectures.base import Lecture
from allyouneed.nn.block import BlockConfig, Stack
from allyouneed.nn.masks import Mask
from allyouneed.nn.recurrent import Recurrent

WIDTH, LENGTH, ROWS, SEEDS = 64, 64, 8, 8


def show(lecture: Lecture) -> dict[str, Any]:
    """Untrained models of one layer, 64 wide, on random input of 64 positions; the mean over 8 seeds."""
    norms = {
        "RNN": norms_by_distance(lambda: _recurrent("rnn")),
        "LSTM": norms_by_distance(lambda: _recurrent("lstm")),
        "LSTM, forget gate open": norms_by_distance(lambda: _recurrent("lstm", forget=4.0)),
        "Transformer": norms_by_distance(_attention),
    }
    lecture.tell(
        """How much does the last output change when the input k steps before it changes? A recurrent network multiplies
        by one Jacobian matrix per step, so the answer shrinks geometrically with k. An LSTM that keeps its forget gate
        open loses little, and attention reaches every position in one step."""
    )
    relative = {name: (values[1:] / values[1]).tolist() for name, values in norms.items()}
    distances = list(range(1, LENGTH))
    rows = [[k, *(f"{relative[name][k - 1]:.1e}" for name in norms)] for k in (1, 2, 4, 8, 16, 32, 63)]
    lecture.table(["distance", *norms], rows)
    curves = [(name, distances, values) for name, values in relative.items()]
    panel = Panel(
        "untrained models, one layer, 64 wide", "distance k (positions)", "‖∂h_T / ∂x_(T-k)‖, relative to k = 1",
        curves, logy=True,
    )  # fmt: skip
    title = "How much of a gradient is left after k steps"
    lecture.draw(lambda out: plot_curves([panel], out, title), title)
    return {"distance": distances, **relative}


def _recurrent(cell: str, forget: float = 0.0) -> Callable[[Tensor], Tensor]:
    layer = Recurrent(cell, WIDTH, WIDTH)
    if forget:
        with torch.no_grad():  # the gates are in the order i, f, g, o
            layer.layers[0].bias_hh_l0[WIDTH : 2 * WIDTH] += forget  # type: ignore[operator, index]
    return lambda x: layer(x)[0]


def _attention() -> Callable[[Tensor], Tensor]:
    stack = Stack(BlockConfig(width=WIDTH, layers=1, heads=4, dropout=0.0, positions="rotary"), 1)
    return lambda x: stack(x, Mask(causal=True))


def norms_by_distance(make: Callable[[], Callable[[Tensor], Tensor]]) -> Tensor:
    """The norm of the gradient of the last output, in a random direction, by the distance from it: (LENGTH,)."""
    total = torch.zeros(LENGTH)
    for seed in range(SEEDS):
        torch.manual_seed(seed)
        body = make()
        x = torch.randn(ROWS, LENGTH, WIDTH, requires_grad=True)
        last = body(x)[:, -1]
        (gradient,) = torch.autograd.grad(last, x, torch.randn_like(last))
        total += gradient.norm(dim=-1).mean(0).flip(0)
    return total / SEEDS
