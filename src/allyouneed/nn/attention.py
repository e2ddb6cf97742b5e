"""Attention(Q, K, V) = softmax(Q K^T / sqrt(d_k)) V, and the multi-head layer around it (Vaswani et al., 2017)."""

from __future__ import annotations

from typing import Any, Literal, overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.nn.cache import LayerCache
from allyouneed.nn.masks import Mask, Prepared
from allyouneed.nn.positions import rotate
from allyouneed.nn.scores import Score, named_score
from allyouneed.nn.trace import Trace

varlen_attn: Any = None  # of torch; its import takes seconds, so it is there only where a training is compiled

Weighted = tuple[Tensor, Tensor]  # the output, and the weights (B, H, Tq, Tk)


@overload
def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask = ..., *, weights: Literal[True], **how: Any) -> Weighted: ...
@overload
def attend(q: Tensor, k: Tensor, v: Tensor, mask: Mask = ..., **how: Any) -> Tensor: ...
def attend(  # type: ignore[misc]
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Mask = Mask(),
    *,
    score: str | Score = "scaled_dot",
    dropout: float = 0.0,
    weights: bool = False,
    trace: Trace | None = None,
) -> Tensor | Weighted:
    """softmax(score(Q, K)) V: the one place where attention happens.

    q (B, H, Tq, K), k (B, Hkv, Tk, K), v (B, Hkv, Tk, any width); H is a multiple of Hkv. If the weights
    (B, H, Tq, Tk) or another score than the scaled dot product are asked for, the formula below runs, otherwise the
    fused kernel; a test checks that they agree. A query that may see nothing gives zeros.
    """
    if trace is not None:
        for name, value in (("queries", q), ("keys", k), ("values", v)):
            trace.record(name, value)
    if k.size(1) != q.size(1):  # grouped heads: each key and value serves H / Hkv queries
        if q.size(1) % k.size(1):
            raise ValueError(f"{q.size(1)} heads of queries cannot share {k.size(1)} of keys and values equally")
        k, v = (x.repeat_interleave(q.size(1) // x.size(1), dim=1) for x in (k, v))
    if weights or score != "scaled_dot" or (trace is not None and trace.wants("scores", "weights")):
        out, w = _formula(q, k, v, mask.tensor(q.size(-2), k.size(-2), q.device), score, dropout, trace)
    elif mask.lengths is not None and not dropout and _packs(q, v):
        out = _packed(q, k, v, mask.lengths)
    else:
        mask = mask.prepare(q.size(-2), k.size(-2), q.device)
        allowed = mask.bias if isinstance(mask, Prepared) and mask.bias is not None else mask.allowed
        out = F.scaled_dot_product_attention(q, k, v, allowed, dropout_p=dropout, is_causal=mask.causal)
        out = torch.where(mask.sees, out, 0.0) if isinstance(mask, Prepared) and mask.sees is not None else out
    if trace is not None:
        if off := trace.off.get(trace.path):
            out = out.index_fill(1, torch.tensor(off, device=out.device), 0.0)
        trace.record("heads", out)
    return (out, w) if weights else out


def _packs(q: Tensor, v: Tensor) -> bool:
    """Whether rows are told apart by their lengths: in compiled training with 16 bits on a GPU, where the kernels that
    take a mask are slower."""
    if varlen_attn is None or not (q.is_cuda and torch.compiler.is_compiling() and torch.is_grad_enabled()):
        return False
    return _kernel_dtype(q).itemsize == 2 and q.size(3) == v.size(3) <= 256 and q.size(3) % 8 == 0


def _packed(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """The rows one after another, cut behind each row of queries, and of keys also behind those that are real; what is
    cut off has no queries."""
    rows, queries, keys = torch.arange(len(lengths), device=q.device), q.size(2), k.size(2)
    cuts = (torch.stack([n * rows, n * rows + own], 1).flatten() for n, own in ((queries, queries), (keys, lengths)))
    at = (F.pad(some, (0, 1), value=len(lengths) * n).int() for some, n in zip(cuts, (queries, keys)))
    flat = (x.to(_kernel_dtype(q)).transpose(1, 2).flatten(0, 1) for x in (q, k, v))
    z: Tensor = varlen_attn(*flat, *at, queries, keys)
    return z.unflatten(0, (-1, queries)).transpose(1, 2)


def _kernel_dtype(q: Tensor) -> torch.dtype:
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else q.dtype


def _formula(
    q: Tensor, k: Tensor, v: Tensor, allowed: Tensor | None, score: str | Score, dropout: float, trace: Trace | None
) -> tuple[Tensor, Tensor]:
    s = (named_score(score) if isinstance(score, str) else score)(q, k).float()  # (B, H, Tq, Tk)
    if allowed is None:
        w = s.softmax(-1)
    else:
        w = s.masked_fill(~allowed, torch.finfo(s.dtype).min).softmax(-1).masked_fill(~allowed, 0.0)
    w = w.to(v.dtype)
    if trace is not None:
        trace.record("scores", s if allowed is None else s.masked_fill(~allowed, -torch.inf))
        trace.record("weights", w)
    return F.dropout(w, dropout) @ v, w


def self_attend(x: Tensor, mask: Mask = Mask()) -> Tensor:
    """y_i = sum_j softmax_j(x_i · x_j) x_j, (B, T, D): self-attention without learned parameters."""
    return attend(x[:, None], x[:, None], x[:, None], mask, score="dot")[:, 0]


class Attention(nn.Module):
    """MultiHead(X, Y) = [head_1; …; head_H] W^O, head_i = Attention(X W_i^Q, Y W_i^K, Y W_i^V).

    Self-attention if Y is X, cross-attention if Y is the memory, the output of an encoder. `kv_heads` < `heads` shares
    keys and values between groups of queries. score="parameter_free" has no matrices: every head works on its slice of
    X itself.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int = 0,
        head_width: int = 0,
        value_width: int = 0,
        cross: bool = False,
        bias: bool = True,
        dropout: float = 0.0,
        score: str = "scaled_dot",
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_width = head_width or width // heads
        self.value_width = value_width or self.head_width
        self.cross, self.dropout = cross, dropout
        self.parameter_free = score == "parameter_free"
        self.score = "dot" if self.parameter_free else score
        q, k, v = heads * self.head_width, self.kv_heads * self.head_width, self.kv_heads * self.value_width
        self.sizes = (q, k, v)
        if self.parameter_free:
            return
        if cross:
            self.q = nn.Linear(width, q, bias=bias)
            self.kv = nn.Linear(width, k + v, bias=bias)
        else:
            self.qkv = nn.Linear(width, q + k + v, bias=bias)  # three products in one
        self.out = nn.Linear(heads * self.value_width, width, bias=bias)

    def keys_values(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of a memory (B, S, D), once for all queries to come: each (B, Hkv, S, K)."""
        k, v = (memory, memory) if self.parameter_free else self.kv(memory).split(self.sizes[1:], dim=-1)
        return _split(k, self.kv_heads), _split(v, self.kv_heads)

    def forward(
        self,
        x: Tensor,
        mask: Mask = Mask(),
        *,
        memory: Tensor | tuple[Tensor, Tensor] | None = None,
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: LayerCache | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """x (B, Tq, D) attends to itself, to the tokens before it in the `cache`, or to a `memory` (B, S, D) or its
        keys and values."""
        if self.cross:
            if memory is None:
                raise ValueError("cross-attention needs a memory")
            q = _split(x if self.parameter_free else self.q(x), self.heads)  # (B, H, Tq, K)
            k, v = self.keys_values(memory) if isinstance(memory, Tensor) else memory
        else:
            q, k, v = (x, x, x) if self.parameter_free else self.qkv(x).split(self.sizes, dim=-1)
            q, k, v = _split(q, self.heads), _split(k, self.kv_heads), _split(v, self.kv_heads)  # (B, H or Hkv, T, K)
            if rotary is not None:
                q, k = rotate(q, rotary), rotate(k, rotary)
            if cache is not None:
                k, v = cache.write(k, v)
        beams = q.size(0) // k.size(0)  # one memory serves all beams of its sentence
        if beams > 1:
            q = q.unflatten(0, (-1, beams)).transpose(1, 2).flatten(2, 3)  # (B, H, beams * Tq, K)
        inner = trace and trace.at(self)
        dropout = self.dropout if self.training else 0.0
        z = attend(q, k, v, mask, score=self.score, dropout=dropout, trace=inner)  # (B, H, Tq, K)
        if beams > 1:
            z = z.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1)
        z = z.transpose(1, 2).flatten(2)  # (B, Tq, H * K)
        return z if self.parameter_free else self.out(z)


def _split(x: Tensor, heads: int) -> Tensor:
    """(B, T, H * K) -> (B, H, T, K)"""
    return x.view(x.size(0), x.size(1), heads, -1).transpose(1, 2)
