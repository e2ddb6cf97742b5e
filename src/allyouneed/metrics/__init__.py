"""Scores, each with a signature that says how it was computed."""

from allyouneed.metrics.cosines import (
    analogy_answers,
    analogy_score,
    find_nearest,
    retrieval_scores,
    similarity_score,
    unit,
)
from allyouneed.metrics.labels import confusion, entity_scores, label_scores
from allyouneed.metrics.score import Score, bootstrap_scores, exact_score, mean_score
from allyouneed.metrics.texts import language_scores, span_scores, translation_scores

__all__ = [
    "Score",
    "analogy_answers",
    "analogy_score",
    "bootstrap_scores",
    "confusion",
    "entity_scores",
    "exact_score",
    "find_nearest",
    "label_scores",
    "language_scores",
    "mean_score",
    "retrieval_scores",
    "similarity_score",
    "span_scores",
    "translation_scores",
    "unit",
]
