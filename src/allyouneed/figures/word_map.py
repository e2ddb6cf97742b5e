"""Word vectors as points on a map, with arrows from one word to another."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from allyouneed.figures import style

SIZE = 10  # of the labels, in points
DOT, GAP = 4.0, 6.0  # the radius of a dot, and from its centre to its label, in points
RINGS = 6  # how far a label may move away from its dot
# Where a label may be, seen from its dot: the sides first, then above, below and the corners.
DIRECTIONS = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))


def word_map(
    words: Sequence[str],
    vectors: np.ndarray,
    out: Path,
    arrows: Sequence[tuple[str, str]] = (),
    title: str = "",
    shown: str = "",
) -> None:
    """The vectors (N, D) in the plane of their first two principal components. The arrows of an analogy have the same
    direction: uncle → aunt and man → woman. `shown` says which words these are. If there is no room for all labels,
    the first words have theirs."""
    if len(words) != len(vectors) or len(words) < 2:
        raise ValueError(
            f"{len(words)} words and {len(vectors)} vectors: at least two words, each with a vector, are needed"
        )
    at = dict(zip(words, plane(vectors)))
    many = len(words) > 30
    width, height = (10.0, 8.5) if many else (7.0, 6.0)
    with style.figure(out, width, height, [title, shown, *map(style.visible, words)]) as made:
        axes = made.add_axes((0, 0, 1, 1))
        starts = {start for start, _ in arrows}
        head = {"arrowstyle": "-|>", "color": style.GREY, "shrinkA": 5, "shrinkB": 5}
        for start, end in arrows:
            axes.annotate("", at[end], at[start], arrowprops=head)
        for word, (x, y) in at.items():
            axes.plot(x, y, "o", color=style.RED if arrows and word not in starts else style.BLUE, markersize=5)
        axes.margins(0.12 if many else 0.2)
        axes.set_aspect("equal", adjustable="datalim")
        axes.apply_aspect()
        names = [axes.annotate(style.visible(word), point, fontsize=SIZE) for word, point in at.items()]
        inch = 72 / made.dpi  # points per pixel
        dots = axes.transData.transform(list(at.values())) * inch
        sizes = np.array([name.get_window_extent().size for name in names]) * inch
        frame = np.array(axes.get_window_extent().extents) * inch
        rows = {word: row for row, word in enumerate(at)}
        shafts = [(dots[rows[start]], dots[rows[end]]) for start, end in arrows]
        for name, dot, size, corner in zip(names, dots, sizes, place_labels(dots, sizes, frame, shafts)):
            if corner is None:
                name.remove()
                continue
            name.set(va="bottom", ha="left")
            name.xyann = tuple(corner - dot)
            name.set_anncoords("offset points")
            x, y = np.clip((0, 0), corner - dot, corner + size - dot)  # the point of the label that is nearest
            if max(abs(x), abs(y)) > 2 * GAP:
                line = {"arrowstyle": "-", "color": style.GREY, "lw": 0.6, "shrinkA": 0, "shrinkB": 3}
                axes.annotate("", name.xy, (x, y), textcoords="offset points", arrowprops=line)
        axes.set(xlabel="first principal component", ylabel="second principal component")
        style.titles(axes, title, shown)


def place_labels(
    dots: np.ndarray, sizes: np.ndarray, frame: np.ndarray, arrows: Sequence[tuple[np.ndarray, np.ndarray]] = ()
) -> list[np.ndarray | None]:
    """The lower left corner of the label of each dot (N, 2), or None if there is no room for it; all in points.

    Each label in turn takes the first free position, from beside its dot to a little away from it. No two labels
    overlap, none covers a dot or an arrow from one dot to another, and all are in the frame (x0, y0, x1, y1)."""
    along = [start + (end - start) * part for start, end in arrows for part in np.linspace(0.03, 0.97, 60)]
    shafts = np.array(along).reshape(-1, 2)
    taken = np.vstack([np.hstack([dots - DOT, dots + DOT]), np.hstack([shafts - 1, shafts + 1])])  # (N, 4): x0 y0 x1 y1
    found: list[np.ndarray | None] = []
    for dot, size in zip(dots, sizes):
        for corner in _corners(dot, size):
            low, high = corner, corner + size
            overlaps = ((taken[:, :2] < high) & (low < taken[:, 2:])).all(1).any()
            if not overlaps and (low >= frame[:2]).all() and (high <= frame[2:]).all():
                taken = np.vstack([taken, [*low, *high]])
                found.append(corner)
                break
        else:
            found.append(None)
    return found


def _corners(dot: np.ndarray, size: np.ndarray) -> Iterator[np.ndarray]:
    """Positions for a label, the best first."""
    for ring in range(RINGS):
        for x, y in DIRECTIONS:
            away = (GAP + 1.2 * SIZE * ring) / (math.sqrt(2) if x and y else 1)
            # From the dot to the centre of the label: its nearest edge or corner is so far away.
            centre = dot + np.array([x * (away + size[0] / 2), y * (away + size[1] / 2)])
            yield centre - size / 2


def plane(vectors: np.ndarray) -> np.ndarray:
    """(N, D) -> (N, 2): the first two principal components."""
    centred = np.asarray(vectors, dtype=np.float64) - np.mean(vectors, axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    two = np.zeros((2, centred.shape[1]))
    two[: min(2, len(directions))] = directions[:2]
    for row in two:  # its sign is arbitrary: make the largest part positive, so that figures are reproducible
        row *= np.sign(row[np.abs(row).argmax()]) or 1.0
    return centred @ two.T
