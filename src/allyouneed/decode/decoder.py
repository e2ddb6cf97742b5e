"""The Decoder: requests join and leave its rows, and each tick gives every row its next token."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import torch
from torch import Tensor

from allyouneed.decode.recorded import Recorded
from allyouneed.decode.sample import NEVER, NO_TOKEN, NOT_A_NUMBER, choose, greedy, uniform
from allyouneed.decode.stepper import Stepper
from allyouneed.errors import UserError


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

    def __post_init__(self) -> None:
        if self.max_new < 1:
            raise UserError(f"max_new = {self.max_new}: it must be at least 1")
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature = {self.temperature}: it must be 0 (greedy) or more")
        if self.top_k < 0:
            raise UserError(f"top_k = {self.top_k}: it must be 0 (all) or more")
        if not 0 <= self.top_p <= 1:
            raise UserError(f"top_p = {self.top_p}: it must be between 0 and 1")
        if not -(2**63) <= self.seed < 2**63:
            raise UserError(f"seed = {self.seed}: it must fit into 64 bits")


@dataclass(frozen=True)
class Event:
    """One token of one request. `done` is None, "length", or "stop": then there is no token, and the log-probability is
    that of the stop."""

    id: int
    token: int | None
    logprob: float
    done: str | None


@dataclass(eq=False)
class _Row:
    id: int
    request: Request
    size: int  # tokens in the state after its start
    most: int  # new tokens it may get, within the model's limit
    made: int = 0  # new tokens so far


@dataclass
class _Flight:
    """Tokens on their way to the host, and their owners: (place, row, whether this is its last token by length)."""

    packed: Tensor  # (2, B) int32: ids, and the bits of the log-probabilities
    landed: torch.cuda.Event | None
    owners: list[tuple[int, _Row, bool]]


IDLE = Request(input=None, max_new=1)


class Decoder:
    """A fixed number of rows over one Stepper. A request gets the same tokens whatever the other rows hold.

    The host knows when a row ends by length, and learns of stops from the copied tokens. On CUDA it reads these one
    tick late, so that the device never waits; a stopped row then runs one more step, which nobody reads. A tick raises
    a UserError if the model gives NaN or forbids every token.
    """

    def __init__(self, stepper: Stepper, rows: int) -> None:
        if rows < 1:
            raise UserError(f"rows = {rows}: a decoder needs at least 1")
        self.stepper = stepper
        with torch.inference_mode():
            self.state = stepper.empty(rows, bucket(1, stepper.limit))
        self._device: torch.device = self.state.length.device
        cuda = self._device.type == "cuda"
        self.lag = 1 if cuda else 0
        self._stepped = Recorded(stepper) if cuda else stepper.step
        self._ids = count()
        self._waiting: dict[int, Request] = {}
        self._slots: list[_Row | None] = [None] * rows
        self._owed: dict[int, _Row] = {}  # requests that still have events to come
        self._flights: deque[_Flight] = deque()
        self._changed = True  # the settings on the device are older than the slots

    def add(self, request: Request) -> int:
        """Queue a request; the id is that of its events."""
        limit = self.stepper.limit
        size = self._size(request)
        if size < 1:
            raise UserError("the input has no tokens: there is nothing to continue")
        if limit is not None and size > limit:
            raise UserError(f"the input has {size} tokens, the model takes at most {limit}: shorten it")
        id = next(self._ids)
        self._waiting[id] = request
        return id

    def _size(self, request: Request) -> int:
        """Tokens that the row holds after its start."""
        return len(request.input) if self.stepper.prompted else 1

    def cancel(self, id: int) -> None:
        """No more events of this request; its row becomes free. A request that is already done may be cancelled too."""
        self._waiting.pop(id, None)
        row = self._owed.pop(id, None)
        if row is not None and row in self._slots:
            self._leave(self._slots.index(row))

    @torch.inference_mode()
    def tick(self) -> list[Event]:
        """One more token for every row, and a first one for those that join."""
        logits = self._step() if any(self._slots) else None
        logits = self._join(logits)
        if logits is not None:
            self._choose(logits)
        events: list[Event] = []
        while len(self._flights) > (self.lag if logits is not None else 0):
            events += self._read(self._flights.popleft())
        return events

    def _step(self) -> Tensor:
        held = max(row.size + row.made for row in self._slots if row)
        if held > self.state.room:
            self.state.grow(bucket(held, self.stepper.limit))
        self._send_settings()
        # Free rows step too, always from position 0, so that they never run out of room.
        self.state.length.masked_fill_(self._free, 0)
        return self._stepped(self._tokens, self.state)

    def _join(self, logits: Tensor | None) -> Tensor | None:
        """Start as many waiting requests as there are free rows, in one ragged batch; their logits join the others'."""
        free = [at for at, row in enumerate(self._slots) if row is None]
        new = list(islice(self._waiting.items(), len(free)))
        if not new:
            return logits
        limit = self.stepper.limit
        sizes = [self._size(request) for _, request in new]
        longest = max(sizes)
        if longest > self.state.room:
            self.state.grow(bucket(longest, limit))
        first, state = self.stepper.start([request.input for _, request in new], bucket(longest, limit))
        rows = self._send(free[: len(new)], torch.long)
        self.state.put(rows, state)
        for at, (id, request), size in zip(free, new, sizes):
            del self._waiting[id]
            most = request.max_new if limit is None else min(request.max_new, limit - size + 1)
            self._slots[at] = self._owed[id] = _Row(id, request, size, most)
        self._changed = True
        if logits is None:
            logits = first.new_zeros(len(self._slots), first.shape[1])
        return logits.index_copy(0, rows, first)

    def _choose(self, logits: Tensor) -> None:
        """Choose the next token of each row. It stays on the device for the next step; a copy goes to the host."""
        self._send_settings()
        sitting = [(at, row) for at, row in enumerate(self._slots) if row]
        if all(row.request.temperature == 0 for _, row in sitting):
            self._tokens, logprobs = greedy(logits)
        else:
            cut = any(row.request.top_k > 0 or row.request.top_p < 1 for _, row in sitting)
            u = uniform(self._seed, self._made)
            self._tokens, logprobs = choose(logits, self._temperature, self._top_k, self._top_p, u, cut)
        self._made += 1
        cuda = self._device.type == "cuda"
        packed = torch.stack([self._tokens.int(), logprobs.view(torch.int32)])
        packed = packed.to("cpu", non_blocking=cuda)  # into pinned memory
        landed = torch.cuda.Event() if cuda else None
        if landed is not None:
            landed.record()
        owners = []
        for at, row in sitting:
            row.made += 1
            owners.append((at, row, row.made == row.most))
            if row.made == row.most:
                self._leave(at)
        self._flights.append(_Flight(packed, landed, owners))

    def _read(self, flight: _Flight) -> list[Event]:
        if flight.landed is not None:
            flight.landed.synchronize()
        tokens, logprobs = flight.packed[0].tolist(), flight.packed[1].view(torch.float32).tolist()
        events = []
        for at, row, last in flight.owners:
            if row.id not in self._owed:  # stopped or cancelled meanwhile
                continue
            if not logprobs[at] > NEVER:
                raise UserError(NO_TOKEN if logprobs[at] == NEVER else NOT_A_NUMBER)
            stop = tokens[at] in row.request.stop
            done = "stop" if stop else "length" if last else None
            events.append(Event(row.id, None if stop else tokens[at], logprobs[at], done))
            if done:
                del self._owed[row.id]
                if self._slots[at] is row:
                    self._leave(at)
        return events

    def _leave(self, at: int) -> None:
        self._slots[at] = None
        self._changed = True

    def _send_settings(self) -> None:
        """Copy the rows' settings to the device if requests have joined or left."""
        if not self._changed:
            return
        requests = [row.request if row else IDLE for row in self._slots]
        made = [row.made if row else 0 for row in self._slots]
        free = [row is None for row in self._slots]
        whole = [[r.top_k for r in requests], [r.seed for r in requests], made, free]
        self._top_k, self._seed, self._made, free_ = self._send(whole, torch.long)
        self._free = free_.bool()
        parts = [[r.temperature for r in requests], [r.top_p for r in requests]]
        self._temperature, self._top_p = self._send(parts, torch.float32)
        self._changed = False

    def _send(self, values: Any, dtype: torch.dtype) -> Tensor:
        """Copy from the host to the device without waiting."""
        tensor = torch.tensor(values, dtype=dtype)
        if self._device.type == "cuda":
            return tensor.pin_memory().to(self._device, non_blocking=True)
        return tensor.to(self._device)


def bucket(tokens: int, limit: int | None) -> int:
    """Room for so many tokens: a power of two, for few shapes and copies; at a limit a multiple of 16, for kernels."""
    room = max(64, 1 << (tokens - 1).bit_length())
    return room if limit is None else min(room, -(-limit // 16) * 16)
