"""Worker: the one thread in which a run computes all that its clients ask for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.format import human_bytes
from allyouneed.predict.answers import Answer, Drafts
from allyouneed.predict.base import Predictor, Writing
from allyouneed.predict.engine import Engine
from allyouneed.predict.writer import Session
from allyouneed.serve.limits import Limits
from allyouneed.serve.metrics import Metrics

TOGETHER = 16  # inputs of one size that are computed at once


class FullError(Exception):
    """As many requests wait as may wait."""


class Job:
    """Something to compute. Jobs with the same `key`, if it is not None, are computed together."""

    def __init__(self, key: Hashable, given: Any, compute: Callable[[list[Any]], list[Any]]) -> None:
        self.key, self.given, self.compute = key, given, compute
        self.results, self.began, self.cancelled = asyncio.Queue[Any](), time.monotonic(), False


class WritingJob(Job):
    """An answer that is written token by token."""

    drafts: Drafts

    def __init__(self, predictor: Writing, given: Any, decode: DecodeConfig) -> None:
        super().__init__(None, given, list)
        self.request = predictor.request(given, decode)
        self.rows = self.request.beam or self.request.answers * len(self.request.inputs)
        self.tokens = min(len(self.request.input) + self.request.max_new, predictor.model.limit or 1 << 62)
        self.last = 0.0  # when the last token came


class Worker:
    """Requests join and leave the writer's rows at each step; between two steps, one batch of other jobs is computed.
    The methods from `_work` on are for the worker's thread, the others for the thread of the event loop."""

    def __init__(self, predictor: Predictor, limits: Limits, metrics: Metrics) -> None:
        self.predictor, self.limits, self.metrics = predictor, limits, metrics
        self.writes = isinstance(predictor, Writing) and not isinstance(predictor.model, Engine)
        self.accepted = set[Job]()  # and not ended
        self.thread: threading.Thread | None = None
        self._new, self._others, self._writing = deque[Job](), deque[Job](), deque[WritingJob]()
        self._open: dict[int, WritingJob] = {}  # by the id of the request
        self._found = list[tuple[Job, Any]]()  # results on their way to the clients
        self._wake, self._closed = threading.Condition(), False

    async def write(
        self, given: Any, decode: DecodeConfig, pieces: bool = False
    ) -> AsyncGenerator[tuple[int, str] | Answer, None]:
        """The pieces of each answer as they are written, by its number, if they are asked for; then the answer."""
        assert isinstance(self.predictor, Writing)
        job, most = WritingJob(self.predictor, given, decode), self.limits
        if job.rows > most.rows:
            raise UserError(f"this asks for {job.rows} rows, and this server decodes at most {most.rows}")
        if (need := job.rows * self.predictor.state_bytes(job.tokens)) > most.cache:
            has = f"{human_bytes(need)} of cache, and this server has {human_bytes(most.cache)}"
            raise UserError(f"this needs {has}: ask for fewer answers or tokens")

        def show(number: int) -> Callable[[str], None]:
            return lambda piece: self._deliver(job, (number, piece))

        job.drafts = self.predictor.drafts(given, decode, [show(i) for i in range(decode.n_best * pieces)])
        async with self._accept(job):
            while True:
                yield (result := await _next(job))
                if isinstance(result, Answer):
                    return

    async def answer(self, predictor: Predictor, given: Any, decode: DecodeConfig) -> Answer:
        """The answer of a predictor of this run to an input that it has read."""
        size = predictor.size(given)
        key = None if size is None else (id(predictor), size, decode)
        job = Job(key, given, lambda several: list(predictor.answers(several, decode)))
        async with self._accept(job):
            found: Answer = await _next(job)
        return found

    async def call(self, compute: Callable[[], Any]) -> Any:
        """What a function of the model returns."""
        job = Job(None, None, lambda _: [compute()])
        async with self._accept(job):
            return await _next(job)

    @asynccontextmanager
    async def _accept(self, job: Job) -> AsyncIterator[None]:
        """The job is the worker's until it is done, or its client has gone."""
        if self.waiting >= self.limits.waiting:
            raise FullError
        if self.thread is None:
            self._loop = asyncio.get_running_loop()
            self.thread = threading.Thread(target=self._work, daemon=True, name="worker")
            self.thread.start()
        self.accepted.add(job)
        with self._wake:
            self._new.append(job)
            self._wake.notify()
        try:
            yield
        finally:
            self.accepted.discard(job)
            job.cancelled = True

    @property
    def running(self) -> int:
        return len(self._open)

    @property
    def waiting(self) -> int:
        return max(0, len(self.accepted) - len(self._open))

    def close(self) -> None:
        """What was accepted is computed; then the thread ends."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _work(self) -> None:
        opened: Any = nullcontext()
        if isinstance(self.predictor, Writing) and self.writes:
            opened = self.predictor.writer.session(self.limits.rows)
        with opened as session:
            while self._take():
                try:
                    if self._writing or self._open:
                        self._write(session)
                    if self._others:
                        self._compute()
                except Exception as error:  # it belongs to nobody, so it ends all
                    for job in (*self._open.values(), *self._writing, *self._others):
                        self._deliver(job, error)
                    for id in self._open:
                        session.cancel(id)
                    self._open.clear()
                    self._writing.clear()
                    self._others.clear()
                found, self._found = self._found, []
                if found:
                    self._loop.call_soon_threadsafe(_hand_over, found)

    def _take(self) -> bool:
        """Wait until there is something to do; False if the worker is closed."""
        with self._wake:
            while not (self._new or self._open or self._writing or self._others):
                if self._closed:
                    return False
                self._wake.wait()
            while self._new:
                job = self._new.popleft()
                (self._writing if isinstance(job, WritingJob) else self._others).append(job)  # type: ignore[arg-type]
        return True

    def _write(self, session: Session) -> None:
        """One more token for every answer that is written; those that wait begin as far as there is room."""
        for id in [id for id, job in self._open.items() if job.cancelled]:
            session.cancel(id)
            del self._open[id]
        while self._writing and (self._writing[0].cancelled or self._fits(self._writing[0])):
            job = self._writing.popleft()
            if not job.cancelled:
                try:
                    self._open[session.add(job.request)] = job
                except Exception as error:  # of this request alone
                    self._deliver(job, error)
                self.metrics.queue_time.add(time.monotonic() - job.began)
        for event in session.poll() if self._open else ():
            if event.id not in self._open:
                continue
            try:
                self._advance(session, event, self._open[event.id])
            except Exception as error:
                session.cancel(event.id)
                self._deliver(self._open.pop(event.id), error)

    def _fits(self, job: WritingJob) -> bool:
        together = [job, *self._open.values()]
        rows, tokens = sum(one.rows for one in together), max(one.tokens for one in together)
        return rows <= self.limits.rows and rows * self.predictor.state_bytes(tokens) <= self.limits.cache  # type: ignore[attr-defined]

    def _advance(self, session: Session, event: Any, job: WritingJob) -> None:
        written = sum(len(one.tokens) for one in event.hypotheses) + (event.token is not None)
        if written:
            times, now = self.metrics.between_tokens if job.last else self.metrics.first_token, time.monotonic()
            times.add(now - (job.last or job.began))
            job.last = now
            self.metrics.written.add(written)
        if (outcome := job.drafts.take(event, session)) is not None:
            del self._open[event.id]
            self._deliver(job, outcome)

    def _compute(self) -> None:
        """The first of the other jobs, with those of the same key."""
        jobs = [job for job in self._others if not job.cancelled]
        key = jobs[0].key if jobs else None
        same = jobs[:1] if key is None else [job for job in jobs if job.key == key][:TOGETHER]
        self._others = deque(job for job in jobs if job not in same)
        if not same:
            return
        # A product with a single row adds in another order than one with several, so no input is alone.
        given = [job.given for job in same] * (1 if key is None or len(same) > 1 else 2)
        try:
            found = same[0].compute(given)
        except Exception as error:
            found = [error] * len(same)
        for job, outcome in zip(same, found):
            self._deliver(job, outcome)

    def _deliver(self, job: Job, result: Any) -> None:
        if not job.cancelled:
            self._found.append((job, result))


def _hand_over(found: list[tuple[Job, Any]]) -> None:
    for job, result in found:
        job.results.put_nowait(result)


async def _next(job: Job) -> Any:
    result = await job.results.get()
    if isinstance(result, Exception):
        raise result
    return result
