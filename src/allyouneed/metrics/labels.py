"""Classification scores: accuracy and macro-F1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allyouneed.metrics.intervals import bootstrap_scores, exact_score
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
    sign = f"classes:{int((true + guessed > 0).sum())}{detail}|n:{total}"
    return [exact_score("accuracy", int(right.sum()), total, f"exact|{sign}"), macro_f1(table, sign)]


def macro_f1(table: np.ndarray, sign: str) -> Score:
    """By a bootstrap of the cells of the confusion matrix: a cell adds to the right, the true and the guessed of its
    classes."""
    rows, columns = np.nonzero(table)
    classes, cells = len(table), np.arange(len(rows))
    parts = np.zeros((len(rows), 2, classes), dtype=np.int64)  # right, and true + guessed
    parts[cells, 0, rows] = rows == columns
    parts[cells, 1, rows] += 1
    parts[cells, 1, columns] += 1

    def mean(sums: np.ndarray) -> np.ndarray:
        right, both = sums.reshape(len(sums), 2, classes).transpose(1, 0, 2)
        f1 = np.where(both > 0, 2 * right / np.maximum(both, 1), 0)
        found: np.ndarray = 100 * f1.sum(1, keepdims=True) / (both > 0).sum(1, keepdims=True)
        return found

    counts = table[rows, columns]
    flat = parts.reshape(len(rows), -1)
    return bootstrap_scores(["macro-F1"], flat, mean, [f"mean of classes|{sign}"], counts)[0]
