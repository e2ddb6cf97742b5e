"""The full softmax: gradient steps in place on two matrices of word vectors, without autograd.

For an input x and the word w that it predicts: loss = -log p_w with p = softmax(U x), so
u_k -= rate (p_k - [k = w]) x,  x -= rate Σ_k (p_k - [k = w]) u_k.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allyouneed.word2vec.draws import SampledText
from allyouneed.word2vec.negative import MAX_ROW_RATE, add_capped_updates, neighbours


@torch.no_grad()
def learn_full_softmax(
    text: SampledText, v: Tensor, u: Tensor, bias: Tensor, *, size: int, rate: float, cbow: bool
) -> Tensor:
    """One step per block of `size` words, in order. `bias` (V,) is -∞ for tokens that are never predicted.
    Returns (loss before each step, summed; predictions)."""
    sums, count = torch.zeros(2, device=v.device), len(text.radii)
    for start in range(0, count, size):
        sums += _learn_block(text, start, min(start + size, count), v, u, bias, rate, cbow)
    return sums


def _learn_block(
    text: SampledText, start: int, stop: int, v: Tensor, u: Tensor, bias: Tensor, rate: float, cbow: bool
) -> Tensor:
    """One step on the words start … stop - 1 together. The gradients of all P predictions are added, with the rate of
    each row capped as in negative.py's `learn_block`."""
    words, near = neighbours(text, start, stop)
    centre = words[text.window : len(words) - text.window]
    word, place = near.nonzero().unbind(1)  # (M,): the neighbours of all words
    rows = words[word + place]
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
    return torch.stack([loss, loss.new_tensor(len(goals))])
