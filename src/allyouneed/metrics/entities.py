"""Entity scores: precision, recall and F1, of all entities and of each type, as conlleval and seqeval count."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from allyouneed.metrics.intervals import bootstrap_scores
from allyouneed.metrics.score import Score

Entity = tuple[str, int, int]  # type, start, end


def entity_scores(
    truth: Sequence[Iterable[Entity]], guesses: Sequence[Iterable[Entity]], detail: str = ""
) -> list[Score]:
    """An entity is right if its type, start and end are; P = right / guessed, R = right / true,
    F1 = 2 P R / (P + R), and 0 where that is 0 / 0. One collection of entities per sentence."""
    if len(truth) != len(guesses):
        raise ValueError(f"{len(guesses)} guesses for {len(truth)} sentences: there must be one for each")
    found = [(set(real), set(guess)) for real, guess in zip(truth, guesses)]
    kinds = sorted({entity[0] for sides in found for side in sides for entity in side})
    place = {kind: number for number, kind in enumerate(kinds, 1)}  # 0 is all of them
    counts = np.zeros((len(found), 3, len(kinds) + 1), dtype=np.int64)  # right, guessed, true
    for row, (these, those) in zip(counts, found):
        for part, entities in enumerate((these & those, those, these)):
            row[part, 0] = len(entities)
            for kind, _, _ in entities:
                row[part, place[kind]] += 1
    names, signatures = [], []
    for number, kind in enumerate(["", *(f" {kind}" for kind in kinds)]):
        guessed, true = counts[:, 1:, number].sum(0)
        names += [f"{name}{kind}" for name in ("F1", "precision", "recall")]
        signatures += [f"entities{detail}|true:{true}|found:{guessed}"] * 3
    return bootstrap_scores(names, counts.reshape(len(found), -1), _three, signatures)


def _three(sums: np.ndarray) -> np.ndarray:
    """F1, precision and recall of each kind: (D, 3 · kinds) sums -> (D, kinds · 3) scores."""
    right, guessed, true = sums.reshape(len(sums), 3, -1).transpose(1, 0, 2)
    scores = [2 * right / (guessed + true), right / guessed, right / true]
    return 100 * np.nan_to_num(np.stack(scores, axis=2)).reshape(len(sums), -1)
