"""The path from one word to another, the steps that must run one after the other, and the work, by kind of layer.

layer              longest path     sequential steps     work
recurrent          n                n                    n d²
convolution (k)    n / (k - 1)      1                    k n d²
self-attention     1                1                    n² d + n d²
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
from allyouneed.nn.attention import Attention
from allyouneed.nn.recurrent import Recurrent

WIDTH, KERNEL, ROWS = 128, 3, 4
LENGTHS = (16, 32, 64, 128, 256, 512)
REPEATS = 7


SENTENCE = "The old man who had lost his hat yesterday in the cold wind by the sea seemed tired ."
WORDS = ("yesterday", "seemed")


def show(lecture: Lecture) -> dict[str, Any]:
    """Paths and steps by formula, the time measured: one layer of each kind, equally wide, forward and backward."""
    words = SENTENCE.split()
    apart = words.index(WORDS[1]) - words.index(WORDS[0])
    lecture.tell(
        f"""In "{SENTENCE}" the words {WORDS[0]} and {WORDS[1]} are {apart} steps apart. A recurrent layer carries
        what it knows of the first through {apart} steps until it meets the second; convolutions of width {KERNEL} need
        {_layers_between(apart)} layers, one above the other; in self-attention the two meet in one step."""
    )
    torch.manual_seed(0)
    ones = [1] * len(LENGTHS)
    path = {
        "recurrent": LENGTHS,
        "convolution": [_layers_between(n) for n in LENGTHS],
        "self-attention": ones,
    }
    steps = {"recurrent": LENGTHS, "convolution": ones, "self-attention": ones}
    seconds = measure(_layers(lecture.device), lecture.device)
    rows = []
    for (i, n), (name, spent) in product(enumerate(LENGTHS), seconds.items()):
        kind = name.partition(",")[0]
        rows.append([n, name, path[kind][i], steps[kind][i], f"{1000 * spent[i]:.2f}"])
    lecture.table(["length", "layer", "longest path", "sequential steps", "ms"], rows)
    slow, fast, attention = (seconds[name][-1] for name in ("recurrent, step by step", "recurrent", "self-attention"))
    lecture.tell(
        f"""Measured on {_hardware(lecture.device)}, {ROWS} sentences of {LENGTHS[-1]} words at once: self-attention
        takes {attention / fast:.2g} times as long as a recurrent layer in one kernel, and that one is
        {slow / fast:.2g} times as fast as the same layer step by step. Self-attention has more to compute, but no step
        waits for another: the more a machine can do at once, the better for it."""
    )

    def panel(title: str, unit: str, values: Mapping[str, Sequence[float]]) -> Panel:
        curves = [(name, LENGTHS, several) for name, several in values.items()]
        return Panel(title, "length of the sentence (n)", unit, curves, logy=True, ticks=LENGTHS)

    milliseconds = {name: [1000 * spent for spent in several] for name, several in seconds.items()}
    panels = [
        panel("from one word to another", "layers or steps between them", path),
        panel("sequential steps", "steps that wait for the step before", steps),
        panel(f"measured, {lecture.device}", "ms per layer, forward and backward", milliseconds),
    ]
    title = "Path length, sequential steps and time"
    lecture.draw(lambda out: plot_curves(panels, out, title), title)
    return {"lengths": LENGTHS, "path": path, "steps": steps, "seconds": seconds}


def _layers_between(distance: int) -> int:
    return math.ceil(distance / (KERNEL - 1))


def _hardware(device: str) -> str:
    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"a CPU with {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"


def _layers(device: str) -> dict[str, Callable[[Tensor], Tensor]]:
    """One layer of each kind, alone, equally wide; the recurrent one step by step in Python, and as one kernel."""
    loop, kernel = (Recurrent("rnn", WIDTH, WIDTH, fused=fused).to(device) for fused in (False, True))
    convolution = nn.Conv1d(WIDTH, WIDTH, KERNEL, padding=KERNEL // 2, device=device)
    attention = Attention(WIDTH, heads=4).to(device)
    return {
        "recurrent, step by step": lambda x: loop(x)[0],
        "recurrent": lambda x: kernel(x)[0],
        "convolution": lambda x: convolution(x.transpose(1, 2)),
        "self-attention": lambda x: attention(x),
    }


def measure(layers: dict[str, Callable[[Tensor], Tensor]], device: str = "cpu") -> dict[str, list[float]]:
    """Seconds of each layer for each length: the median of several rounds, in which the layers take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in layers}
    for n in LENGTHS:
        taken: dict[str, list[float]] = {name: [] for name in layers}
        for repeat in range(REPEATS + 1):
            for name, layer in layers.items():
                x = torch.randn(ROWS, n, WIDTH, device=device, requires_grad=True)
                _wait(device)
                start = time.perf_counter()
                layer(x).sum().backward()
                _wait(device)
                if repeat:  # the first round warms up
                    taken[name].append(time.perf_counter() - start)
        for name, several in taken.items():
            seconds[name].append(sorted(several)[len(several) // 2])
    return seconds


def _wait(device: str) -> None:
    """Until a GPU has done what it was given."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
