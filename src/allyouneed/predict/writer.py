"""Writer: where tokens are written, for all who ask and from any thread."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from itertools import count
from types import TracebackType
from typing import Any, Self

from allyouneed.decode.beam import BeamRequest, Found
from allyouneed.decode.stepper import Stepper
from allyouneed.errors import UserError
from allyouneed.predict.beams import Beams
from allyouneed.predict.decoder import Decoder, Event, Request

Engine = Decoder | Beams


class Writer:
    """Requests of all sessions share its rows. Who waits for an answer drives: it gives every row a token, and hands
    the tokens of others to them. So there is no thread that would have to be stopped.

    `lock` is held while the model computes.
    """

    def __init__(self, stepper: Stepper, lock: threading.RLock | None = None) -> None:
        self.stepper, self.lock = stepper, lock or threading.RLock()
        self._engines: dict[int, Engine] = {}  # by the beam; 0: tokens are chosen one by one
        self._sessions: list[Session] = []
        self._owners: dict[tuple[int, int], tuple[Session, int]] = {}  # by engine and id: whose request it is

    def session(self, most: int) -> Session:
        """For one who asks: at most so many answers of it are written at a time."""
        return Session(self, most)

    def tick(self) -> None:
        """One more token for everything that is being written; the caller holds the lock."""
        for kind, engine in list(self._engines.items()):
            if not engine.busy:
                continue
            try:
                events: list[Any] = list(engine.tick())
            except BaseException as error:  # it cannot go on, and all that it was writing ends
                del self._engines[kind]
                told = error if isinstance(error, Exception) else UserError("this was interrupted: ask again")
                mine = [id for of, id in self._owners if of == kind]
                self._hand_out(kind, [Event(id, None, float("nan"), "error", error=told) for id in mine])
                if not isinstance(error, Exception):
                    raise
                continue
            self._hand_out(kind, events)

    def _hand_out(self, kind: int, events: list[Event | Found]) -> None:
        for event in events:
            session, number = self._owners[kind, event.id]
            session.arrived.append(replace(event, id=number))
            if isinstance(event, Found) or event.error is not None:
                session.open[number].clear()
            elif event.done:
                session.open[number].discard(event.answer)
        for id in {event.id for event in events}:
            session, number = self._owners[kind, id]
            if not session.open[number]:
                del self._owners[kind, id], session.open[number]


class Session:
    """The requests of one who asks, and what arrives for them."""

    def __init__(self, writer: Writer, most: int) -> None:
        self.writer, self.most = writer, most
        self.arrived: deque[Event | Found] = deque()
        self.open: dict[int, set[int]] = {}  # by the number of a request: its answers that are still to come
        self._numbers = count()

    def __enter__(self) -> Self:
        with self.writer.lock:
            self.writer._sessions.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """What is still being written for it is not wanted any more."""
        with self.writer.lock:
            self.writer._sessions.remove(self)
            for number in list(self.open):
                self.cancel(number)

    def add(self, request: Request | BeamRequest) -> int:
        """Queue a request; the number is the id of its events. A UserError if the model cannot take it."""
        writer = self.writer
        with writer.lock:
            kind, engine = self._engine(request)
            engine.most = max(session.most for session in writer._sessions)
            id, number = engine.add(request), next(self._numbers)  # type: ignore[arg-type]
            writer._owners[kind, id] = self, number
            self.open[number] = set(range(request.answers if isinstance(request, Request) else 1))
            return number

    def _engine(self, request: Request | BeamRequest) -> tuple[int, Engine]:
        kind, engines = request.beam if isinstance(request, BeamRequest) else 0, self.writer._engines
        if kind not in engines:
            stepper = self.writer.stepper
            engines[kind] = Beams(stepper, self.most) if kind else Decoder(stepper, self.most)
        return kind, engines[kind]

    def cancel(self, number: int, answer: int | None = None) -> None:
        """Nothing more arrives for this request, or for one of its answers; either may be done already."""
        writer = self.writer
        with writer.lock:
            for (kind, id), owner in list(writer._owners.items()):
                if owner == (self, number):
                    left = self.open[number] - {answer} if answer is not None else set()
                    writer._engines[kind].cancel(id, answer if left else None)
                    self.open[number] = left
                    if not left:
                        del writer._owners[kind, id], self.open[number]
            kept = (e for e in self.arrived if e.id != number or answer not in (None, getattr(e, "answer", None)))
            self.arrived = deque(kept)

    def wait(self) -> list[Event | Found]:
        """What has arrived; nothing if nothing is to come."""
        with self.writer.lock:
            while self.open and not self.arrived:
                self.writer.tick()
            found = list(self.arrived)
            self.arrived.clear()
        return found
