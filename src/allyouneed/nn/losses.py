"""Losses as sums: the batch knows the counts, the trainer divides. Targets of IGNORE (padding) do not count."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.batch import IGNORE

# More logits than this (0.5 GB in fp32, and as much again for their gradient) are computed piece by piece. Compiled
# code holds them only in the dtype of the product, 16 bits on a GPU, and is fastest without pieces.
MOST_LOGITS = 1 << 27
# GPUs multiply 16-bit matrices about twice as fast when the rows of the result begin at multiples of 128 bytes.
ALIGNED = 64


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0, weights: Tensor | None = None) -> Tensor:
    """-sum_t w_t [(1 - ε) log p(y_t) + ε/V sum_v log p(v)] over the targets (N,) that are not padding; logits (N, V),
    weights (N,), all 1 if there are none."""
    how = "sum" if weights is None else "none"
    loss = F.cross_entropy(logits.float(), targets, reduction=how, ignore_index=IGNORE, label_smoothing=smoothing)
    return loss if weights is None else (loss * weights).sum()


def divergence(logits: Tensor, others: Tensor, targets: Tensor) -> Tensor:
    """How far two predictions are apart, over the targets (N,) that are not padding; logits (N, V):
    ½ sum_t [KL(p_t || q_t) + KL(q_t || p_t)] = ½ sum_t sum_v (p_t(v) - q_t(v)) (log p_t(v) - log q_t(v))"""
    p, q = logits.float().log_softmax(-1), others.float().log_softmax(-1)
    each = ((p.exp() - q.exp()) * (p - q)).sum(-1)
    return each.masked_fill(targets == IGNORE, 0.0).sum() / 2


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    most_logits: int = MOST_LOGITS,
    align: bool | None = None,
) -> Tensor:
    """cross_entropy(hidden W^T + b, targets) for hidden (..., D), W (V, D), with at most `most_logits` logits in memory
    at a time: a larger number is computed in pieces, each with its gradient at once, unless this is compiled.

    `align` computes the product with V rounded up to a multiple of 64 (by default where that is faster); the result
    is the same, because the additional columns take no part in the softmax.
    """
    hidden, targets, vocab = hidden.flatten(0, -2), targets.flatten(), weight.size(0)
    if torch.compiler.is_compiling() or targets.numel() * vocab <= most_logits:
        extra = -vocab % ALIGNED if (_pays(hidden, weight) if align is None else align) else 0
        if not extra:
            return cross_entropy(F.linear(hidden, weight, bias), targets, smoothing)
        dtype = _product_dtype(hidden, weight)  # so the wider copy is the one that autocast would make anyway
        bias = None if bias is None else F.pad(bias.to(dtype), (0, extra))
        logits = F.linear(hidden, F.pad(weight.to(dtype), (0, 0, 0, extra)), bias)  # (N, V + extra)
        if smoothing:
            return cross_entropy(logits[:, :vocab], targets, smoothing)
        beyond = torch.arange(vocab + extra, device=logits.device) >= vocab  # faster than a slice, once compiled
        return cross_entropy(logits.float().masked_fill(beyond, -torch.inf), targets)
    rows = max(1, most_logits // vocab)
    if torch.is_grad_enabled():
        return _PiecewiseLoss.apply(hidden, weight, bias, targets, smoothing, rows)
    pieces = zip(hidden.split(rows), targets.split(rows))
    return torch.stack([cross_entropy(F.linear(h, weight, bias), t, smoothing) for h, t in pieces]).sum()


def _pays(hidden: Tensor, weight: Tensor) -> bool:
    """Whether to align: for 16-bit products on a GPU, where the additional columns are few (at most 6 %)."""
    return hidden.is_cuda and _product_dtype(hidden, weight).itemsize == 2 and weight.size(0) > 16 * ALIGNED


def _product_dtype(hidden: Tensor, weight: Tensor) -> torch.dtype:
    kind = hidden.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype


class _PiecewiseLoss(torch.autograd.Function):
    """The gradient of each piece is known as soon as its logits are: d/dlogits = softmax - target. So the forward pass
    computes the gradients, and the backward pass only scales them."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, smoothing: float, rows: int
    ) -> Tensor:
        total = hidden.new_zeros((), dtype=torch.float32)
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight, dtype=torch.float32)
        d_bias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None else None
        for i in range(0, targets.numel(), rows):
            piece, goal = hidden[i : i + rows], targets[i : i + rows]
            with torch.enable_grad():
                logits = F.linear(piece, weight, bias).detach().float().requires_grad_()
                loss = cross_entropy(logits, goal, smoothing)
            (d_logits,) = torch.autograd.grad(loss, logits)
            total += loss.detach()
            d_logits = d_logits.to(hidden.dtype)
            d_hidden[i : i + rows] = d_logits @ weight.to(hidden.dtype)
            d_weight += d_logits.T @ piece
            if d_bias is not None:
                d_bias += d_logits.sum(0)
        ctx.save_for_backward(d_hidden, d_weight, d_bias)
        ctx.dtypes = weight.dtype, bias.dtype if bias is not None else None
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (grad,) = grads
        d_hidden, d_weight, d_bias = ctx.saved_tensors
        d_bias = None if d_bias is None else (d_bias * grad).to(ctx.dtypes[1])
        return (d_hidden * grad).to(d_hidden.dtype), (d_weight * grad).to(ctx.dtypes[0]), d_bias, None, None, None
