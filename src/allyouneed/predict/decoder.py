"""The Decoder: requests join and leave its rows, and each tick gives every row its next token."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from allyouneed.decode.request import Event, Request
from allyouneed.decode.sample import NEVER, NO_TOKEN, NOT_A_NUMBER, choose, greedy, uniform
from allyouneed.decode.stepper import State, Stepper, bucket
from allyouneed.errors import UserError

EAGER = 4  # steps before a recording: kernels have been chosen by then, and short answers need no graph


class Recorded:
    """stepper.step on CUDA. Starting a kernel takes the host longer than the kernel of a small model runs. So once the
    tensors of the state have not moved for a few steps, a step is recorded as a CUDA graph, and replayed
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


@dataclass(eq=False)
class _Row:
    """An answer that is being decoded. It has a row of the state for each of request.inputs."""

    id: int
    request: Request
    answer: int
    size: int  # tokens in the state after its start
    most: int  # new tokens it may get, within the model's limit
    made: int = 0  # new tokens so far


@dataclass(eq=False)
class _Queued:
    """Answers of a request that join together, after their input is read; a long input is read in pieces."""

    id: int
    request: Request
    answers: range
    state: State | None = None  # of a long input: one row for each of request.inputs
    read: int = 0  # its tokens so far


@dataclass
class _PendingTokens:
    """Tokens on their way to the host, and their owners: (index, row, whether this is its last token by length)."""

    packed: Tensor  # (2, B) int32: ids, and the bits of the log-probabilities
    landed: torch.cuda.Event | None
    owners: list[tuple[int, _Row, bool]]


IDLE = Request(input=None, max_new=1)


class Decoder:
    """One Stepper with a row for each answer that is decoded, up to `most` answers. An answer has the same tokens
    whatever the other rows hold, and an error belongs to its request.

    The host knows when a row ends by length, and learns of stops from the copied tokens. On CUDA it reads these one
    tick late, so that the device never waits; a stopped row then runs one more step, which nobody reads. There the
    number of rows is a power of two, and a state is kept for each, so that its recorded steps can be used again.
    """

    def __init__(self, stepper: Stepper, most: int, ids: Iterator[int] | None = None) -> None:
        if most < 1:
            raise UserError(f"rows = {most}: a decoder needs at least 1")
        self.stepper, self.most, self._device = stepper, most, stepper.device
        self.records = self._device.type == "cuda"  # steps, as graphs
        self.lag = 1 if self.records else 0
        self.state: Any = None  # a State, if there are rows
        self._stepped: Any = None
        self._states_by_rows: dict[int, tuple[State, Recorded]] = {}  # if steps are recorded, by the number of rows
        self._ids = ids or count()
        self._waiting: deque[_Queued] = deque()
        self._reading: deque[_Queued] = deque()  # long inputs
        self._slots: list[_Row | None] = []
        self._unfinished: dict[_Row, None] = {}  # rows that still have events to come
        self._pending: deque[_PendingTokens] = deque()
        self._changed = True  # the settings on the device are older than the slots
        self._tokens: Tensor = torch.zeros(0, dtype=torch.long)  # the last one of each row
        self._pairs: Any = None  # the indices of guided answers, those of their free rows, and the strengths (P, 1)

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
            self._waiting.append(_Queued(id, request, answers))
        return id

    def _size(self, request: Request) -> int:
        """Tokens that the row holds after its start."""
        return len(request.input) if self.stepper.prompted else 1

    def cancel(self, id: int, answer: int | None = None) -> None:
        """No more events of this request, or of one of its answers that has begun; the rows become free. What is done
        already may be cancelled too."""
        if answer is None:
            self._waiting = deque(one for one in self._waiting if one.id != id)
            self._reading = deque(one for one in self._reading if one.id != id)
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
        longest = max(row.size + row.made for row in self._slots if row)
        if longest > self.state.room:
            self.state.grow(bucket(longest, self.stepper.limit))
        self._send_settings()
        # Free rows step too, always from position 0, so that they never run out of room.
        self.state.length.masked_fill_(self._free, 0)
        logits: Tensor = self._stepped(self._tokens, self.state)
        return logits

    def _join(self, logits: Tensor | None, events: list[Event]) -> Tensor | None:
        """Start waiting requests as far as there is room for them: short inputs in one ragged batch, and of a long one
        the next piece. Their logits join the others'."""
        answers = len(self._taken()) + sum(len(one.answers) for one in self._reading)
        short, piece = list[_Queued](), self.stepper.piece
        while self._waiting and (not answers or answers + len(self._waiting[0].answers) <= self.most):
            one = self._waiting.popleft()
            answers += len(one.answers)
            (short if piece is None or len(one.request.input) <= piece else self._reading).append(one)
        for several in (short, [self._reading[0]] if self._reading else []):
            logits = self._read_inputs(several, logits, events) if several else logits
        return logits

    def _read_inputs(self, several: list[_Queued], logits: Tensor | None, events: list[Event]) -> Tensor | None:
        """Read inputs, or the next piece of a long one, and after the last piece let its answers join. If this fails
        for several, each is read alone, so that an error belongs to its request."""
        lead, piece = several[0], self.stepper.piece
        end = None if piece is None else lead.read + piece
        pieces = [given[lead.read : end] for one in several for given in one.request.inputs]
        try:
            if lead.state is None:
                room = bucket(max(self._size(one.request) for one in several), self.stepper.limit)
                first, state = self.stepper.start(pieces, room)
            else:
                first, state = self.stepper.read_on(pieces, lead.state), lead.state
        except Exception as error:
            if len(several) == 1:
                events.append(self._fail(lead.id, error))
            for one in several if len(several) > 1 else ():
                logits = self._read_inputs([one], logits, events)
            return logits
        if end is not None and end < len(lead.request.input):
            lead.read, lead.state = end, state
            return logits
        if lead in self._reading:
            self._reading.remove(lead)
        return self._take_rows(several, first, state, logits)

    def _take_rows(self, new: list[_Queued], first: Tensor, state: State, logits: Tensor | None) -> Tensor:
        """Copy the states of inputs that have been read into free rows, once for every answer."""
        rows, copies, at, limit = list[_Row](), list[int](), 0, self.stepper.limit
        for one in new:
            request, size, each = one.request, self._size(one.request), len(one.request.inputs)
            most = request.max_new if limit is None else min(request.max_new, limit - size + 1)
            for answer in one.answers:
                row = _Row(one.id, request, answer, size, most)
                self._unfinished[row] = None
                rows += [row] * each
                copies += range(at, at + each)
            at += each
        if (free := self._slots.count(None)) < len(rows):
            self._resize(len(self._slots) - free + len(rows))
        longest = max(row.size for row in rows)
        if longest > self.state.room:
            self.state.grow(bucket(longest, limit))
        indices = [index for index, row in enumerate(self._slots) if row is None][: len(rows)]
        for index, row in zip(indices, rows):
            self._slots[index] = row
        self._changed, into = True, self._send(indices)
        if copies != [*range(at)]:
            order = self._send(copies)
            first, state = first[order], state.select(order)
        self.state.put(into, state)
        missing = len(self._slots) - (0 if logits is None else len(logits))
        if missing:
            fresh = first.new_zeros(missing, first.shape[1])
            logits = fresh if logits is None else torch.cat([logits, fresh])
        assert logits is not None
        return logits.index_copy(0, into, first)

    def _resize(self, rows: int) -> None:
        """A state with at least so many rows. Where rows are added, all keep their indices."""
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
        taken = [index for index, row in enumerate(self._slots) if row]
        slots: list[_Row | None] = [None] * rows
        tokens = torch.zeros(rows, dtype=torch.long, device=self._device)
        if taken:
            indices = list(range(len(taken))) if rows < len(self._slots) else taken
            old, new = self._send(taken), self._send(indices)
            self.state.put(new, before.select(old))
            tokens[new] = self._tokens[old]
            for index, was in zip(indices, taken):
                slots[index] = self._slots[was]
        self._tokens, self._slots, self._changed = tokens, slots, True

    def _taken(self) -> dict[_Row, list[int]]:
        """The answers that are being decoded, and the indices of the rows of each."""
        found = dict[_Row, list[int]]()
        for index, row in enumerate(self._slots):
            if row is not None:
                found.setdefault(row, []).append(index)
        return found

    def _choose(self, logits: Tensor) -> None:
        """Choose the next token of each row. It stays on the device for the next step; a copy goes to the host."""
        self._send_settings()
        active = self._taken()
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
        for row in active:
            row.made += 1
        owners = [(indices[0], row, row.made == row.most) for row, indices in active.items()]
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
            token, end = (None, tokens[at]) if stop else (tokens[at], None)
            events.append(Event(row.id, token, logprobs[at], done, row.answer, end=end))
            if done:
                del self._unfinished[row]
                self._leave(row)
        return events

    def _fail(self, id: int, error: Exception) -> Event:
        self.cancel(id)
        return Event(id, done="error", error=error)

    def _leave(self, row: _Row) -> None:
        self._changed |= row in self._slots
        self._slots = [None if other is row else other for other in self._slots]

    def _send_settings(self) -> None:
        """Copy the rows' settings to the device if requests have joined or left."""
        if not self._changed:
            return
        rows = [(row.request, row.answer, row.made, False) if row else (IDLE, 0, 0, True) for row in self._slots]
        whole = zip(*((r.top_k, r.seed + answer, made, free) for r, answer, made, free in rows))
        self._top_k, self._seed, self._made, free = self._send(list(whole))
        self._free = free.bool()
        parts = [[r.temperature for r, *_ in rows], [r.top_p for r, *_ in rows]]
        self._temperature, self._top_p = self._send(parts, torch.float32)
        pairs = [(*indices, row.request.guidance) for row, indices in self._taken().items() if len(indices) > 1]
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
