"""Intervals of scores: against scipy's, and how often they hold the true value."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binomtest

from allyouneed.metrics import (
    bootstrap_scores,
    confusion,
    entity_scores,
    exact_score,
    label_scores,
    mean_score,
    retrieval_scores,
    span_scores,
    translation_scores,
)
from allyouneed.metrics.score import clopper_pearson


@given(st.integers(1, 3000), st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_the_exact_interval_is_that_of_scipy(total, part):
    right = round(part * total)
    found = binomtest(right, total).proportion_ci(0.95, method="exact")
    assert clopper_pearson(right, total) == pytest.approx((found.low, found.high), abs=1e-6)


@pytest.mark.parametrize("total", [1, 60_000, 10**6])
def test_the_exact_interval_has_its_ends_at_nothing_and_all(total):
    assert clopper_pearson(0, total)[0] == 0
    assert clopper_pearson(total, total)[1] == 1
    low, high = clopper_pearson(total // 2, total)
    assert 0 <= low < total // 2 / total + 1e-9 < high + 1e-9 <= 1 + 1e-9


def test_a_score_is_printed_with_its_interval_and_signed_with_how_it_was_found():
    score = exact_score("accuracy", 137, 190, "exact|n:190").signed("split:test")
    assert str(score) == "accuracy 72.11 [65.2, 78.4]  (exact|n:190|ci95:exact|split:test)"


def test_a_bootstrap_of_means_is_as_wide_as_the_normal_interval():
    values = np.random.default_rng(3).uniform(0, 1, 400)
    score = mean_score("F1", values, "squad")
    half = 196 * values.std() / np.sqrt(400)
    assert score.value == pytest.approx(100 * values.mean())
    assert (score.low, score.high) == pytest.approx((score.value - half, score.value + half), abs=0.25 * half)
    assert score == mean_score("F1", values, "squad")  # always the same draws


def test_a_bootstrap_of_kinds_is_one_of_examples():
    rows = np.array([[1, 1], [0, 1]])
    share = lambda sums: 100 * sums[:, :1] / sums[:, 1:]
    (kinds,) = bootstrap_scores(["a"], rows, share, [""], np.array([150, 50]))
    (examples,) = bootstrap_scores(["a"], np.repeat(rows, [150, 50], axis=0), share, [""])
    assert kinds.value == examples.value == 75
    assert (kinds.low, kinds.high) == pytest.approx((examples.low, examples.high), abs=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("sentences", [60, 300])
def test_intervals_of_entity_f1_hold_the_true_value_about_as_often_as_they_say(sentences):
    """Sentences of a world in which 70 % of the entities are found and 20 % of the guesses are wrong."""
    draw, held, times = np.random.default_rng(5), 0, 120
    true_f1 = 100 * 2 * 0.7 / (0.7 / 0.8 + 1)
    for _ in range(times):
        truth, guesses = [], []
        for _ in range(sentences):
            entities = [("PER", i, i + 1) for i in range(draw.poisson(1.5))]
            kept = [entity for entity in entities if draw.random() < 0.7]
            wrong = [("PER", 50 + i, 51 + i) for i in range(draw.poisson(0.25 * 0.7 * 1.5))]
            truth.append(entities)
            guesses.append(kept + wrong)
        score = entity_scores(truth, guesses)[0]
        held += score.low <= true_f1 <= score.high
    assert 0.88 * times <= held <= times


def test_every_accuracy_f1_and_bleu_has_an_interval():
    table = confusion([0, 1, 2, 1, 0, 2], [0, 1, 1, 1, 0, 2], 3)
    scores = [
        *label_scores(table),
        *entity_scores([[("A", 0, 1)], [], [("B", 2, 4)]], [[("A", 0, 1)], [("A", 1, 2)], []]),
        *translation_scores(["a b c d e", "f g h"] * 4, ["a b c d e", "f g i"] * 4),
        *span_scores([("a dog", ["dog"]), ("cat", ["the hat"])]),
        *retrieval_scores(np.array([1, 2, 1, 5]), 10),
    ]
    for score in scores:
        assert 0 <= score.low <= score.value + 1e-9, score
        assert score.value - 1e-9 <= score.high <= 100.0001, score
        assert "ci95:" in score.signature, score


def test_one_example_is_no_error():
    (one, two) = label_scores(confusion([0], [0], 2))
    assert (one.low, one.high) == (pytest.approx(2.5), 100)
    assert (two.low, two.high) == (100, 100)
    (f1, *_) = entity_scores([[]], [[]])
    assert (f1.value, f1.low, f1.high) == (0, 0, 0)
    translation_scores(["a"], ["a"])


def test_bleu_is_that_of_sacrebleu_and_its_interval_about_so():
    import sacrebleu

    draw = np.random.default_rng(2)
    references = [" ".join(draw.choice(list("abcdefgh"), 12)) for _ in range(200)]
    hypotheses = [" ".join(w if draw.random() < 0.8 else "x" for w in line.split()) for line in references]
    bleu, chrf, _ = translation_scores(hypotheses, references)
    metric = sacrebleu.metrics.bleu.BLEU()
    found = metric.corpus_score(hypotheses, [references], n_bootstrap=1000)
    assert bleu.value == found.score
    assert (bleu.low, bleu.high) == pytest.approx((found._mean - found._ci, found._mean + found._ci), abs=0.5)
    assert chrf.value == sacrebleu.corpus_chrf(hypotheses, [references]).score
