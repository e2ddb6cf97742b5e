"""Beam search: the best few hypotheses of each sentence, side by side, in tensors of fixed shape."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from allyouneed.decode.decoder import bucket
from allyouneed.decode.stepper import Stepper
from allyouneed.errors import UserError

NEVER = float("-inf")


class Keeper(Protocol):
    """Someone who watches the tree of hypotheses grow: a Trace."""

    def keep(self, name: str, value: Tensor) -> None: ...


@dataclass(frozen=True)
class Hypothesis:
    """An answer. score = logprob / penalty(n); logprob and n count the end token, `tokens` leaves it out."""

    tokens: list[int]
    score: float
    logprob: float
    finished: bool


def penalty(n: int, alpha: float, kind: str) -> float:
    """What a log-probability of n tokens is divided by: gnmt ((5 + n) / 6)^alpha, power n^alpha."""
    return float(((5 + n) / 6) ** alpha if kind == "gnmt" else n**alpha)


@torch.inference_mode()
def beam_search(
    stepper: Stepper,
    inputs: Sequence[Any],
    *,
    beam: int,
    max_new: int | Sequence[int],
    eos: int,
    alpha: float = 0.6,
    length_penalty: str = "gnmt",
    n_best: int = 1,
    trace: Keeper | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each input, best first; fewer only where no more have a probability.

    Each step extends the live hypotheses of a sentence by their 2·beam best tokens; ends among the first `beam`
    are finished, the best others live on. A sentence leaves when no live hypothesis can come among its n best any
    more, or at max_new, where the live ones compete as they are. A beam of one is greedy search: its first end is
    the end. Of equal scores the earlier hypothesis goes first, then the lower id.
    """
    most = [max_new] * len(inputs) if isinstance(max_new, int) else list(max_new)
    _check(beam, most, alpha, length_penalty, n_best, len(inputs))
    if not inputs:
        return []
    limit = stepper.limit
    logits, state = stepper.start(inputs, bucket(1, limit))
    sizes: list[int] = state.length.tolist()
    if limit is not None:
        most = [min(m, limit - size + 1) for m, size in zip(most, sizes)]
    longest, device = max(sizes), logits.device
    state = state.expand(beam)
    logits = logits.repeat_interleave(beam, dim=0)
    sentences = torch.arange(len(inputs), device=device)
    ends_at = torch.tensor(most, device=device).unsqueeze(1)  # (B, 1)
    at_most = torch.tensor([[penalty(m, alpha, length_penalty)] for m in most], device=device)  # (B, 1)
    live = torch.full((len(inputs), beam), NEVER, device=device)
    live[:, 0] = 0  # the others are copies of the first until they differ
    tokens = torch.zeros((len(inputs), beam, max(most)), dtype=torch.long, device=device)
    best = _Best.none(len(inputs), n_best, max(most), device)
    gone: list[tuple[Tensor, _Best]] = []
    for n in range(1, max(most) + 1):
        logprob, parent, token = _candidates(logits, live, 2 * beam)  # each (B, 2·beam)
        written = _along(tokens, parent)
        written[:, :, n - 1] = token
        ends = token == eos
        last = ends_at == n
        among_first = torch.arange(ends.shape[1], device=device) < beam
        enters = torch.where(ends, among_first, last)
        score = (logprob / penalty(n, alpha, length_penalty)).masked_fill(~enters, NEVER)
        best = best.merge(_Best(score, logprob, written, torch.full_like(token, n), ends))

        going = ends.int().sort(dim=1, stable=True).indices[:, :beam]
        live = logprob.masked_fill(ends, NEVER).gather(1, going)
        tokens, parent, token = _along(written, going), parent.gather(1, going), token.gather(1, going)
        if trace is not None:
            kept = {"sentences": sentences, "parents": parent, "tokens": token, "logprobs": live}
            for name, value in kept.items():
                trace.keep(f"beam.{name}", value)

        # A log-probability only falls, and counts most at the greatest length.
        hope = live[:, :1] / at_most
        bar = best.score[:, -1:]
        done = last | (hope <= bar) | ((bar > NEVER) if beam == 1 else False)
        flags: list[bool] = done[:, 0].tolist()  # the one wait of a step
        if any(flags):
            leave, stay = (_where(flags, flag, device) for flag in (True, False))
            gone.append((sentences[leave], best.select(leave)))
            if all(flags):
                break
            best, state = best.select(stay), state.select(stay)
            sentences, ends_at, at_most, live, tokens, parent, token = (
                x[stay] for x in (sentences, ends_at, at_most, live, tokens, parent, token)
            )
        if beam > 1:
            state.reorder((parent + beam * torch.arange(len(parent), device=device).unsqueeze(1)).flatten())
        if longest + n > state.room:
            state.grow(bucket(longest + n, limit))
        logits = stepper.step(token.flatten(), state)
    answers: list[list[Hypothesis]] = [[] for _ in inputs]
    for who, found in gone:
        for sentence, hypotheses in zip(who.tolist(), found.read()):
            answers[sentence] = hypotheses
    return answers


def _check(beam: int, most: list[int], alpha: float, kind: str, n_best: int, inputs: int) -> None:
    if beam < 1 or not 1 <= n_best <= beam:
        raise UserError(f"beam = {beam}, n_best = {n_best}: the beam is at least 1, n_best between 1 and the beam")
    if not 0 <= alpha <= 10:
        raise UserError(f"alpha = {alpha}: the strength of the length penalty is between 0 (none) and 10")
    if kind not in ("gnmt", "power"):
        raise UserError(f"length_penalty = '{kind}': it is 'gnmt' or 'power'")
    if len(most) != inputs or any(m < 1 for m in most):
        raise UserError(f"max_new = {most}: one number of at least 1, or one for each of the {inputs} inputs")


def _candidates(logits: Tensor, live: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """The best continuations of each sentence: their log-probability, the hypothesis they continue, the token."""
    vocab = logits.shape[1]
    cost = logits.float().log_softmax(-1).add_(live.view(-1, 1)).abs_().view(len(live), -1)  # (B, beam·V)
    # topk leaves the order of equals open; whole numbers, the bits of the cost above and the index below, have none.
    index = torch.arange(cost.shape[1], device=cost.device)
    key = torch.add(index, cost.view(torch.int32), alpha=2**32)
    index = key.topk(min(count, cost.shape[1]), largest=False).indices
    # Where a model forbids every token, softmax answers NaN, which sorts last; the answer is: never.
    logprob = 0 - cost.gather(1, index).nan_to_num(nan=-NEVER, posinf=-NEVER)
    return logprob, index // vocab, index % vocab


def _along(tokens: Tensor, rows: Tensor) -> Tensor:
    """(B, N, T) by (B, M) -> (B, M, T): the histories of the chosen."""
    return tokens.gather(1, rows.unsqueeze(2).expand(-1, -1, tokens.shape[2]))


def _where(flags: list[bool], flag: bool, device: torch.device) -> Tensor:
    rows = torch.tensor([i for i, f in enumerate(flags) if f == flag], dtype=torch.long)
    return rows.to(device, non_blocking=True)


@dataclass
class _Best:
    """Hypotheses of each sentence that compete for the answer, best first; score -inf where there is none."""

    score: Tensor  # (B, N)
    logprob: Tensor
    tokens: Tensor  # (B, N, T), the end token included
    length: Tensor
    finished: Tensor

    @staticmethod
    def none(sentences: int, n: int, length: int, device: torch.device) -> _Best:
        never = torch.full((sentences, n), NEVER, device=device)
        tokens = torch.zeros((sentences, n, length), dtype=torch.long, device=device)
        return _Best(never, never, tokens, tokens[:, :, 0], torch.zeros_like(never, dtype=torch.bool))

    def merge(self, other: _Best) -> _Best:
        """The best of both, as many as before; of equals those that were here."""
        n = self.score.shape[1]
        both = [torch.cat(pair, dim=1) for pair in zip(self.columns(), other.columns())]
        order = both[0].sort(dim=1, descending=True, stable=True).indices[:, :n]
        return _Best(*(_along(x, order) if x.dim() == 3 else x.gather(1, order) for x in both))

    def select(self, sentences: Tensor) -> _Best:
        return _Best(*(x[sentences] for x in self.columns()))

    def columns(self) -> list[Tensor]:
        return [self.score, self.logprob, self.tokens, self.length, self.finished]

    def read(self) -> list[list[Hypothesis]]:
        """To the host, a list a sentence."""
        sentences = zip(*(x.tolist() for x in self.columns()))
        return [
            [
                Hypothesis(tokens[: length - finished], score, logprob, finished)
                for score, logprob, tokens, length, finished in zip(*sentence)
                if score > NEVER
            ]
            for sentence in sentences
        ]
