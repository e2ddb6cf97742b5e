"""Beam search: the best few hypotheses of each sentence, in tensors of fixed shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from allyouneed.decode.decoder import bucket
from allyouneed.decode.sample import NEVER, NO_TOKEN, NOT_A_NUMBER
from allyouneed.decode.stepper import Stepper
from allyouneed.errors import UserError


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
    record: Callable[[str, Tensor], None] | None = None,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each input, best first; fewer if no more have a probability above 0.

    A beam of 1 is greedy search: its first end is the end. Of equal scores the earlier hypothesis goes first, then the
    lower id. A UserError if the model gives NaN, or if an input has no hypothesis with a probability above 0. `record`
    gets the live hypotheses of each step by name; a Trace has such a method.
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
    state, logits, device = state.expand(beam), logits.repeat_interleave(beam, dim=0), logits.device
    number = torch.arange(len(inputs), device=device)  # of the sentences that are still searched
    ends_at = torch.tensor(most, device=device).unsqueeze(1)  # (B, 1)
    at_most = torch.tensor([[penalty(m, alpha, length_penalty)] for m in most], device=device)  # (B, 1)
    live = _Live.start(len(inputs), beam, max(most), device)
    best = _Best.none(len(inputs), n_best, max(most), device)
    gone: list[tuple[Tensor, _Best]] = []
    for n in range(1, max(most) + 1):
        # 1. Extend: the 2·beam best continuations of each sentence.
        broken = _broken(logits, live)
        found = _extend(live, logits, n, 2 * beam)
        # 2. Finish: ends among the first `beam` compete for the answer; at max_new all continuations do.
        ends, last = found.token == eos, ends_at == n
        best = best.merge(_finished(found, ends, last, n, beam, penalty(n, alpha, length_penalty)))
        # 3. Keep the best `beam` others alive.
        live = _alive(found, ends, beam)
        if record is not None:
            values = {"sentences": number, "parents": live.parent, "tokens": live.token, "logprobs": live.logprob}
            for name, value in values.items():
                record(f"beam.{name}", value)
        # 4. Stop: a sentence leaves at max_new, or if no live hypothesis can become one of its n best.
        flags = _read(last | best.is_safe_from(live, at_most, greedy=beam == 1), broken)
        if any(flags):
            leave, stay = (_where(flags, flag, device) for flag in (True, False))
            gone.append((number[leave], best.select(leave)))
            if all(flags):
                break
            best, live, state = best.select(stay), live.select(stay), state.select(stay)
            number, ends_at, at_most = number[stay], ends_at[stay], at_most[stay]
        # 5. Reorder the state as the live hypotheses are, and step.
        if beam > 1:
            state.reorder((live.parent + beam * torch.arange(len(live.parent), device=device).unsqueeze(1)).flatten())
        if max(sizes) + n > state.room:
            state.grow(bucket(max(sizes) + n, limit))
        logits = stepper.step(live.token.flatten(), state)
    answers = {i: hypotheses for numbers, found in gone for i, hypotheses in zip(numbers.tolist(), found.read())}
    if not all(answers.values()):
        raise UserError(NO_TOKEN)
    return [answers[i] for i in range(len(inputs))]


def _check(beam: int, most: list[int], alpha: float, kind: str, n_best: int, inputs: int) -> None:
    if beam < 1 or not 1 <= n_best <= beam:
        raise UserError(f"beam = {beam}, n_best = {n_best}: the beam is at least 1, n_best between 1 and the beam")
    if not 0 <= alpha <= 10:
        raise UserError(f"alpha = {alpha}: the strength of the length penalty is between 0 (none) and 10")
    if kind not in ("gnmt", "power"):
        raise UserError(f"length_penalty = '{kind}': it is 'gnmt' or 'power'")
    if len(most) != inputs or any(m < 1 for m in most):
        raise UserError(f"max_new = {most}: one number of at least 1, or one for each of the {inputs} inputs")


@dataclass
class _Table:
    """Columns of a table of hypotheses: tensors (B, N, …), for each of B sentences N hypotheses, the best first."""

    def select(self, rows: Tensor) -> Self:
        """Only these sentences."""
        return replace(self, **{name: x[rows] for name, x in vars(self).items()})

    def pick(self, places: Tensor) -> Self:
        """The hypotheses at these places (B, M)."""
        return replace(self, **{name: _pick(x, places) for name, x in vars(self).items()})


def _pick(x: Tensor, places: Tensor) -> Tensor:
    """(B, N, …) by (B, M) -> (B, M, …)"""
    return x.gather(1, places if x.dim() == 2 else places.unsqueeze(2).expand(-1, -1, x.shape[2]))


@dataclass
class _Live(_Table):
    """Hypotheses that go on; the log-probability is -inf where there is none."""

    logprob: Tensor  # (B, N)
    parent: Tensor  # (B, N) the place of the hypothesis that it continues
    token: Tensor  # (B, N) the token that it adds
    tokens: Tensor  # (B, N, T) all its tokens

    @staticmethod
    def start(sentences: int, beam: int, length: int, device: torch.device) -> _Live:
        """One empty hypothesis per sentence."""
        logprob = torch.full((sentences, beam), NEVER, device=device)
        logprob[:, 0] = 0
        tokens = torch.zeros((sentences, beam, length), dtype=torch.long, device=device)
        return _Live(logprob, tokens[:, :, 0], tokens[:, :, 0], tokens)


@dataclass
class _Best(_Table):
    """Hypotheses that compete for the answer; the score is -inf where there is none."""

    score: Tensor  # (B, N)
    logprob: Tensor
    tokens: Tensor  # (B, N, T), with the end token
    length: Tensor
    finished: Tensor

    @staticmethod
    def none(sentences: int, n: int, length: int, device: torch.device) -> _Best:
        never = torch.full((sentences, n), NEVER, device=device)
        tokens = torch.zeros((sentences, n, length), dtype=torch.long, device=device)
        return _Best(never, never, tokens, tokens[:, :, 0], torch.zeros_like(never, dtype=torch.bool))

    def merge(self, other: _Best) -> _Best:
        """The best of both, as many as before; of equals those that were here first."""
        both = _Best(*(torch.cat(pair, dim=1) for pair in zip(vars(self).values(), vars(other).values())))
        return both.pick(both.score.sort(dim=1, descending=True, stable=True).indices[:, : self.score.shape[1]])

    def is_safe_from(self, live: _Live, at_most: Tensor, greedy: bool) -> Tensor:
        """(B, 1): no live hypothesis can still get in. A log-probability only falls, and its score is best with the
        penalty `at_most` (B, 1) of the greatest length. Greedy search takes the first end."""
        bar = self.score[:, -1:]
        return (live.logprob[:, :1] / at_most <= bar) | ((bar > NEVER) if greedy else False)

    def read(self) -> list[list[Hypothesis]]:
        """On the host, one list per sentence."""
        sentences = zip(*(x.tolist() for x in vars(self).values()))
        return [
            [
                Hypothesis(tokens[: length - finished], score, logprob, finished)
                for score, logprob, tokens, length, finished in zip(*sentence)
                if score > NEVER
            ]
            for sentence in sentences
        ]


def _broken(logits: Tensor, live: _Live) -> Tensor:
    """(B, 1): the logits of a live hypothesis are not numbers. All -inf are: that model forbids every token."""
    numbers = logits.amax(-1).view_as(live.logprob) < float("inf")
    return (~numbers & (live.logprob > NEVER)).any(1, keepdim=True)


def _extend(live: _Live, logits: Tensor, n: int, count: int) -> _Live:
    """The `count` best continuations of each sentence, each with its n-th token."""
    vocab = logits.shape[1]
    cost = logits.float().log_softmax(-1).add_(live.logprob.view(-1, 1)).abs_().view(len(live.logprob), -1)
    # topk leaves the order of equal costs open. Integers with the bits of the cost above and the index below, for
    # costs are positive, have no equals.
    index = torch.arange(cost.shape[1], device=cost.device)  # cost (B, beam·V)
    key = torch.add(index, cost.view(torch.int32), alpha=2**32)
    index = key.topk(min(count, cost.shape[1]), largest=False).indices
    # If a model forbids every token, log_softmax gives NaN, which sorts last; it means: never.
    logprob = 0 - cost.gather(1, index).nan_to_num(nan=-NEVER, posinf=-NEVER)
    parent, token = index // vocab, index % vocab
    tokens = _pick(live.tokens, parent)
    tokens[:, :, n - 1] = token
    return _Live(logprob, parent, token, tokens)


def _finished(found: _Live, ends: Tensor, last: Tensor, n: int, beam: int, penalty: float) -> _Best:
    """The continuations that compete for the answer, with their scores."""
    among_first = torch.arange(ends.shape[1], device=ends.device) < beam
    score = (found.logprob / penalty).masked_fill(~torch.where(ends, among_first, last), NEVER)
    return _Best(score, found.logprob, found.tokens, torch.full_like(found.token, n), ends)


def _alive(found: _Live, ends: Tensor, beam: int) -> _Live:
    """The best `beam` continuations that have not ended."""
    going = replace(found, logprob=found.logprob.masked_fill(ends, NEVER))
    return going.pick(ends.int().sort(dim=1, stable=True).indices[:, :beam])


def _read(done: Tensor, broken: Tensor) -> list[bool]:
    """Which sentences are done, on the host: the one wait for the device in a step."""
    flags: list[list[bool]] = torch.cat([done, broken], dim=1).tolist()
    if any(broken for _, broken in flags):
        raise UserError(NOT_A_NUMBER)
    return [done for done, _ in flags]


def _where(flags: list[bool], flag: bool, device: torch.device) -> Tensor:
    rows = torch.tensor([i for i, f in enumerate(flags) if f == flag], dtype=torch.long)
    return rows.to(device, non_blocking=True)
