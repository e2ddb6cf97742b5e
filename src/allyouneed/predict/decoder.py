"""The Decoder: requests join and leave its rows, and each tick gives every row its next token."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from allyouneed.decode.sample import NEVER, NO_TOKEN, NOT_A_NUMBER, choose, greedy, uniform
from allyouneed.decode.stepper import State, Stepper, bucket
from allyouneed.errors import UserError

EAGER = 4  # steps before a recording: kernels have been chosen by then, and short answers need no graph


class Recorded:
    """stepper.step on CUDA. To start a kernel takes the host longer than the kernel of a small model runs. So once the
    tensors of the state have stayed in place for a few steps, a step is recorded as a CUDA graph, and replayed
    from then on: the same kernels with the same tensors, so the same numbers."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self._storage: Any = None  # of the state's tensors at the last step
        self._steps = 0  # since they are there
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, tokens: Tensor, state: State) -> Tensor:
        """What stepper.step(tokens, state) returns; the next call may overwrite it."""
        storage = state.storage()
        if storage is None or torch.is_autocast_enabled("cuda"):  # which frees its copies of the weights at its end
            return self.stepper.step(tokens, state)
        if storage != self._storage:
            self._storage, self._steps, self._graph = storage, 0, None
        self._steps += 1
        if self._steps <= EAGER:
            return self.stepper.step(tokens, state)
        self._graph = self._graph or self._record(tokens, state)
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._logits

    def _record(self, tokens: Tensor, state: State) -> torch.cuda.CUDAGraph:
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        self._tokens = tokens.clone()
        self._buffers = list(self.stepper.buffers())  # a table may be replaced by a longer one before the next replay
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._logits = self.stepper.step(self._tokens, state)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(aside)
        return graph


@dataclass(frozen=True)
class Request:
    """What to continue, how far, and how to choose the tokens."""

    input: Any  # what Stepper.start takes for one row
    max_new: int
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # 1: all
    seed: int = 0
    stop: Collection[int] = frozenset()  # ids that end the answer and are no part of it
    answers: int = 1  # with the seeds seed, seed + 1, …; the input is read once for all of them
    guidance: float = 1.0  # logits = free + guidance · (asked - free) (Ho and Salimans, 2021)
    free: Any = None  # for guidance: the input that asks for nothing, as long as the one that asks

    def __post_init__(self) -> None:
        if self.max_new < 1:
            raise UserError(f"max_new = {self.max_new}: it must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature = {self.temperature}: it must be 0 (greedy) or more")
        if self.top_k < 0:
            raise UserError(f"top_k = {self.top_k}: it must be 0 (all) or more")
        if not 0 <= self.top_p <= 1:
            raise UserError(f"top_p = {self.top_p}: it must be between 0 and 1")
        if not -(2**63) <= self.seed <= 2**63 - self.answers:
            raise UserError(f"seed = {self.seed}: it must fit into 64 bits")

    @property
    def inputs(self) -> list[Any]:
        """What its rows read: a guided answer has a second row, which reads the free input and gets the same tokens."""
        return [self.input] if self.free is None else [self.input, self.free]


@dataclass(frozen=True)
class Event:
    """One token of one answer. `done` is None, "length", "stop" or "error". At a stop there is no token, and the
    log-probability is that of the stop; at an error there is neither, and the whole request has ended."""

    id: int
    token: int | None
    logprob: float
    done: str | None
    answer: int = 0  # the number of the answer, if the request asks for several
    error: Exception | None = None


@dataclass(eq=False)
class _Row:
    """A place of the state that is taken: by an answer, or by the free input beside it."""

    id: int
    request: Request
    answer: int
    size: int  # tokens in the state after its start
    most: int  # new tokens it may get, within the model's limit
    at: int = -1  # its place
    beside: _Row | None = None  # the answer that this row of a free input belongs to
    made: int = 0  # new tokens so far


@dataclass(eq=False)
class _Wish:
    """Answers of a request that get their rows together. A long input is read piece by piece before."""

    id: int
    request: Request
    answers: range
    state: State | None = None  # of a long input: one row for each of request.inputs
    read: int = 0  # its tokens so far


@dataclass
class _PendingTokens:
    """Tokens on their way to the host, and their owners: (place, row, whether this is its last token by length)."""

    packed: Tensor  # (2, B) int32: ids, and the bits of the log-probabilities
    landed: torch.cuda.Event | None
    owners: list[tuple[int, _Row, bool]]


IDLE = Request(input=None, max_new=1)


class Decoder:
    """As many rows over one Stepper as there are answers to write, up to `most`. An answer has the same tokens whatever
    the other rows hold, and an error belongs to its request.

    The host knows when a row ends by length, and learns of stops from the copied tokens. On CUDA it reads these one
    tick late, so that the device never waits; a stopped row then runs one more step, which nobody reads. There the
    number of rows is a power of two, and a state is kept for each, so that its recorded steps can be used again.
    """

    def __init__(self, stepper: Stepper, most: int) -> None:
        if most < 1:
            raise UserError(f"rows = {most}: a decoder needs at least 1")
        self.stepper, self.most, self._device = stepper, most, stepper.device
        self.records = self._device.type == "cuda"  # steps, as graphs
        self.lag = 1 if self.records else 0
        self.state: Any = None  # a State, if there are rows
        self._stepped: Any = None
        self._states_by_rows: dict[int, tuple[State, Recorded]] = {}  # if steps are recorded, by the number of rows
        self._ids = count()
        self._waiting: deque[_Wish] = deque()
        self._reading: deque[_Wish] = deque()  # long inputs
        self._slots: list[_Row | None] = []
        self._unfinished: dict[_Row, None] = {}  # rows that still have events to come
        self._pending: deque[_PendingTokens] = deque()
        self._changed = True  # the settings on the device are older than the slots
        self._tokens: Tensor = torch.zeros(0, dtype=torch.long)  # the last one of each row
        self._pairs: Any = None  # the places of guided answers, those of their free rows, and the strengths (P, 1)

    def add(self, request: Request) -> int:
        """Queue a request; the id is that of its events."""
        limit, size = self.stepper.limit, self._size(request)
        if size < 1:
            raise UserError("the input has no tokens: there is nothing to continue")
        if limit is not None and size > limit:
            raise UserError(f"the input has {size} tokens, the model takes at most {limit}: shorten it")
        id = next(self._ids)
        for first in range(0, request.answers, self.most):
            answers = range(first, min(first + self.most, request.answers))
            self._waiting.append(_Wish(id, request, answers))
        return id

    def _size(self, request: Request) -> int:
        """Tokens that the row holds after its start."""
        return len(request.input) if self.stepper.prompted else 1

    def cancel(self, id: int, answer: int | None = None) -> None:
        """No more events of this request, or of one of its answers that has begun; the rows become free. What is done
        already may be cancelled too."""
        if answer is None:
            self._waiting = deque(wish for wish in self._waiting if wish.id != id)
            self._reading = deque(wish for wish in self._reading if wish.id != id)
        for row in [row for row in self._unfinished if row.id == id and answer in (None, row.answer)]:
            del self._unfinished[row]
            self._leave(row)

    @property
    def busy(self) -> bool:
        """Whether a tick has anything left to do."""
        return bool(self._waiting or self._reading or self._unfinished or self._pending)

    @torch.inference_mode()
    def tick(self) -> list[Event]:
        """One more token for every row, a piece of a long input, and a first token for those that join."""
        events: list[Event] = []
        logits = self._step() if any(self._slots) else None
        logits = self._join(logits, events)
        if logits is not None:
            self._choose(logits)
        while len(self._pending) > (self.lag if logits is not None else 0):
            events += self._read(self._pending.popleft())
        if not self.busy and not self._states_by_rows:
            self.state, self._slots = None, []
        return events

    def _step(self) -> Tensor:
        taken = sum(row is not None for row in self._slots)
        if 2 * taken <= len(self._slots) and not self._waiting and not self._reading:
            self._resize(taken)
        held = max(row.size + row.made for row in self._slots if row)
        if held > self.state.room:
            self.state.grow(bucket(held, self.stepper.limit))
        self._send_settings()
        # Free rows step too, always from position 0, so that they never run out of room.
        self.state.length.masked_fill_(self._free, 0)
        logits: Tensor = self._stepped(self._tokens, self.state)
        return logits

    def _join(self, logits: Tensor | None, events: list[Event]) -> Tensor | None:
        """Start waiting requests as far as there is room for them: short inputs in one ragged batch, and of a long one
        the next piece. Their logits join the others'."""
        answers = sum(row is not None and row.beside is None for row in self._slots)
        answers += sum(len(wish.answers) for wish in self._reading)
        new: list[_Wish] = []
        while self._waiting and (not answers or answers + len(self._waiting[0].answers) <= self.most):
            new.append(wish := self._waiting.popleft())
            answers += len(wish.answers)
        piece = self.stepper.piece
        long = [wish for wish in new if piece is not None and len(wish.request.input) > piece]
        self._reading += long
        logits = self._start([wish for wish in new if wish not in long], logits, events)
        return self._read_on(self._reading[0], logits, events) if self._reading else logits

    def _start(self, new: list[_Wish], logits: Tensor | None, events: list[Event]) -> Tensor | None:
        """Read inputs; if this fails for several, for each alone, so that an error belongs to its request."""
        if not new:
            return logits
        inputs = [given for wish in new for given in wish.request.inputs]
        try:
            first, state = self.stepper.start(inputs, self._room(new))
        except Exception as error:
            if len(new) == 1:
                events.append(self._fail(new[0].id, error))
            for wish in new if len(new) > 1 else ():
                logits = self._start([wish], logits, events)
            return logits
        return self._seat(new, first, state, logits)

    def _read_on(self, wish: _Wish, logits: Tensor | None, events: list[Event]) -> Tensor | None:
        """Read the next piece of a long input, and after the last one let its answers join."""
        end = wish.read + (self.stepper.piece or 0)
        pieces = [given[wish.read : end] for given in wish.request.inputs]
        try:
            if wish.state is None:
                first, wish.state = self.stepper.start(pieces, self._room([wish]))
            else:
                first = self.stepper.read_on(pieces, wish.state)
        except Exception as error:
            events.append(self._fail(wish.id, error))
            return logits
        wish.read = end
        if end < len(wish.request.input):
            return logits
        self._reading.popleft()
        return self._seat([wish], first, wish.state, logits)

    def _room(self, new: list[_Wish]) -> int:
        return bucket(max(self._size(wish.request) for wish in new), self.stepper.limit)

    def _seat(self, new: list[_Wish], first: Tensor, state: State, logits: Tensor | None) -> Tensor:
        """Give inputs that have been read their rows, a copy of each for every answer."""
        rows, copies, at, limit = list[_Row](), list[int](), 0, self.stepper.limit
        for wish in new:
            request, size, each = wish.request, self._size(wish.request), len(wish.request.inputs)
            most = request.max_new if limit is None else min(request.max_new, limit - size + 1)
            for answer in wish.answers:
                rows.append(asked := _Row(wish.id, request, answer, size, most))
                self._unfinished[asked] = None
                rows += [_Row(wish.id, request, answer, size, most, beside=asked) for _ in range(each - 1)]
                copies += range(at, at + each)
            at += each
        free = [at for at, row in enumerate(self._slots) if row is None]
        if len(free) < len(rows):
            self._resize(len(self._slots) - len(free) + len(rows))
            free = [at for at, row in enumerate(self._slots) if row is None]
        longest = max(row.size for row in rows)
        if longest > self.state.room:
            self.state.grow(bucket(longest, limit))
        for row, place in zip(rows, free):
            self._slots[place], row.at = row, place
        self._changed = True
        places = self._send(free[: len(rows)])
        if copies != [*range(at)]:
            index = self._send(copies)
            first, state = first[index], state.select(index)
        self.state.put(places, state)
        missing = len(self._slots) - (0 if logits is None else len(logits))
        if missing:
            fresh = first.new_zeros(missing, first.shape[1])
            logits = fresh if logits is None else torch.cat([logits, fresh])
        assert logits is not None
        return logits.index_copy(0, places, first)

    def _resize(self, rows: int) -> None:
        """A state with at least so many rows. Where rows are added, all keep their places."""
        rows = 1 << (rows - 1).bit_length() if self.records else rows
        if rows == len(self._slots):
            return
        before, room = self.state, bucket(1, self.stepper.limit) if self.state is None else self.state.room
        if rows in self._states_by_rows:
            self.state, self._stepped = self._states_by_rows[rows]
            self.state.grow(room)
        else:
            self.state = self.stepper.empty(rows, room)
            self._stepped = Recorded(self.stepper) if self.records else self.stepper.step
        if self.records:
            self._states_by_rows[rows] = self.state, self._stepped
        active, tokens = [row for row in self._slots if row], torch.zeros(rows, dtype=torch.long, device=self._device)
        if active:
            old = self._send([row.at for row in active])
            if rows < len(self._slots):
                for at, row in enumerate(active):
                    row.at = at
            new = self._send([row.at for row in active])
            self.state.put(new, before.select(old))
            tokens[new] = self._tokens[old]
        self._tokens, self._slots, self._changed = tokens, [None] * rows, True
        for row in active:
            self._slots[row.at] = row

    def _choose(self, logits: Tensor) -> None:
        """Choose the next token of each row. It stays on the device for the next step; a copy goes to the host."""
        self._send_settings()
        active = [row for row in self._slots if row and row.beside is None]
        if self._pairs is not None:
            asked, free, strength = self._pairs
            logits = logits.float()
            logits = logits.index_copy(0, asked, logits[free] + strength * (logits[asked] - logits[free]))
        if all(row.request.temperature == 0 for row in active):
            self._tokens, logprobs = greedy(logits)
        else:
            cut = any(row.request.top_k > 0 or row.request.top_p < 1 for row in active)
            u = uniform(self._seed, self._made)
            self._tokens, logprobs = choose(logits, self._temperature, self._top_k, self._top_p, u, cut)
        if self._pairs is not None:
            self._tokens = self._tokens.index_copy(0, free, self._tokens[asked])
        self._made += 1
        cuda = self._tokens.device.type == "cuda"
        packed = torch.stack([self._tokens.int(), logprobs.view(torch.int32)])
        packed = packed.to("cpu", non_blocking=cuda)  # into pinned memory
        landed = torch.cuda.Event() if cuda else None
        if landed is not None:
            landed.record()
        for row in filter(None, self._slots):
            row.made += 1
        owners = [(row.at, row, row.made == row.most) for row in active]
        for _, row, last in owners:
            if last:
                self._leave(row)
        self._pending.append(_PendingTokens(packed, landed, owners))

    def _read(self, pending: _PendingTokens) -> list[Event]:
        if pending.landed is not None:
            pending.landed.synchronize()
        tokens, logprobs = pending.packed[0].tolist(), pending.packed[1].view(torch.float32).tolist()
        events = []
        for at, row, last in pending.owners:
            if row not in self._unfinished:  # stopped or cancelled meanwhile
                continue
            if not logprobs[at] > NEVER:
                events.append(self._fail(row.id, UserError(NO_TOKEN if logprobs[at] == NEVER else NOT_A_NUMBER)))
                continue
            stop = tokens[at] in row.request.stop
            done = "stop" if stop else "length" if last else None
            events.append(Event(row.id, None if stop else tokens[at], logprobs[at], done, row.answer))
            if done:
                del self._unfinished[row]
                self._leave(row)
        return events

    def _fail(self, id: int, error: Exception) -> Event:
        self.cancel(id)
        return Event(id, None, float("nan"), "error", error=error)

    def _leave(self, row: _Row) -> None:
        for at, other in enumerate(self._slots):
            if other is not None and row in (other, other.beside):
                self._slots[at], self._changed = None, True

    def _send_settings(self) -> None:
        """Copy the rows' settings to the device if requests have joined or left."""
        if not self._changed:
            return
        requests = [row.request if row else IDLE for row in self._slots]
        seeds = [row.request.seed + row.answer if row else 0 for row in self._slots]
        made = [row.made if row else 0 for row in self._slots]
        free = [row is None for row in self._slots]
        self._top_k, self._seed, self._made, free_ = self._send([[r.top_k for r in requests], seeds, made, free])
        self._free = free_.bool()
        parts = [[r.temperature for r in requests], [r.top_p for r in requests]]
        self._temperature, self._top_p = self._send(parts, torch.float32)
        pairs = [(row.beside.at, row.at, row.request.guidance) for row in self._slots if row and row.beside]
        self._pairs = None
        if pairs:
            asked, beside, strength = zip(*pairs)
            self._pairs = (*self._send([asked, beside]), self._send(strength, torch.float32)[:, None])
        self._changed = False

    def _send(self, values: Sequence[Any], dtype: torch.dtype = torch.long) -> Tensor:
        """Copy from the host to the device without waiting."""
        tensor = torch.tensor(values, dtype=dtype)
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)
