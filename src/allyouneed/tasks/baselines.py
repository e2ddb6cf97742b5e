"""Baselines: what a score must beat to mean anything. The most frequent label, and a linear model over words, or over
the pixels of images."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import count, islice

import numpy as np

from allyouneed.data.store import Ragged
from allyouneed.metrics import Score
from allyouneed.predict.linear import Bags, cross_entropy, fit_linear, minimize

WORD = re.compile(r"\w+|[^\w\s]")
TEXTS, TAGGED = 2_000_000, 100_000  # running words that the linear model learns from, so that it takes seconds
IMAGES, VALUES = 5_000, 1_024  # images that the linear model learns from, and values of each, at most
BLOCK = 64  # images that are in memory at once
SMOOTH = 0.01  # the weight of Σ w² / 2 beside the mean of the losses, for images
METHODS = {
    "majority": "the most frequent label",
    "linear": "a linear model over words and pairs of words",
    "pixels": "a linear model over pixels",
}


def classify_baselines(
    train: Iterable[Sequence[str]], goals: np.ndarray, test: Iterable[Sequence[str]], classes: int
) -> dict[str, np.ndarray]:
    """The label of each test example by each baseline. An example is one text or two."""
    known, learned, seen = new_numbers(), list[list[list[int]]](), 0
    for texts in train:
        learned.append([[known[word.lower()] for word in WORD.findall(text)] for text in texts])
        seen += sum(map(len, learned[-1]))
        if seen > TEXTS:
            break
    asked = [[[known.get(word.lower(), 0) for word in WORD.findall(text)] for text in texts] for texts in test]
    words = np.arange(len(known) + 1)
    mine, others = (Bags.of([Ragged.of(side) for side in zip(*rows)], words) for rows in (learned, asked))
    fitted = fit_linear(mine, goals[: len(learned)], classes)
    return {"majority": np.full(len(asked), np.bincount(goals).argmax()), "linear": fitted.scores(others).argmax(1)}


def new_numbers() -> defaultdict[str, int]:
    """A number for each word that is looked up, from 1 on. 0 is for words that the training data does not have."""
    return defaultdict(count(1).__next__)


def image_baselines(train: np.ndarray, goals: np.ndarray, test: np.ndarray, classes: int) -> dict[str, np.ndarray]:
    """The label of each test image by each baseline; images are (N, H, W, C) bytes."""
    some = np.arange(min(IMAGES, len(train))) * len(train) // min(IMAGES, len(train))
    known, asked = _values(train, some), _values(test, np.arange(len(test)))
    mean, spread = known.mean(0), max(1e-6, float(known.std()))
    known, asked = (known - mean) / spread, (asked - mean) / spread
    truth = np.eye(classes)[goals[some]]

    def loss(whole: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its gradient; `whole` is the weights and, in its last row, the biases."""
        weights, bias = whole[:-1], whole[-1]
        value, error = cross_entropy(known @ weights + bias, truth)
        gradient = np.concatenate([known.T @ error + SMOOTH * len(known) * weights, error.sum(0, keepdims=True)])
        return value + SMOOTH * len(known) / 2 * float((weights**2).sum()), gradient

    whole = minimize(loss, np.zeros((known.shape[1] + 1, classes)))
    return {
        "majority": np.full(len(asked), np.bincount(goals).argmax()),
        "pixels": (asked @ whole[:-1] + whole[-1]).argmax(1),
    }


def _values(images: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """(N, D) of these images: the means over squares of pixels, as small as they may be."""
    _, height, width, channels = images.shape
    side = next(side for side in range(1, max(height, width) + 1) if height * width * channels <= VALUES * side**2)
    rows, columns = max(1, height // side), max(1, width // side)
    found = []
    for start in range(0, len(numbers), BLOCK):
        block = images[numbers[start : start + BLOCK], : rows * side, : columns * side]
        squares = block.reshape(len(block), rows, -1, columns, side, channels)
        found.append(squares.mean(axis=(2, 4), dtype=np.float32).reshape(len(block), -1))
    return np.concatenate(found)


def tag_baselines(
    train: Iterable[Sequence[str]], goals: Sequence[Sequence[int]], test: Iterable[Sequence[str]], classes: int
) -> dict[str, list[list[int]]]:
    """The tags of the words of each test sentence: the most frequent tag of each word, and a linear model over the
    word, its neighbours, and its pairs with them."""
    known, rows, labels = new_numbers(), list[list[int]](), list[int]()
    by_word: Mapping[int, Counter[int]] = defaultdict(Counter)
    for words, tags in zip(train, goals):
        ids = [known[word.lower()] for word in words]
        rows += _windows(ids)
        labels += tags
        for id, tag in zip(ids, tags):
            by_word[id][tag] += 1
        if len(labels) > TAGGED:
            break
    usual = Counter(labels).most_common(1)[0][0]
    best = {id: counts.most_common(1)[0][0] for id, counts in by_word.items()}
    vocab = len(known) + 1
    fitted = fit_linear(_context_bags(rows, vocab), np.array(labels), classes)
    asked = [[known.get(word.lower(), 0) for word in words] for words in test]
    found = iter(fitted.scores(_context_bags([row for ids in asked for row in _windows(ids)], vocab)).argmax(1))
    return {
        "majority": [[best.get(id, usual) for id in ids] for ids in asked],
        "linear": [[int(tag) for tag in islice(found, len(ids))] for ids in asked],
    }


def _windows(ids: list[int]) -> list[list[int]]:
    """Each word with the one before and the one after it; -1 at an end."""
    return [list(window) for window in zip([-1, *ids], ids, [*ids[1:], -1])]


def _context_bags(rows: list[list[int]], vocab: int) -> Bags:
    """The word, the words before and after it, and both pairs, as keys of which no two kinds are the same."""
    before, word, after = (np.array(rows, dtype=np.int64).reshape(-1, 3) + 1).T
    span = vocab + 1
    singles = [word, span + before, 2 * span + after]
    pairs = [(3 + word) * span + before, (3 + span + word) * span + after]
    keys = np.sort(np.stack([*singles, *pairs], axis=1), axis=1)
    return Bags(keys.ravel(), np.arange(len(rows) + 1) * keys.shape[1])


def beaten(scores: Sequence[Score]) -> str:
    """A sentence if a baseline is better than the model; the first of the scores is the model's."""
    baselines = [score for score in scores if score.name.endswith(" baseline")]
    best = max(baselines, key=lambda score: score.value, default=scores[0])
    if best.value <= scores[0].value:
        return ""
    return (
        f"{METHODS[best.name.removesuffix(' baseline')]} is better than this model: {scores[0].name} {best.value:.2f} "
        f"against {scores[0].value:.2f}; try a longer training, more data, or a run to start from (train.init)"
    )
