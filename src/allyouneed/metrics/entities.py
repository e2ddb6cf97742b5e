"""Entity scores: precision, recall and F1, of all entities and of each type, as conlleval and seqeval count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from allyouneed.metrics.score import Score

Entity = tuple[str, int, int]  # type, start, end


def entity_scores(
    truth: Sequence[Iterable[Entity]], guesses: Sequence[Iterable[Entity]], detail: str = ""
) -> list[Score]:
    """An entity is right if its type, start and end are; P = right / guessed, R = right / true,
    F1 = 2 P R / (P + R), and 0 where that is 0 / 0. One collection of entities per sentence."""
    if len(truth) != len(guesses):
        raise ValueError(f"{len(guesses)} guesses for {len(truth)} sentences: there must be one for each")
    true: Counter[str] = Counter()
    guessed: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for real, guess in zip(truth, guesses):
        these, those = set(real), set(guess)
        true.update(kind for kind, _, _ in these)
        guessed.update(kind for kind, _, _ in those)
        right.update(kind for kind, _, _ in these & those)
    scores = _three("", right.total(), guessed.total(), true.total(), detail)
    for kind in sorted({*true, *guessed}):
        scores += _three(f" {kind}", right[kind], guessed[kind], true[kind], detail)
    return scores


def _three(kind: str, right: int, guessed: int, true: int, detail: str) -> list[Score]:
    precision = right / guessed if guessed else 0.0
    recall = right / true if true else 0.0
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    sign = f"entities{detail}|true:{true}|found:{guessed}"
    named = (("F1", f1), ("precision", precision), ("recall", recall))
    return [Score(f"{name}{kind}", 100 * value, sign) for name, value in named]
