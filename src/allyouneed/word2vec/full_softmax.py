"""The full softmax, learned in place: gradient steps on two matrices of word vectors, without autograd.

For an input x and the word w that it predicts: loss = -log p_w with p = softmax(U x), so
u_k -= rate (p_k - [k = w]) x,  x -= rate Σ_k (p_k - [k = w]) u_k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allyouneed.word2vec.negative import FURTHEST, Reading, add_moves, around


@torch.no_grad()
def learn_against_all(
    reading: Reading, start: int, stop: int, v: Tensor, u: Tensor, bias: Tensor, *, rate: float, cbow: bool
) -> Tensor:
    """A step on the words start … stop - 1 at once. `bias` (V,) is -∞ for what is never predicted. The gradients of all
    predictions P are added up, at a rate that is lowered where a row takes part in too many of them, as in
    `learn_block`. Returns (loss before the step, predictions)."""
    words, near = around(reading, start, stop)
    centre = words[reading.window : len(words) - reading.window]
    word, place = near.nonzero().unbind(1)  # (M,): the neighbours of all words
    rows = words[word + place]
    if cbow:
        word, of = word.unique(return_inverse=True)
    else:
        of = torch.arange(len(word), device=word.device)
    goals, part = centre[word], 1 / of.bincount()[of, None]  # (P,), (M, 1)
    x = v.new_zeros(len(goals), v.size(1)).index_add_(0, of, part * v[rows])  # (P, D)
    log_p = torch.log_softmax(torch.addmm(bias, x, u.T), dim=1)  # (P, V)
    each = torch.arange(len(goals), device=goals.device)
    loss, p = -log_p[each, goals].sum(), log_p.exp_()
    seen = p.sum(0).index_add_(0, goals, torch.ones_like(x[:, 0]))  # in how many predictions each u takes part
    p[each, goals] -= 1
    d_x, d_u = p @ u, p.T @ x
    u.sub_(d_u * (FURTHEST / seen.clamp(min=1)).clamp(max=rate)[:, None])
    add_moves(v, rows, -part * d_x[of], part, rate)
    return torch.stack([loss, loss.new_tensor(len(goals))])
