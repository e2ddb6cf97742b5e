"""Translation scores against one reference per sentence: BLEU, chrF, exact match."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from allyouneed.metrics.intervals import bootstrap_scores, exact_score
from allyouneed.metrics.score import Score


def translation_scores(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> list[Score]:
    """BLEU and chrF of the whole set as sacrebleu computes and signs them, and the percentage of exact matches."""
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references: there must be one for each")
    if not hypotheses:
        raise ValueError("there is nothing to score: no hypotheses and no references")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    metrics = {"BLEU": BLEU(lowercase=lowercase), "chrF": CHRF(lowercase=lowercase)}
    scores = [_with_interval(name, metric, hypotheses, references) for name, metric in metrics.items()]
    return [*scores, _exact_match(hypotheses, references, lowercase)]


def _with_interval(name: str, metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """sacrebleu's score of the sums of its own counts per sentence; its own bootstrap mixes up types of numbers."""
    counts = np.array(metric._extract_corpus_statistics(hypotheses, [references]))

    def score(sums: np.ndarray) -> np.ndarray:
        return np.array([[metric._compute_score_from_stats(row).score] for row in sums.tolist()])

    return bootstrap_scores([name], counts, score, [str(metric.get_signature())])[0]


def _exact_match(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool) -> Score:
    def plain(text: str) -> str:
        return text.strip().lower() if lowercase else text.strip()

    hits = sum(plain(hypothesis) == plain(reference) for hypothesis, reference in zip(hypotheses, references))
    case = "lc" if lowercase else "mixed"
    return exact_score("exact match", hits, len(references), f"exact|case:{case}|strip:yes|n:{len(references)}")
