"""Scores, each with a signature that says how it was computed."""

from __future__ import annotations

from allyouneed.metrics.entities import entity_scores
from allyouneed.metrics.intervals import bootstrap_scores, exact_score, mean_score
from allyouneed.metrics.labels import confusion, label_scores
from allyouneed.metrics.language import language_scores
from allyouneed.metrics.retrieval import find_nearest, retrieval_scores
from allyouneed.metrics.score import Score
from allyouneed.metrics.translation import translation_scores
from allyouneed.metrics.word_vectors import analogy_answers, analogy_score, similarity_score, spearman, unit

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
    "spearman",
    "translation_scores",
    "unit",
]
