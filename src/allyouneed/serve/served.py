"""Served: a run with its worker, and what the endpoints do with it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from functools import cached_property
from typing import Any

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError, nearest
from allyouneed.look.learning import Begun
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import Writing
from allyouneed.predict.embed import Embedding
from allyouneed.run import Run
from allyouneed.serve.limits import Limits
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.worker import Worker


class MissingRunError(Exception):
    """There is no run of this name."""


class Served:
    """A run that answers."""

    def __init__(self, given: Run | Begun, name: str, limits: Limits) -> None:
        self.given, self.name, self.limits, self.metrics = given, name, limits, Metrics()
        self.task = given.folder.read_recipe().task_kind
        self.embeddings: dict[tuple[str, str], Embedding] = {}

    @property
    def run(self) -> Run:
        run = self.given.loaded if isinstance(self.given, Begun) else self.given
        if run is None:
            raise UserError(f"{self.name} has no weights yet: its training has just begun")
        return run

    @cached_property
    def worker(self) -> Worker:
        worker = Worker(self.run.predictor, self.limits, self.metrics)
        if worker.writes and self.run.device == "cpu" and isinstance(self.run.predictor, Writing):
            self.run.predictor.make_exact()
        return worker

    @property
    def started(self) -> Worker | None:
        """Its worker, if anything was asked for."""
        return vars(self).get("worker")

    def settings(self, given: dict[str, Any]) -> DecodeConfig:
        """Checked [decode] settings, within the limits of this server. Without a seed, each answer has its own."""
        found, most = self.run.decode(**given), self.limits
        if found.max_new > most.output and "max_new" in given:
            raise UserError(f"{found.max_new:,} new tokens are asked for, and this server writes {most.output:,}")
        if found.n_best > most.answers:
            raise UserError(f"{found.n_best:,} answers are asked for, and this server gives {most.answers}")
        seed = given.get("seed", secrets.randbits(31) if found.method == "sample" else found.seed)
        return self.run.decode(**{**given, "seed": seed, "max_new": min(found.max_new, most.output)})

    def several(self, given: str | list[str]) -> list[str]:
        """What a client gives, as a list."""
        several = [given] if isinstance(given, str) else given
        if len(several) > (most := min(self.limits.texts, self.limits.waiting)):
            raise UserError(f"{len(several):,} inputs are given, and this server takes {most} at a time")
        return several

    def texts(self, given: str | list[str]) -> list[str]:
        """Texts that are not too long."""
        texts = self.several(given)
        if (longest := max(map(len, texts), default=0)) > self.limits.characters:
            raise UserError(f"a text has {longest:,} characters, and this server reads {self.limits.characters:,}")
        return texts

    async def read(self, given: Any, decode: DecodeConfig) -> Any:
        """An input as the predictor takes it."""
        return self.checked(await asyncio.to_thread(self.run.predictor.read, given, decode))

    def checked(self, read: Any) -> Any:
        """What was read, if it is not too long."""
        tokens, most = len(getattr(read, "ids", ())), self.limits.prompt
        if tokens > most:
            raise UserError(f"the prompt has {tokens:,} tokens, and this server reads {most:,}: shorten it")
        self.metrics.read.add(tokens)
        return read

    async def answer(self, read: Any, decode: DecodeConfig) -> Answer:
        """The answer to an input that was read."""
        if not self.worker.writes:
            return self.ended(await self.worker.answer(self.run.predictor, read, decode))
        async with aclosing(self.worker.write(read, decode)) as results:
            return self.ended(await anext(results))  # type: ignore[arg-type]

    def ended(self, answer: Answer) -> Answer:
        for one in (answer, *answer.others):
            self.metrics.ended.add(value=one.reason)
        return answer

    async def answers(self, inputs: Iterable[Any], decode: DecodeConfig) -> list[dict[str, Any]]:
        """The answers to some inputs, as `ayn use --json` prints them."""

        async def one(given: Any) -> dict[str, Any]:
            read = await self.read(given, decode)
            unknown = list(self.run.predictor.unknown(read))
            return {**(await self.answer(read, decode)).plain(), **({"unknown": unknown} if unknown else {})}

        return await gathered([one(given) for given in inputs])

    async def vectors(self, texts: Sequence[str], layers: str, pool: str) -> tuple[list[list[float]], int]:
        """The vector of each text, and how many tokens were read."""
        key = layers, pool  # the same Embedding each time, so that texts can be read together
        if key not in self.embeddings:
            made = self.run.embedding(layers, pool)
            self.embeddings = {key: made} if len(self.embeddings) >= 64 else {**self.embeddings, key: made}
        made, decode = self.embeddings[key], DecodeConfig()
        read = [[await asyncio.to_thread(made.row, text)] for text in texts]
        tokens = sum(len(row.ids) for (row,) in read)
        self.metrics.read.add(tokens)
        found = await gathered([self.worker.answer(made, rows, decode) for rows in read])
        return [one.details["vector"] for one in found], tokens


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
            path = run.folder.path.absolute()
            name = path.name if path.name not in self.by_name else f"{path.parent.name}/{path.name}"
            if name in self.by_name:
                raise UserError(f"there are two runs named {name}: rename one of their folders")
            self.by_name[name] = Served(run, name, limits)

    def named(self, name: str) -> Served:
        if name not in self.by_name:
            raise MissingRunError(f"there is no run '{name[:100]}' here{nearest(name[:100], self.by_name)}")
        return self.by_name[name]

    def find(self, name: str | None, tasks: Sequence[str], what: str) -> Served:
        """The run of this name, or the only one of these tasks."""
        if name is not None:
            if (served := self.named(name)).task not in tasks:
                raise UserError(f"{name} is a run of the task '{served.task}', which does not {what}")
            return served
        fitting = [served for served in self.by_name.values() if served.task in tasks]
        if len(fitting) > 1:
            names = ", ".join(served.name for served in fitting)
            raise UserError(f"several runs can {what}: name one of them as model: {names}")
        if not fitting:
            raise MissingRunError(f"no run here can {what}")
        return fitting[0]
