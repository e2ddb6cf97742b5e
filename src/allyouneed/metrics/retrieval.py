"""Search scores: how often the right text is the nearest of all, and the mean reciprocal rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allyouneed.metrics.intervals import exact_score, mean_score
from allyouneed.metrics.score import Score
from allyouneed.metrics.word_vectors import unit

CELLS = 1 << 24  # cosines that are in memory at a time


def find_nearest(
    queries: np.ndarray, texts: np.ndarray, right: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """For each query (N, D): the number of the nearest text (M, D) by cosine, and the rank of its nearest right one.
    A wrong text that is as near as the right one comes before it: vectors that are all equal find nothing."""
    queries, texts = unit(queries), unit(texts)
    nearest, ranks = np.zeros(len(queries), np.int64), np.zeros(len(queries), np.int64)
    step = max(1, CELLS // len(texts))
    for start in range(0, len(queries), step):
        cosines = queries[start : start + step] @ texts.T  # (n, M)
        wrong = np.ones(cosines.shape, dtype=bool)
        for row, numbers in enumerate(right[start : start + step]):
            wrong[row, list(numbers)] = False
        best = np.where(wrong, -np.inf, cosines).max(1, keepdims=True)
        ranks[start : start + step] = 1 + ((cosines >= best) & wrong).sum(1)
        nearest[start : start + step] = cosines.argmax(1)
    return nearest, ranks


def retrieval_scores(ranks: np.ndarray, among: int, detail: str = "") -> list[Score]:
    """top-1 = the part of the queries whose rank is 1; MRR = the mean of 1 / rank; both in percent."""
    if not len(ranks):
        raise ValueError("there is nothing to score: no query")
    sign = f"cosine|among:{among}{detail}|n:{len(ranks)}"
    return [
        exact_score("top-1", int((ranks == 1).sum()), len(ranks), f"percent|{sign}"),
        mean_score("MRR", 1 / ranks, f"percent|{sign}"),
    ]
