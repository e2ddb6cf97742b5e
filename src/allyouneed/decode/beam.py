"""Beam search: the best few hypotheses of each sentence, in tensors."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from allyouneed.decode.recorded import Recorded
from allyouneed.decode.request import Event, Hypothesis, Request, alike
from allyouneed.decode.sample import CHUNK, NEVER, NO_TOKEN, NOT_A_NUMBER
from allyouneed.decode.stepper import Stepper, bucket, part
from allyouneed.errors import UserError


def penalty(n: int, alpha: float, kind: str) -> float:
    """What a log-probability of n tokens is divided by: gnmt ((5 + n) / 6)^alpha, power n^alpha."""
    return float(((5 + n) / 6) ** alpha if kind == "gnmt" else n**alpha)


@dataclass
class Sentence:
    """A sentence of the search, on the host."""

    id: int
    request: Request
    size: int = 0  # tokens in the state: those after its start, and one per step
    most: int = 0  # tokens that the state will hold before the last one is chosen


class _Live(NamedTuple):
    """Hypotheses that go on, the best first; the log-probability is -inf where there is none."""

    logprob: Tensor  # (B, N)
    parent: Tensor  # (B, N) the index of the hypothesis that it continues
    token: Tensor  # (B, N) the token that it adds
    tokens: Tensor  # (B, N, T) all its tokens


class _Best(NamedTuple):
    """Hypotheses that compete for the answer, the best first; the score is -inf where there is none."""

    score: Tensor  # (B, N)
    logprob: Tensor
    tokens: Tensor  # (B, N, T), with the end token
    length: Tensor
    finished: Tensor


class _Terms(NamedTuple):
    """What each sentence asks for."""

    n: Tensor  # (B, 1) tokens that its hypotheses have
    most: Tensor  # (B, 1) tokens that they may have
    eos: Tensor  # (B, 1)
    last: Tensor  # (B, 1) the index of the last of its n best
    penalties: Tensor  # (B, T) by the number of tokens, from 1


Table = TypeVar("Table", _Live, _Best, _Terms)  # columns (B, …), one row per sentence


def _columns(change: Callable[..., Tensor], *tables: Table) -> Table:
    """A table of the results of `change` on each column."""
    return type(tables[0])(*map(change, *tables))


def _pick(x: Tensor, indices: Tensor) -> Tensor:
    """Of N hypotheses per sentence, those with these indices: (B, N, …) by (B, M) -> (B, M, …)"""
    return x.gather(1, indices if x.dim() == 2 else indices.unsqueeze(2).expand(-1, -1, x.shape[2]))


def _filled(mine: Tensor, rows: int, at: Tensor, new: Tensor) -> Tensor:
    """`mine` (B, …) with `new` in the rows `at`, of at least so many rows. Where `new` is wider, all are padded: with
    -inf, 0 or False."""
    blank = NEVER if new.dtype.is_floating_point else 0
    shape = [max(rows, len(mine)), *(max(pair) for pair in zip(mine.shape[1:], new.shape[1:]))]
    if [*mine.shape] != shape:
        before, mine = mine, new.new_full(shape, blank)
        mine[tuple(slice(size) for size in before.shape)] = before
    mine[at] = blank
    where: tuple[Any, ...] = (at, *(slice(size) for size in new.shape[1:]))
    mine[where] = new
    return mine


class BeamSearch:
    """Searches with one beam over one Stepper, which sentences join and leave, up to `most` at a time: `add` requests,
    and `tick` while it is `busy`. What is found for a sentence does not depend on the others, and an error belongs to
    its request. Of equal scores the earlier hypothesis goes first, then the lower id.

    On CUDA the number of slots for sentences is a power of two, and the slots of those that have left stay, so that the
    recorded work can be used again. `exact`: only inputs of one length are read together, so that what is found has the
    same bits."""

    live: _Live
    best: _Best
    terms: _Terms
    logits: Tensor  # (B · beam, V) after the live hypotheses
    state: Any
    record: Callable[[str, Tensor], None] | None = None

    def __init__(self, stepper: Stepper, most: int, ids: Iterator[int] | None = None, exact: bool = False) -> None:
        self.stepper, self.most, self._ids, self.exact = stepper, most, ids or count(), exact
        self.records = stepper.device.type == "cuda"
        self._step, self._extend = Recorded(self._stepped, lambda: stepper.buffers()), Recorded(self._extended)
        self._longer = torch.compile(_longer) if stepper.compiled else _longer
        self._slots: list[Sentence | None] = []
        self._ahead = False  # whether the state has read the last tokens
        self._waiting: deque[Sentence] = deque()

    def add(self, request: Request) -> int:
        """Queue a request; the id is that of its event."""
        self._waiting.append(Sentence(next(self._ids), request))
        return self._waiting[-1].id

    def cancel(self, id: int, answer: int | None = None) -> None:
        """Nothing will be found for this request; one that is already done may be cancelled too."""
        self._waiting = deque(sentence for sentence in self._waiting if sentence.id != id)
        self._leave([i for i, sentence in enumerate(self._slots) if sentence and sentence.id == id])

    @property
    def sentences(self) -> list[Sentence]:
        """Those that are being searched."""
        return [sentence for sentence in self._slots if sentence]

    @property
    def busy(self) -> bool:
        """Whether a tick has anything left to do."""
        return bool(self._waiting or self.sentences)

    @torch.inference_mode()
    def tick(self) -> list[Event]:
        """One more token for every hypothesis, and a first one for sentences that join; what is found for those that
        are done, the hypotheses best first, fewer if no more have a probability above 0."""
        events = list[Event]()
        if self.sentences and not self._ahead:
            self._advance()
        self._ahead = False
        free = self.most - len(self.sentences)
        # To join costs about as much as a step. So if many wait, none joins before a quarter of the rows is free.
        if self._waiting and free >= min(len(self._waiting), max(1, self.most // 4)):
            new = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
            groups = alike(new, lambda one: one.request) if self.exact else [new]
            events = [event for group in groups for event in self._start(group)]
        return events + self._grow() if self.sentences else events

    def _start(self, new: list[Sentence]) -> list[Event]:
        """Read the inputs of new sentences; if this fails for several, each alone, so that an error belongs to its
        request."""
        limit = self.stepper.limit
        try:
            logits, state = self.stepper.start(
                [sentence.request.input for sentence in new], bucket(1, limit, self.records)
            )
        except Exception as error:
            if len(new) > 1:
                return [event for sentence in new for event in self._start([sentence])]
            return [Event(new[0].id, done="error", error=error)]
        requests = [sentence.request for sentence in new]
        for sentence, size in zip(new, state.length.tolist()):
            sentence.size = size
        most = [r.max_new if limit is None else min(r.max_new, limit - s.size + 1) for r, s in zip(requests, new)]
        for sentence, tokens_left in zip(new, most):
            sentence.most = sentence.size + tokens_left - 1
        beam, n_best, length = requests[0].beam or 1, max(request.answers for request in requests), max(most)

        # One empty hypothesis per sentence, and none that competes.
        logprob, never = (torch.full((len(new), n), NEVER, device=logits.device) for n in (beam, n_best))
        logprob[:, 0] = 0
        tokens = torch.zeros((len(new), beam, length), dtype=torch.long, device=logits.device)
        zeros, none = tokens[:, :, 0], torch.zeros_like(never, dtype=torch.bool)
        live = _Live(logprob, zeros, zeros, tokens)
        best = _Best(never, never, tokens[:, :n_best], zeros[:, :n_best], none)
        penalties = [[penalty(n, r.alpha, r.length_penalty) for n in range(1, length + 1)] for r in requests]
        ends, last = [next(iter(request.stop), -1) for request in requests], [r.answers - 1 for r in requests]
        columns: list[list[Any]] = [[0] * len(new), most, ends, last, penalties]
        terms = _Terms(*(torch.tensor(values, device=logits.device).view(len(new), -1) for values in columns))
        logits = logits.unsqueeze(1).expand(-1, beam, -1)
        self._join(new, logits, state.expand(beam), live, best, terms)
        return []

    def _join(self, new: list[Sentence], logits: Tensor, state: Any, live: _Live, best: _Best, terms: _Terms) -> None:
        """New sentences into free slots, of which there may have to be more."""
        if not self.sentences and len(self._slots) != self._bucket(len(new)):
            none = slice(0)
            self._slots, self.logits = [], logits[none].flatten(0, 1)
            self.live, self.best = _columns(lambda x: x[none], live), _columns(lambda x: x[none], best)
            self.terms = _columns(lambda x: x[none], terms)
        before, beam = len(self._slots), live.logprob.shape[1]
        if missing := max(0, len(new) - self._slots.count(None)):
            self._slots += [None] * (self._bucket(before + missing) - before)
            room = max(self.state.room, state.room) if before else state.room
            larger = self.stepper.empty(len(self._slots), room).expand(beam)
            if before:
                larger.put(torch.arange(before, device=logits.device), self.state)
            self.state = larger
        elif state.room > self.state.room:
            self.state.grow(state.room)
        free, rows = [i for i, one in enumerate(self._slots) if one is None][: len(new)], len(self._slots)
        for i, sentence in zip(free, new):
            self._slots[i] = sentence
        at = torch.tensor(free, device=logits.device)
        self.state.put(at, state)
        self.logits = _filled(self.logits.unflatten(0, (-1, beam)), rows, at, logits).flatten(0, 1)
        self.live = _columns(lambda x, y: _filled(x, rows, at, y), self.live, live)
        self.best = _columns(lambda x, y: _filled(x, rows, at, y), self.best, best)
        self.terms = _columns(lambda x, y: _filled(x, rows, at, y), self.terms, terms)

    def _bucket(self, sentences: int) -> int:
        """How many slots there are for so many sentences."""
        return 1 << (sentences - 1).bit_length() if self.records else sentences

    def _advance(self) -> None:
        """Reorder the state as the live hypotheses are, and read their tokens."""
        for sentence in self.sentences:
            sentence.size = min(sentence.size + 1, sentence.most)
        longest = max(sentence.size for sentence in self.sentences)
        if longest > self.state.room:
            self.state.grow(bucket(longest, self.stepper.limit, self.records))
        if self.records:
            self.state.seen, beam = part(longest, self.state.room), self.live.logprob.shape[1]
            second = beam > 1 and self.state.storage() is not None and self.state.turn()
            self._step(self._storage(), (self.state.seen, second))
        else:
            self._stepped()

    def _storage(self) -> Any:
        """Where the tensors are that the recorded work reads and writes."""
        state = self.state.storage()
        tables = self.logits, *self.live, *self.best, *self.terms
        return None if state is None else [*state, *((t.data_ptr(), t.shape) for t in tables)]

    def _stepped(self) -> Tensor:
        if (beam := self.live.logprob.shape[1]) > 1:
            first = beam * torch.arange(len(self._slots), device=self.logits.device).unsqueeze(1)
            stay = self.records and self.state.storage() is not None
            self.state.reorder((self.live.parent + first).flatten(), stay)
        if self.records:  # what is done and free slots step too, from position 0, so that they never run out of room
            self.state.length.masked_fill_((self.terms.n >= self.terms.most).expand(-1, beam).flatten(), 0)
        logits = self.stepper.step(self.live.token.flatten(), self.state)
        self.logits = self.logits.copy_(logits) if self.records else logits
        return self.logits

    def _grow(self) -> list[Event]:
        """One more token for every hypothesis; sentences that are done leave. On CUDA the next step begins before it is
        known which these are."""
        if self.records and self.record is None:
            flags = self._extend(self._storage()).to("cpu", non_blocking=True)  # into pinned memory
            landed = torch.cuda.current_stream().record_event() if flags.is_pinned() else None
            self._advance()
            self._ahead = True
            if landed is not None:
                landed.synchronize()
        else:
            flags = self._extended()
        done, broken = flags.tolist()
        if self.record is not None:
            self.record("beams.sentences", torch.tensor([sentence.id for sentence in self.sentences]))
            for name, value in zip(("logprobs", "parents", "tokens"), self.live):
                self.record(f"beams.{name}", value)
        events = list[Event]()
        leave = [i for i, sentence in enumerate(self._slots) if sentence and (done[i] or broken[i])]
        if leave:
            at = torch.tensor(leave, device=self.logits.device)
            for i, best in zip(leave, zip(*(x[at].tolist() for x in self.best))):
                sentence = self._slots[i]
                assert sentence is not None
                events.append(self._event(sentence, zip(*best), broken[i]))
            self._leave(leave)
        return events

    def _event(self, sentence: Sentence, best: Iterable[tuple[Any, ...]], broken: bool) -> Event:
        """What is found for a sentence; `best` are its rows of _Best."""
        found = [
            Hypothesis(tokens[: length - finished], score, logprob, finished)
            for score, logprob, tokens, length, finished in best
            if score > NEVER
        ]
        if broken or not found:
            return Event(sentence.id, done="error", error=UserError(NOT_A_NUMBER if broken else NO_TOKEN))
        return Event(sentence.id, done="stop", hypotheses=found[: sentence.request.answers])

    def _leave(self, slots: list[int]) -> None:
        """These sentences are done."""
        for i in slots:
            self._slots[i] = None
        if slots and self.records:
            self.terms.most[torch.tensor(slots, device=self.logits.device)] = 0
        elif slots:
            rows, beam = [i for i, sentence in enumerate(self._slots) if sentence], self.live.logprob.shape[1]
            at = torch.tensor(rows, dtype=torch.long, device=self.logits.device)
            self._slots, self.state = [self._slots[i] for i in rows], self.state.select(at)
            self.logits = self.logits.unflatten(0, (-1, beam))[at].flatten(0, 1)
            self.live, self.best = _columns(lambda x: x[at], self.live), _columns(lambda x: x[at], self.best)
            self.terms = _columns(lambda x: x[at], self.terms)

    def _extended(self) -> Tensor:
        """One more token; which sentences are done, and which have logits that are NaN or inf: (2, B)"""
        live, best, n, flags, (score, *found) = self._longer(self.live, self.best, self.terms, self.logits)
        if self.record is not None:
            for name, value in zip(("score", "logprobs", "parents", "tokens"), (score, *found)):
                self.record(f"beams.found.{name}", value)
        if self.records:
            live, best = _columns(torch.Tensor.copy_, self.live, live), _columns(torch.Tensor.copy_, self.best, best)
            n = self.terms.n.copy_(n)
        self.live, self.best, self.terms = live, best, self.terms._replace(n=n)
        return flags


def _longer(
    live: _Live, best: _Best, terms: _Terms, logits: Tensor
) -> tuple[_Live, _Best, Tensor, Tensor, tuple[Tensor, ...]]:
    """With one more token: the hypotheses, their length, the flags of `_extended`, and the continuations with their
    scores."""
    n, most, eos, last, penalties = terms
    # All logits of a live hypothesis may be -inf: that model forbids every token.
    bad = ~(logits.amax(-1).view_as(live.logprob) < float("inf")) & (live.logprob > NEVER)
    n, beam = (n + 1).clamp(max=penalties.shape[1]), live.logprob.shape[1]  # free slots have no end
    # 1. Extend: the 2·beam best continuations of each sentence.
    found = _continued(live, logits, n, 2 * beam)
    # 2. Finish: ends among the first `beam` compete for the answer; at max_new all continuations do. Of equals those
    # that were here first win.
    ends, full = found.token == eos, n == most
    among_first = torch.arange(ends.shape[1], device=ends.device) < beam
    score = found.logprob / penalties.gather(1, n - 1)
    score = score.masked_fill(~torch.where(ends, among_first, full), NEVER)
    new = _Best(score, found.logprob, found.tokens, n.expand_as(found.token), ends)
    both = _columns(lambda x, y: torch.cat([x, y], dim=1), best, new)
    order = both.score.sort(dim=1, descending=True, stable=True).indices[:, : best.score.shape[1]]
    best = _columns(lambda x: _pick(x, order), both)
    # 3. Keep the best `beam` others alive.
    going = found._replace(logprob=found.logprob.masked_fill(ends, NEVER))
    first = ends.int().sort(dim=1, stable=True).indices[:, :beam]
    live = _columns(lambda x: _pick(x, first), going)
    # 4. Stop at max_new, or if no live hypothesis can become one of the n best. A log-probability only falls, and its
    # score is best with the penalty of the greatest length. Greedy search takes the first end.
    bar = best.score.gather(1, last)
    final = penalties.gather(1, (most - 1).clamp(min=0))
    safe = (live.logprob[:, :1] / final <= bar) | ((bar > NEVER) if beam == 1 else False)
    flags = torch.cat([full | safe, bad.any(1, keepdim=True)], dim=1).T
    return live, best, n, flags, (score, *found)


def _continued(live: _Live, logits: Tensor, n: Tensor, count: int) -> _Live:
    """The `count` best continuations of each sentence, each with its n-th token; n (B, 1)."""
    beam, vocab = live.logprob.shape[1], logits.shape[1]
    logprobs = logits.log_softmax(-1, dtype=torch.float32).unflatten(0, (-1, beam))  # (B, beam, V)
    index = _candidates(live.logprob, logprobs, count)
    cost = _cost(live.logprob.gather(1, index // vocab), logprobs.flatten(1).gather(1, index))
    best = _cheapest(cost, index, count)
    index, cost = index.gather(1, best), cost.gather(1, best)
    # If a model forbids every token, log_softmax gives NaN, which sorts last; it means: never.
    logprob = 0 - cost.nan_to_num(nan=-NEVER, posinf=-NEVER)
    parent, token = index // vocab, index % vocab
    at = (n - 1).unsqueeze(2).expand(-1, token.shape[1], 1)
    tokens = _pick(live.tokens, parent).scatter_(2, at, token.unsqueeze(2))
    return _Live(logprob, parent, token, tokens)


def _candidates(logprob: Tensor, logprobs: Tensor, count: int) -> Tensor:
    """Indices among all continuations (beam·V), of which the `count` best are certainly some: all tokens of the `count`
    chunks whose likeliest ones are the best, and those behind the last whole chunk."""
    (sentences, beam, vocab), device = logprobs.shape, logprobs.device
    chunks = vocab // CHUNK
    likeliest = logprobs[..., : chunks * CHUNK].unflatten(2, (chunks, CHUNK)).amax(3)
    first = vocab * torch.arange(beam, device=device)[:, None] + CHUNK * torch.arange(chunks, device=device)
    first = first.flatten().expand(sentences, -1)
    best = _cheapest(_cost(logprob.unsqueeze(2), likeliest).flatten(1), first, count)
    inside = first.gather(1, best).unsqueeze(2) + torch.arange(CHUNK, device=device)
    rest = torch.arange(beam * vocab, device=device).view(beam, vocab)[:, chunks * CHUNK :].flatten()
    return torch.cat([inside.flatten(1), rest.expand(sentences, -1)], dim=1)


def _cost(logprob: Tensor, more: Tensor) -> Tensor:
    """Of a hypothesis that goes on: its negative log-probability, which is positive."""
    return (logprob + more).abs()


def _cheapest(cost: Tensor, index: Tensor, count: int) -> Tensor:
    """Where the `count` lowest costs (B, M) are, the lowest first, of equals that with the lower `index` (B, M)."""
    # topk leaves the order of equals open. Integers with the bits of the cost above and the index below, for costs are
    # positive, have no equals.
    key = torch.add(index, cost.view(torch.int32), alpha=2**32)
    return key.topk(min(count, key.shape[1]), largest=False).indices
