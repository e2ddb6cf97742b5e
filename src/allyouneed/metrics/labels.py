"""Classification scores: accuracy and macro-F1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allyouneed.metrics.score import Score


def confusion(truth: Sequence[int] | np.ndarray, guesses: Sequence[int] | np.ndarray, classes: int) -> np.ndarray:
    """The confusion matrix (C, C): how many examples of class i (row) got the label j (column)."""
    table = np.zeros((classes, classes), dtype=np.int64)
    np.add.at(table, (np.asarray(truth, dtype=np.int64), np.asarray(guesses, dtype=np.int64)), 1)
    return table


def label_scores(table: np.ndarray, detail: str = "") -> list[Score]:
    """accuracy = right / all; macro-F1 = the mean of 2 right / (true + guessed) over the classes that occur or are
    guessed. `table` is a confusion matrix."""
    right, true, guessed = np.diag(table), table.sum(1), table.sum(0)
    total = int(true.sum())
    if not total:
        raise ValueError("there is nothing to score: no example")
    there = true + guessed > 0
    f1 = 2 * right[there] / (true + guessed)[there]
    sign = f"classes:{int(there.sum())}{detail}|n:{total}"
    return [
        Score("accuracy", 100 * float(right.sum()) / total, f"exact|{sign}"),
        Score("macro-F1", 100 * float(f1.mean()), f"mean of classes|{sign}"),
    ]
