"""The Decoder: requests join and leave its rows, and each tick gives every row its next token."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor

from allyouneed.decode.recorded import Recorded
from allyouneed.decode.request import Event, Request, alike
from allyouneed.decode.sample import NEVER, NO_TOKEN, NOT_A_NUMBER, choose, greedy, uniform
from allyouneed.decode.stepper import State, Stepper, bucket, part
from allyouneed.errors import UserError

FEW, MOST = 64, 1024  # the smallest and the largest number of tokens that a choice looks at instead of all
READ = 4096  # tokens, padding included, that are read by a recording: with more, the device is what takes the time
AHEAD = 1024  # tokens that are read together on a CPU, even if there are not free rows for all of them


class _Mode(NamedTuple):
    """What the rows ask for, as far as it decides which kernels run."""

    sampled: bool = False  # any of them
    cut: bool = False  # from a part of the tokens
    most: int = 0  # of so many at most, if all have a top_k
    guided: bool = False


class _Rows:
    """The rows of a state, and what their requests ask for, in tensors that stay where they are: so all that a tick
    does, reading prompts, a step and the choice of tokens, can be recorded."""

    logits: Tensor  # (B, V) after the last token of each row, as soon as one has joined

    def __init__(self, stepper: Stepper, rows: int, room: int, records: bool) -> None:
        self.stepper, self.state, self.records, device = stepper, stepper.empty(rows, room), records, stepper.device
        self.tokens = torch.zeros(rows, dtype=torch.long, device=device)  # the last one of each row
        self._whole = torch.zeros((6, rows), dtype=torch.long, device=device)
        self._parts = torch.zeros((3, rows), device=device)
        self.top_k, self.seed, self.made, self.free, self.beside, self.asked = self._whole
        self.temperature, self.top_p, self.guidance = self._parts
        self.mode = _Mode()
        self._step = Recorded(self._stepped, lambda: stepper.buffers())
        self._choice = Recorded(self._chosen)
        self._prompts: dict[tuple[int, int], Tensor] = {}  # by their number and length: ids, how many, and their row
        self._shape = 0, 0
        self._reading = Recorded(self._read, lambda: stepper.buffers())
        self._best, self._sample = greedy, choose
        if stepper.compiled:
            self._best, self._sample = torch.compile(greedy), torch.compile(choose)

    def join(self, rows: Tensor, logits: Tensor) -> None:
        """The logits of rows that join."""
        if not hasattr(self, "logits"):
            self.logits = logits.new_zeros(len(self.tokens), logits.shape[1])
        self.logits[rows] = logits

    def ask(self, asked: Sequence[tuple[Request, int, int, int, int]]) -> None:
        """What is asked of each row: the request, which answer, its tokens so far, the row beside it whose input asks
        for nothing, and the row that asks."""
        requests = [request for request, *_ in asked]
        whole = [(r.top_k, r.seed + answer, made, r is IDLE, beside, row) for r, answer, made, beside, row in asked]
        parts = [(r.temperature, r.top_p, r.guidance) for r in requests]
        self._whole.copy_(_send(list(zip(*whole)), self.tokens.device), non_blocking=True)
        self._parts.copy_(_send(list(zip(*parts)), self.tokens.device, torch.float32), non_blocking=True)
        sampled, most = [r for r in requests if r.temperature > 0], max(r.top_k for r in requests)
        few = 0 < most <= MOST and all(r.top_k for r in sampled)
        self.mode = _Mode(
            sampled=bool(sampled),
            cut=any(r.top_k > 0 or r.top_p < 1 for r in sampled),
            most=max(FEW, 1 << (most - 1).bit_length()) if few else 0,
            guided=any(r.free is not None for r in requests),
        )

    def step(self) -> None:
        """The last token of each row is read."""
        if self.records:
            self._step(self.state.storage(), self.state.seen)
        else:
            self._stepped()

    def read(self, inputs: Sequence[Sequence[int]], rows: Sequence[int], shape: tuple[int, int]) -> None:
        """Read prompts into free rows, padded to so many of such a length: with the last one, once more."""
        self._shape, sent = shape, filled(inputs, shape, self.tokens.device, rows)
        self._prompts.setdefault(shape, torch.empty_like(sent)).copy_(sent)
        self._reading(self.state.storage(), self._shape)

    def _read(self) -> Tensor:
        given = self._prompts[self._shape]
        ids, lengths, rows = given[:, :-2], given[:, -2], given[:, -1]
        state = self.stepper.empty(*ids.shape)
        logits = self.stepper.read(ids, lengths, state)
        self.state.put(rows, state)
        self.join(rows, logits)
        return self.logits

    def _stepped(self) -> Tensor:
        # Free rows step too, always from position 0, so that they never run out of room.
        self.state.length.masked_fill_(self.free.bool(), 0)
        logits = self.stepper.step(self.tokens, self.state)
        self.logits = self.logits.copy_(logits) if self.records else logits
        return self.logits

    def choose(self) -> Tensor:
        """The next token of each row, which stays in `tokens`, and the bits of its log-probability: (2, B) int32."""
        if not self.records:
            return self._chosen()
        return self._choice(self.logits.data_ptr(), self.mode)

    def _chosen(self) -> Tensor:
        logits, mode = self.logits, self.mode
        if mode.guided:  # of the rows beside, nothing is read
            logits = logits.float()
            free = logits[self.beside]
            mixed = free + self.guidance.unsqueeze(1) * (logits - free)
            logits = torch.where((self.beside != self.asked).unsqueeze(1), mixed, logits)
        if mode.sampled:
            u = uniform(self.seed, self.made)
            tokens, logprobs = self._sample(logits, self.temperature, self.top_k, self.top_p, u, mode.cut, mode.most)
        else:
            tokens, logprobs = self._best(logits)
        self.tokens.copy_(tokens[self.asked] if mode.guided else tokens)
        self.made += 1
        return torch.stack([self.tokens.int(), logprobs.view(torch.int32)])


def few_shapes(inputs: Sequence[Any], limit: int | None) -> tuple[int, int]:
    """To how many inputs of which length these are padded, so that there are few such shapes."""
    longest = max(16, 1 << (max(map(len, inputs)) - 1).bit_length())
    return 1 << (len(inputs) - 1).bit_length(), longest if limit is None else min(longest, limit)


def filled(
    inputs: Sequence[Sequence[int]], shape: tuple[int, int], device: torch.device, *more: Sequence[int]
) -> Tensor:
    """Ids padded on the right to a shape (B, T), and behind them their number and what `more` says of each: (B, T + …).
    What is missing is the last input, once more."""
    count, size = shape
    rows = [[*ids, *[0] * (size - len(ids)), len(ids), *some] for ids, *some in zip(inputs, *more)]
    return _send(rows + rows[-1:] * (count - len(rows)), device)


def _send(values: Sequence[Any], device: torch.device, dtype: torch.dtype = torch.long) -> Tensor:
    """Copy from the host to the device without waiting."""
    tensor = torch.tensor(values, dtype=dtype)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


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
    arrived: int  # the tick
    state: State | None = None  # of a long input: one row for each of request.inputs
    read: int = 0  # its tokens so far


class _Ready(NamedTuple):
    """Answers whose input has been read, into the rows of a state from `at` on. They join when rows are free."""

    queued: _Queued
    at: int
    first: Tensor  # logits after each row of the state
    state: State


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

    Of the requests that wait, those that came first join first, and of those that came together the longest answers:
    otherwise a few long ones may be left at the end, with most rows free.

    `exact`: on a CPU, with one thread and matrices stored by columns, an answer has not only the same tokens but the
    same bits. Only inputs of one length are read together, and there are at least two rows, for a product with one row
    adds in another order.
    """

    def __init__(self, stepper: Stepper, most: int, ids: Iterator[int] | None = None, exact: bool = False) -> None:
        if most < 1:
            raise UserError(f"rows = {most}: a decoder needs at least 1")
        self.stepper, self.most, self._device, self.exact = stepper, most, stepper.device, exact
        self.records = self._device.type == "cuda"  # steps, as graphs
        self.lag = 1 if self.records else 0
        self._rows: Any = None  # _Rows, if there are any
        self._kept: dict[int, _Rows] = {}  # if steps are recorded, by the number of rows
        self._ids, self._ticks = ids or count(), 0
        self._waiting: deque[_Queued] = deque()
        self._ordered = True  # those that wait
        self._reading: deque[_Queued] = deque()  # long inputs
        self._ready: deque[_Ready] = deque()
        self._slots: list[_Row | None] = []
        self._unfinished: dict[_Row, None] = {}  # rows that still have events to come
        self._pending: deque[_PendingTokens] = deque()
        self._changed = True  # the settings on the device are older than the slots

    @property
    def state(self) -> Any:
        """The State of the rows, if there are any."""
        return self._rows and self._rows.state

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
            self._waiting.append(_Queued(id, request, answers, self._ticks))
        self._ordered = False
        return id

    def _size(self, request: Request) -> int:
        """Tokens that the row holds after its start."""
        return len(request.input) if self.stepper.prompted else 1

    def _bucket(self, tokens: int) -> int:
        return bucket(tokens, self.stepper.limit, self.records)

    def cancel(self, id: int, answer: int | None = None) -> None:
        """No more events of this request, or of one of its answers that has begun; the rows become free. What is done
        already may be cancelled too."""
        if answer is None:
            self._waiting = deque(one for one in self._waiting if one.id != id)
            self._reading = deque(one for one in self._reading if one.id != id)
            self._ready = deque(one for one in self._ready if one.queued.id != id)
        for row in [row for row in self._unfinished if row.id == id and answer in (None, row.answer)]:
            del self._unfinished[row]
            self._leave(row)

    @property
    def busy(self) -> bool:
        """Whether a tick has anything left to do."""
        return any((self._waiting, self._reading, self._ready, self._unfinished, self._pending))

    @torch.inference_mode()
    def tick(self) -> list[Event]:
        """One more token for every row, a piece of a long input, and a first token for those that join."""
        events: list[Event] = []
        stepped = any(self._slots)
        self._ticks += 1
        if stepped:
            self._step()
        joined = self._join(events)
        if stepped or joined:
            self._choose()
        while len(self._pending) > (self.lag if stepped or joined else 0):
            events += self._read(self._pending.popleft())
        if not self.busy and not self._kept:
            self._rows, self._slots = None, []
        return events

    def _step(self) -> None:
        taken = sum(row is not None for row in self._slots)
        if 2 * taken <= len(self._slots) and not (self._waiting or self._reading or self._ready):
            self._resize(taken)
        longest = max(row.size + row.made for row in self._slots if row)
        if longest > self.state.room:
            self.state.grow(self._bucket(longest))
        if self.records:
            self.state.seen = part(longest, self.state.room)
        self._send_settings()
        self._rows.step()

    def _join(self, events: list[Event]) -> bool:
        """What has been read joins as far as rows are free. Then waiting requests start: short inputs in one ragged
        batch, and of a long one the next piece. Whether any has joined the rows."""
        joined, short, piece = self._join_ready(), list[_Queued](), self.stepper.piece
        for one in [] if self._ready else self._next():
            (short if piece is None or len(one.request.input) <= piece else self._reading).append(one)
        groups = alike(short, lambda one: one.request) if self.exact else [short]
        read = [self._read_inputs(several, events) for several in (*groups, [*self._reading][:1]) if several]
        return any([joined, *read])

    def _next(self) -> list[_Queued]:
        """The waiting requests that start now. To read inputs and to join costs as much as several steps. So if many
        wait, none starts before an eighth of the rows is free. On a CPU reading is what takes the time: there the next
        ones are read as well, and join one by one."""
        answers, found, tokens = self._answers(), list[_Queued](), 0
        if self.most - answers < (min(len(self._waiting), self.most // 8) if self.records else 1):
            return []
        if not self._ordered:
            self._waiting = deque(sorted(self._waiting, key=lambda one: (one.arrived, -one.request.max_new)))
            self._ordered = True
        while self._waiting and len(found) < self.most:
            one = self._waiting[0]
            fits = not answers or answers + len(one.answers) <= self.most
            answers, tokens = answers + len(one.answers), tokens + len(one.request.input)
            if not fits and (self.records or tokens > AHEAD):
                break
            found.append(self._waiting.popleft())
        return found

    def _answers(self) -> int:
        """How many have rows, or will have them when their long input has been read."""
        return len(self._taken()) + sum(len(one.answers) for one in self._reading)

    def _join_ready(self) -> bool:
        """Answers whose inputs have been read join as far as rows are free: whether any do."""
        answers, new = self._answers(), list[_Ready]()
        while self._ready and (not answers or answers + len(self._ready[0].queued.answers) <= self.most):
            new.append(self._ready.popleft())
            answers += len(new[-1].queued.answers)
        for _, together in groupby(new, key=lambda one: id(one.state)):
            self._take_rows(list(together))
        return bool(new)

    def _read_inputs(self, several: list[_Queued], events: list[Event]) -> bool:
        """Read inputs, or the next piece of a long one, and after the last piece let its answers join: whether any has.
        If this fails for several, each is read alone, so that an error belongs to its request."""
        lead, piece = several[0], self.stepper.piece
        end = None if piece is None else lead.read + piece
        pieces = [given[lead.read : end] for one in several for given in one.request.inputs]
        try:
            if self._few_shapes(several):
                rows, _ = self._rows_of((one, 0) for one in several)
                indices = self._free_rows(rows)
                self._rows.read(pieces, indices, self._shape(several))
                self._seat(rows, indices)
                return True
            if lead.state is None:
                room = self._bucket(max(self._size(one.request) for one in several))
                first, state = self.stepper.start(pieces, room)
            else:
                first, state = self.stepper.read_on(pieces, lead.state), lead.state
        except Exception as error:
            if len(several) > 1:
                joined = [self._read_inputs([one], events) for one in several]
                return any(joined)
            events.append(self._fail(lead.id, error))
            return False
        if end is not None and end < len(lead.request.input):
            lead.read, lead.state = end, state
            return False
        if lead in self._reading:
            self._reading.remove(lead)
        at = 0
        for one in several:
            self._ready.append(_Ready(one, at, first, state))
            at += len(one.request.inputs)
        return self._join_ready()

    def _few_shapes(self, several: list[_Queued]) -> bool:
        """Whether these prompts are read as one of few shapes, which are recorded: short ones for one answer each."""
        if not self.records or self.stepper.piece is None or several[0] in self._reading:
            return False
        alone = all(len(one.answers) == len(one.request.inputs) == 1 for one in several)
        return alone and math.prod(self._shape(several)) <= READ

    def _shape(self, several: list[_Queued]) -> tuple[int, int]:
        return few_shapes([one.request.input for one in several], self.stepper.limit)

    def _take_rows(self, new: list[_Ready]) -> None:
        """Copy the states of inputs that have been read together into free rows, once for every answer."""
        rows, copies = self._rows_of((one.queued, one.at) for one in new)
        indices, first, state = self._free_rows(rows), new[0].first, new[0].state
        if copies != [*range(len(first))]:
            order = _send(copies, self._device)
            first, state = first[order], state.select(order)
        into = _send(indices, self._device)
        self.state.put(into, state)
        self._rows.join(into, first)
        self._seat(rows, indices)

    def _rows_of(self, new: Iterable[tuple[_Queued, int]]) -> tuple[list[_Row], list[int]]:
        """A row for each input of every answer, and which row of the state that has read them it copies: those of a
        request begin at the number beside it."""
        rows, copies, limit = list[_Row](), list[int](), self.stepper.limit
        for one, at in new:
            request, size, each = one.request, self._size(one.request), len(one.request.inputs)
            most = request.max_new if limit is None else min(request.max_new, limit - size + 1)
            for answer in one.answers:
                rows += [_Row(one.id, request, answer, size, most)] * each
                copies += range(at, at + each)
        return rows, copies

    def _free_rows(self, rows: list[_Row]) -> list[int]:
        """The indices of free rows for these, of which there may have to be more."""
        if (free := self._slots.count(None)) < len(rows):
            self._resize(len(self._slots) - free + len(rows))
        longest = max(row.size for row in rows)
        if longest > self.state.room:
            self.state.grow(self._bucket(longest))
        return [index for index, row in enumerate(self._slots) if row is None][: len(rows)]

    def _seat(self, rows: list[_Row], indices: list[int]) -> None:
        """From now on these rows are decoded."""
        for index, row in zip(indices, rows):
            self._slots[index] = row
            self._unfinished[row] = None
        self._changed = True

    def _resize(self, rows: int) -> None:
        """A state with at least so many rows. Where rows are added, all keep their indices."""
        rows = 1 << (rows - 1).bit_length() if self.records else max(rows, 2) if self.exact else rows
        if rows == len(self._slots):
            return
        before, room = self._rows, self._bucket(1) if self._rows is None else self.state.room
        if rows in self._kept:
            self._rows = self._kept[rows]
            self.state.grow(room)
        else:
            self._rows = _Rows(self.stepper, rows, room, self.records)
        if self.records:
            self._kept[rows] = self._rows
        taken = [index for index, row in enumerate(self._slots) if row]
        slots: list[_Row | None] = [None] * rows
        if taken:
            indices = list(range(len(taken))) if rows < len(self._slots) else taken
            old, new = _send(taken, self._device), _send(indices, self._device)
            self.state.put(new, before.state.select(old))
            self._rows.tokens[new] = before.tokens[old]
            self._rows.join(new, before.logits[old])
            for index, was in zip(indices, taken):
                slots[index] = self._slots[was]
        self._slots, self._changed = slots, True

    def _taken(self) -> dict[_Row, list[int]]:
        """The answers that are being decoded, and the indices of the rows of each."""
        found = dict[_Row, list[int]]()
        for index, row in enumerate(self._slots):
            if row is not None:
                found.setdefault(row, []).append(index)
        return found

    def _choose(self) -> None:
        """Choose the next token of each row. It stays on the device for the next step; a copy goes to the host."""
        self._send_settings()
        active, cuda = self._taken(), self._device.type == "cuda"
        packed = self._rows.choose().to("cpu", non_blocking=cuda)  # into pinned memory
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
        asked: list[tuple[Request, int, int, int, int]] = [(IDLE, 0, 0, i, i) for i in range(len(self._slots))]
        for row, indices in self._taken().items():
            for i in indices:
                asked[i] = row.request, row.answer, row.made, indices[-1], indices[0]
        self._rows.ask(asked)
        self._changed = False
