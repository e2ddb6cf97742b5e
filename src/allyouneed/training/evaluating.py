"""The losses of a task by name, the loss and the score of the validation split, how long they take, and samples."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from allyouneed.data.batches.base import Size
from allyouneed.errors import UserError
from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.tasks.base import Carry, Task, TestBudget
from allyouneed.terminal import Say
from allyouneed.training.distributed import Ranks
from allyouneed.training.feed import Feed
from allyouneed.training.memory import is_out_of_memory


class NamedLosses:
    """`weights` by name, as the task declares them. A list or tensor of losses is in the order of `names`."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights, self.names = weights, sorted(weights)

    def __len__(self) -> int:
        return len(self.names)

    def means(self, sums: Mapping[str, Tensor], size: Size) -> Tensor:
        """The mean of each loss: sum / count."""
        return torch.stack([sums[name] / (size.counts[name] or 1.0) for name in self.names])

    def total(self, losses: Any) -> Any:
        """Σ weight · loss"""
        return sum(self.weights[name] * losses[i] for i, name in enumerate(self.names))

    def by_name(self, losses: Sequence[float]) -> dict[str, float]:
        """For the log: the loss that is minimised and, if it has several parts, each part by its name."""
        parts = dict(zip(self.names, losses)) if len(self.names) > 1 else {}
        return {"loss": float(self.total(losses)), **{f"{name} loss": value for name, value in parts.items()}}


Arithmetic = Callable[[], AbstractContextManager[Any]]  # the precision of the training
BATCHES, EXAMPLES = 4, 128  # by which the time of the loss and of the score is estimated


@contextmanager
def evaluation(model: Model, arithmetic: Arithmetic) -> Iterator[None]:
    """Inside the block, the model is evaluated; afterwards it trains on, as if nothing had been asked."""
    training = model.training
    model.eval()
    try:
        with arithmetic():
            yield
    finally:
        model.train(training)


@dataclass
class Evaluator:
    """The losses and the score of the model as it is, and how long they take."""

    model: Model
    task: Task
    losses: NamedLosses
    feed: Feed | None  # of the validation split, if there is one
    ranks: Ranks
    arithmetic: Arithmetic
    say: Say

    @property
    def batches(self) -> int:
        return len(self.feed.examples.cover(self.feed.batch_tokens)) if self.feed is not None else 0

    @property
    def least_interval(self) -> float:
        """Steps that there must be between evaluations, so that these take a small part of the time."""
        passes = 1 if self.task.chooses_by_loss else 2  # a score reads the split once more
        return self.batches * passes * self.task.eval_cost / self.task.eval_share

    @property
    def examples(self) -> int:
        return self.task.items("valid") if self.feed is not None else 0

    def limit(self, part: float) -> int:
        """How many examples a part of the split has; 0 if it is all of it."""
        return max(1, math.ceil(part * self.examples)) if part < 1 else 0

    @torch.no_grad()
    def loss(self, part: float) -> list[float]:
        """The mean of each named loss over a part of the split, on all processes."""
        assert self.feed is not None
        device, names = self.feed.device, self.losses.names
        with evaluation(self.model, self.arithmetic):
            self.task.tune(self.model, (batch.to(device) for batch in self.feed.cover(part)))
        found, counts, carry = [torch.zeros(len(names), device=device)], [0.0] * len(names), Carry()
        with evaluation(self.model, self.arithmetic):
            for batch in self.feed.cover(part):
                sums = self.task.losses(self.model, batch.to(device), None, carry)
                found.append(torch.stack([sums[name].float() for name in names]))
                counts = [total + batch.size.counts[name] for total, name in zip(counts, names)]
        local = [sum(column) for column in zip(*torch.stack(found).tolist())]  # read once: the device never waits
        totals = self.ranks.total([*local, *counts], device)
        return [total / max(1.0, count) for total, count in zip(totals, totals[len(local) :])]

    def score(self, part: float) -> Score | None:
        """The score, of a part of the split, by which the task chooses the best weights; None if that is a loss."""
        task, budget = self.task, TestBudget(self.limit(part))
        if task.chooses_by_loss:
            return None
        with evaluation(self.model, self.arithmetic):
            scores = task.test(self.model, "valid", task.recipe.decode, self.say, budget)
        score = next(score for score in scores if score.name == task.chooses_by)
        return replace(score, value=self.ranks.broadcast(score.value))  # one value for all processes

    @torch.no_grad()
    def seconds(self) -> float:
        """About how long an evaluation of the whole split takes, by a few of its batches and examples."""
        if self.feed is None:
            return 0.0
        began, measured, batches = time.monotonic(), 0, self.batches
        with evaluation(self.model, self.arithmetic):
            for batch in self.feed.cover(BATCHES / max(1, batches)):
                sums = self.task.losses(self.model, batch.to(self.feed.device), None, Carry())
                sum(value.item() for value in sums.values())  # waits for the device
                measured += 1
        seconds = (time.monotonic() - began) / max(1, measured) * batches
        if not self.task.chooses_by_loss:
            part, began = min(1.0, EXAMPLES / max(1, self.examples)), time.monotonic()
            self.score(part)
            seconds += (time.monotonic() - began) / part
        return seconds

    def scoring_seconds(self, seconds: float) -> float:
        """About how long the scores of the test split take, if an evaluation takes so many seconds."""
        limit = self.task.recipe.train.test_limit
        if limit < 0 or not (self.task.has("valid") and self.task.has("test")):
            return 0.0
        with evaluation(self.model, self.arithmetic):
            found = self.task.scoring_seconds(self.model, self.task.recipe.decode, seconds)
        if limit:
            found *= min(1.0, limit / max(1, self.task.items("test")))
        return found


COST = 0.02  # of the time of the training, at most


class Sampler:
    """Answers of the model as it is, which are shown."""

    def __init__(self, model: Model, task: Task, arithmetic: Arithmetic, quiet: bool) -> None:
        self.model, self.task, self.arithmetic = model, task, arithmetic
        self.split = "" if quiet else next((split for split in ("valid", "test") if task.has(split)), "")
        self.spent = 0.0  # seconds

    def affordable(self, seconds: float) -> bool:
        """Whether samples have cost little, if the training took so long. True before the first sample."""
        return self.spent <= COST * seconds

    def formatted(self, most: int) -> list[str]:
        """Up to `most` samples as lines of text; none if the model cannot answer."""
        if not self.split:
            return []
        began, samples = time.monotonic(), []
        try:
            with evaluation(self.model, self.arithmetic):
                samples = self.task.samples(self.model, self.split, self.task.recipe.decode, most)
        except (UserError, RuntimeError, MemoryError) as error:  # samples are no reason to stop a training
            if not isinstance(error, UserError) and not is_out_of_memory(error):
                raise
        self.spent += time.monotonic() - began
        return [line for sample in samples for line in sample.to_lines()]
