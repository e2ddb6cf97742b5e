"""Gated convolutions over a sequence, causal or centred, and the attention between two of them
(Dauphin et al., 2017; Gehring et al., 2017)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.nn.attention import attend
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace

HALF = math.sqrt(0.5)  # (x + y) · sqrt(1/2): the sum of two equals is no larger than they are


@dataclass(frozen=True)
class ConvConfig:
    """What every model made of gated convolutions can be asked for."""

    width: int = option(128, "channels of the convolutions", low=1, high=10**6)
    embedding: int = option(0, "width of the embeddings (0: width)", low=0, high=10**6)
    layers: int = option(4, "blocks", low=1, high=1000)
    kernel: int = option(3, "width of each convolution, in positions", low=1, high=10**4)
    dropout: float = option(
        0.1, "dropout of embeddings, of each convolution's input and of the last vectors", low=0.0, high=1.0
    )


@dataclass(frozen=True)
class Source:
    """What an encoder has made of a source, for every layer and step of a decoder."""

    z: Tensor  # (B, S, E): what is found there
    values: Tensor  # (B, S, E): (z + e) · sqrt(1/2), what is taken from there
    keep: Tensor  # (B, S) bool: what is no padding


class GatedConvolution(nn.Module):
    """GLU(conv(x)) = a ⊙ σ(b) with [a_t; b_t] = W [x_{t-l}; …; x_{t+r}] + β, where l + r = kernel - 1.

    Causal: r = 0, so that nothing comes from the future. Beyond the ends of a sequence there are zeros. The linear
    layer over the window of neighbours is the convolution; one step of decoding is the same product with one window.
    """

    def __init__(self, width: int, kernel: int, *, causal: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.kernel = kernel
        self.before = kernel - 1 if causal else (kernel - 1) // 2
        self.dropout = nn.Dropout(dropout)
        self.conv = nn.Linear(kernel * width, 2 * width)

    def forward(
        self, x: Tensor, *, keep: Tensor | None = None, past: Tensor | None = None, count: Tensor | None = None
    ) -> Tensor:
        """x (B, T, D) -> (B, T, D).

        `keep` (B, T, 1): padding that a centred convolution must not see. `past` (B, kernel - 1, D): what a causal one
        saw last, here and afterwards, when of x the first `count` (B,) are real.
        """
        x = self.dropout(x)
        if keep is not None:
            x = x.masked_fill(~keep, 0.0)
        if past is None:
            wide = F.pad(x, (0, 0, self.before, self.kernel - 1 - self.before))
        else:
            wide = torch.cat([past, x], dim=1)
            past.copy_(_last(wide, count, self.kernel - 1))
        size = x.size(1)
        window = torch.cat([wide[:, i : i + size] for i in range(self.kernel)], dim=-1)  # (B, T, kernel * D)
        return F.glu(self.conv(window), dim=-1)


def _last(wide: Tensor, count: Tensor | None, size: int) -> Tensor:
    """Of each row the last `size` positions before its end, which is `count` after the first `size`."""
    if count is None:
        return wide[:, wide.size(1) - size :]
    at = count[:, None] + torch.arange(size, device=wide.device)
    return wide.gather(1, at[..., None].expand(-1, -1, wide.size(2)))


class ConvAttention(nn.Module):
    """c_i = Σ_j a_ij (z_j + e_j) · sqrt(1/2) with a_ij = softmax_j(d_i · z_j / sqrt(E)) and d_i = W h_i + b + g_i.

    g is the target's embedding, e the source's, z what the encoder made of e; c comes back in the width of h. The paper
    does not divide by sqrt(E); its vectors are small at first, these are not, and the softmax would begin saturated.
    """

    def __init__(self, width: int, embedding: int) -> None:
        super().__init__()
        self.into = nn.Linear(width, embedding)
        self.out = nn.Linear(embedding, width)

    def forward(self, h: Tensor, g: Tensor, source: Source, trace: Trace | None = None) -> Tensor:
        """h (B, T, D), g (B, T, E) -> (B, T, D); a source may serve several rows, the beams of its sentence."""
        d = self.into(h) + g
        q = d.reshape(source.z.size(0), 1, -1, d.size(-1))  # one head
        k, v, mask = source.z[:, None], source.values[:, None], Mask(keep=source.keep[:, None, None])
        if trace is not None and trace.wants("weights"):
            c, weights = attend(q, k, v, mask, weights=True)
            trace.keep("weights", weights)
        else:
            c = attend(q, k, v, mask)
        return self.out(c.reshape(d.shape))


class ConvBlock(nn.Module):
    """y = (x + h) · sqrt(1/2) with h = GLU(conv(norm(x))); where there is a source, h becomes
    (h + attention(h)) · sqrt(1/2) on the way. The norm stands in for the paper's weight normalisation."""

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
        keep: Tensor | None = None,
        past: Tensor | None = None,
        count: Tensor | None = None,
        source: Source | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """x (B, T, D) and its embeddings g (B, T, E) -> (B, T, D)"""
        h = self.gated(self.norm(x), keep=keep, past=past, count=count)
        if self.cross is not None and source is not None:
            h = (h + self.cross(h, g, source, trace.at("cross") if trace is not None else None)) * HALF
        y = (x + h) * HALF
        if trace is not None:
            trace.keep("outputs", y)
        return y


class ConvStack(nn.Module):
    """From embeddings to channels, L blocks, a last norm, and back: an encoder, a decoder, a language model's body."""

    def __init__(self, config: ConvConfig, layers: int, *, causal: bool, cross: bool = False) -> None:
        super().__init__()
        self.config = config
        embedding = config.embedding or config.width
        self.into = nn.Linear(embedding, config.width)
        self.blocks = nn.ModuleList(ConvBlock(config, causal=causal, cross=cross) for _ in range(layers))
        self.norm = nn.LayerNorm(config.width)
        self.out = nn.Linear(config.width, embedding)
        self._initialise()

    def _initialise(self) -> None:
        """Normal, so that what comes out is as large as what came in: the gate halves, dropout enlarges."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=module.in_features**-0.5)
                nn.init.zeros_(module.bias)
        for module in self.modules():
            if isinstance(module, GatedConvolution):
                gain = 4 * (1 - self.config.dropout)
                nn.init.normal_(module.conv.weight, std=math.sqrt(gain / module.conv.in_features))

    def forward(
        self,
        e: Tensor,
        *,
        keep: Tensor | None = None,
        past: Tensor | None = None,
        count: Tensor | None = None,
        source: Source | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """e (B, T, E) -> (B, T, E). `keep` (B, T): what is no padding. `past` (B, L, kernel - 1, D), which moves on:
        what each layer saw last before e, of which the first `count` (B,) are real."""
        x = self.into(e)
        for i, block in enumerate(self.blocks):
            x = block(
                x,
                e,
                keep=keep[..., None] if keep is not None else None,
                past=past[:, i] if past is not None else None,
                count=count,
                source=source,
                trace=trace.at(i) if trace is not None else None,
            )
        return self.out(self.norm(x))

    @property
    def remembered(self) -> int:
        """Values a token that a backward pass needs: about the window, both halves of the gate, and four vectors more
        a block; twice as many where it looks at a source."""
        vectors = self.config.kernel + 6 + (self.config.kernel + 6 if self.blocks[0].cross is not None else 0)
        return len(self.blocks) * vectors * self.config.width

    def no_past(self, rows: int) -> Tensor:
        """Nothing before the first position: zeros."""
        weight = self.into.weight
        return weight.new_zeros(rows, len(self.blocks), self.config.kernel - 1, self.config.width)
