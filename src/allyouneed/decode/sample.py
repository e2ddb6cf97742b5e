"""The next token of each row: greedy or drawn. A row's draw depends on nothing but its own logits and settings."""

from __future__ import annotations

import torch
from torch import Tensor

from allyouneed.randomness import GOLDEN, draw, mix, shifted, signed

FINE = 24  # bits of a uniform number: what float32 holds exactly
WHOLE = 38  # a probability of one is 2^38, so that FINE + WHOLE bits, and a little more, fit into 63


def uniform(seed: Tensor, step: Tensor) -> Tensor:
    """A number in [0, 1) for each row, a function of (seed, step) alone: (B,), (B,) int64 -> (B,) float32."""
    bits = draw(mix(seed + signed(GOLDEN)), step + 1)
    return shifted(bits, 64 - FINE).float() / 2**FINE


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely token of each row, the lowest id of equals, and its log-probability: (B, V) -> (B,), (B,)."""
    logits = logits.float()
    tokens = logits.max(-1).indices  # argmax takes three times as long on a CPU
    return tokens, _logprobs(logits, tokens)


def choose(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, u: Tensor, cut: bool = True
) -> tuple[Tensor, Tensor]:
    """Draw a token for each row of logits (B, V) by its own settings, all (B,).

    Temperature 0 is greedy; top_k keeps the k most likely (0: all), then top_p the smallest set that has so much
    of their probability. The token is where the distribution function of what is left, in the order of the ids,
    passes u. The log-probability is that of the model itself, before temperature and cuts. `cut=False` says that
    no row has a top_k or top_p, which saves sorting.
    """
    logits = logits.float()
    heat = temperature.unsqueeze(1)
    scaled = (logits - logits.amax(-1, keepdim=True)) / heat.clamp(min=torch.finfo(torch.float32).tiny)
    # Whole numbers: their sums are exact in any order, so every batch and every device draws the same.
    weight = (scaled.softmax(-1) * 2**WHOLE).long()  # (B, V)
    if cut:
        weight = _cut(logits, weight, top_k.unsqueeze(1), top_p.unsqueeze(1))
    passed = weight.cumsum(-1)
    drawn = (passed <= _part(u.unsqueeze(1), passed[:, -1:])).sum(-1)
    # The clamp is for rows nobody reads: whatever stands in them, an id stays an id.
    drawn = drawn.clamp(max=logits.shape[1] - 1)
    tokens = torch.where(temperature > 0, drawn, logits.argmax(-1))
    return tokens, _logprobs(logits, tokens)


def _cut(logits: Tensor, weight: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The weights with zeros where top_k and top_p drop a token; of equals the lower ids stay."""
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    rank = torch.arange(logits.shape[1], device=logits.device)
    ranked = weight.gather(1, order).masked_fill((rank >= top_k) & (top_k > 0), 0)
    total = ranked.cumsum(-1)
    enough = _part(top_p, total[:, -1:]).clamp(min=1)  # at least the first stays
    ranked = ranked.masked_fill(total - ranked >= enough, 0)
    return torch.zeros_like(weight).scatter(1, order, ranked)


def _part(part: Tensor, whole: Tensor) -> Tensor:
    """A part in [0, 1] of a whole number, in whole numbers."""
    return ((part * 2**FINE).long() * whole) >> FINE


def _logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    return logits.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
