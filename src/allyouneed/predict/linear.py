"""A linear model over the words of a text and its pairs of neighbouring words (Wang and Manning, 2012).

    logits = b + Σ_f w_f,    w_f = r_f v_f,    r_f = log p(f | class) - log p(f | other classes)

over the different words and pairs f of the text. The ratios r are counted, as in naive Bayes; v is a logistic
regression with a Gaussian prior. On a few thousand texts this is hard to beat, so it is the baseline of every
classifier. With task.linear it is a part of one, with the sum divided by the square root of its length: then a long
text is not surer than a short one. The scores of the network are added to it, each with a weight, so that the labels of
the validation texts are likeliest (Mesnil et al., 2014, combine such models in this way).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.batch import Tensors
from allyouneed.data.store import Ragged
from allyouneed.nn.layers import real
from allyouneed.text import Tokenizer

T = TypeVar("T", np.ndarray, Tensor)
TWICE = 2  # a word or pair that occurs in fewer texts says nothing of others
MOST = 4_000_000  # numbers of the table of weights; the most frequent words and pairs stay
PRIOR = 1.0  # the weight of Σ v² / 2 beside the sum of the losses
DOUBT = 32.0  # the same for the share of the network; some three hundred examples count as much as this
ROUNDS, MEMORY = 60, 10  # of L-BFGS


@dataclass(frozen=True)
class Bags:
    """The different words and pairs of each example, as keys: a word is its number, the pair (a, b) is (a + 1) W + b.
    The words of a second text are other words: V is added to their numbers, and W = 2 V."""

    keys: np.ndarray  # of all texts, one after the other
    offsets: np.ndarray

    @staticmethod
    def of(sides: Sequence[Ragged], words: np.ndarray) -> Bags:
        """`sides`: the first texts, and the second ones if there are any. `words` (V,): the word of each token, or -1
        for a token that is not a word."""
        found, numbers = [], []
        for side, rows in enumerate(sides):
            read, row = words[np.asarray(rows.tokens)], np.repeat(np.arange(len(rows)), rows.lengths)
            there, read = read >= 0, read + side * len(words)
            pair = (row[1:] == row[:-1]) & there[1:] & there[:-1]
            found += [read[there], pair_key(read[:-1], read[1:], len(words))[pair]]
            numbers += [row[there], row[1:][pair]]
        keys, rows_of = np.concatenate(found), np.concatenate(numbers)
        order = np.lexsort((keys, rows_of))
        keys, rows_of = keys[order], rows_of[order]
        new = np.ones(len(keys), dtype=bool)
        new[1:] = (keys[1:] != keys[:-1]) | (rows_of[1:] != rows_of[:-1])
        counts = np.bincount(rows_of[new], minlength=len(sides[0]))
        return Bags(keys[new], np.concatenate([[0], np.cumsum(counts)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def find(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where each key of the texts is among these sorted keys, and whether it is there at all."""
        at = np.minimum(np.searchsorted(keys, self.keys), len(keys) - 1)
        return at, keys[at] == self.keys


def pair_key(first: T, second: T, vocab: int) -> T:
    return (first + 1) * (2 * vocab) + second


@dataclass(frozen=True)
class Linear:
    """The weights (F, C) of the words and pairs with these keys (F,), which are sorted, and the biases (C,)."""

    keys: np.ndarray
    weights: np.ndarray
    bias: np.ndarray
    even: bool = False  # sums are divided by the square root of their length

    def scores(self, bags: Bags) -> np.ndarray:
        """(N, C)"""
        at, known = bags.find(self.keys)
        totals = np.concatenate([np.zeros((1, len(self.bias))), np.cumsum(self.weights[at] * known[:, None], axis=0)])
        sums = np.diff(totals[bags.offsets], axis=0)
        lengths = np.diff(np.concatenate([[0], known.cumsum()])[bags.offsets])
        return np.asarray(self.bias + sums / np.sqrt(np.maximum(1, lengths if self.even else 1)).reshape(-1, 1))


def fit_linear(bags: Bags, goals: np.ndarray, classes: int, even: bool = False) -> Linear:
    """The weights that this training data gives; `even`: the sums are divided by the square root of their length."""
    keys, counts = np.unique(bags.keys, return_counts=True)
    most = max(1, MOST // classes)
    least = max(TWICE, np.sort(counts)[-most] + 1) if len(keys) > most else TWICE
    keys = keys[counts >= least] if (counts >= least).any() else keys[:1]
    at, known = bags.find(keys)
    rows = np.repeat(np.arange(len(bags)), np.diff(bags.offsets))[known]
    columns = at[known]

    own = np.bincount(columns * classes + goals[rows], minlength=len(keys) * classes).reshape(-1, classes) + 1.0
    other = own.sum(1, keepdims=True) + 2.0 - classes - own
    ratios = np.log(own / own.sum(0)) - np.log(other / other.sum(0))
    truth = np.eye(classes)[goals]
    share = 1 / np.sqrt(np.maximum(1, np.bincount(rows, minlength=len(bags)))) if even else np.ones(len(bags))
    usual = 1 / share.mean()  # so that the prior is as strong in both cases
    values = (usual * share)[rows]

    def loss(whole: np.ndarray) -> tuple[float, np.ndarray]:
        """The loss and its gradient; `whole` is v and, in its last row, the biases."""
        v, bias = whole[:-1], whole[-1]
        weights = ratios * v
        columns_of = (np.bincount(rows, values * weights[columns, c], minlength=len(bags)) for c in range(classes))
        value, error = cross_entropy(bias + np.stack(list(columns_of), axis=1), truth)
        slopes = (np.bincount(columns, values * error[rows, c], minlength=len(keys)) for c in range(classes))
        gradient = ratios * np.stack(list(slopes), axis=1) + PRIOR * v
        return value + PRIOR / 2 * float((v**2).sum()), np.concatenate([gradient, error.sum(0, keepdims=True)])

    whole = minimize(loss, np.zeros((len(keys) + 1, classes)))
    return Linear(keys, usual * ratios * whole[:-1], whole[-1], even)


def cross_entropy(logits: np.ndarray, truth: np.ndarray) -> tuple[float, np.ndarray]:
    """-Σ log p of the true labels, and its gradient by the logits; both arguments are (N, C)."""
    logits = logits - logits.max(1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return float(-(truth * log_p).sum()), np.exp(log_p) - truth


def minimize(loss: Callable[[np.ndarray], tuple[float, np.ndarray]], x: np.ndarray) -> np.ndarray:
    """L-BFGS: the direction of Newton's method, estimated from the last steps and the changes of the gradient."""
    value, gradient = loss(x)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(ROUNDS):
        direction, parts = gradient.copy(), []
        for step, change in reversed(steps):
            part = (step * direction).sum() / (step * change).sum()
            direction -= part * change
            parts.append(part)
        if steps:
            step, change = steps[-1]
            direction *= (step * change).sum() / (change**2).sum()
        for (step, change), part in zip(steps, reversed(parts)):
            direction += step * (part - (change * direction).sum() / (step * change).sum())
        length, slope = 1.0 if steps else 1 / max(1e-9, float(np.abs(gradient).sum())), (gradient * direction).sum()
        while (found := loss(x - length * direction))[0] > value - 1e-4 * length * slope and length > 1e-9:
            length /= 2
        if not found[0] < value:
            break
        step, change = -length * direction, found[1] - gradient
        x, done, value, gradient = x + step, value - found[0] < 1e-5 * abs(found[0]), *found
        if (step * change).sum() > 1e-12:
            steps = [*steps, (step, change)][-MEMORY:]
        if done:
            break
    return x


def best_shares(base: np.ndarray, own: np.ndarray, goals: np.ndarray) -> tuple[float, float]:
    """The shares a and t, neither below 0, for which a base + t own, both (N, C), makes the labels (N,) likeliest. Few
    examples move them little from 1 and 0: the network must show what it adds."""
    truth, both = np.eye(base.shape[1])[goals], np.stack([base, own])
    spread = np.maximum(1e-3, (both - both.mean(2, keepdims=True)).std((1, 2)))
    both, start, prior = both / spread[:, None, None], np.array([spread[0], 0.0]), np.array([PRIOR, DOUBT])

    def loss(shares: np.ndarray) -> tuple[float, np.ndarray]:
        value, error = cross_entropy(np.tensordot(shares, both, 1), truth)
        moved = shares - start
        return value + float((prior * moved**2).sum()) / 2, (error * both).sum((1, 2)) + prior * moved

    one, other = np.maximum(0.0, minimize(loss, start)) / spread
    return float(one), float(other)


def words_of(tokenizer: Tokenizer) -> np.ndarray:
    """(V,) the word that each token is: itself, or the first token that is the same word, for " film" and "film" are
    one. -1 for the unknown, which says nothing."""
    first, whole = dict[str, int](), tokenizer.kind == "word"  # pieces of words are not words
    spelled = (tokenizer.token(id).strip() or tokenizer.token(id) for id in range(len(tokenizer)))
    words = [first.setdefault(word, id) if whole else id for id, word in enumerate(spelled)]
    if tokenizer.unk is not None:
        words[tokenizer.unk] = -1
    return np.array(words, dtype=np.int64)


class WordPairs(nn.Module):
    """The linear model inside a `Labeller`."""

    words: Tensor  # (V,) of the tokens; -1: none
    keys: Tensor  # (F,)
    weights: Tensor  # (F, C)
    bias: Tensor  # (C,)

    def __init__(self, features: int, vocab: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("words", torch.zeros(vocab, dtype=torch.int64))
        self.register_buffer("keys", torch.zeros(features, dtype=torch.int64))
        self.register_buffer("weights", torch.zeros(features, classes))
        self.register_buffer("bias", torch.zeros(classes))

    def take(self, fitted: Linear, words: np.ndarray) -> None:
        for buffer, values in zip(self.buffers(), (words, fitted.keys, fitted.weights, fitted.bias)):
            buffer.copy_(torch.from_numpy(values))

    def forward(self, tensors: Tensors) -> Tensor:
        """ids (B, T), of which the first `lengths` (B,) are tokens -> logits (B, C). Special tokens are not among the
        words that it knows."""
        words, vocab = self.words[tensors["ids"]], len(self.words)
        own = real(tensors["lengths"], words.size(1)) & (words >= 0)
        words = words + vocab * tensors["segments"]
        pairs, both = pair_key(words[:, :-1], words[:, 1:], vocab), own[:, 1:] & own[:, :-1]
        keys = torch.cat([words.masked_fill(~own, -1), pairs.masked_fill(~both, -1)], dim=1).sort(dim=1).values
        new = torch.ones_like(keys, dtype=torch.bool)
        new[:, 1:] = keys[:, 1:] != keys[:, :-1]
        at = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        known = new & (self.keys[at] == keys)
        length = known.sum(1, keepdim=True).clamp(min=1)
        return self.bias + (self.weights[at] * known[..., None]).sum(1) / length.sqrt()
