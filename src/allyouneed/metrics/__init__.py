"""Scores that can be compared: each number carries the signature of how it was made."""

from __future__ import annotations

from allyouneed.metrics.language import language_scores
from allyouneed.metrics.score import Score
from allyouneed.metrics.translation import translation_scores

__all__ = ["Score", "language_scores", "translation_scores"]
