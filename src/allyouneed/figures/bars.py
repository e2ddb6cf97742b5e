"""Bars: shares of one whole side by side, and means of several runs with each of them as a dot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allyouneed.figures import style

TALL, ROW = 0.3, 0.36  # inches: of a share, and of a mean


def share_bars(
    panels: Sequence[tuple[str, Sequence[tuple[str, float]]]], out: Path, title: str, unit: str, grey: str = ""
) -> None:
    """Panels (name, bars) of bars from 0 to 1, the first on top; the bar named `grey` is grey, since it is no answer
    but all others."""
    across = min(len(panels), 3)
    down, most = math.ceil(len(panels) / across), max(len(bars) for _, bars in panels)
    texts = [title, *(name for name, _ in panels), *(name for _, bars in panels for name, _ in bars)]
    with style.figure(out, 4.2 * across, down * (most * TALL + 1.1), texts) as made:
        grid = made.subplots(down, across, squeeze=False).flat
        for axes, (name, bars) in zip(grid, panels):
            names, values = zip(*bars)
            colours = [style.PALE if one == grey else style.BLUE for one in names]
            edges = [style.GREY if one == grey else style.BLUE for one in names]
            axes.barh(range(len(bars)), values, 0.7, color=colours, edgecolor=edges)
            for at, value in enumerate(values):
                axes.text(value + 0.015, at, f"{100 * value:.1f} %", va="center", fontsize=9)
            axes.set_yticks(range(len(bars)), [style.visible(one, 40).replace("␣", " ") for one in names])
            axes.set(xlim=(0, 1.18), ylim=(most - 0.5, -0.5), xlabel=unit)
            axes.set_xticks([0, 0.5, 1], ["0", "50 %", "100 %"])
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="y", visible=False)
            axes.set_title(name, fontsize=11, pad=6)
        for axes in list(grid):
            axes.set_axis_off()
        made.tight_layout(w_pad=2.0, h_pad=1.5)
        made.suptitle(title, x=made.axes[0].get_position().x0, y=1.0, va="bottom", ha="left", fontsize=13)


def spread_bars(
    groups: Mapping[str, Mapping[str, Sequence[float]]], colours: Mapping[str, str], out: Path, title: str, unit: str,
    guess: float | None = None,
) -> None:  # fmt: skip
    """Groups of bars, each the mean of several runs, which are dots; `guess`: what is reached without learning."""
    names = list(colours)
    wide = 0.8 / len(names)
    with style.figure(out, max(4.5, 1.6 * len(groups) * len(names) * 0.8 + 1.5), 3.8) as made:
        axes = made.add_axes((0, 0, 1, 1))
        for at, name in enumerate(names):
            xs = [group + (at - (len(names) - 1) / 2) * wide for group in range(len(groups))]
            several = [runs[name] for runs in groups.values()]
            means = [sum(values) / len(values) for values in several]
            axes.bar(xs, means, 0.9 * wide, color=colours[name], label=name)
            for x, mean, values in zip(xs, means, several):
                axes.plot([x] * len(values), values, "o", color=style.INK, markersize=4)
                label: dict[str, Any] = {"ha": "center", "va": "bottom", "fontsize": 10}
                axes.annotate(f"{mean:.3g}", (x, max(mean, *values)), (0, 5), textcoords="offset points", **label)
        if guess is not None:
            axes.axhline(guess, color=style.GREY, linestyle="--", linewidth=1.2, label="always the same class")
        axes.set_xticks(range(len(groups)), list(groups))
        axes.tick_params(axis="x", length=0)
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(unit)
        axes.set_ylim(bottom=0)
        axes.margins(y=0.12)
        if len(names) > 1 or guess is not None:
            axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, borderaxespad=0.2, handlelength=1.4)
        made.suptitle(title, x=0.0, y=1.12 if axes.get_legend() else 1.03, va="bottom", ha="left", fontsize=13)


def plot_bars(
    rows: Mapping[str, Sequence[float]], out: Path, title: str, unit: str, line: float, note: str, strong: int = 1
) -> None:
    """A bar from 0 to the mean of each row, with a dot per value. The first bars, so many as are `strong`, are
    those to compare with. A dashed `line` is a value that means something: `note` says what."""
    with style.figure(out, 8.0, ROW * len(rows) + 1.3, [*rows, title]) as made:
        axes = made.subplots()
        for at, values in enumerate(rows.values()):
            mean = sum(values) / len(values)
            axes.barh(at, mean, height=0.62, color=style.BLUE if at < strong else "#9acaf7")
            dots = axes.plot(values, [at] * len(values), linestyle="none", marker="o", markersize=4, color=style.INK)
            clear = {"facecolor": "white", "edgecolor": "none", "pad": 1.0}  # no line runs through the number
            place = (max(mean, *values), at)
            axes.annotate(
                f"{mean:.3g}", place, (9, 0), textcoords="offset points", va="center", bbox=clear, fontsize=10
            )
        dashes = axes.axvline(line, color=style.RED, linestyle="--", linewidth=1.3)
        axes.set_yticks(range(len(rows)), list(rows))
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlim(0, 1.12 * max(line, *(max(values) for values in rows.values())))
        axes.set_xlabel(unit)
        made.tight_layout(rect=(0, 0, 1, 1 - 0.45 / (ROW * len(rows) + 1.3)))
        left = axes.get_position().x0
        made.suptitle(title, x=left, y=0.995, ha="left", fontsize=13)
        above: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
        axes.legend([dots[0], dashes], ["one seed", note], ncols=2, borderpad=0.0, **above)
