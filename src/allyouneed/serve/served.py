"""Served: a run with its worker, and what the endpoints do with it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError, nearest
from allyouneed.look.learning import Begun
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import Writing
from allyouneed.predict.embed import Embedding
from allyouneed.predict.engine import Engine
from allyouneed.run import Run
from allyouneed.serve.limits import Limits
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.worker import Worker


class MissingRunError(Exception):
    """There is no run of this name."""


class Served:
    """A run that answers."""

    def __init__(self, run: Run | Begun, name: str, limits: Limits) -> None:
        self.given, self.name, self.limits, self.metrics = run, name, limits, Metrics()
        self.embeddings: dict[tuple[str, str], Embedding] = {}

    @property
    def run(self) -> Run:
        run = self.given.loaded if isinstance(self.given, Begun) else self.given
        if run is None:
            raise UserError(f"{self.name} has no weights yet: its training has just begun")
        return run

    @property
    def task(self) -> str:
        return str(self.given.folder.read_recipe().task_kind) if isinstance(self.given, Begun) else self.run.recipe.task_kind

    @cached_property
    def worker(self) -> Worker:
        predictor = self.run.predictor
        if isinstance(predictor, Writing) and not isinstance(predictor.model, Engine) and self.run.device == "cpu":
            predictor.make_exact()
        return Worker(predictor, self.limits, self.metrics)

    def settings(self, given: dict[str, Any]) -> DecodeConfig:
        """Checked [decode] settings, within the limits of this server. Without a seed, each answer has its own."""
        found = self.run.decode(**given)
        if found.method == "sample" and "seed" not in given:
            found = self.run.decode(**given, seed=secrets.randbits(31))
        if found.max_new > self.limits.output:
            if "max_new" in given:
                raise UserError(f"{found.max_new} new tokens are asked for, and this server writes {self.limits.output}")
            found = self.run.decode(**{**vars(found), "max_new": self.limits.output})
        if found.n_best > self.limits.answers:
            raise UserError(f"{found.n_best} answers are asked for, and this server gives {self.limits.answers}")
        return found

    def check_texts(self, texts: Sequence[str]) -> None:
        if len(texts) > self.limits.texts:
            raise UserError(f"{len(texts):,} texts are given, and this server takes {self.limits.texts} at a time")
        if (longest := max(map(len, texts), default=0)) > self.limits.characters:
            raise UserError(f"a text has {longest:,} characters, and this server reads {self.limits.characters:,}")

    async def read(self, given: Any, decode: DecodeConfig) -> Any:
        """An input as the predictor takes it."""
        return self.checked(await asyncio.to_thread(self.run.predictor.read, given, decode))

    def checked(self, read: Any) -> Any:
        """What was read, if it is not too long."""
        tokens = len(getattr(read, "ids", ()))
        if tokens > self.limits.prompt:
            raise UserError(f"the prompt has {tokens:,} tokens, and this server reads {self.limits.prompt:,}: shorten it")
        self.metrics.read.add(tokens)
        return read

    async def answer(self, read: Any, decode: DecodeConfig) -> Answer:
        """The answer to an input that was read."""
        predictor, found = self.run.predictor, None
        if not self.worker.writes:
            return self.ended(await self.worker.answer(predictor, read, decode))
        async with aclosing(self.worker.write(read, decode, pieces=False)) as results:
            async for result in results:
                found = result
        assert isinstance(found, Answer)
        return self.ended(found)

    def ended(self, answer: Answer) -> Answer:
        for one in (answer, *answer.others):
            self.metrics.ended.add(label=one.reason)
        return answer

    async def answers(self, inputs: Iterable[Any], decode: DecodeConfig) -> list[dict[str, Any]]:
        """The answers to some inputs, as `ayn use --json` prints them."""
        return await gathered([self._one(given, decode) for given in inputs])

    async def _one(self, given: Any, decode: DecodeConfig) -> dict[str, Any]:
        read = await self.read(given, decode)
        found = (await self.answer(read, decode)).plain()
        unknown = self.run.predictor.unknown(read)
        return {**found, "unknown": list(unknown)} if unknown else found

    def embedding(self, layers: str, pool: str) -> Embedding:
        """What makes vectors of texts; the same one each time, so that texts can be read together."""
        key = layers, pool
        if key not in self.embeddings:
            if len(self.embeddings) >= 64:
                self.embeddings.clear()
            self.embeddings[key] = self.run.embedding(layers, pool)
        return self.embeddings[key]

    async def vectors(self, texts: Sequence[str], layers: str, pool: str) -> tuple[list[list[float]], int]:
        """The vector of each text, and how many tokens were read."""
        made, decode = self.embedding(layers, pool), DecodeConfig()
        read = [[await asyncio.to_thread(made.row, text)] for text in texts]
        self.metrics.read.add(count := sum(len(rows[0].ids) for rows in read))
        found = await gathered([self.worker.answer(made, rows, decode) for rows in read])
        return [one.details["vector"] for one in found], count

    async def compute(self, function: Callable[[], Any]) -> Any:
        return await self.worker.call(function)


async def gathered(awaited: Iterable[Any]) -> list[Any]:
    """All results, in order; the first error ends the others."""
    tasks = [asyncio.ensure_future(one) for one in awaited]
    try:
        return [await task for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Runs:
    """All runs of a server, by name."""

    def __init__(self, runs: Sequence[Run | Begun], limits: Limits) -> None:
        self.by_name: dict[str, Served] = {}
        for run in runs:
            path, name = run.folder.path.absolute(), run.folder.path.absolute().name
            if name in self.by_name:
                name = f"{path.parent.name}/{name}"
            while name in self.by_name:
                name += "+"
            self.by_name[name] = Served(run, name, limits)

    def named(self, name: str) -> Served:
        if name not in self.by_name:
            raise MissingRunError(f"there is no run '{name[:100]}' here{nearest(name[:100], self.by_name)}")
        return self.by_name[name]

    def find(self, name: str | None, tasks: Sequence[str], what: str) -> Served:
        """The run of this name, or the only one of these tasks."""
        if name is not None:
            served = self.named(name)
            if served.task not in tasks:
                raise UserError(f"{name} is a run of the task '{served.task}', which does not {what}")
            return served
        fitting = [served for served in self.by_name.values() if served.task in tasks]
        if len(fitting) == 1:
            return fitting[0]
        if not fitting:
            raise MissingRunError(f"no run here can {what}")
        raise UserError(f"several runs can {what}: name one as model: {', '.join(served.name for served in fitting)}")
