"""The path from one word to another, the steps that must run one after the other, and the work, by kind of layer.

layer              longest path     sequential steps     work
recurrent          n                n                    n d²
convolution (k)    n / (k - 1)      1                    k n d²
self-attention     1                1                    n² d
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.figures.curves import Panel, plot_curves
from allyouneed.lectures.base import Lecture
from allyouneed.nn.block import BlockConfig, Stack
from allyouneed.nn.masks import Mask
from allyouneed.nn.recurrent import Recurrent

WIDTH, KERNEL, ROWS = 128, 3, 4
LENGTHS = (16, 32, 64, 128, 256, 512)
REPEATS = 7


def show(lecture: Lecture) -> dict[str, Any]:
    """Paths and steps by formula, the time measured: one layer, 128 wide, forward and backward."""
    torch.manual_seed(0)
    ones = [1] * len(LENGTHS)
    path = {"recurrent": LENGTHS, "convolution": [math.ceil(n / (KERNEL - 1)) for n in LENGTHS], "self-attention": ones}
    steps = {"recurrent": LENGTHS, "convolution": ones, "self-attention": ones}
    seconds = measure(_layers())
    rows = []
    for (i, n), (name, spent) in product(enumerate(LENGTHS), seconds.items()):
        kind = name.partition(",")[0]
        rows.append([n, name, path[kind][i], steps[kind][i], f"{1000 * spent[i]:.2f}"])
    lecture.table(["length", "layer", "longest path", "sequential steps", "ms"], rows)

    def panel(title: str, unit: str, values: Mapping[str, Sequence[float]]) -> Panel:
        curves = [(name, LENGTHS, several) for name, several in values.items()]
        return Panel(title, "length of the sentence (n)", unit, curves, logy=True, ticks=LENGTHS)

    milliseconds = {name: [1000 * spent for spent in several] for name, several in seconds.items()}
    panels = [
        panel("from one word to another", "layers or steps between them", path),
        panel("sequential steps", "steps that wait for the step before", steps),
        panel("measured here", "ms per layer, forward and backward", milliseconds),
    ]
    title = "Path length, sequential steps and time"
    lecture.draw(lambda out: plot_curves(panels, out, title), title)
    return {"lengths": LENGTHS, "path": path, "steps": steps, "seconds": seconds}


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
        for repeat in range(REPEATS + 1):
            for name, layer in layers.items():
                x = torch.randn(ROWS, n, WIDTH, requires_grad=True)
                start = time.perf_counter()
                layer(x).sum().backward()
                if repeat:  # the first round warms up
                    taken[name].append(time.perf_counter() - start)
        for name, several in taken.items():
            seconds[name].append(sorted(several)[len(several) // 2])
    return seconds
