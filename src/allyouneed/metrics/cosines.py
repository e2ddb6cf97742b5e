"""Scores of vectors by their cosines: search, analogies, and similarity compared with human ratings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from allyouneed.metrics.score import Score, exact_score, mean_score

CELLS = 1 << 24  # cosines that are in memory at a time
ROWS = 1000
Question = tuple[str, str, str, str]  # a is to b as c is to d


def unit(matrix: np.ndarray) -> np.ndarray:
    """The rows scaled to length one; a zero row stays zero."""
    lengths = np.linalg.norm(matrix, axis=-1, keepdims=True)
    return matrix / np.where(lengths > 0, lengths, 1)


def analogy_answers(
    words: Sequence[str], matrix: np.ndarray, questions: Sequence[Question], most: int = 30_000
) -> list[str | None]:
    """d* = argmax cos(d, b - a + c) over the `most` frequent words other than a, b and c, all vectors of length one
    (3CosAdd); None if a word of the question is not among them. Case is ignored."""
    words, matrix = words[:most], unit(np.asarray(matrix[:most], dtype=np.float32))
    number: dict[str, int] = {}
    same = np.array([number.setdefault(word.upper(), i) for i, word in enumerate(words)])
    asked = [
        (at, [number[w.upper()] for w in q]) for at, q in enumerate(questions) if all(w.upper() in number for w in q)
    ]
    answers: list[str | None] = [None] * len(questions)
    for start in range(0, len(asked), ROWS):
        rows = asked[start : start + ROWS]
        a, b, c = np.array([ids[:3] for _, ids in rows]).T
        cosines = (matrix[b] - matrix[a] + matrix[c]) @ matrix.T  # (N, V), times the length of b - a + c
        for given in (a, b, c):
            cosines[given[:, None] == same] = -np.inf
        for (at, _), best in zip(rows, cosines.argmax(1)):
            answers[at] = words[best]
    return answers


def analogy_score(
    words: Sequence[str], matrix: np.ndarray, questions: Sequence[Question], detail: str, most: int = 30_000
) -> Score | None:
    """The percentage of right answers to the questions whose words are all known; None if there are none."""
    answers = analogy_answers(words, matrix, questions, most)
    known = [(answer, q[3]) for answer, q in zip(answers, questions) if answer is not None]
    if not known:
        return None
    right = sum(answer.upper() == goal.upper() for answer, goal in known)
    signature = f"percent|3CosAdd|words:{min(most, len(words))}|{detail}|known:{len(known)}of{len(questions)}"
    return exact_score("analogies", right, len(known), signature)


def similarity_score(
    words: Sequence[str], matrix: np.ndarray, pairs: Sequence[tuple[str, str, float]], detail: str
) -> Score | None:
    """Spearman's ρ between the cosines of word pairs and human ratings; None if fewer than two pairs are known."""
    number = {word.upper(): i for i, word in reversed(list(enumerate(words)))}  # the first of equal words
    upper = ((a.upper(), b.upper(), rating) for a, b, rating in pairs)
    known = [(number[a], number[b], rating) for a, b, rating in upper if {a, b} <= number.keys()]
    if len(known) < 2:
        return None
    a, b, ratings = zip(*known)
    cosines = (unit(matrix[list(a)].astype(np.float64)) * unit(matrix[list(b)].astype(np.float64))).sum(1)
    return Score(
        "similarity", spearman(cosines, np.array(ratings)), f"Spearman|{detail}|known:{len(known)}of{len(pairs)}"
    )


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    """The correlation of the `ranks`; NaN if all values of one side are equal."""
    x, y = (ranks(values) - (len(values) + 1) / 2 for values in (np.asarray(a), np.asarray(b)))
    length = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / length) if length > 0 else float("nan")


def ranks(values: np.ndarray) -> np.ndarray:
    """The rank of each value, 1 for the smallest; equal values share the mean of their ranks."""
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    return (last - (sizes - 1) / 2)[group]


def find_nearest(
    queries: np.ndarray, texts: np.ndarray, right: Sequence[Sequence[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """For each query (N, D): the number of the nearest text (M, D) by cosine, and the rank of its nearest right one.
    A wrong text that is as near as the right one comes before it: vectors that are all equal find nothing."""
    queries, texts = unit(queries), unit(texts)
    nearest, ranks = np.zeros(len(queries), np.int64), np.zeros(len(queries), np.int64)
    step = max(1, CELLS // len(texts))
    for start in range(0, len(queries), step):
        cosines = queries[start : start + step] @ texts.T  # (n, M)
        wrong = np.ones(cosines.shape, dtype=bool)
        for row, numbers in enumerate(right[start : start + step]):
            wrong[row, list(numbers)] = False
        best = np.where(wrong, -np.inf, cosines).max(1, keepdims=True)
        ranks[start : start + step] = 1 + ((cosines >= best) & wrong).sum(1)
        nearest[start : start + step] = cosines.argmax(1)
    return nearest, ranks


def retrieval_scores(ranks: np.ndarray, among: int, detail: str = "") -> list[Score]:
    """top-1 = the part of the queries whose rank is 1; MRR = the mean of 1 / rank; both in percent."""
    if not len(ranks):
        raise ValueError("there is nothing to score: no query")
    sign = f"cosine|among:{among}{detail}|n:{len(ranks)}"
    return [
        exact_score("top-1", int((ranks == 1).sum()), len(ranks), f"percent|{sign}"),
        mean_score("MRR", 1 / ranks, f"percent|{sign}"),
    ]
