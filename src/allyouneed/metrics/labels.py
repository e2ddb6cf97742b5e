"""Scores of labels: accuracy and macro-F1. Of entities: precision, recall and F1, as conlleval and seqeval count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from allyouneed.metrics.score import Score, bootstrap_scores, exact_score

Entity = tuple[str, int, int]  # type, start, end


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


def entity_scores(
    truth: Sequence[Iterable[Entity]], guesses: Sequence[Iterable[Entity]], detail: str = ""
) -> list[Score]:
    """An entity is right if its type, start and end are; P = right / guessed, R = right / true,
    F1 = 2 P R / (P + R), and 0 where that is 0 / 0. One collection of entities per sentence."""
    if len(truth) != len(guesses):
        raise ValueError(f"{len(guesses)} guesses for {len(truth)} sentences: there must be one for each")
    found = [(set(real), set(guess)) for real, guess in zip(truth, guesses)]
    kinds = sorted({entity[0] for sides in found for side in sides for entity in side})
    index = {kind: number for number, kind in enumerate(kinds, 1)}  # 0 is all of them
    counts = np.zeros((len(found), 3, len(kinds) + 1), dtype=np.int64)  # right, guessed, true
    for row, (these, those) in zip(counts, found):
        for part, entities in enumerate((these & those, those, these)):
            row[part, 0] = len(entities)
            for kind, _, _ in entities:
                row[part, index[kind]] += 1
    names, signatures = [], []
    for number, kind in enumerate(["", *(f" {kind}" for kind in kinds)]):
        guessed, true = counts[:, 1:, number].sum(0)
        names += [f"{name}{kind}" for name in ("F1", "precision", "recall")]
        signatures += [f"entities{detail}|true:{true}|found:{guessed}"] * 3

    def three(sums: np.ndarray) -> np.ndarray:
        """F1, precision and recall of each kind: (S, 3 · kinds) sums -> (S, kinds · 3) scores."""
        right, guessed, true = sums.reshape(len(sums), 3, -1).transpose(1, 0, 2)
        scores = [2 * right / (guessed + true), right / guessed, right / true]
        return 100 * np.nan_to_num(np.stack(scores, axis=2)).reshape(len(sums), -1)

    return bootstrap_scores(names, counts.reshape(len(found), -1), three, signatures)
