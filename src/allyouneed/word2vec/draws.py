"""What word2vec leaves to chance: which words are read, how far a word looks, and against which others it is held.

A draw is a function of a key and a place, never of a state, so that a run can stop anywhere, parts can be drawn on
several cores in any order, and the compiled kernel (negative.c) draws what these lines draw.
"""

from __future__ import annotations

import torch
from torch import Tensor

from allyouneed.randomness import draw, shifted

ONE = 1 << 31  # chances are whole numbers below it
ALWAYS = ONE - 1
POWER = 0.75


def keep_chances(counts: Tensor, sample: float) -> Tensor:
    """How likely a word is read, p = (sqrt(f/t) + 1) · t/f for a word that is the part f of the text, at most 1: the
    most frequent words are read least. As thresholds (V,) for a draw of 31 bits: read where draw <= threshold."""
    part = counts.double() / counts.sum().clamp(min=1)
    chance = ((part / sample).sqrt() + 1) * sample / part if sample else torch.ones_like(part)
    chance = torch.where(counts > 0, chance.clamp(max=1), 0)
    return (chance * ONE).round().long().sub(1).int()


def noise_table(counts: Tensor) -> Tensor:
    """The noise, p(w) ∝ count(w)^0.75, as an alias table (Walker, 1977) (V, 2): each of the V equally likely columns
    holds its own word up to a threshold, and from there on another one."""
    weights = counts.double() ** POWER
    heights = (weights / weights.sum() * len(counts)).tolist()
    aliases = list(range(len(heights)))
    # The emptiest come first, so that rounding errors leave over only columns that are all but full.
    low = sorted((i for i, height in enumerate(heights) if height < 1), key=heights.__getitem__, reverse=True)
    high = [i for i, height in enumerate(heights) if height >= 1]
    while low and high:
        short, tall = low.pop(), high[-1]
        aliases[short] = tall  # the tall one fills the short one's column
        heights[tall] -= 1 - heights[short]
        if heights[tall] < 1:
            low.append(high.pop())
    thresholds = (torch.tensor(heights).double().clamp(max=1) * ONE).round().long() - 1
    return torch.stack([thresholds, torch.tensor(aliases)], dim=1).int()


def noise(table: Tensor, key: int, places: Tensor) -> Tensor:
    """A word of the noise for each place."""
    bits = draw(key, places)
    column = (shifted(bits, 32) * len(table)) >> 32
    threshold, alias = table[column].long().unbind(-1)
    return torch.where((bits & ALWAYS) <= threshold, column, alias)


def thin(tokens: Tensor, chances: Tensor, key: int) -> tuple[Tensor, Tensor]:
    """The words (N,) of a text that are read, and the line each stands on. In `tokens`, -1 is the end of a line."""
    places = torch.arange(len(tokens), device=tokens.device)
    read = (draw(key, places) & ALWAYS) <= chances[tokens.clamp(min=0).long()]
    read &= tokens >= 0
    return tokens[read], (tokens < 0).cumsum(0, dtype=torch.int32)[read]


def reaches(count: int, window: int, key: int, device: torch.device) -> Tensor:
    """How far each of `count` words looks to either side, 1 … window: the nearer a neighbour, the more often it is
    seen."""
    bits = draw(key, torch.arange(count, device=device))
    return (1 + shifted(bits, 33) % window).int()
