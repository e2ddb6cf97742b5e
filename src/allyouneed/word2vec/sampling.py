"""The random choices of word2vec: subsampling, the window of each word, and negative samples.

Every draw is a function of a key and a position, not of a state. So a run can stop anywhere and resume, threads can
draw in any order, and the compiled kernel (negative.c) draws the same negative samples.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.randomness import draw, make_key, shifted

ONE = 1 << 31  # the probability 1 as an integer: a draw has 31 bits
ALWAYS = ONE - 1  # the threshold that every draw passes
POWER = 0.75  # of the counts in the noise distribution


class SampledText(NamedTuple):
    """The N words that subsampling has left, in order, with `window` empty positions (line -1) before and after."""

    words: Tensor  # (N + 2 window,)
    lines: Tensor  # (N + 2 window,) the line number of each word: neighbours are on one line
    radii: Tensor  # (N,) how many neighbours each word has on each side, at most `window`

    @property
    def window(self) -> int:
        return (self.words.numel() - self.radii.numel()) // 2


def keep_thresholds(counts: Tensor, sample: float) -> Tensor:
    """Subsampling: a word that is the share f of the text stays with probability p = (sqrt(f/t) + 1) · t/f, at most
    1, where t = `sample`; with t = 0 every word stays. Returns thresholds (V,): a word stays if its draw is not
    above its threshold. A word with the count 0 never stays."""
    share = counts.double() / counts.double().sum().clamp(min=1)
    p = ((share / sample).sqrt() + 1) * sample / share if sample else torch.ones_like(share)
    p = torch.where(counts > 0, p.clamp(max=1), 0)
    return (p * ONE).round().long().sub(1).int()


def alias_table(counts: Tensor) -> Tensor:
    """The noise distribution p(w) ∝ count(w)^0.75 as an alias table (Walker, 1977). Each of the V columns is equally
    likely; a draw up to the column's threshold gives the word of the column, a larger one gives its alias.
    Returns (V, 2): thresholds and aliases."""
    weights = counts.double() ** POWER
    heights = (weights / weights.sum() * len(counts)).tolist()
    aliases = list(range(len(heights)))
    # The lowest columns come first. Rounding errors then leave only columns that are almost full.
    low = sorted((i for i, height in enumerate(heights) if height < 1), key=heights.__getitem__, reverse=True)
    high = [i for i, height in enumerate(heights) if height >= 1]
    while low and high:
        short, tall = low.pop(), high[-1]
        aliases[short] = tall  # the rest of the short column goes to the tall one's word
        heights[tall] -= 1 - heights[short]
        if heights[tall] < 1:
            low.append(high.pop())
    thresholds = (torch.tensor(heights).double().clamp(max=1) * ONE).round().long() - 1
    return torch.stack([thresholds, torch.tensor(aliases)], dim=1).int()


def draw_negatives(table: Tensor, key: int, positions: Tensor) -> Tensor:
    """One word of the noise distribution for each position."""
    bits = draw(key, positions)
    column = (shifted(bits, 32) * len(table)) >> 32
    threshold, alias = table[column].long().unbind(-1)
    return torch.where((bits & ALWAYS) <= threshold, column, alias)


def sample_text(tokens: Tensor, thresholds: Tensor, window: int, key: int) -> SampledText:
    """Subsample a text, and draw the radius of each word's window. In `tokens`, -1 ends a line."""
    bits = draw(make_key(key, 0), torch.arange(len(tokens), device=tokens.device))
    stay = ((bits & ALWAYS) <= thresholds[tokens.clamp(min=0).long()]) & (tokens >= 0)
    words, lines = tokens[stay], (tokens < 0).cumsum(0, dtype=torch.int32)[stay]
    radii = draw_radii(len(words), window, make_key(key, 1), words.device)
    edge = (window, window)
    return SampledText(F.pad(words, edge), F.pad(lines, edge, value=-1), radii)


def draw_radii(count: int, window: int, key: int, device: torch.device) -> Tensor:
    """How many neighbours each of `count` words has on each side, 1 … window with equal probability. So the nearer a
    neighbour, the more often it is used."""
    bits = draw(key, torch.arange(count, device=device))
    return (1 + shifted(bits, 33) % window).int()
