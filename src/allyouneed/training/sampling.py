"""Samples while a model trains: a few answers beside their references, always to the same examples."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from allyouneed.errors import UserError
from allyouneed.models.base import Model
from allyouneed.tasks.base import Task
from allyouneed.training.memory import is_out_of_memory

COST = 0.02  # of the time of the training, at most


class Sampler:
    """Answers with the model as it is; its training goes on as if nothing had been asked."""

    def __init__(
        self, model: Model, task: Task, arithmetic: Callable[[], AbstractContextManager[Any]], quiet: bool
    ) -> None:
        self.model, self.task, self.arithmetic = model, task, arithmetic
        self.split = "" if quiet else next((split for split in ("valid", "test") if task.has(split)), "")
        self.spent = 0.0  # seconds
        if self.split:
            task.sampled(self.split)  # read now: the files may change while the model trains

    def affordable(self, seconds: float) -> bool:
        """Whether samples have cost little, if the training took so long. True before the first sample."""
        return self.spent <= COST * seconds

    def lines(self, most: int) -> list[str]:
        """Up to `most` samples, for the user; none if the model cannot answer."""
        if not self.split:
            return []
        began, training = time.monotonic(), self.model.training
        self.model.eval()
        try:
            with self.arithmetic():
                samples = self.task.samples(self.model, self.split, self.task.recipe.decode, most)
        except (UserError, RuntimeError, MemoryError) as error:  # samples are no reason to stop a training
            if not isinstance(error, UserError) and not is_out_of_memory(error):
                raise
            samples = []
        finally:
            self.model.train(training)
        self.spent += time.monotonic() - began
        return [line for sample in samples for line in sample.lines()]
