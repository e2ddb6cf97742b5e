"""Score: a number with its signature and, if it has one, its 95 % interval: how far it may be off because only so many
examples were scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

TAIL = 0.025  # of the probability, on each side of an interval
SAMPLES, FEWEST, VALUES = 1000, 100, 10**8  # samples of a bootstrap: so many, but not more than VALUES examples in all
SEED = 7
HALVINGS = 50  # of the range in which a bound lies
DIGITS = {"bits per byte": 4, "similarity": 4}


@dataclass(frozen=True)
class Score:
    """One number, its name, and the signature without which it cannot be compared. `low` and `high` are its 95 %
    interval, if it has one; the signature says how that was found."""

    name: str
    value: float
    signature: str
    low: float | None = None
    high: float | None = None

    def signed(self, more: str) -> Score:
        """The same score with `more` added to its signature."""
        return replace(self, signature=f"{self.signature}|{more}")

    @property
    def interval(self) -> str:
        return "" if self.low is None or self.high is None else f"[{self.low:.1f}, {self.high:.1f}]"

    @property
    def short(self) -> str:
        """Name, value and interval, without the signature."""
        digits = 4 if self.name.endswith("loss") else DIGITS.get(self.name, 2)
        return f"{self.name} {self.value:.{digits}f} {self.interval}".rstrip()

    def __str__(self) -> str:
        return f"{self.short}  ({self.signature})"


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
    """Scores of sums over examples, with percentile intervals of a bootstrap (Efron, 1979): as many examples as there
    are, sampled again and again with repetition. `rows` (N, K): what each example adds to the sums, or each kind of
    example, if `counts` says how often it occurs. `score`: sums (S, K) -> values (S, names)."""
    rows = np.asarray(rows, dtype=np.float64)
    times = np.ones(len(rows), np.int64) if counts is None else counts
    total, rng = int(times.sum()), np.random.default_rng(SEED)
    samples = max(FEWEST, min(SAMPLES, VALUES // max(1, len(rows))))
    if counts is None:
        each = (np.bincount(rng.integers(0, total, total), minlength=total) for _ in range(samples))
        sums = np.stack([some @ rows for some in each])
    else:
        sums = rng.multinomial(total, times / total, samples) @ rows
    with np.errstate(divide="ignore", invalid="ignore"):
        values = score((times @ rows)[None])[0]
        low, high = np.nanquantile(np.nan_to_num(score(sums)), [TAIL, 1 - TAIL], axis=0)
    values = np.nan_to_num(values)
    return [
        Score(name, float(value), f"{signature}|ci95:bootstrap-{samples}", float(one), float(other))
        for name, value, signature, one, other in zip(names, values, signatures, low, high)
    ]


def mean_score(name: str, values: np.ndarray, signature: str, counts: np.ndarray | None = None) -> Score:
    """The mean of one value per example or, with `counts`, of the sum of so many values, in percent."""
    rows = np.stack([np.asarray(values, dtype=np.float64), np.ones(len(values)) if counts is None else counts], axis=1)
    return bootstrap_scores([name], rows, lambda sums: 100 * sums[:, :1] / sums[:, 1:], [signature])[0]
