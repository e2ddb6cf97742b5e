"""Steps on blocks of words, as a few matrix products: for a GPU, and where there is no compiler. They change two
matrices of word vectors in place, without autograd.

Negative sampling, for an input x and the word w that it predicts, against negative samples k:
loss = -log σ(x·u_w) - Σ_k log σ(-x·u_k), so
u_w += rate (1 - σ(x·u_w)) x,  u_k -= rate σ(x·u_k) x,  x += rate [(1 - σ(x·u_w)) u_w - Σ_k σ(x·u_k) u_k].

The full softmax: loss = -log p_w with p = softmax(U x), so
u_k -= rate (p_k - [k = w]) x,  x -= rate Σ_k (p_k - [k = w]) u_k.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.word2vec.sampling import SampledText, draw_negatives

MAX_ROW_RATE = 1.0  # the sum of the rates at which one step on a block may change one row


def neighbours(text: SampledText, start: int, stop: int) -> tuple[Tensor, Tensor]:
    """The words start - window … stop - 1 + window (N + 2 window,), and for each of the words start … stop - 1 which of
    the C = 2 window + 1 places around it, its own in the middle, are its neighbours (N, C)."""
    window = text.window
    words, lines = (t[start : stop + 2 * window] for t in text[:2])
    distance = torch.arange(-window, window + 1, device=lines.device).abs()
    same = lines.unfold(0, 2 * window + 1, 1) == lines[window : len(lines) - window, None]
    return words.long(), same & (distance > 0) & (distance <= text.radii[start:stop, None])


@torch.no_grad()
def learn_block(
    text: SampledText,
    start: int,
    stop: int,
    v: Tensor,
    u: Tensor,
    samples: Tensor,
    *,
    negatives: int,
    rate: float | Tensor,
    cbow: bool,
) -> Tensor:
    """One step on the words start … stop - 1 together. All words share the M samples, each with the weight
    negatives / M; a word may be among its own samples.

    All gradients come from the same old values, so a frequent word would overshoot. The rates of all predictions that
    use a row therefore add up to at most MAX_ROW_RATE. Returns (loss before the step, predictions)."""
    words, near = neighbours(text, start, stop)
    centre = words[text.window : len(words) - text.window]
    rows, target, others = v[words], u[centre], u[samples]  # (N + 2W, D), (N, D), (M, D)
    around = rows.unfold(0, near.size(1), 1)  # (N, D, C)
    near = near.to(v)
    predictions = near.sum(1, keepdim=True)  # (N, 1)
    if cbow:
        share = near / predictions.clamp(min=1)
        x = (around @ share[..., None]).squeeze(-1)  # (N, D)
        right = (x * target).sum(1, keepdim=True)  # (N, 1)
        near = predictions = x_uses = predictions.clamp(max=1)
        row_uses = scatter_to_neighbours(share, x_uses)
    else:
        x = rows
        right = (target[:, None] @ around).squeeze(1)  # (N, C)
        x_uses = row_uses = scatter_to_neighbours(near, torch.ones_like(predictions))  # predictions that use each x
    wrong = x @ others.T  # (·, M)
    weight = negatives / len(samples)
    total = predictions.sum()
    loss = (F.softplus(wrong) * x_uses).sum() * weight - (F.logsigmoid(right) * near).sum()
    g = near * torch.sigmoid(-right)
    h = -weight * x_uses * torch.sigmoid(wrong)
    if cbow:
        d_target = g * x
        d_rows = scatter_to_neighbours(share, g * target + h @ others)
    else:
        d_target = (around @ g[..., None]).squeeze(-1)
        d_rows = scatter_to_neighbours(g, target) + h @ others
    add_capped_updates(v, words, d_rows, row_uses, rate)
    u_uses = torch.cat([predictions, (weight * total).expand(len(samples), 1)])
    add_capped_updates(u, torch.cat([centre, samples]), torch.cat([d_target, h.T @ x]), u_uses, rate)
    return torch.stack([loss, total])


class Blocks:
    """learn_block for every block of `size` words, in order. The words of a block share `shared` negative samples."""

    problem = ""

    def __init__(self, size: int, shared: int, *, negatives: int, cbow: bool) -> None:
        self.size, self.shared, self.negatives, self.cbow = size, shared, negatives, cbow

    def learn(
        self, text: SampledText, v: Tensor, u: Tensor, table: Tensor, key: int, rate: float
    ) -> tuple[Tensor, Tensor]:
        """(loss before each step, summed; predictions)"""
        count, sums = len(text.radii), torch.zeros(2, device=v.device)
        step = partial(learn_block, negatives=self.negatives, rate=rate, cbow=self.cbow)
        for start, samples in self._blocks(count, table, key):
            sums += step(text, start, min(start + self.size, count), v, u, samples)
        return sums[0], sums[1]

    def _blocks(self, count: int, table: Tensor, key: int) -> Iterator[tuple[int, Tensor]]:
        """Where each block starts, and its negative samples."""
        starts = range(0, count, self.size)
        samples = draw_negatives(table, key, torch.arange(len(starts) * self.shared, device=table.device))
        return zip(starts, samples.split(self.shared))


class GraphedBlocks(Blocks):
    """The same as a CUDA graph: captured once, then replayed for every block, because launching its many small kernels
    one by one takes longer than their work."""

    captured_for: tuple[int, ...] = ()  # the matrices and the window of the graph

    def learn(
        self, text: SampledText, v: Tensor, u: Tensor, table: Tensor, key: int, rate: float
    ) -> tuple[Tensor, Tensor]:
        if self.captured_for != (v.data_ptr(), u.data_ptr(), text.window):
            self._capture(text, v, u)
        self.rate.fill_(rate)
        self.sums.zero_()
        for start, samples in self._blocks(len(text.radii), table, key):
            self._fill(text, start, samples)
            self.graph.replay()
        return self.sums[0].clone(), self.sums[1].clone()

    def _capture(self, text: SampledText, v: Tensor, u: Tensor) -> None:
        lengths = (self.size + 2 * text.window, self.size + 2 * text.window, self.size)
        self.block = SampledText(*(t.new_empty(length) for t, length in zip(text, lengths)))
        self.samples = torch.empty(self.shared, dtype=torch.long, device=v.device)
        self.rate, self.sums = v.new_zeros(()), v.new_zeros(2)
        self._fill(text, 0, torch.zeros_like(self.samples))

        def step() -> None:
            self.sums += learn_block(
                self.block, 0, self.size, v, u, self.samples, negatives=self.negatives, rate=self.rate, cbow=self.cbow
            )

        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):  # a warm-up at the rate 0, which changes nothing: a capture needs one
            step()
        torch.cuda.current_stream().wait_stream(aside)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            step()
        self.captured_for = v.data_ptr(), u.data_ptr(), text.window

    def _fill(self, text: SampledText, start: int, samples: Tensor) -> None:
        """Copy a block to where the graph reads it; what is after the last word is empty."""
        for target, source, empty in zip(self.block, text, (0, -1, 0)):
            piece = source[start : start + len(target)]
            target[: len(piece)].copy_(piece)
            target[len(piece) :].fill_(empty)
        self.samples.copy_(samples)


@torch.no_grad()
def learn_full_softmax(
    text: SampledText, v: Tensor, u: Tensor, bias: Tensor, *, size: int, rate: float, cbow: bool
) -> Tensor:
    """One step per block of `size` words, in order. The gradients of all P predictions of a block are added, with the
    rate of each row capped as in `learn_block`. `bias` (V,) is -∞ for tokens that are never predicted. Returns (loss
    before each step, summed; predictions)."""
    sums, count = torch.zeros(2, device=v.device), len(text.radii)
    for start in range(0, count, size):
        words, near = neighbours(text, start, min(start + size, count))
        centre = words[text.window : len(words) - text.window]
        word, position = near.nonzero().unbind(1)  # (M,): the neighbours of all words
        rows = words[word + position]
        if cbow:
            word, prediction = word.unique(return_inverse=True)
        else:
            prediction = torch.arange(len(word), device=word.device)
        goals, share = centre[word], 1 / prediction.bincount()[prediction, None]  # (P,), (M, 1)
        x = v.new_zeros(len(goals), v.size(1)).index_add_(0, prediction, share * v[rows])  # (P, D)
        log_p = torch.log_softmax(torch.addmm(bias, x, u.T), dim=1)  # (P, V)
        each = torch.arange(len(goals), device=goals.device)
        loss, p = -log_p[each, goals].sum(), log_p.exp_()
        uses = p.sum(0).index_add_(0, goals, torch.ones_like(x[:, 0]))  # the predictions that use each u
        p[each, goals] -= 1
        d_x, d_u = p @ u, p.T @ x
        u.sub_(d_u * (MAX_ROW_RATE / uses.clamp(min=1)).clamp(max=rate)[:, None])
        add_capped_updates(v, rows, -share * d_x[prediction], share, rate)
        sums += torch.stack([loss, loss.new_tensor(len(goals))])
    return sums


def add_capped_updates(matrix: Tensor, rows: Tensor, updates: Tensor, uses: Tensor, rate: float | Tensor) -> None:
    """matrix[rows] += rate · updates (N, D), at a lower rate for a row whose uses (N, 1) add up to too many."""
    total = matrix.new_zeros(len(matrix), 1).index_add_(0, rows, uses)[rows]
    matrix.index_add_(0, rows, updates * (MAX_ROW_RATE / total.clamp(min=1)).clamp(max=rate))


def scatter_to_neighbours(weights: Tensor, x: Tensor) -> Tensor:
    """Every x_i is added to the C rows around it: y_j = Σ_i weights[i, j - i] x_i for weights (N, C) and x (N, D),
    y (N + C - 1, D)."""
    more = weights.size(1) - 1
    padded = F.pad(weights.flip(1), (0, 0, more, more))  # row i + more, column m: weights[i, more - m]
    bands = padded.as_strided((len(x) + more, more + 1), (more + 1, more + 2))  # row j, column m: padded[j + m, m]
    return (F.pad(x, (0, 0, more, more)).unfold(0, more + 1, 1) @ bands[..., None]).squeeze(-1)
