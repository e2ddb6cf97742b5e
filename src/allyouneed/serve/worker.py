"""Worker: the one thread in which a run computes all that its clients ask for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any


from allyouneed.config import DecodeConfig
from allyouneed.decode import Event, Request
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


@dataclass(eq=False)
class Job:
    """What a client asks for, and where the results go: pieces, then an answer or an error."""

    results: asyncio.Queue[Any]
    began: float = field(default_factory=time.monotonic)
    cancelled: bool = False


@dataclass(eq=False)
class WritingJob(Job):
    """An answer that is written token by token."""

    given: Any = None
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    request: Request = None  # type: ignore[assignment]
    rows: int = 1
    tokens: int = 0  # that each row may hold
    drafts: Drafts | None = None  # None: the answer is made of all tokens at the end, as an image is
    codes: list[list[int]] = field(default_factory=list)
    last: float = 0.0  # when the last token came


@dataclass(eq=False)
class BatchJob(Job):
    """An answer that is computed at once, together with others of the same `key`."""

    predictor: Predictor = None  # type: ignore[assignment]
    given: Any = None
    decode: DecodeConfig = field(default_factory=DecodeConfig)
    key: Hashable = None


@dataclass(eq=False)
class CallJob(Job):
    """Anything else that the model computes."""

    compute: Callable[[], Any] = lambda: None


class Worker:
    """Requests join and leave the writer's rows at each step; between two steps, one batch of other inputs is computed.
    All methods are for the thread of the event loop, but those below `_work`, which are for the worker's."""

    def __init__(self, predictor: Predictor, limits: Limits, metrics: Metrics) -> None:
        self.predictor, self.limits, self.metrics = predictor, limits, metrics
        self.writes = isinstance(predictor, Writing) and not isinstance(predictor.model, Engine)
        self.jobs = set[Job]()  # accepted, and not ended
        self._new = deque[Job]()
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self._writing, self._batches, self._calls = deque[WritingJob](), deque[BatchJob](), deque[CallJob]()
        self._open: dict[int, WritingJob] = {}  # by the id of the request
        self._closed = False

    # What clients ask for

    async def write(self, given: Any, decode: DecodeConfig, pieces: bool) -> AsyncIterator[tuple[int, str] | Answer]:
        """The pieces of each answer as they are written, by its number, if they are asked for; then the answer."""
        assert isinstance(self.predictor, Writing)
        request = self.predictor.request(given, decode)
        rows = request.beam or request.answers * len(request.inputs)
        job = WritingJob(asyncio.Queue(), given=given, decode=decode, request=request, rows=rows)
        limit = self.predictor.model.limit
        job.tokens = min(len(request.input) + request.max_new, limit or 1 << 62)
        self._check(job)
        if self.predictor.makes_image:
            job.codes = [[] for _ in range(request.answers)]
        else:
            shows = [self._show(job, number) for number in range(decode.n_best)] if pieces else []
            job.drafts = Drafts(self.predictor.tokenizer, decode, shows)
        async with self._accepted(job):
            while True:
                result = await job.results.get()
                if isinstance(result, Exception):
                    raise result
                yield result
                if isinstance(result, Answer):
                    return

    def _show(self, job: WritingJob, number: int) -> Callable[[str], None]:
        return lambda piece: self._deliver(job, (number, piece))

    def _check(self, job: WritingJob) -> None:
        if job.rows > self.limits.rows:
            raise UserError(f"this asks for {job.rows} rows, and this server decodes at most {self.limits.rows}")
        assert isinstance(self.predictor, Writing)
        if (need := job.rows * self.predictor.state_bytes(job.tokens)) > self.limits.cache:
            raise UserError(
                f"this needs {human_bytes(need)} of cache, and this server has {human_bytes(self.limits.cache)}: ask for "
                "fewer answers or tokens"
            )

    async def answer(self, predictor: Predictor, given: Any, decode: DecodeConfig) -> Answer:
        """The answer of a predictor of this run to an input that it has read."""
        size = predictor.size(given)
        key = None if size is None else (id(predictor), size, decode)
        found = await self._result(BatchJob(asyncio.Queue(), predictor=predictor, given=given, decode=decode, key=key))
        assert isinstance(found, Answer)
        return found

    async def call(self, compute: Callable[[], Any]) -> Any:
        """What a function of the model returns."""
        return await self._result(CallJob(asyncio.Queue(), compute=compute))

    async def _result(self, job: Job) -> Any:
        async with self._accepted(job):
            result = await job.results.get()
        if isinstance(result, Exception):
            raise result
        return result

    @asynccontextmanager
    async def _accepted(self, job: Job) -> AsyncIterator[None]:
        """The job is the worker's until it is done, or its client has gone."""
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._work, daemon=True, name="allyouneed-worker")
            self._thread.start()
        if self.waiting >= self.limits.waiting:
            raise FullError
        self.jobs.add(job)
        self._give(job)
        try:
            yield
        finally:
            self.jobs.discard(job)
            job.cancelled = True
            with self._wake:
                self._wake.notify()

    def _give(self, job: Job) -> None:
        with self._wake:
            self._new.append(job)
            self._wake.notify()

    @property
    def running(self) -> int:
        return len(self._open)

    @property
    def waiting(self) -> int:
        return max(0, len(self.jobs) - len(self._open))

    @property
    def alive(self) -> bool:
        return self._thread is None or self._thread.is_alive()

    def close(self) -> None:
        """No more jobs; the thread ends."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    # What the thread does

    def _work(self) -> None:
        opened: Any = nullcontext()
        if self.writes:
            assert isinstance(self.predictor, Writing)
            opened = self.predictor.writer.session(self.limits.rows)
        with opened as session:
            while self._take():
                try:
                    if session is not None:
                        self._write(session)
                    self._compute()
                except Exception as error:
                    for job in [*self._open.values(), *self._writing, *self._batches, *self._calls]:
                        self._deliver(job, error)
                    for id in list(self._open):
                        session.cancel(id)
                    for queue in (self._open, self._writing, self._batches, self._calls):
                        queue.clear()

    def _take(self) -> bool:
        """Wait until there is something to do; False if the worker is closed."""
        with self._wake:
            while not (self._new or self._open or self._writing or self._batches or self._calls):
                if self._closed:
                    return False
                self._wake.wait()
            new, self._new = self._new, deque()
        for job in new:
            if isinstance(job, WritingJob):
                self._writing.append(job)
            elif isinstance(job, BatchJob):
                self._batches.append(job)
            elif isinstance(job, CallJob):
                self._calls.append(job)
        return True

    def _write(self, session: Session) -> None:
        """One more token for every answer that is written; those that wait begin as far as there is room."""
        for id in [id for id, job in self._open.items() if job.cancelled]:
            session.cancel(id)
            del self._open[id]
        while self._writing and self._fits(self._writing[0]):
            job = self._writing.popleft()
            if job.cancelled:
                continue
            try:
                self._open[session.add(job.request)] = job
                self.metrics.queue_time.add(time.monotonic() - job.began)
            except Exception as error:
                self._deliver(job, error)
        for event in session.poll() if self._open else ():
            if event.id not in self._open:
                continue
            try:
                self._advance(session, event, self._open[event.id])
            except Exception as error:
                session.cancel(event.id)
                self._deliver(self._open.pop(event.id), error)

    def _fits(self, job: WritingJob) -> bool:
        assert isinstance(self.predictor, Writing)
        others = self._open.values()
        rows = sum(other.rows for other in others) + job.rows
        longest = max([job.tokens, *(other.tokens for other in others)])
        fits = rows <= self.limits.rows and rows * self.predictor.state_bytes(longest) <= self.limits.cache
        return fits or job.cancelled

    def _advance(self, session: Session, event: Event, job: WritingJob) -> None:
        now = time.monotonic()
        if event.token is not None or event.hypotheses:
            (self.metrics.between_tokens if job.last else self.metrics.first_token).add(now - (job.last or job.began))
            self.metrics.written.add(1 if event.token is not None else sum(len(h.tokens) for h in event.hypotheses))
            job.last = now
        if job.drafts is not None:
            outcome = job.drafts.take(event, session)
        elif event.error is not None:
            outcome = event.error
        else:
            job.codes[event.answer] += [event.token]  # type: ignore[list-item]
            outcome = self._finish(job) if all(len(row) == job.request.max_new for row in job.codes) else None
        if outcome is not None:
            del self._open[event.id]
            self._deliver(job, outcome)

    def _finish(self, job: WritingJob) -> Answer | Exception:
        assert isinstance(self.predictor, Writing)
        try:
            with self.predictor.lock:
                return self.predictor.finish(job.given, job.codes, job.decode)
        except Exception as error:
            return error

    def _compute(self) -> None:
        """One batch of inputs of the same size, and one call."""
        batches, self._batches = [job for job in self._batches if not job.cancelled], deque[BatchJob]()
        if batches:
            first = batches[0]
            same = [job for job in batches if job is first or (job.key is not None and job.key == first.key)][:TOGETHER]
            self._batches.extend(job for job in batches if job not in same)
            given = [job.given for job in same]
            # A product with a single row adds in another order than one with several, so no input is alone.
            both = given * 2 if len(given) == 1 and first.key is not None else given
            for job, outcome in zip(same, self._outcomes(first.predictor, both, first.decode)):
                self._deliver(job, outcome)
        if self._calls:
            job = self._calls.popleft()
            if not job.cancelled:
                self._deliver(job, _tried(job.compute))

    def _outcomes(self, predictor: Predictor, given: list[Any], decode: DecodeConfig) -> Iterable[Any]:
        found = _tried(lambda: list(predictor.answers(given, decode)))
        return found if isinstance(found, list) else [found] * len(given)

    def _deliver(self, job: Job, result: Any) -> None:
        if not job.cancelled:
            self._loop.call_soon_threadsafe(job.results.put_nowait, result)


def _tried(compute: Callable[[], Any]) -> Any:
    try:
        return compute()
    except Exception as error:
        return error
