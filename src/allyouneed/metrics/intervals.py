"""95 % intervals: how far a score may be off because only so many examples were scored."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from allyouneed.metrics.score import Score

TAIL = 0.025  # of the probability, on each side
DRAWS, FEWEST, VALUES = 1000, 100, 10**8  # samples of a bootstrap: so many, but not more than VALUES examples in all
SEED = 7
HALVINGS = 50  # of the range in which a bound lies


def exact_score(name: str, right: int, total: int, signature: str) -> Score:
    """The percentage of right answers, with the exact interval of a binomial proportion (Clopper and Pearson, 1934)."""
    low, high = clopper_pearson(right, total)
    return Score(name, 100 * right / total, f"{signature}|ci95:exact", 100 * low, 100 * high)


def clopper_pearson(right: int, total: int) -> tuple[float, float]:
    """The smallest and the largest p for which `right` or more, and `right` or fewer, of `total` are not too rare."""
    log_factorials = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, total + 1)))])
    k = np.arange(total + 1)
    ways = log_factorials[-1] - log_factorials - log_factorials[::-1]  # log of total over k

    def at_most(many: int, p: float) -> float:
        return float(
            np.exp(ways[: many + 1] + k[: many + 1] * np.log(p) + (total - k[: many + 1]) * np.log1p(-p)).sum()
        )

    low = _root(lambda p: 1 - at_most(right - 1, p) < TAIL) if right else 0.0
    high = _root(lambda p: at_most(right, p) > TAIL) if right < total else 1.0
    return low, high


def _root(below: Callable[[float], bool]) -> float:
    """Where `below` turns from true to false, between 0 and 1."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) else (low, middle)
    return (low + high) / 2


def bootstrap_scores(
    names: list[str],
    rows: np.ndarray,
    score: Callable[[np.ndarray], np.ndarray],
    signatures: list[str],
    counts: np.ndarray | None = None,
) -> list[Score]:
    """Scores of sums over examples, with percentile intervals of a bootstrap (Efron, 1979): the examples are drawn
    again and again, as many as there are, with repetition. `rows` (N, K): what each example adds to the sums, or each
    kind of example, if `counts` says how often it occurs. `score`: sums (D, K) -> values (D, names)."""
    rows = np.asarray(rows, dtype=np.float64)
    times = np.ones(len(rows), np.int64) if counts is None else counts
    total, draw = int(times.sum()), np.random.default_rng(SEED)
    draws = max(FEWEST, min(DRAWS, VALUES // max(1, len(rows))))
    if counts is None:
        drawn = (np.bincount(draw.integers(0, total, total), minlength=total) for _ in range(draws))
        sums = np.stack([some @ rows for some in drawn])
    else:
        sums = draw.multinomial(total, times / total, draws) @ rows
    with np.errstate(divide="ignore", invalid="ignore"):
        values = score((times @ rows)[None])[0]
        low, high = np.nanquantile(np.nan_to_num(score(sums)), [TAIL, 1 - TAIL], axis=0)
    values = np.nan_to_num(values)
    return [
        Score(name, float(value), f"{signature}|ci95:bootstrap-{draws}", float(one), float(other))
        for name, value, signature, one, other in zip(names, values, signatures, low, high)
    ]


def mean_score(name: str, values: np.ndarray, signature: str) -> Score:
    """The mean of one value per example, in percent."""
    rows = np.stack([np.asarray(values, dtype=np.float64), np.ones(len(values))], axis=1)
    return bootstrap_scores([name], rows, lambda sums: 100 * sums[:, :1] / sums[:, 1:], [signature])[0]
