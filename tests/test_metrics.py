"""Scores equal sacrebleu's and hand computed values, and carry their signatures."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest
import sacrebleu

from allyouneed.metrics import Score, language_scores, translation_scores

HYPOTHESES = ["Io sono italiano.", "La casa è rossa e grande.", "", "il gatto dorme sul tavolo ", "Dove vai?"]
REFERENCES = ["Io sono italiano.", "La casa è rossa.", "Buongiorno.", "Il gatto dorme sul tavolo", "Dove andate?"]


@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_and_chrf_are_sacrebleus(lowercase: bool) -> None:
    bleu, chrf, _ = translation_scores(HYPOTHESES, REFERENCES, lowercase)
    for score, metric in ((bleu, sacrebleu.BLEU(lowercase=lowercase)), (chrf, sacrebleu.CHRF(lowercase=lowercase))):
        assert score.value == metric.corpus_score(HYPOTHESES, [REFERENCES]).score
        assert score.signature == f"{metric.get_signature()}|ci95:bootstrap-1000"
        assert f"case:{'lc' if lowercase else 'mixed'}" in score.signature
    assert (bleu.name, chrf.name) == ("BLEU", "chrF")
    assert 0 < bleu.value < 100


def test_exact_match_strips_and_minds_the_case() -> None:
    exact = translation_scores(HYPOTHESES, REFERENCES)[2]
    assert (exact.name, exact.value) == ("exact match", 20.0)
    assert exact.signature == "exact|case:mixed|strip:yes|n:5|ci95:exact"
    folded = translation_scores(HYPOTHESES, REFERENCES, lowercase=True)[2]
    assert (folded.value, folded.signature) == (40.0, "exact|case:lc|strip:yes|n:5|ci95:exact")


def test_perfect_and_empty_translations() -> None:
    long = ["the quick brown fox jumps over the lazy dog"] * 3
    assert [round(score.value, 6) for score in translation_scores(long, long)] == [100.0, 100.0, 100.0]
    assert [score.value for score in translation_scores([""] * 3, long)] == [0.0, 0.0, 0.0]


def test_sets_that_cannot_be_scored_are_refused() -> None:
    with pytest.raises(ValueError, match="2 hypotheses for 1 references"):
        translation_scores(["a", "b"], ["a"])
    with pytest.raises(ValueError, match="nothing to score"):
        translation_scores([], [])


def test_language_scores_by_hand() -> None:
    # Ten tokens, each foretold with probability 1/8, over 15 bytes: 30 bits in all.
    loss, perplexity, bits = language_scores(10 * math.log(8), 10, 15, "tok:char|window:64")
    assert loss.value == pytest.approx(2.0794415)
    assert perplexity.value == pytest.approx(8.0)
    assert bits.value == pytest.approx(2.0)
    assert loss.signature == "nats/token|tok:char|window:64|tokens:10"
    assert perplexity.signature == "exp(loss)|tok:char|window:64|tokens:10"
    assert bits.signature == "bits/byte|tok:char|window:64|bytes:15"


def test_unknown_tokens_are_told_and_leave_no_bits_per_byte() -> None:
    loss, perplexity = language_scores(10 * math.log(8), 10, 40, "tok:word", unknown=1)
    assert loss.signature == "nats/token|tok:word|unknown:10.00%|tokens:10"
    assert perplexity.signature == "exp(loss)|tok:word|unknown:10.00%|tokens:10"


def test_language_scores_at_the_edges() -> None:
    assert language_scores(1e6, 1, 1, "x")[1].value == math.inf
    assert all(math.isnan(score.value) for score in language_scores(math.nan, 1, 1, "x"))
    for tokens, size in ((0, 5), (5, 0)):
        with pytest.raises(ValueError, match="nothing to score"):
            language_scores(1.0, tokens, size, "x")


def test_a_score_as_a_line() -> None:
    assert str(Score("BLEU", 38.2149, "nrefs:1|case:mixed")) == "BLEU 38.21  (nrefs:1|case:mixed)"
    assert str(Score("loss", 2.34567, "nats/token")) == "loss 2.3457  (nats/token)"
    assert str(Score("bits per byte", 1.23456, "bits/byte")) == "bits per byte 1.2346  (bits/byte)"
    assert str(Score("similarity", 0.65432, "Spearman")) == "similarity 0.6543  (Spearman)"


def test_importing_metrics_does_not_import_sacrebleu() -> None:
    code = "import sys, allyouneed.metrics; assert not {'sacrebleu', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
