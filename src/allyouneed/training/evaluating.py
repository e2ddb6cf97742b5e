"""The loss and the score of the validation split, and how long they take."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.tasks.base import Carry, Task
from allyouneed.tasks.extent import Extent
from allyouneed.terminal import Say
from allyouneed.training.distributed import Ranks
from allyouneed.training.feed import Feed
from allyouneed.training.named_losses import NamedLosses

BATCHES, EXAMPLES = 4, 128  # by which the time of the loss and of the score is estimated


class Evaluator:
    """Evaluates the model as it is; afterwards it trains on."""

    def __init__(
        self,
        model: Model,
        task: Task,
        losses: NamedLosses,
        feed: Feed | None,
        ranks: Ranks,
        arithmetic: Callable[[], AbstractContextManager[Any]],
        say: Say,
    ) -> None:
        self.model, self.task, self.losses, self.feed = model, task, losses, feed
        self.ranks, self.arithmetic, self.say = ranks, arithmetic, say
        self.batches = len(feed.examples.cover(feed.batch_tokens)) if feed is not None else 0
        self.passes = 1 if task.chooses_by_loss else 2  # a score reads the split once more

    @property
    def least_interval(self) -> float:
        """Steps that there must be between evaluations, so that these take a small part of the time."""
        return self.batches * self.passes * self.task.reading / self.task.looking

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
        self.model.eval()
        with self.arithmetic():
            self.task.tune(self.model, (batch.to(self.feed.device) for batch in self.feed.cover(part)))
        device, names = self.feed.device, self.losses.names
        found, counts, carry = [torch.zeros(len(names), device=device)], [0.0] * len(names), Carry()
        for batch in self.feed.cover(part):
            with self.arithmetic():
                sums = self.task.losses(self.model, batch.to(device), None, carry)
            found.append(torch.stack([sums[name].float() for name in names]))
            counts = [total + batch.size.counts[name] for total, name in zip(counts, names)]
        self.model.train()
        local = [sum(column) for column in zip(*torch.stack(found).tolist())]  # read once: the device never waits
        totals = self.ranks.total([*local, *counts], device)
        return [total / max(1.0, count) for total, count in zip(totals, totals[len(local) :])]

    def score(self, part: float) -> Score | None:
        """The score, of a part of the split, by which the task chooses the best weights; None if that is a loss."""
        if self.task.chooses_by_loss:
            return None
        self.model.eval()
        with self.arithmetic():
            scores = self.task.test(self.model, "valid", self.task.recipe.decode, self.say, Extent(self.limit(part)))
        self.model.train()
        score = next(score for score in scores if score.name == self.task.chooses_by)
        return replace(score, value=float(self.ranks.say(repr(score.value))))  # one value for all processes

    @torch.no_grad()
    def seconds(self) -> float:
        """About how long an evaluation of the whole split takes, by a few of its batches and examples."""
        if self.feed is None:
            return 0.0
        self.model.eval()
        began, measured = time.monotonic(), 0
        for batch in self.feed.cover(BATCHES / max(1, self.batches)):
            with self.arithmetic():
                sums = self.task.losses(self.model, batch.to(self.feed.device), None, Carry())
            sum(value.item() for value in sums.values())  # waits for the device
            measured += 1
        seconds = (time.monotonic() - began) / max(1, measured) * self.batches
        self.model.train()
        if not self.task.chooses_by_loss:
            part, began = min(1.0, EXAMPLES / max(1, self.examples)), time.monotonic()
            self.score(part)
            seconds += (time.monotonic() - began) / part
        return seconds

    def scoring_seconds(self, evaluation: float) -> float:
        """About how long the scores of the test split take, if an evaluation takes `evaluation`."""
        limit = self.task.recipe.train.test_limit
        if limit < 0:
            return 0.0
        self.model.eval()
        with self.arithmetic():
            seconds = self.task.scoring_seconds(self.model, self.task.recipe.decode, evaluation)
        self.model.train()
        if limit and self.task.has("test"):
            seconds *= min(1.0, limit / max(1, self.task.items("test")))
        return seconds
