"""Matrices as heat maps: attention weights, counts of confused classes, cosines, position encodings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allyouneed.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

SIDE, GAP = 4.2, 0.7  # inches: of each half of the figure of patches, and between them
MOST_COUNTS = 16  # classes; with more, the counts do not fit their cells
MOST_CLASSES = 60  # with more, the rarest become one
MOST_WORDS = 32  # at an edge of the map of a head; of longer texts, the positions are numbered


def alignment(
    weights: Any, source: Sequence[str], target: Sequence[str], out: Path, title: str = "", shown: str = ""
) -> None:
    """Weights (T_target, T_source), each row adding up to one: target words on the left, source words on top. `shown`
    says which attention this is; it stands below the title."""
    table = _checked(weights, source, target, dims=2)
    rows, columns = table.shape
    most = max(rows, columns)
    cell = 0.55 if most <= 12 else max(0.22, 8 / most)  # inches
    width, height = columns * cell, rows * cell
    above, beside, font = _words(source), _words(target), 11 if cell > 0.3 else 9
    with style.figure(out, width, height, [title, *above.values(), *beside.values()]) as made:
        axes = made.add_axes((0, 0, 1, 1))
        artist = _cells(axes, table)
        _name_columns(axes, above, "source", font, cell)
        _name_rows(axes, beside, "target", font)
        if most <= 12:
            _print(axes, table, [f"{value:.2f}" if math.isfinite(value) else "?" for value in table.flat])
        _weight_bar(made, artist, width, height, "attention weight")
        style.titles(axes, title, shown)


def heads(weights: Any, source: Sequence[str], target: Sequence[str], out: Path, title: str = "") -> None:
    """Weights (H, T_target, T_source): one small heat map per head, numbered from 1. Long texts show positions."""
    table = _checked(weights, source, target, dims=3)
    count, rows, columns = table.shape
    across = 4 if count > 6 else math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    most = max(rows, columns)
    few = most <= MOST_WORDS
    cell = min(0.3, max(0.18, 2.4 / most)) if few else 3.2 / most  # inches
    gap_x, gap_y = 0.3, 0.45
    width, height = across * (columns * cell + gap_x) - gap_x, down * (rows * cell + gap_y) - gap_y
    above, beside = (_words(source), _words(target)) if few else (_numbers(columns), _numbers(rows))
    suffix = "" if few else " position"
    with style.figure(out, width, height, [title, *above.values(), *beside.values()]) as made:
        for head in range(count):
            row, column = divmod(head, across)
            left = column * (columns * cell + gap_x)
            bottom = height - row * (rows * cell + gap_y) - rows * cell
            axes = made.add_axes((left / width, bottom / height, columns * cell / width, rows * cell / height))
            artist = _cells(axes, table[head])
            _name_columns(axes, above if row == 0 else {}, f"key{suffix}", 8, cell if few else math.inf)
            _name_rows(axes, beside if column == 0 else {}, f"query{suffix}", 8)
            # Below the panel: above it are the words of the first row.
            below: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": 10}
            axes.annotate(f"head {head + 1}", (0.5, 0), (0, -5), "axes fraction", "offset points", **below)
            if head == 0:
                style.titles(axes, title)
        _weight_bar(made, artist, width, height, "attention weight")


def confusion_matrix(table: Any, labels: Sequence[str], out: Path, title: str = "") -> None:
    """Counts (C, C), true classes down, predicted ones across. The colour of a cell is its fraction of the row, so that
    the diagonal shows the recall of each class, however rare it is."""
    counts, size = np.asarray(table, dtype=np.int64), len(labels)
    if counts.shape != (size, size) or not size:
        raise ValueError(f"counts of shape {counts.shape} do not fit {size} labels: expected ({size}, {size})")
    counts, labels = _commonest(counts, labels)
    size = len(labels)
    parts = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    cell = 0.75 if size <= 8 else 0.55 if size <= MOST_COUNTS else max(0.18, 8 / size)  # inches
    side = max(size * cell, 1.5)
    names = [style.visible(label.replace(" ", "\N{NO-BREAK SPACE}"), 20).replace("␣", " ") for label in labels]
    with style.figure(out, side, side, [title, *names]) as made:
        axes = made.add_axes((0, 0, 1, 1))
        artist = _cells(axes, parts)
        font = 10 if cell > 0.3 else 7
        true = [f"{name} ({row.sum():,})" for name, row in zip(names, counts)]
        _name_columns(axes, _middles(names), "predicted class", font, cell, top=False)
        _name_rows(axes, _middles(true), "true class (count)", font)
        if size <= MOST_COUNTS:
            _print(axes, parts, [f"{count:,}" for count in counts.flat])
        style.titles(axes, title)
        _weight_bar(made, artist, side, side, "fraction of its row")


def similarity(
    layers: Sequence[tuple[str, Any]], labels: Sequence[str], groups: Sequence[int], out: Path, title: str
) -> None:
    """Matrices (N, N) of cosines, each with its name above; labels on the left, lines between the groups."""
    borders = [i - 0.5 for i in range(1, len(groups)) if groups[i] != groups[i - 1]]
    side = max(2.4, 0.27 * len(labels))
    with style.figure(out, side * len(layers) + 1.0, side) as made:
        grid = made.subplots(1, len(layers), squeeze=False)[0]
        for at, (axes, (name, matrix)) in enumerate(zip(grid, layers)):
            artist = _signed(axes, matrix)
            axes.set_title(name, pad=8)
            axes.set_xticks([])
            axes.set_yticks(range(len(labels)), labels if at == 0 else [""] * len(labels))
            axes.tick_params(length=0)
            for line in (axes.axhline, axes.axvline):
                for border in borders:
                    line(border, color=style.INK, linewidth=0.9)
        made.subplots_adjust(wspace=0.08)
        last = grid[-1].get_position()
        style.colour_bar(made, artist, (last.x1 + 0.015, last.y0, 0.014, last.height), "cosine", low=-1.0)
        made.suptitle(title, x=grid[0].get_position().x0, y=last.y1 + 0.26, ha="left", fontsize=12)


def sinusoid(table: Any, out: Path) -> None:
    """A table (T, D) of sines and cosines: position down, dimension across, -1 blue to 1 red."""
    values = np.asarray(table, dtype=float)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"a position table has the shape (positions, dimensions), not {values.shape}")
    with style.figure(out, 7.0, 4.2) as made:
        axes = made.add_axes((0, 0, 1, 1))
        artist = _signed(axes, values)
        axes.set_aspect("auto")
        for axis in (axes.xaxis, axes.yaxis):
            style.whole_numbers(axis)
        axes.set(xlabel="dimension", ylabel="position")
        axes.set_title("Position encoding", pad=10)
        style.colour_bar(made, artist, (1.03, 0, 0.022, 1), "value", low=-1.0)


def position_tables(tables: Sequence[tuple[str, Any]], out: Path, title: str) -> None:
    """Tables (T, D) of sines and cosines with their names, two in a line: position down, dimension across."""
    down = math.ceil(len(tables) / 2)
    with style.figure(out, 10.0, 3.1 * down) as made:
        grid = made.subplots(down, 2, squeeze=False).flat
        for axes, (name, table) in zip(grid, tables):
            values = np.asarray(table, dtype=float)
            count = values.shape[1]
            corners = (0.5, count + 0.5, len(values) - 0.5, -0.5)  # dimensions from 1, positions from 0
            artist = _signed(axes, values, corners)
            axes.set_aspect("auto")
            axes.set_title(name, pad=8)
            axes.set(xlabel="dimension", ylabel="position")
            for axis in (axes.xaxis, axes.yaxis):
                style.whole_numbers(axis)
        made.tight_layout(w_pad=3.0, h_pad=2.0)
        style.colour_bar(made, artist, (1.01, 0.3, 0.014, 0.4), "value", low=-1.0)
        made.suptitle(title, x=grid[0].get_position().x0, y=1.03, ha="left", fontsize=13)


def patch_figure(cosines: Any, filters: Any, out: Path, title: str = "") -> None:
    """What a ViT has learned of its patches. On the left a map for each patch: the cosine (G, G, G, G) of its position
    with that of every other. On the right the filters (K, P, P, C), each from its darkest value to its brightest."""
    shown = np.asarray(filters, dtype=float)
    low, high = shown.min((1, 2, 3), keepdims=True), shown.max((1, 2, 3), keepdims=True)
    shown = ((shown - low) / np.maximum(high - low, 1e-9))[..., : 3 if shown.shape[3] >= 3 else 1]
    across = math.ceil(math.sqrt(len(shown)))
    down = math.ceil(len(shown) / across)
    shown = np.pad(shown, ((0, down * across - len(shown)), (0, 0), (0, 0), (0, 0)), constant_values=1.0)
    width = 2 * SIDE + GAP + 0.8
    with style.figure(out, width, SIDE, [title]) as made:
        left = made.add_axes((0, 0, SIDE / width, 1))
        artist = _signed(left, _tiled(np.asarray(cosines, dtype=float)[..., None], np.nan))
        style.titles(left, title)
        style.colour_bar(made, artist, (SIDE / width + 0.008, 0.2, 0.01, 0.6), "cosine", low=-1.0)
        right = made.add_axes((1 - SIDE / width, 0, SIDE / width, 1))
        sheet = _tiled(shown.reshape(down, across, *shown.shape[1:]), 1.0)
        right.imshow(sheet, interpolation="nearest", vmin=0.0, vmax=1.0, cmap="gray")
        for axes, name in ((left, "each patch: which places are like its own"), (right, "filters of the patches")):
            axes.set(xticks=[], yticks=[])
            axes.grid(False)
            axes.spines[:].set_visible(False)
            axes.set_xlabel(name, labelpad=8, color=style.GREY)


def _checked(weights: Any, source: Sequence[str], target: Sequence[str], dims: int) -> np.ndarray:
    table = np.asarray(weights, dtype=float)
    if table.ndim != dims or table.shape[-2:] != (len(target), len(source)) or not table.size:
        raise ValueError(
            f"weights of shape {table.shape} do not fit {len(target)} target and {len(source)} source tokens: "
            f"expected {'(heads, target, source)' if dims == 3 else '(target, source)'}, none of them empty"
        )
    return table


def _cells(axes: Axes, table: np.ndarray) -> ScalarMappable:
    """Cells 0..1 with a light grid, row 0 on top."""
    axes.grid(False)
    many = table.size > 4096
    artist = axes.pcolormesh(
        table, cmap=style.weight_colours(), vmin=0.0, vmax=1.0,
        edgecolors="none" if many else style.PALE, linewidth=0.0 if many else 0.5,
        rasterized=many,
    )  # fmt: skip
    axes.invert_yaxis()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(style.PALE)
    return artist


def _signed(axes: Axes, table: Any, corners: tuple[float, ...] | None = None) -> ScalarMappable:
    """A figure of the numbers -1..1, blue to red, row 0 on top."""
    axes.grid(False)
    how: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -1.0, "vmax": 1.0, "interpolation": "nearest", "extent": corners}
    return axes.imshow(np.asarray(table, dtype=float), **how)


def _middles(labels: Sequence[str]) -> dict[float, str]:
    """Each label at the middle of its cell."""
    return {index + 0.5: label for index, label in enumerate(labels)}


def _words(tokens: Sequence[str]) -> dict[float, str]:
    return _middles([style.visible(token) for token in tokens])


def _numbers(count: int) -> dict[float, str]:
    """Some positions, from 1, at the middle of their cells."""
    step = next(step for step in (10, 20, 50, 100, 200, 500, 10**9) if count / step <= 8)
    return {number - 0.5: str(number) for number in (1, *range(step, count + 1, step))}


def _name_columns(axes: Axes, labels: Mapping[float, str], name: str, font: int, cell: float, top: bool = True) -> None:
    """The labels of columns, slanted if one of them is wider than its cell."""
    if top:
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
    axes.set_xticks(list(labels), list(labels.values()), fontsize=font)
    artists = axes.get_xticklabels()
    if any(label.get_window_extent().width > 0.9 * cell * style.DPI for label in artists):
        for label in artists:
            ends = {"ha": "left", "va": "baseline"} if top else {"ha": "right", "va": "top"}
            label.set(rotation=45, rotation_mode="anchor", **ends)
    if labels:
        axes.set_xlabel(name, labelpad=8, color=style.GREY)


def _name_rows(axes: Axes, labels: Mapping[float, str], name: str, font: int) -> None:
    axes.set_yticks(list(labels), list(labels.values()), fontsize=font)
    if labels:
        axes.set_ylabel(name, labelpad=8, color=style.GREY)


def _print(axes: Axes, table: np.ndarray, texts: Sequence[str]) -> None:
    """A text in each cell, white on dark ones."""
    for ((row, column), value), text in zip(np.ndenumerate(table), texts):
        colour = "white" if value > 0.5 else style.INK if text != "0" else style.GREY
        axes.text(column + 0.5, row + 0.5, text, ha="center", va="center", fontsize=9, color=colour)


def _weight_bar(made: Figure, artist: ScalarMappable, width: float, height: float, label: str) -> None:
    """The colour bar on the right, from the top, readable even beside a single row."""
    tall = min(max(height, 1.5), 4.0)
    style.colour_bar(made, artist, (1 + 0.2 / width, 1 - tall / height, 0.15 / width, tall / height), label)


def _commonest(counts: np.ndarray, labels: Sequence[str]) -> tuple[np.ndarray, Sequence[str]]:
    """The most frequent classes in their order, and all others as one."""
    if len(labels) <= MOST_CLASSES:
        return counts, labels
    frequent = np.sort(np.argsort(-counts.sum(axis=1), kind="stable")[: MOST_CLASSES - 1])
    groups = np.full(len(labels), MOST_CLASSES - 1)
    groups[frequent] = np.arange(MOST_CLASSES - 1)
    table = np.zeros((MOST_CLASSES, MOST_CLASSES), dtype=np.int64)
    np.add.at(table, (groups[:, None], groups[None]), counts)
    return table, [*(labels[i] for i in frequent), f"{len(labels) - len(frequent)} others"]


def _tiled(tiles: np.ndarray, gap: float) -> np.ndarray:
    """(R, C, H, W, K) -> (R · (H + 1) - 1, C · (W + 1) - 1, K): tiles with a line of `gap` between them."""
    rows, across, high, wide, channels = tiles.shape
    padded = np.pad(tiles, ((0, 0), (0, 0), (0, 1), (0, 1), (0, 0)), constant_values=gap)
    return padded.swapaxes(1, 2).reshape(rows * (high + 1), across * (wide + 1), channels)[:-1, :-1]
