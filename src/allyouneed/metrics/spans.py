"""Scores of answers that are pieces of a text: exact match and F1, as SQuAD's official script computes them."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

import numpy as np

from allyouneed.metrics.intervals import exact_score, mean_score
from allyouneed.metrics.score import Score

ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
PUNCTUATION = str.maketrans("", "", string.punctuation)


def words(answer: str) -> list[str]:
    """The words that are compared: in lower case, without ASCII punctuation, without articles."""
    return ARTICLES.sub(" ", answer.lower().translate(PUNCTUATION)).split()


def exact(answer: str, truth: str) -> float:
    return float(words(answer) == words(truth))


def f1(answer: str, truth: str) -> float:
    """2 · precision · recall / (precision + recall) of the words. Where one of the two has none, whether both have."""
    found, right = words(answer), words(truth)
    if not found or not right:
        return float(found == right)
    common = (Counter(found) & Counter(right)).total()
    return 2 * common / (len(found) + len(right))


def span_scores(answers: Sequence[str], truths: Sequence[Sequence[str]], detail: str = "") -> list[Score]:
    """Each answer beside the one of its right answers that fits best. Right answers without words do not count; where
    none is left, the answer should be empty."""
    if not answers:
        raise ValueError("there is nothing to score: no answer")
    rows = [(answer, [t for t in several if words(t)] or [""]) for answer, several in zip(answers, truths, strict=True)]
    right = sum(max(exact(a, t) for t in ts) for a, ts in rows)
    shared = np.array([max(f1(a, t) for t in ts) for a, ts in rows])
    sign = f"squad{detail}|n:{len(rows)}"
    return [exact_score("EM", int(right), len(rows), sign), mean_score("F1", shared, sign)]
