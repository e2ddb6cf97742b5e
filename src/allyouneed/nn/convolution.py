"""Gated convolutions over a sequence, causal or centred, and attention from a decoder to an encoder of them
(Dauphin et al., 2017; Gehring et al., 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.config import BodyConfig, option
from allyouneed.nn.attention import attend
from allyouneed.nn.cache import Encoded, RecurrentState
from allyouneed.nn.init import ZERO, as_made, fan_in, init_weights
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace, record

SQRT_HALF = math.sqrt(0.5)  # (x + y) · sqrt(1/2) has the variance of x and y, if they are independent and alike


@dataclass(frozen=True)
class ConvConfig(BodyConfig):
    """The settings of every model made of gated convolutions."""

    width: int = option(128, "channels of the convolutions", low=1, high=10**6)
    embedding: int = option(0, "width of the embeddings (0: width)", low=0, high=10**6)
    layers: int = option(4, "blocks", low=1, high=1000)
    kernel: int = option(3, "width of each convolution, in positions", low=1, high=10**4)
    dropout: float = option(
        0.1, "dropout of embeddings, of each convolution's input and of the last vectors", low=0.0, high=1.0
    )


class GatedConvolution(nn.Module):
    """GLU(conv(x)) = a ⊙ σ(b) with [a_t; b_t] = W [x_{t-l}; …; x_{t+r}] + β, where l + r = kernel - 1.

    Causal: r = 0, so that nothing comes from the future. A sequence is padded with zeros at its ends. The convolution
    is a linear layer over the window of neighbours; one step of decoding is the same product with one window.
    """

    def __init__(self, width: int, kernel: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.kernel = kernel
        self.before = kernel - 1 if causal else (kernel - 1) // 2
        self.dropout = nn.Dropout(dropout)
        self.conv = nn.Linear(kernel * width, 2 * width)

    def forward(
        self,
        x: Tensor,
        *,
        real: Tensor | None = None,
        past: Tensor | None = None,
        count: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """x (B, T, D) -> (B, T, D).

        `real` (B, T, 1) is False at padding, which a centred convolution must not see. `past` (B, kernel - 1, D) is
        what a causal one saw last; it is updated in place, where the first `count` (B,) positions of x are real.
        """
        x = self.dropout(x)
        if real is not None:
            x = x.masked_fill(~real, 0.0)
        if past is None:
            wide = F.pad(x, (0, 0, self.before, self.kernel - 1 - self.before))
        else:
            wide = torch.cat([past, x], dim=1)
            past.copy_(_newest(wide, count, self.kernel - 1))
        size = x.size(1)
        window = torch.cat([wide[:, i : i + size] for i in range(self.kernel)], dim=-1)  # (B, T, kernel * D)
        both = self.conv(window)  # (B, T, 2 * D)
        if trace is not None:
            trace.at(self).record("gates", both.chunk(2, dim=-1)[1].sigmoid()[:, :, None, None])
        return F.glu(both, dim=-1)


def _newest(wide: Tensor, count: Tensor | None, size: int) -> Tensor:
    """The last `size` positions of each row, which ends `count` positions after the first `size`."""
    if count is None:
        return wide[:, wide.size(1) - size :]
    at = count[:, None] + torch.arange(size, device=wide.device)
    return wide.gather(1, at[..., None].expand(-1, -1, wide.size(2)))


class ConvAttention(nn.Module):
    """c_i = Σ_j a_ij (z_j + e_j) · sqrt(1/2) with a_ij = softmax_j(d_i · z_j / sqrt(E)) and d_i = W h_i + b + g_i.

    g is the target's embedding, e the source's, z the encoder's output; c is projected to the width of h. The paper
    does not divide by sqrt(E): its vectors are small at first. Ours are not, and the softmax would start saturated.
    """

    def __init__(self, width: int, embedding: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, embedding)
        self.out = nn.Linear(embedding, width)

    def forward(self, h: Tensor, g: Tensor, source: Encoded, trace: Trace | None = None) -> Tensor:
        """h (B, T, D), g (B, T, E) -> (B, T, D); a source may serve several rows, the beams of its sentence."""
        d = self.into(h) + g
        k, v, mask = source["keys"][:, None], source["values"][:, None], Mask(source["real"][:, None, None])
        q = d.reshape(len(k), 1, -1, d.size(-1))  # one head
        return self.out(attend(q, k, v, mask, trace=trace and trace.at(self)).reshape(d.shape))


class ConvBlock(nn.Module):
    """y = (x + h) · sqrt(1/2) with h = GLU(conv(norm(x))); in a decoder with a source, h is first replaced by
    (h + attention(h)) · sqrt(1/2). The norm replaces the weight normalisation of the paper."""

    def __init__(self, config: ConvConfig, *, causal: bool, cross: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.gated = GatedConvolution(config.width, config.kernel, causal=causal, dropout=config.dropout)
        self.cross = ConvAttention(config.width, config.embedding or config.width) if cross else None

    def forward(
        self,
        x: Tensor,
        g: Tensor,
        *,
        real: Tensor | None = None,
        past: Tensor | None = None,
        count: Tensor | None = None,
        source: Encoded | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """x (B, T, D) and its embeddings g (B, T, E) -> (B, T, D)"""
        h = self.gated(self.norm(x), real=real, past=past, count=count, trace=trace)
        if self.cross is not None and source is not None:
            h = (h + self.cross(h, g, source, trace)) * SQRT_HALF
        y = (x + h) * SQRT_HALF
        record(trace, self, "layers", y)
        return y


class ConvStack(nn.Module):
    """From embeddings to channels, L blocks, a last norm, and back to embeddings. An encoder, a decoder, or the body of
    a language model."""

    def __init__(self, config: ConvConfig, layers: int, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.config = config
        embedding = config.embedding or config.width
        self.into = nn.Linear(embedding, config.width)
        self.blocks = nn.ModuleList(ConvBlock(config, causal=causal, cross=cross) for _ in range(layers))
        self.norm = nn.LayerNorm(config.width)
        self.out = nn.Linear(config.width, embedding)
        # Outputs have the variance of the inputs: the gate makes it smaller, dropout larger.
        init_weights(self, {"*norm*": as_made, "*.weight": fan_in(), "*.bias": ZERO})
        init_weights(self, {"*.conv.weight": fan_in(4 * (1 - config.dropout))})

    def forward(
        self,
        e: Tensor,
        *,
        real: Tensor | None = None,
        source: Encoded | None = None,
        state: RecurrentState | None = None,
        count: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """e (B, T, E) -> (B, T, E). `real` (B, T) is False at padding. With a state, e are the next tokens of each row,
        the first `count` (B,) of them real; the source is then that of the state."""
        x, real = self.into(e), None if real is None else real[..., None]
        past = None if state is None else state.parts["past"]  # (B, L, kernel - 1, D)
        source = source if state is None else state.source
        for i, block in enumerate(self.blocks):
            before = None if past is None else past[:, i]
            x = block(x, e, real=real, past=before, count=count, source=source, trace=trace)
        if state is not None:
            state.advance(x.size(1) if count is None else count)
        return self.out(self.norm(x))

    def empty(self, rows: int, source: Encoded | None = None) -> RecurrentState:
        """A state of rows that have read nothing: what each layer sees before the first position are zeros."""
        shape = (rows, len(self.blocks), self.config.kernel - 1, self.config.width)
        return RecurrentState({"past": self.into.weight.new_zeros(shape)}, source=source)
