"""Losses as sums: the batch knows the counts, the trainer divides. Targets of IGNORE (padding) count for nothing."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

IGNORE = -100
# Above so many logits at once (0.5 GB in fp32, and as much again for their gradient) they are made piece by piece.
MOST_LOGITS = 1 << 27


def cross_entropy(logits: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
    """-sum_t [(1 - ε) log p(y_t) + ε/V sum_v log p(v)] over the targets (N,) that are not padding; logits (N, V)."""
    return F.cross_entropy(logits.float(), targets, reduction="sum", ignore_index=IGNORE, label_smoothing=smoothing)


def linear_cross_entropy(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    smoothing: float = 0.0,
    most_logits: int = MOST_LOGITS,
) -> Tensor:
    """cross_entropy(hidden W^T + b, targets) for hidden (..., D), W (V, D), without ever holding more than
    `most_logits` logits: large vocabularies are worked through in pieces, each with its gradient at once."""
    hidden, targets = hidden.flatten(0, -2), targets.flatten()
    if targets.numel() * weight.size(0) <= most_logits:
        return cross_entropy(F.linear(hidden, weight, bias), targets, smoothing)
    rows = max(1, most_logits // weight.size(0))
    if not torch.is_grad_enabled():
        pieces = zip(hidden.split(rows), targets.split(rows))
        return torch.stack([cross_entropy(F.linear(h, weight, bias), t, smoothing) for h, t in pieces]).sum()
    return _PiecewiseLoss.apply(hidden, weight, bias, targets, smoothing, rows)


class _PiecewiseLoss(torch.autograd.Function):
    """The gradients of a sum are known as soon as its piece is: d/dlogits = softmax - target. So the forward pass
    computes them, and the backward pass only scales."""

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
