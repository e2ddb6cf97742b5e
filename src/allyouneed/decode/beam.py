"""Beam search: the best few hypotheses of each sentence, in tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.decode.sample import NEVER, NO_TOKEN, NOT_A_NUMBER
from allyouneed.decode.stepper import Stepper, bucket
from allyouneed.errors import UserError


@dataclass(frozen=True)
class Hypothesis:
    """An answer. score = logprob / penalty(n); logprob and n count the end token, `tokens` leaves it out."""

    tokens: list[int]
    score: float
    logprob: float
    finished: bool


@dataclass(frozen=True)
class BeamRequest:
    """What to search for: the n best hypotheses. A beam of 1 is greedy search: its first end is the end."""

    input: Any  # what Stepper.start takes for one row
    max_new: int
    beam: int
    eos: int
    alpha: float = 0.6
    length_penalty: str = "gnmt"
    n_best: int = 1

    def __post_init__(self) -> None:
        beam, n_best, alpha = self.beam, self.n_best, self.alpha
        if beam < 1 or not 1 <= n_best <= beam:
            raise UserError(f"beam = {beam}, n_best = {n_best}: the beam is at least 1, n_best between 1 and the beam")
        if not 0 <= alpha <= 10:
            raise UserError(f"alpha = {alpha}: the strength of the length penalty is between 0 (none) and 10")
        if self.length_penalty not in ("gnmt", "power"):
            raise UserError(f"length_penalty = '{self.length_penalty}': it is 'gnmt' or 'power'")
        if self.max_new < 1:
            raise UserError(f"max_new = {self.max_new}: it must be at least 1")


@dataclass(frozen=True)
class Found:
    """The end of a search: the hypotheses, best first, fewer if no more have a probability above 0; or an error."""

    id: int
    hypotheses: list[Hypothesis]
    error: Exception | None = None


def penalty(n: int, alpha: float, kind: str) -> float:
    """What a log-probability of n tokens is divided by: gnmt ((5 + n) / 6)^alpha, power n^alpha."""
    return float(((5 + n) / 6) ** alpha if kind == "gnmt" else n**alpha)


@torch.inference_mode()
def beam_search(
    stepper: Stepper,
    inputs: Sequence[Any],
    *,
    max_new: int | Sequence[int],
    record: Callable[[str, Tensor], None] | None = None,
    **settings: Any,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each input, all in one batch. `settings` are those of a BeamRequest. `record` gets the
    live hypotheses of each step by name; a Trace has such a method."""
    most = [max_new] * len(inputs) if isinstance(max_new, int) else list(max_new)
    if len(most) != len(inputs):
        raise UserError(f"max_new = {most}: one number of at least 1, or one for each of the {len(inputs)} inputs")
    requests = [BeamRequest(ids, m, **settings) for ids, m in zip(inputs, most)]
    answers = dict[int, list[Hypothesis]]()
    search = Search.start(stepper, list(enumerate(requests))) if requests else None
    while search is not None and search.sentences:
        for found in search.advance(stepper, record):
            if found.error is not None:
                raise found.error
            answers[found.id] = found.hypotheses
    return [answers[id] for id in range(len(requests))]


@dataclass
class Sentence:
    """What the host knows of a search."""

    id: int
    request: BeamRequest
    size: int  # tokens in the state after its start
    made: int = 0  # tokens of each hypothesis


@dataclass
class _Table:
    """Columns of a table: tensors (B, …), one row for each of B sentences."""

    def select(self, rows: Tensor) -> Self:
        """Only these sentences."""
        return replace(self, **{name: x[rows] for name, x in vars(self).items()})

    def pick(self, places: Tensor) -> Self:
        """Of columns (B, N, …), for N hypotheses of each sentence, those at these places (B, M)."""
        return replace(self, **{name: _pick(x, places) for name, x in vars(self).items()})

    def joined(self, other: Self) -> Self:
        """These sentences, and the others behind them. What is narrower is filled up with what there is not."""
        return replace(self, **{name: _behind(x, getattr(other, name)) for name, x in vars(self).items()})


def _pick(x: Tensor, places: Tensor) -> Tensor:
    """(B, N, …) by (B, M) -> (B, M, …)"""
    return x.gather(1, places if x.dim() == 2 else places.unsqueeze(2).expand(-1, -1, x.shape[2]))


def _behind(x: Tensor, y: Tensor) -> Tensor:
    """(B, …) and (C, …) -> (B + C, …)"""
    shape = [max(sizes) for sizes in zip(x.shape[1:], y.shape[1:])]
    none = NEVER if x.dtype.is_floating_point else 0

    def wide(t: Tensor) -> Tensor:
        more = [n for have, need in zip(reversed(t.shape[1:]), reversed(shape)) for n in (0, need - have)]
        return F.pad(t, more, value=none) if any(more) else t

    return torch.cat([wide(x), wide(y)])


@dataclass
class _Live(_Table):
    """Hypotheses that go on, the best first; the log-probability is -inf where there is none."""

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
    """Hypotheses that compete for the answer, the best first; the score is -inf where there is none."""

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


@dataclass
class _Terms(_Table):
    """What each sentence asks for."""

    n: Tensor  # (B, 1) tokens that its hypotheses have
    most: Tensor  # (B, 1) tokens that they may have
    eos: Tensor  # (B, 1)
    last: Tensor  # (B, 1) the place of the last of its n best
    penalties: Tensor  # (B, T) by the number of tokens, from 1


@dataclass
class Search:
    """Searches with one beam, in tensors. What is found for a sentence does not depend on the others, and an error
    belongs to its request. Of equal scores the earlier hypothesis goes first, then the lower id."""

    sentences: list[Sentence]
    live: _Live
    best: _Best
    terms: _Terms
    logits: Tensor  # (B · beam, V) after the live hypotheses
    state: Any

    @staticmethod
    def start(stepper: Stepper, requests: Sequence[tuple[int, BeamRequest]]) -> Search:
        """Read the inputs of these requests, which have ids, and one beam."""
        asked, limit = [request for _, request in requests], stepper.limit
        logits, state = stepper.start([request.input for request in asked], bucket(1, limit))
        sizes: list[int] = state.length.tolist()
        most = [r.max_new if limit is None else min(r.max_new, limit - size + 1) for r, size in zip(asked, sizes)]
        beam, n_best, length = asked[0].beam, max(request.n_best for request in asked), max(most)

        def column(values: list[Any]) -> Tensor:
            return torch.tensor(values, device=logits.device).view(len(asked), -1)

        terms = _Terms(
            n=column([0] * len(asked)),
            most=column(most),
            eos=column([request.eos for request in asked]),
            last=column([request.n_best - 1 for request in asked]),
            penalties=column([[penalty(n, r.alpha, r.length_penalty) for n in range(1, length + 1)] for r in asked]),
        )
        return Search(
            [Sentence(id, request, size) for (id, request), size in zip(requests, sizes)],
            _Live.start(len(asked), beam, length, logits.device),
            _Best.none(len(asked), n_best, length, logits.device),
            terms,
            logits.repeat_interleave(beam, dim=0),
            state.expand(beam),
        )

    @property
    def beam(self) -> int:
        return self.live.logprob.shape[1]

    def advance(self, stepper: Stepper, record: Callable[[str, Tensor], None] | None = None) -> list[Found]:
        """One more token for every hypothesis. Sentences that are done leave, and what was found for them is
        returned."""
        done, broken = self._extend()
        if record is not None:
            ids = torch.tensor([sentence.id for sentence in self.sentences], device=self.logits.device)
            live = self.live
            values = {"sentences": ids, "parents": live.parent, "tokens": live.token, "logprobs": live.logprob}
            for name, value in values.items():
                record(f"beams.{name}", value)
        leave = [i for i in range(len(done)) if done[i] or broken[i]]
        found = []
        for i, hypotheses in zip(leave, self.best.select(self._rows(leave)).read() if leave else ()):
            sentence = self.sentences[i]
            error = UserError(NOT_A_NUMBER) if broken[i] else None if hypotheses else UserError(NO_TOKEN)
            found.append(Found(sentence.id, [] if error else hypotheses[: sentence.request.n_best], error))
        if leave:
            self.keep([i for i in range(len(done)) if i not in leave])
        if self.sentences:
            self._step(stepper)
        return found

    def keep(self, rows: list[int]) -> None:
        """Only these sentences go on."""
        at = self._rows(rows)
        self.sentences = [self.sentences[i] for i in rows]
        self.logits = self.logits.unflatten(0, (-1, self.beam))[at].flatten(0, 1)
        self.live, self.best, self.terms = self.live.select(at), self.best.select(at), self.terms.select(at)
        self.state = self.state.select(at)

    def _rows(self, rows: list[int]) -> Tensor:
        return torch.tensor(rows, dtype=torch.long).to(self.logits.device, non_blocking=True)

    def join(self, other: Search, stepper: Stepper) -> None:
        """The other sentences come behind these."""
        mine, total = len(self.sentences), len(self.sentences) + len(other.sentences)
        state = stepper.empty(total, max(self.state.room, other.state.room)).expand(self.beam)
        rows = torch.arange(total, device=self.logits.device)
        state.put(rows[:mine], self.state)
        state.put(rows[mine:], other.state)
        self.sentences, self.state = [*self.sentences, *other.sentences], state
        self.logits = torch.cat([self.logits, other.logits])
        self.live, self.best = self.live.joined(other.live), self.best.joined(other.best)
        self.terms = self.terms.joined(other.terms)

    def _extend(self) -> tuple[list[bool], list[bool]]:
        """One more token; which sentences are done, and which have logits that are no numbers."""
        terms, beam, broken = self.terms, self.beam, self._broken()
        terms.n = terms.n + 1
        # 1. Extend: the 2·beam best continuations of each sentence.
        found = _extend(self.live, self.logits, terms.n, 2 * beam)
        # 2. Finish: ends among the first `beam` compete for the answer; at max_new all continuations do.
        ends, last = found.token == terms.eos, terms.n == terms.most
        self.best = self.best.merge(_finished(found, ends, last, terms.n, beam, terms.penalties.gather(1, terms.n - 1)))
        # 3. Keep the best `beam` others alive.
        self.live = _alive(found, ends, beam)
        # 4. Stop: a sentence leaves at max_new, or if no live hypothesis can become one of its n best.
        done, bad = torch.cat([last | self._is_safe(), broken], dim=1).T.tolist()
        return done, bad

    def _broken(self) -> Tensor:
        """(B, 1): the logits of a live hypothesis are not numbers. All -inf are: that model forbids every token."""
        numbers = self.logits.amax(-1).view_as(self.live.logprob) < float("inf")
        return (~numbers & (self.live.logprob > NEVER)).any(1, keepdim=True)

    def _is_safe(self) -> Tensor:
        """(B, 1): no live hypothesis can become one of the n best. A log-probability only falls, and its score is best
        with the penalty of the greatest length. Greedy search takes the first end."""
        bar = self.best.score.gather(1, self.terms.last)
        at_most = self.terms.penalties.gather(1, self.terms.most - 1)
        return (self.live.logprob[:, :1] / at_most <= bar) | ((bar > NEVER) if self.beam == 1 else False)

    def _step(self, stepper: Stepper) -> None:
        """Reorder the state as the live hypotheses are, and step."""
        if self.beam > 1:
            first = self.beam * torch.arange(len(self.sentences), device=self.logits.device).unsqueeze(1)
            self.state.reorder((self.live.parent + first).flatten())
        for sentence in self.sentences:
            sentence.made += 1
        held = max(sentence.size + sentence.made for sentence in self.sentences)
        if held > self.state.room:
            self.state.grow(bucket(held, stepper.limit))
        self.logits = stepper.step(self.live.token.flatten(), self.state)


def _extend(live: _Live, logits: Tensor, n: Tensor, count: int) -> _Live:
    """The `count` best continuations of each sentence, each with its n-th token; n (B, 1)."""
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
    at = (n - 1).unsqueeze(2).expand(-1, token.shape[1], 1)
    tokens = _pick(live.tokens, parent).scatter_(2, at, token.unsqueeze(2))
    return _Live(logprob, parent, token, tokens)


def _finished(found: _Live, ends: Tensor, last: Tensor, n: Tensor, beam: int, penalty: Tensor) -> _Best:
    """The continuations that compete for the answer, with their scores."""
    among_first = torch.arange(ends.shape[1], device=ends.device) < beam
    score = (found.logprob / penalty).masked_fill(~torch.where(ends, among_first, last), NEVER)
    return _Best(score, found.logprob, found.tokens, n.expand_as(found.token), ends)


def _alive(found: _Live, ends: Tensor, beam: int) -> _Live:
    """The best `beam` continuations that have not ended."""
    going = replace(found, logprob=found.logprob.masked_fill(ends, NEVER))
    return going.pick(ends.int().sort(dim=1, stable=True).indices[:, :beam])
