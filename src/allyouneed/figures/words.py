"""The picture of word vectors: words as places on a map, and arrows from one to another."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from allyouneed.figures import style


def word_map(
    words: Sequence[str], vectors: np.ndarray, out: Path, arrows: Sequence[tuple[str, str]] = (), title: str = ""
) -> None:
    """The vectors (N, D) as the plane sees them in which they lie furthest apart (their first two principal
    components). In an analogy the arrows go the same way: uncle → aunt as man → woman."""
    if len(words) != len(vectors) or len(words) < 2:
        raise ValueError(
            f"{len(words)} words and {len(vectors)} vectors: at least two words, each with a vector, are needed"
        )
    places = plane(vectors)
    at = dict(zip(words, places))
    with style.figure(out, 7.0, 6.0) as made:
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
            begins = word in starts
            axes.plot(x, y, "o", color=style.RED if arrows and not begins else style.BLUE, markersize=5)
            # The name of where an arrow begins stands to the left, that of where it ends to the right.
            side = {"xytext": (-7, -3), "ha": "right"} if begins else {"xytext": (7, -3)}
            axes.annotate(style.visible(word), (x, y), textcoords="offset points", fontsize=10, **side)
        axes.margins(0.2)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xlabel("first principal component")
        axes.set_ylabel("second principal component")
        if title:
            axes.set_title(title, pad=10)


def plane(vectors: np.ndarray) -> np.ndarray:
    """(N, D) -> (N, 2): the first two principal components."""
    centred = np.asarray(vectors, dtype=np.float64) - np.mean(vectors, axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    two = np.zeros((2, centred.shape[1]))
    two[: min(2, len(directions))] = directions[:2]
    for row in two:  # a component may point either way: let its largest part be positive, so that pictures repeat
        row *= np.sign(row[np.abs(row).argmax()]) or 1.0
    return centred @ two.T
