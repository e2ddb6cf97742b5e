"""Translation scores against one reference per sentence: BLEU, chrF, exact match."""

from __future__ import annotations

from collections.abc import Sequence

from allyouneed.metrics.score import Score


def translation_scores(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool = False) -> list[Score]:
    """BLEU and chrF of the whole set as sacrebleu computes and signs them, and the percentage of exact matches."""
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses for {len(references)} references: there must be one for each")
    if not hypotheses:
        raise ValueError("there is nothing to score: no hypotheses and no references")
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    scores = []
    for name, metric in (("BLEU", BLEU(lowercase=lowercase)), ("chrF", CHRF(lowercase=lowercase))):
        value = metric.corpus_score(hypotheses, [references]).score
        scores.append(Score(name, value, str(metric.get_signature())))
    return [*scores, _exact_match(hypotheses, references, lowercase)]


def _exact_match(hypotheses: Sequence[str], references: Sequence[str], lowercase: bool) -> Score:
    def plain(text: str) -> str:
        return text.strip().lower() if lowercase else text.strip()

    hits = sum(plain(hypothesis) == plain(reference) for hypothesis, reference in zip(hypotheses, references))
    case = "lc" if lowercase else "mixed"
    return Score("exact match", 100 * hits / len(references), f"exact|case:{case}|strip:yes|n:{len(references)}")
