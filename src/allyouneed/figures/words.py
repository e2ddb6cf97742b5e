"""Word vectors as points on a map, with arrows from one word to another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from allyouneed.figures import style

SIZE = 10  # of the labels, in points


def word_map(
    words: Sequence[str], vectors: np.ndarray, out: Path, arrows: Sequence[tuple[str, str]] = (), title: str = ""
) -> None:
    """The vectors (N, D) in the plane of their first two principal components. The arrows of an analogy have the same
    direction: uncle → aunt and man → woman."""
    if len(words) != len(vectors) or len(words) < 2:
        raise ValueError(
            f"{len(words)} words and {len(vectors)} vectors: at least two words, each with a vector, are needed"
        )
    places = plane(vectors)
    at = dict(zip(words, places))
    with style.figure(out, 7.0, 6.0, [title, *map(style.visible, words)]) as made:
        axes = made.add_axes((0, 0, 1, 1))
        starts = {start for start, _ in arrows}
        for start, end in arrows:
            axes.annotate(
                "",
                at[end],
                at[start],
                arrowprops={"arrowstyle": "-|>", "color": style.GREY, "shrinkA": 5, "shrinkB": 5},
            )
        for word, (x, y) in at.items():
            axes.plot(x, y, "o", color=style.RED if arrows and word not in starts else style.BLUE, markersize=5)
        axes.margins(0.2)
        axes.set_aspect("equal", adjustable="datalim")
        axes.apply_aspect()
        # The label of the start of an arrow is on the left of its dot, all others are on the right.
        sides = [-1 if word in starts else 1 for word in at]
        names = [
            axes.annotate(
                style.visible(word),
                place,
                (7 * side, 0),
                textcoords="offset points",
                fontsize=SIZE,
                va="center",
                ha="left" if side > 0 else "right",
            )
            for (word, place), side in zip(at.items(), sides)
        ]
        points = 72 / made.dpi
        dots = axes.transData.transform(places) * points
        widths = [name.get_window_extent().width * points for name in names]
        moved = label_heights(dots, np.multiply(sides, widths)) - dots[:, 1]
        for name, side, place, up in zip(names, sides, places, moved):
            name.xyann = (7 * side, up)
            if abs(up) > SIZE / 2:
                line = {"arrowstyle": "-", "color": style.GREY, "lw": 0.6, "shrinkA": 0, "shrinkB": 3}
                axes.annotate("", place, name.xyann, textcoords="offset points", arrowprops=line)
        axes.set_xlabel("first principal component")
        axes.set_ylabel("second principal component")
        style.titles(axes, title)


def label_heights(dots: np.ndarray, widths: np.ndarray) -> np.ndarray:
    """The height of the label beside each dot (N, 2), all in points: that of the dot, or moved so that no two labels
    overlap and, if there is room, none covers a dot. A label with a negative width is on the left."""
    near, far = dots[:, 0] + 5 * np.sign(widths), dots[:, 0] + 7 * np.sign(widths) + widths
    left, right = np.minimum(near, far), np.maximum(near, far)
    radius, line = 4.0, 1.25 * SIZE
    beside = (left[:, None] < right) & (left < right[:, None])  # label and label
    crossed = (left[:, None] < dots[:, 0] + radius) & (dots[:, 0] - radius < right[:, None])  # label and dot
    np.fill_diagonal(beside, False)
    np.fill_diagonal(crossed, False)
    heights = dots[:, 1] + 1e-3 * np.arange(len(dots))  # labels at the same place move apart, too
    for _ in range(300):
        gap, room = heights[:, None] - heights, heights[:, None] - dots[:, 1]
        close = np.where(beside, np.maximum(line - np.abs(gap), 0), 0) * np.sign(gap)
        hit = np.where(crossed, np.maximum(line / 2 + radius - np.abs(room), 0), 0) * np.sign(room)
        push = close.sum(1) / 2 + hit.sum(1)
        if np.abs(push).max() < 0.1:
            break
        heights += push / 2
    return heights


def plane(vectors: np.ndarray) -> np.ndarray:
    """(N, D) -> (N, 2): the first two principal components."""
    centred = np.asarray(vectors, dtype=np.float64) - np.mean(vectors, axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    two = np.zeros((2, centred.shape[1]))
    two[: min(2, len(directions))] = directions[:2]
    for row in two:  # its sign is arbitrary: make the largest part positive, so that pictures are reproducible
        row *= np.sign(row[np.abs(row).argmax()]) or 1.0
    return centred @ two.T
