"""The next token of each row: greedy or sampled. It depends on nothing but the row's own logits and settings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.randomness import GOLDEN, draw, mix, shifted, signed

FINE = 24  # bits of a uniform number: as many as float32 holds exactly
WHOLE = 38  # a probability of 1 is 2^38, so that a product of both fits into 63 bits
NEVER = float("-inf")  # the log-probability of the impossible
CHUNK = 128  # tokens of the vocabulary of which the likeliest stands for all, until it is among the best

NOT_A_NUMBER = (
    "the model's output is not a number (NaN): its weights are damaged or its training diverged; "
    "use another checkpoint, or train again with a smaller train.lr"
)
NO_TOKEN = "the model gives every next token the probability 0, so there is no answer: its weights are damaged"


def uniform(seed: Tensor, step: Tensor) -> Tensor:
    """A number in [0, 1) for each row, a function of (seed, step) alone: (B,), (B,) int64 -> (B,) float32."""
    bits = draw(mix(seed + signed(GOLDEN)), step + 1)
    return shifted(bits, 64 - FINE).float() / 2**FINE


def greedy(logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most likely token of each row, the lowest id of equals, and its log-probability: (B, V) -> (B,), (B,)."""
    logits = logits.float()
    if logits.device.type == "cpu":  # where NumPy finds the largest one much faster
        tokens = torch.from_numpy(logits.numpy().argmax(-1))
        best = logits.gather(1, tokens.unsqueeze(1)).squeeze(1)
    else:
        best, tokens = logits.max(-1)
    return tokens, _logprobs(logits, best, tokens)


def choose(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, u: Tensor, cut: bool = True, most: int = 0
) -> tuple[Tensor, Tensor]:
    """Sample a token for each row of logits (B, V) with the row's own settings, all (B,).

    Temperature 0 is greedy. top_k leaves the k most likely tokens (0: all), then top_p the smallest set of them that
    has this share of their probability. The token is the first one, in the order of ids, at which the cumulative
    distribution of what is left exceeds u. The log-probability is the model's own, before temperature and cuts.
    `cut=False` says that no row has a top_k or top_p, which saves sorting; `most` > 0 that every row that is sampled
    has a top_k, and none a larger one, which saves sorting all but these tokens.
    """
    logits = logits.float()
    best = logits.amax(-1)
    scaled = (logits - best.unsqueeze(1)) / temperature.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(1)
    # Integers: their sums are exact in any order, so that every batch and every device draws the same.
    share, shown, ids = scaled.softmax(-1), logits, None
    if most:
        ids, real = _likeliest(logits, top_k.unsqueeze(1), min(most, logits.shape[1]))
        share, shown = share.gather(1, ids) * real, logits.gather(1, ids).masked_fill(~real, NEVER)
    weight = (share * 2**WHOLE).long()  # (B, V), or (B, most)
    if cut:
        weight = _cut(shown, weight, top_k.unsqueeze(1), top_p.unsqueeze(1))
    passed = weight.cumsum(-1)
    # Rows that nobody reads may hold anything; the clamp keeps their ids inside the vocabulary.
    sampled = (passed <= _part(u.unsqueeze(1), passed[:, -1:])).sum(-1).clamp(max=weight.shape[1] - 1)
    sampled = sampled if ids is None else ids.gather(1, sampled.unsqueeze(1)).squeeze(1)
    tokens = torch.where(temperature > 0, sampled, logits.argmax(-1))
    return tokens, _logprobs(logits, best, tokens)


def _likeliest(logits: Tensor, top_k: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The ids (B, most) of the top_k (B, 1) likeliest tokens, in their order, of equals the lower ones; and which of
    these places are taken."""
    (rows, vocab), device = logits.shape, logits.device
    chunks = -(-vocab // CHUNK)
    logits = F.pad(logits, (0, chunks * CHUNK - vocab), value=NEVER).unflatten(1, (chunks, CHUNK))
    ids = torch.arange(chunks * CHUNK, device=device).view(1, chunks, CHUNK).expand(rows, -1, -1)
    if most < chunks:  # they are in the chunks whose likeliest tokens are the likeliest
        best = logits.amax(2).sort(dim=1, descending=True, stable=True).indices[:, :most].sort(dim=1).values
        logits, ids = (x.gather(1, best.unsqueeze(2).expand(-1, -1, CHUNK)) for x in (logits, ids))
    last = logits.flatten(1).topk(most).values.gather(1, (top_k - 1).clamp(0, most - 1)).unsqueeze(2)
    above, equal = logits > last, (logits == last) & (ids < vocab)
    taken = above | (equal & (_counted(equal) <= top_k.unsqueeze(2) - above.sum((1, 2), keepdim=True)))
    place = torch.where(taken, _counted(taken) - 1, most).flatten(1)
    found = ids.new_zeros(rows, most + 1).scatter(1, place, ids.flatten(1))[:, :most]
    return found, torch.arange(most, device=device) < taken.sum((1, 2)).unsqueeze(1)


def _counted(yes: Tensor) -> Tensor:
    """How many there are up to each place: (B, C, N) -> (B, C, N)"""
    inside = yes.cumsum(2)
    return inside + (inside[..., -1].cumsum(1) - inside[..., -1]).unsqueeze(2)


def _cut(logits: Tensor, weight: Tensor, top_k: Tensor, top_p: Tensor) -> Tensor:
    """The weights, with zeros for the tokens that top_k and top_p drop; of equals the lower ids stay."""
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    rank = torch.arange(logits.shape[1], device=logits.device)
    ranked = weight.gather(1, order).masked_fill((rank >= top_k) & (top_k > 0), 0)
    total = ranked.cumsum(-1)
    enough = _part(top_p, total[:, -1:]).clamp(min=1)  # at least the first stays
    ranked = ranked.masked_fill(total - ranked >= enough, 0)
    return torch.zeros_like(weight).scatter(1, order, ranked)


def _part(part: Tensor, whole: Tensor) -> Tensor:
    """A part in [0, 1] of an integer, computed in integers."""
    return ((part * 2**FINE).long() * whole) >> FINE


def _logprobs(logits: Tensor, best: Tensor, tokens: Tensor) -> Tensor:
    """Of the tokens (B,), where `best` (B,) is the largest logit. NaN if any logit is NaN or inf; -inf if all are -inf,
    that is, if every token is forbidden."""
    logprobs = logits.log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    return logprobs.masked_fill(best == NEVER, NEVER)
