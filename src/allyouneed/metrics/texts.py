"""Scores of texts: of a language model, of translations, and of answers that are pieces of a text."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence
from operator import eq
from typing import Any

import numpy as np

from allyouneed.metrics.score import Score, bootstrap_scores, exact_score, mean_score

ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
PUNCTUATION = str.maketrans("", "", string.punctuation)


def language_scores(nll_sum: float, tokens: int, bytes: int | None, detail: str, unknown: int = 0) -> list[Score]:
    """Three scores from one sum, the negative log-likelihood of a text in nats.

    loss = nll / tokens, perplexity = e^loss, bits per byte = nll / (ln 2 · bytes). The first two depend on the
    tokenizer, so `detail` must name it and the window, for example "tok:bpe-8000|window:256|stride:128". If some tokens
    are `unknown`, the model has not predicted every byte: then there are no bits per byte, nor if `bytes` is None.
    """
    if tokens < 1 or (bytes is not None and bytes < 1):
        raise ValueError(f"there is nothing to score: {tokens} tokens, {bytes} bytes")
    loss = nll_sum / tokens
    if unknown:
        detail += f"|unknown:{unknown / tokens:.2%}"
    scores = [
        Score("loss", loss, f"nats/token|{detail}|tokens:{tokens}"),
        Score("perplexity", math.inf if loss > 709 else math.exp(loss), f"exp(loss)|{detail}|tokens:{tokens}"),
    ]
    if not unknown and bytes is not None:
        scores.append(Score("bits per byte", nll_sum / (math.log(2) * bytes), f"bits/byte|{detail}|bytes:{bytes}"))
    return scores


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
    sides = (
        [text.strip().lower() if lowercase else text.strip() for text in side] for side in (hypotheses, references)
    )
    signature = f"exact|case:{'lc' if lowercase else 'mixed'}|strip:yes|n:{len(references)}"
    return [*scores, exact_score("exact match", sum(map(eq, *sides)), len(references), signature)]


def _with_interval(name: str, metric: Any, hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """sacrebleu's score of the sums of its own counts per sentence; its own bootstrap mixes up types of numbers."""
    counts = np.array(metric._extract_corpus_statistics(hypotheses, [references]))

    def score(sums: np.ndarray) -> np.ndarray:
        return np.array([[metric._compute_score_from_stats(row).score] for row in sums.tolist()])

    return bootstrap_scores([name], counts, score, [str(metric.get_signature())])[0]


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


def span_scores(answers: Sequence[tuple[str, Sequence[str]]], detail: str = "") -> list[Score]:
    """Each answer beside its right answers, of which the one counts that fits best. Right answers without words do not
    count; where none is left, the answer should be empty."""
    if not answers:
        raise ValueError("there is nothing to score: no answer")
    rows = [(answer, [t for t in several if words(t)] or [""]) for answer, several in answers]
    right = sum(max(exact(a, t) for t in ts) for a, ts in rows)
    shared = np.array([max(f1(a, t) for t in ts) for a, ts in rows])
    sign = f"squad{detail}|n:{len(rows)}"
    return [exact_score("EM", int(right), len(rows), sign), mean_score("F1", shared, sign)]
