"""Writer: decodes the requests of all callers, from any thread."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import torch
from torch import Tensor

from allyouneed.decode.beam import BeamSearch
from allyouneed.decode.recorded import Recorded
from allyouneed.decode.request import Event, Request
from allyouneed.decode.stepper import Stepper
from allyouneed.errors import UserError
from allyouneed.models.base import Translator
from allyouneed.predict.decoder import READ, Decoder, few_shapes, filled


class Writer:
    """Requests of all sessions share its rows. A session that waits for an answer runs the steps: it decodes a token
    for every row, and passes on the tokens of other sessions. So no thread has to be started or stopped.

    `lock` is held while the model computes. `exact`: what a row computes has the same bits whatever is beside it, see
    `Decoder`.
    """

    def __init__(self, stepper: Stepper, lock: threading.RLock | None = None) -> None:
        recorded = isinstance(stepper, Translator) and stepper.device.type == "cuda"
        self.stepper: Any = RecordedStart(stepper) if recorded else stepper
        self.lock, self.exact = lock or threading.RLock(), False
        self._engines: dict[int, Decoder | BeamSearch] = {}  # by the beam; 0: tokens are chosen one by one
        self._sessions: list[Session] = []
        self._owners: dict[int, tuple[Session, int]] = {}  # by the id of a request: whose it is, and its beam
        self._ids = count()

    @contextmanager
    def session(self, most: int) -> Iterator[Session]:
        """The requests of one caller, of which at most so many answers are decoded at a time. Those that are not
        finished at the end of the session are cancelled."""
        session = Session(self, most)
        with self.lock:
            self._sessions.append(session)
        try:
            yield session
        finally:
            with self.lock:
                self._sessions.remove(session)
                for id in list(session.open):
                    session.cancel(id)

    def tick(self) -> None:
        """One more token for everything that is being decoded; the caller holds the lock."""
        for beam, engine in list(self._engines.items()):
            if not engine.busy:
                continue
            try:
                self._hand_out(engine.tick())
            except BaseException as error:  # it cannot go on, and all of its requests end
                del self._engines[beam]
                shown = error if isinstance(error, Exception) else UserError("this was interrupted: ask again")
                mine = [id for id, (_, of) in self._owners.items() if of == beam]
                self._hand_out([Event(id, done="error", error=shown) for id in mine])
                if not isinstance(error, Exception):
                    raise

    def _hand_out(self, events: list[Event]) -> None:
        for event in events:
            session, _ = self._owners[event.id]
            session.arrived.append(event)
            if event.done:
                session.close(event.id, event.answer if event.error is None else None)


class RecordedStart:
    """A translator on CUDA that reads its sources, padded to one of few shapes, by a recording. What `start` returns
    holds until the next call."""

    prompted, piece = False, None

    def __init__(self, model: Any) -> None:
        self.model, self.limit, self.device = model, model.limit, model.device
        self.step, self.empty, self.buffers = model.step, model.empty, model.buffers
        self.read_on, self.read = model.read_on, model.read_on  # a row holds no input
        self._given: dict[tuple[int, int], Tensor] = {}  # by their shape: ids, and how many
        self._shape, self._room = (0, 0), 0
        self._begin = Recorded(self._begun, lambda: model.buffers())
        self._place: int | None = 0  # None: each call makes new tensors

    @property
    def compiled(self) -> bool:
        return bool(self.model.compiled)

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, Any]:
        if math.prod(shape := few_shapes(inputs, self.limit)) > READ:
            found: tuple[Tensor, Any] = self.model.start(inputs, room)
            return found
        self._shape, self._room, sent = shape, room, filled(inputs, shape, self.device)
        self._given.setdefault(shape, torch.empty_like(sent)).copy_(sent)
        logits, state = self._begin(self._place, (shape, room))
        self._place = None if state.storage() is None else 0
        if shape[0] > len(inputs):
            logits, state = logits[: len(inputs)], state.select(torch.arange(len(inputs), device=self.device))
        return logits, state

    def _begun(self) -> Any:
        given = self._given[self._shape]
        return self.model.begin(given[:, :-1], given[:, -1], self._room)


class AfterSource:
    """A translator that has read its source, as a language model of its target."""

    prompted, piece = True, None

    def __init__(self, model: Any, source: list[int]) -> None:
        self.model, self.source, self.limit, self.device = model, source, model.limit, model.device
        self.step, self.empty, self.buffers, self.read_on = model.step, model.empty, model.buffers, model.read_on
        self.read = model.read_on
        self.compiled = model.compiled

    def start(self, inputs: Sequence[list[int]], room: int) -> tuple[Tensor, Any]:
        (target,) = inputs
        logits, state = self.model.start([self.source], room)
        for token in target[1:]:
            logits = self.model.step(torch.tensor([token], device=self.device), state)
        return logits, state


class Session:
    """The requests of one caller, and the events that arrive for them."""

    def __init__(self, writer: Writer, most: int) -> None:
        self.writer, self.most = writer, most
        self.arrived: deque[Event] = deque()
        self.open: dict[int, set[int]] = {}  # by the id of a request: its answers that are still to come

    def add(self, request: Request) -> int:
        """Queue a request; the id is that of its events. A UserError if the model cannot take it."""
        writer, beam = self.writer, request.beam or 0
        with writer.lock:
            if beam not in writer._engines:
                kind = BeamSearch if beam else Decoder
                writer._engines[beam] = kind(writer.stepper, self.most, writer._ids, writer.exact)
            engine = writer._engines[beam]
            engine.most = max(session.most for session in writer._sessions)
            id = engine.add(request)
            writer._owners[id] = self, beam
            self.open[id] = set(range(1 if beam else request.answers))  # all of a beam come in one event
            return id

    def close(self, id: int, answer: int | None) -> None:
        """No more events come for this answer, or for the whole request."""
        self.open[id] = set() if answer is None else self.open[id] - {answer}
        if not self.open[id]:
            del self.open[id], self.writer._owners[id]

    def cancel(self, id: int, answer: int | None = None) -> None:
        """No more events of this request, or of one of its answers; either may have ended already."""
        with self.writer.lock:
            if id in self.open:
                engine = self.writer._engines[self.writer._owners[id][1]]
                self.close(id, answer)
                engine.cancel(id, answer if id in self.open else None)
            self.arrived = deque(e for e in self.arrived if e.id != id or answer not in (None, e.answer))

    def wait(self) -> list[Event]:
        """The events that have arrived; none if none will come."""
        with self.writer.lock:
            while self.open and not self.arrived:
                self.writer.tick()
            return self._taken()

    def poll(self) -> list[Event]:
        """The events that have arrived after one more step."""
        with self.writer.lock:
            if self.open and not self.arrived:
                self.writer.tick()
            return self._taken()

    def _taken(self) -> list[Event]:
        found = list(self.arrived)
        self.arrived.clear()
        return found
