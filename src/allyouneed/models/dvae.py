"""dVAE: an image becomes a grid of codes, and the codes an image again (Ramesh et al., 2021)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.errors import UserError
from allyouneed.models.base import SIZES, Model
from allyouneed.models.vit import PatchConfig, cut_patches
from allyouneed.nn.init import init_weights, uniform
from allyouneed.nn.trace import Trace, record

CODEBOOKS = ("grid", "gumbel")
MOST_CODES = 1 << 20


@dataclass(frozen=True)
class DVAEConfig(PatchConfig):
    """One code per patch."""

    digits: int = option(4, "a code has so many digits", low=1, high=20)
    levels: int = option(4, "a digit has so many values: there are levels ** digits codes", low=2, high=256)
    codebook: str = option("grid", "how a code is chosen: by rounding (grid), or drawn (gumbel)", choices=CODEBOOKS)
    width: int = option(64, "width of the encoder and of the decoder", low=1, high=10**6)
    layers: int = option(2, "blocks of the encoder, and of the decoder", low=1, high=1000)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.codes > MOST_CODES:
            raise UserError(
                f"model.levels = {self.levels} and model.digits = {self.digits} make {self.codes:,} codes; at most "
                f"{MOST_CODES:,} are possible: take fewer digits"
            )

    @property
    def codes(self) -> int:
        """The size of the codebook."""
        return self.levels**self.digits

    @property
    def tokens(self) -> int:
        """Codes of an image."""
        return self.grid**2


def join_patches(patches: Tensor, channels: int, patch: int) -> Tensor:
    """(B, N, C · P · P), row by row -> (B, C, H, W): undoes `cut_patches`."""
    side = math.isqrt(patches.size(1))
    x = patches.view(len(patches), side, side, channels, patch, patch)
    return x.permute(0, 3, 1, 4, 2, 5).reshape(len(patches), channels, side * patch, side * patch)


class Local(nn.Module):
    """x + W_2 gelu(W_1 norm(x)), where W_1 reads a square and the eight around it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.into = nn.LayerNorm(width), nn.Conv2d(width, width, 3, padding=1)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, G, G, D) -> (B, G, G, D)"""
        near = self.into(self.norm(x).permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return x + self.out(F.gelu(near))


def local_stack(config: DVAEConfig) -> nn.Sequential:
    blocks = (Local(config.width) for _ in range(config.layers))
    return nn.Sequential(*blocks, nn.LayerNorm(config.width))


class DVAE(Model):
    """codes = choose(Encoder(patches)), image = Decoder(codebook[codes])

    `grid`: the encoder gives a few numbers between -1 and 1, each is rounded to one of the levels, and these digits are
    the code (Mentzer et al., 2024). Rounding has no gradient: that of the decoder goes to the encoder as if nothing had
    been rounded. `gumbel`: the encoder gives the probability of each code; in training the decoder gets a mixture of
    the codebook, drawn from these, and its temperature falls until nearly one code is left.
    """

    Config = DVAEConfig
    tasks = ("compress",)
    compiles = True
    sizes = SIZES["dvae"]

    def __init__(self, config: DVAEConfig) -> None:
        super().__init__()
        self.config = c = config
        gumbel = c.codebook == "gumbel"
        self.into, self.encoder = nn.Linear(c.channels * c.patch**2, c.width), local_stack(c)
        self.choose = nn.Linear(c.width, c.codes if gumbel else c.digits)
        self.codebook = nn.Embedding(c.codes, c.digits) if gumbel else None
        self.unfold, self.decoder = nn.Linear(c.digits, c.width), local_stack(c)
        self.out = nn.Linear(c.width, c.channels * c.patch**2)
        init_weights(self, {"codebook.*": uniform(1)})

    def encode(self, pixels: Tensor, trace: Trace | None = None) -> Tensor:
        """(B, C, H, W), from 0 to 1 -> codes (B, N), row by row."""
        scores = self._scores(pixels, trace and trace.at(self))
        if self.codebook is not None:
            codes = scores.argmax(-1)
        else:
            digits = ((scores.float().tanh() + 1) / 2 * (self.config.levels - 1)).round().long()
            codes = (digits * self._powers(scores.device)).sum(-1)
        if trace is not None:
            trace.at(self).record("codes", self._square(codes))
        return codes

    def decode(self, codes: Tensor, trace: Trace | None = None) -> Tensor:
        """(B, N) -> pixels (B, C, H, W), about from 0 to 1."""
        trace = trace and trace.at(self)
        if self.codebook is not None:
            return self._to_pixels(self.codebook(codes), trace)
        levels = self.config.levels
        digits = codes[..., None] // self._powers(codes.device) % levels
        return self._to_pixels((digits * 2 / (levels - 1) - 1).to(self.unfold.weight.dtype), trace)

    def _powers(self, device: torch.device) -> Tensor:
        """(digits,): 1, levels, levels² …"""
        return self.config.levels ** torch.arange(self.config.digits, device=device)

    def _scores(self, pixels: Tensor, trace: Trace | None = None) -> Tensor:
        """(B, C, H, W) -> (B, N, digits), or (B, N, codes)"""
        x = self.into(cut_patches(pixels, self.config.patch).to(self.into.weight.dtype))
        record(trace, self.into, "embeddings", x)
        scores = self.choose(self._through(self.encoder, x, trace))
        record(trace, self.choose, "logits", scores)
        return scores

    def _to_pixels(self, vectors: Tensor, trace: Trace | None = None) -> Tensor:
        """(B, N, digits) -> (B, C, H, W)"""
        c, x = self.config, self.unfold(vectors)
        record(trace, self.unfold, "embeddings", x)
        return join_patches(self.out(self._through(self.decoder, x, trace)), c.channels, c.patch)

    def _through(self, blocks: nn.Sequential, x: Tensor, trace: Trace | None) -> Tensor:
        """(B, N, D) -> (B, N, D)"""
        x = self._square(x)
        for block in blocks:
            x = block(x)
            record(trace, block, "layers", x.flatten(1, 2))
        return x.flatten(1, 2)

    def _square(self, x: Tensor) -> Tensor:
        """(B, N, …) -> (B, G, G, …)"""
        return x.unflatten(1, (self.config.grid, self.config.grid))

    def loss(self, pixels: Tensor, temperature: Tensor | None = None) -> Tensor:
        """The squared errors of the pixels, summed. `temperature` is that of `gumbel`; None chooses codes."""
        scores = self._scores(pixels)
        if self.codebook is not None:
            logits = scores.float()
            if temperature is None:
                mixed = F.one_hot(logits.argmax(-1), logits.size(-1)).to(logits.dtype)
            else:
                noise = -torch.empty_like(logits).exponential_().log()
                mixed = ((logits + noise) / temperature).softmax(-1)
            vectors = mixed @ self.codebook.weight.float()
        else:
            exact, half = scores.float().tanh(), (self.config.levels - 1) / 2
            vectors = exact + (((exact + 1) * half).round() / half - 1 - exact).detach()
        return (self._to_pixels(vectors.to(scores.dtype)).float() - pixels).square().sum()

    def tables(self) -> list[nn.Embedding]:
        return []
