"""Negative sampling as the paper writes it (Mikolov et al., 2013), in plain loops: the oracle of the fast code.

An input x predicts the word w, against the negative samples k:

    loss = -log σ(x·u_w) - Σ_k log σ(-x·u_k)

With the label 1 for w and 0 for every k, one step of gradient descent is, for each output vector u:

    g = rate · (label - σ(x·u)),   u += g x,   x += g u

The compiled kernel (negative.c) and `learn_block` (blocks.py) must give the values of these loops: tests compare.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from allyouneed.word2vec.sampling import SampledText, draw_negatives


@torch.no_grad()
def learn_plain(
    text: SampledText,
    v: Tensor,
    u: Tensor,
    table: Tensor,
    key: int,
    rate: float,
    *,
    negatives: int,
    cbow: bool,
    noise_sets: int,
) -> tuple[float, int]:
    """One step per word, in the order of the text, in place. Skip-gram: every neighbour predicts the word; with one set
    of negative samples per word, all neighbours take one step together, with more sets, they take one step each, one
    after the other. CBOW: the mean of the neighbours predicts the word, and its update is shared equally among them.
    Returns the loss before each step, summed, and the number of predictions."""
    loss, predictions = 0.0, 0
    for i in range(len(text.radii)):
        word, rows = _word_and_neighbours(text, i)
        sets = range(i * noise_sets, i * noise_sets + (1 if noise_sets == 1 else len(rows)))
        samples = [_samples(table, key, number, negatives) for number in sets]
        if cbow and rows:
            mean = v[rows].mean(0)
            before = mean.clone()
            loss += step([mean], word, samples[0], u, rate)
            for row in rows:
                v[row] += (mean - before) / len(rows)
        elif noise_sets == 1:
            loss += step([v[row] for row in rows], word, samples[0], u, rate)
        else:
            loss += sum(step([v[row]], word, drawn, u, rate) for row, drawn in zip(rows, samples))
        predictions += min(1, len(rows)) if cbow else len(rows)
    return loss, predictions


def step(inputs: Sequence[Tensor], word: int, samples: Sequence[int], u: Tensor, rate: float) -> float:
    """One step for the inputs x (D,) of one word, in place. All scores come from the values before the step. A sample
    that is the word itself does not count; a word that was drawn twice counts twice. Returns the loss before."""
    outputs = [(word, 1.0), *((sample, 0.0) for sample in samples if sample != word)]
    before = [u[k].clone() for k, _ in outputs]
    loss, g = 0.0, torch.zeros(len(inputs), len(outputs))
    for c, x in enumerate(inputs):
        for j, (k, label) in enumerate(outputs):
            p = torch.sigmoid(x @ u[k])
            loss -= float(torch.log(p if label else 1 - p))
            g[c, j] = rate * (label - p)
    for c, x in enumerate(inputs):
        old = x.clone()
        for j, (k, _) in enumerate(outputs):
            x += g[c, j] * before[j]
            u[k] += g[c, j] * old
    return loss


def _word_and_neighbours(text: SampledText, i: int) -> tuple[int, list[int]]:
    """The word i, and its neighbours: those within its radius on its line, from left to right."""
    at, radius = i + text.window, int(text.radii[i])
    places = [j for j in range(at - radius, at + radius + 1) if j != at and text.lines[j] == text.lines[at]]
    return int(text.words[at]), text.words[places].tolist()


def _samples(table: Tensor, key: int, number: int, negatives: int) -> list[int]:
    """The negative samples of a set, by its number."""
    return draw_negatives(table, key, torch.arange(number * negatives, (number + 1) * negatives)).tolist()
