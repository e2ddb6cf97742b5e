"""Curves: the losses and the learning rate of a training, and any others in panels side by side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allyouneed.errors import UserError
from allyouneed.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinct for every kind of colour vision, and by their marks in black and white.
COLOURS = (style.BLUE, style.ORANGE, style.GREEN, style.RED, style.PINK, style.INK)
MARKS = "osD^vP"
# (steps, values), the same length
Series = tuple[np.ndarray, np.ndarray]


def loss_curve(metrics: Path | Sequence[dict[str, Any]], out: Path, title: str, unit: str = "token") -> None:
    """Training loss (each row pale, the running mean strong), validation loss, and the learning rate below."""
    rows = read_metrics(metrics) if isinstance(metrics, Path) else metrics
    train, valid = _series(rows, "train", "loss"), _series(rows, "valid", "loss")
    rate = _series(rows, "train", "lr")
    with style.figure(out, 8.0, 4.8, [title]) as made:
        axes, below = made.subplots(2, 1, sharex=True, height_ratios=(5, 1), gridspec_kw={"hspace": 0.12})
        _draw_train(axes, train)
        _draw_valid(axes, valid)
        _draw_parts(axes, rows)
        axes.set_ylabel(f"loss (nats per {unit})")
        if axes.get_legend_handles_labels()[0]:
            # Above the frame, where no curve can run under it.
            axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=4, borderaxespad=0.2, handlelength=1.6)
        if not np.isfinite(np.concatenate([train[1], valid[1]])).any():
            axes.text(0.5, 0.5, "no finite loss", transform=axes.transAxes, ha="center", va="center", color=style.GREY)
            axes.set_yticks([])
        made.suptitle(title, x=axes.get_position().x0, y=0.99, ha="left", fontsize=12)
        below.plot(*rate, color=style.GREY, linewidth=1.2, marker="o" if len(rate[0]) < 2 else "", markersize=3)
        highest = float(np.nanmax(rate[1], initial=0.0))
        below.set_ylim(0.0, 1.15 * highest or 1.0)
        below.set_yticks([0.0, highest], ["0", f"{highest:.2g}"])
        below.set(xlabel="step", ylabel="learning\nrate")
        style.whole_numbers(below.xaxis)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl, without a half-written last line of a killed run."""
    try:
        texts = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise UserError(f"the metrics of the run cannot be read: {error}") from None
    rows = []
    for number, text in enumerate(texts, 1):
        try:
            rows.append(json.loads(text))
        except json.JSONDecodeError:
            if number < len(texts):
                raise UserError(f"{path}, line {number} is not JSON; delete that line") from None
    return rows


def _series(rows: Sequence[dict[str, Any]], kind: str, key: str) -> Series:
    """The values of one key by step; what is missing, None or infinite is NaN."""
    points = [(row["step"], row[key]) for row in rows if row.get("kind") == kind and {"step", key} <= row.keys()]
    steps, values = np.array(sorted(points, key=itemgetter(0)), dtype=float).reshape(-1, 2).T  # None becomes NaN
    return steps, np.where(np.isfinite(values), values, np.nan)


def _smooth(values: np.ndarray) -> np.ndarray:
    """A running mean over a twentieth of the run; NaN where the value itself is."""
    known = np.isfinite(values)
    total = np.concatenate([[0.0], np.cumsum(np.where(known, values, 0.0))])
    count = np.concatenate([[0], np.cumsum(known)])
    here = np.arange(len(values))
    # The window shrinks towards the start, where the curve is steep and a one-sided mean would flatten it.
    reach = np.minimum(here, len(values) // 40)
    low, high = here - reach, np.minimum(here + reach + 1, len(values))
    return np.where(known, (total[high] - total[low]) / np.maximum(count[high] - count[low], 1), np.nan)


def _draw_train(axes: Axes, train: Series) -> None:
    steps, loss = train
    known = np.isfinite(loss)
    if known.any():
        if len(loss) >= 40:
            axes.plot(steps, loss, color=style.BLUE, alpha=0.3, linewidth=0.8)
            axes.plot(steps, _smooth(loss), color=style.BLUE, linewidth=1.8, label="training")
        else:
            axes.plot(steps, loss, color=style.BLUE, linewidth=1.5, marker="o", markersize=3, label="training")
    if not known.all():
        broken = steps[~known]
        axes.plot(
            broken, np.zeros_like(broken), transform=axes.get_xaxis_transform(), color=style.RED, clip_on=False,
            linestyle="none", marker="x", label=f"not finite ({len(broken)})",
        )  # fmt: skip


def _draw_valid(axes: Axes, valid: Series) -> None:
    steps, loss = (values[np.isfinite(valid[1])] for values in valid)
    if not len(loss):
        return
    axes.plot(steps, loss, color=style.ORANGE, linewidth=1.2, marker="o", markersize=5, label="validation")
    best = int(loss.argmin())
    axes.plot(
        steps[best], loss[best], linestyle="none", marker="o", markersize=11, markerfacecolor="none",
        markeredgecolor=style.INK,
        label=f"best {loss[best]:.4f} at step {int(steps[best]):,}",
    )  # fmt: skip


def _draw_parts(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    """The validation curve of each named loss, if there are several."""
    names = sorted({key for row in rows if row.get("kind") == "valid" for key in row if key.endswith(" loss")})
    for name, dashes in zip(names, ("--", ":", "-.", (0, (1, 4)))):
        steps, loss = _series(rows, "valid", name)
        axes.plot(steps, loss, color=style.ORANGE, linewidth=1.2, linestyle=dashes, label=name)


@dataclass(frozen=True)
class Panel:
    """One set of axes. `curves` are (name, x, y); a name keeps its colour in every panel."""

    title: str
    x: str
    y: str
    curves: Sequence[tuple[str, Sequence[float], Sequence[float]]]
    logy: bool = False
    low: float | None = None  # where the y axis begins; None: where the curves do
    ticks: Sequence[float] = ()  # of a logarithmic x axis; none: it is linear


def plot_curves(panels: Sequence[Panel], out: Path, title: str) -> None:
    """The panels side by side, with one legend above."""
    names = list(dict.fromkeys(name for panel in panels for name, _, _ in panel.curves))
    with style.figure(out, max(7.5, 5.6 * len(panels)), 4.2) as made:
        grid = made.subplots(1, len(panels), squeeze=False)[0]
        for axes, panel in zip(grid, panels):
            for name, x, y in panel.curves:
                at = names.index(name)  # later curves have smaller marks, to hide nothing
                axes.plot(
                    np.asarray(x, dtype=float), np.asarray(y, dtype=float), label=name, linewidth=1.8,
                    color=COLOURS[at % len(COLOURS)], marker=MARKS[at % len(MARKS)],
                    markersize=max(4.0, 8.0 - 1.6 * at), markevery=max(1, len(x) // 16),
                )  # fmt: skip
            axes.set_title(panel.title, pad=10)
            axes.set_xlabel(panel.x)
            axes.set_ylabel(panel.y)
            if panel.logy:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")
            if panel.ticks:
                axes.set_xscale("log", base=2)
                axes.set_xticks(list(panel.ticks), [f"{tick:g}" for tick in panel.ticks])
                axes.minorticks_off()
            if panel.low is not None:
                axes.set_ylim(bottom=panel.low)
        made.tight_layout(w_pad=3.0)
        handles = {name: line for axes in grid for line, name in zip(*axes.get_legend_handles_labels())}
        left = grid[0].get_position().x0
        made.suptitle(title, x=left, y=1.1, ha="left", fontsize=13)
        made.legend(
            [handles[name] for name in names], names, loc="lower left", ncols=len(names),
            bbox_to_anchor=(left, 0.985), borderaxespad=0.0, borderpad=0.0, handlelength=1.8,
        )  # fmt: skip
