"""The tree of a beam search: beginnings of an answer from left to right, each with the one that it continues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allyouneed.figures import style

ACROSS, DOWN = 1.25, 0.42  # inches: of a step, of a leaf


def search_tree(nodes: Sequence[Mapping[str, Any]], winner: int, out: Path, title: str) -> None:
    """Nodes {"step", "token", "parent" (-1: none), "logprob", "end"}; the path to the `winner` is blue, and the ends
    of answers have a thick frame."""
    height = place_nodes([node["parent"] for node in nodes])
    path, at = set(), winner
    while at >= 0:
        path.add(at)
        at = nodes[at]["parent"]
    steps = 1 + max(node["step"] for node in nodes)
    tall = 1 + max(height)
    names = [style.visible(node["token"].strip()) for node in nodes]
    with style.figure(out, steps * ACROSS, tall * DOWN, [title, *names]) as made:
        axes = made.add_axes((0, 0, 1, 1))
        axes.set(xlim=(-0.5, steps - 0.5), ylim=(tall - 0.5, -0.5))
        axes.set_yticks([])
        axes.set_xticks(range(steps), [f"step {step + 1}" for step in range(steps)])
        axes.tick_params(length=0)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        for at, node in enumerate(nodes):
            chosen = at in path
            colour = style.BLUE if chosen else style.GREY
            if node["parent"] >= 0:
                ends = [node["step"] - 1, node["step"]], [height[node["parent"]], height[at]]
                axes.plot(*ends, color=colour, linewidth=2.0 if chosen else 0.8, zorder=1)
            box = {
                "boxstyle": "round,pad=0.25", "facecolor": "#d4e6f1" if chosen else "white", "edgecolor": colour,
                "linewidth": 2.0 if node["end"] else 0.8,
            }  # fmt: skip
            text = f"{names[at]}  {node['logprob']:.2f}"
            axes.text(node["step"], height[at], text, ha="center", va="center", fontsize=8, bbox=box, zorder=2)
        style.titles(axes, title)


def place_nodes(parents: Sequence[int]) -> list[float]:
    """How far down each node is: leaves one below the other, every other node in the middle of what continues it."""
    below: dict[int, list[int]] = {}
    for at, parent in enumerate(parents):
        below.setdefault(parent, []).append(at)
    found, leaves = [0.0] * len(parents), 0
    open_: list[tuple[int, bool]] = [(at, False) for at in reversed(below[-1])]
    while open_:
        at, done = open_.pop()
        if at not in below:
            found[at], leaves = float(leaves), leaves + 1
        elif done:
            found[at] = (found[below[at][0]] + found[below[at][-1]]) / 2
        else:
            open_ += [(at, True), *((child, False) for child in reversed(below[at]))]
    return found
