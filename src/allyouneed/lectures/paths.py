"""The path from one word to another, the steps that must run one after the other, and the work, by kind of layer.

layer              longest path     sequential steps     work
recurrent          n                n                    n d²
convolution (k)    n / (k - 1)      1                    k n d²
self-attention     1                1                    n² d
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.figures.line_plot import Panel, plot_curves
from allyouneed.lectures.base import Classroom
from allyouneed.nn.block import BlockConfig, Stack
from allyouneed.nn.masks import Mask
from allyouneed.nn.recurrent import Recurrent

WIDTH, KERNEL, ROWS = 128, 3, 4
LENGTHS = (16, 32, 64, 128, 256, 512)
REPEATS = 7


def show(room: Classroom) -> dict[str, Any]:
    """Paths and steps by formula, the time measured: one layer, 128 wide, forward and backward."""
    torch.manual_seed(0)
    path: dict[str, Callable[[int], float]] = {
        "recurrent": lambda n: n,
        "convolution": lambda n: math.ceil(n / (KERNEL - 1)),
        "self-attention": lambda n: 1,
    }
    steps = {"recurrent": lambda n: n, "convolution": lambda n: 1, "self-attention": lambda n: 1}
    seconds = measure(_layers())
    rows = [
        [n, name, *(f"{count[name.partition(',')[0]](n):g}" for count in (path, steps)), f"{1000 * spent[i]:.2f}"]
        for i, n in enumerate(LENGTHS)
        for name, spent in seconds.items()
    ]
    room.table(["length", "layer", "longest path", "sequential steps", "ms"], rows)

    def panel(title: str, unit: str, values: dict[str, list[float]]) -> Panel:
        curves = [(name, LENGTHS, several) for name, several in values.items()]
        return Panel(title, "length of the sentence (n)", unit, curves, logx=True, logy=True, ticks=LENGTHS)

    counts = [{name: [f(n) for n in LENGTHS] for name, f in count.items()} for count in (path, steps)]
    milliseconds = {name: [1000 * spent for spent in several] for name, several in seconds.items()}
    panels = [
        panel("from one word to another", "layers or steps between them", counts[0]),
        panel("sequential steps", "steps that wait for the step before", counts[1]),
        panel("measured here", "ms per layer, forward and backward", milliseconds),
    ]
    plot_curves(panels, room.picture("paths"), "Path length, sequential steps and time")
    return {"lengths": list(LENGTHS), "path": counts[0], "steps": counts[1], "seconds": seconds}


def _layers() -> dict[str, Callable[[Tensor], Tensor]]:
    """The recurrent layer comes twice: step by step in Python, and as torch's kernel in C."""
    recurrent, kernel = (Recurrent("rnn", WIDTH, WIDTH, fused=fused) for fused in (False, True))
    convolution = nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2)
    stack = Stack(BlockConfig(width=WIDTH, layers=1, heads=4, hidden=WIDTH, dropout=0.0, positions="none"), 1)
    return {
        "recurrent": lambda x: recurrent(x)[0],
        "recurrent, one kernel": lambda x: kernel(x)[0],
        "convolution": lambda x: convolution(x.transpose(1, 2)),
        "self-attention": lambda x: stack(x, Mask()),
    }


def measure(layers: dict[str, Callable[[Tensor], Tensor]]) -> dict[str, list[float]]:
    """Seconds of each layer for each length: the median of several rounds, in which the layers take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    for n in LENGTHS:
        taken: dict[str, list[float]] = {name: [] for name in layers}
        for turn in range(REPEATS + 1):
            for name, layer in layers.items():
                x = torch.randn(ROWS, n, WIDTH, requires_grad=True)
                start = time.perf_counter()
                layer(x).sum().backward()
                if turn:  # the first round warms up
                    taken[name].append(time.perf_counter() - start)
        for name, several in taken.items():
            seconds[name].append(sorted(several)[len(several) // 2])
    return seconds
