"""Kinds of sequence models, as the lectures draw them: what goes in below, the model's steps, what comes out above."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from allyouneed.figures import style

INPUT, OUTPUT, STEP = style.ORANGE, "#009e73", style.PALE
WIDE, TALL, APART = 0.62, 0.5, 1.0  # of a box; between two steps


@dataclass(frozen=True)
class Kind:
    """A kind with the numbers of the steps that read and that write; `example` stands below it."""

    name: str
    steps: int
    reads: Sequence[int]
    writes: Sequence[int]
    example: str


def draw_kinds(kinds: Sequence[Kind], out: Path, title: str) -> None:
    """One drawing per kind, side by side."""
    from matplotlib.patches import FancyBboxPatch, Patch

    sizes = [max(2.6, kind.steps * APART) for kind in kinds]
    with style.figure(out, 0.72 * sum(sizes) + 1.0, 3.4, [title, *(kind.name for kind in kinds)]) as made:
        panels = made.subplots(1, len(kinds), gridspec_kw={"width_ratios": sizes, "wspace": 0.12})
        for axes, kind, size in zip(panels, kinds, sizes):
            axes.set_axis_off()
            axes.set(xlim=(-size / 2, size / 2), ylim=(-1.9, 3.2), aspect="equal")
            for step in range(kind.steps):
                x = (step - (kind.steps - 1) / 2) * APART
                rows = [(1.0, STEP, True), (0.0, INPUT, step in kind.reads), (2.0, OUTPUT, step in kind.writes)]
                for y, colour, there in rows:
                    if there:
                        corner = (x - WIDE / 2, y - TALL / 2)
                        box = FancyBboxPatch(
                            corner, WIDE, TALL, "round,pad=0,rounding_size=0.1", facecolor=colour, edgecolor=style.GREY
                        )
                        axes.add_patch(box)
                arrows = [((x, TALL / 2), (x, 1 - TALL / 2))] * (step in kind.reads)
                arrows += [((x, 1 + TALL / 2), (x, 2 - TALL / 2))] * (step in kind.writes)
                arrows += [((x + WIDE / 2, 1), (x + APART - WIDE / 2, 1))] * (step + 1 < kind.steps)
                for start, end in arrows:
                    axes.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "color": style.GREY})
            axes.text(0, 2.75, kind.name, ha="center", va="center", fontsize=11)
            axes.text(0, -0.65, kind.example, ha="center", va="top", fontsize=9, color=style.GREY)
        colours = (("what comes out", OUTPUT), ("steps of the model", STEP), ("what goes in", INPUT))
        made.legend(
            [Patch(color=colour) for _, colour in colours], [name for name, _ in colours], loc="lower center", ncols=3
        )
        made.suptitle(title, x=0.13, ha="left", fontsize=13)
