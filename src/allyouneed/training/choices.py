"""What the rules look at, and what they choose."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from allyouneed.data.facts import Facts
from allyouneed.recipe import Recipe

SPEED = (2_000.0, 150_000.0)  # tokens per second that the models chosen here learn: per CPU thread, and on a GPU
LEARN = (3_000_000, 100_000_000)  # tokens that they learn if nothing else is asked for: about ten minutes
STEPS = 400  # fewer are too few, whatever the data: then batches are smaller
CODES = 64  # of a picture, as most code books have them; the rules do not open the book
Values = dict[str, tuple[Any, str]]


@dataclass(frozen=True)
class Choice:
    """Some settings, `name`: what they are about, and the reason for them. By the key of each setting: its value, and
    the value in words; "" if it is not worth any."""

    name: str
    why: str
    values: Values


@dataclass(frozen=True)
class Case:
    """What the rules look at: the training data, the recipe so far, and the machine."""

    facts: Facts
    recipe: Recipe
    gpu: bool
    threads: int

    @property
    def given(self) -> frozenset[str]:
        return self.recipe.given or frozenset()

    @property
    def tokens(self) -> float:
        """About how many tokens an epoch has; of a translation, those of the target. A word has about 1.35 pieces."""
        if self.recipe.task_kind in ("recognize", "compress", "draw"):
            grid = CODES if self.recipe.task_kind == "draw" else 0
            return max(1.0, float(self.facts.examples * (self.recipe.model.tokens + grid)))
        per_word = {"translate": 1.35 / 2, "classify": 1.0, "wordvectors": 1.0}.get(self.recipe.task_kind, 1.35)
        return max(1.0, self.facts.words * per_word)

    def epochs(self, least: float, most: float, learn: float, batch: int) -> float:
        """Passes over the data: as many as the user has asked for, fit into train.minutes, or `learn` tokens take.
        `batch`: tokens per step."""
        train = self.recipe.train
        if train.minutes:
            found = 60 * train.minutes * (SPEED[1] if self.gpu else SPEED[0] * self.threads) / self.tokens
        elif train.epochs and "train.epochs" in self.given:
            found = train.epochs
        elif train.steps and "train.steps" in self.given:
            found = train.steps * self._batch(batch) / self.tokens
        else:
            found = min(most, max(least, learn / self.tokens))
        return float(f"{found:.2g}")

    def training(self, epochs: float, batch: int, warmup: int = 100, part: float = 0.1) -> Values:
        """The epochs, smaller batches if there would be too few of them, and `warmup` steps of warm-up, or this part
        of the steps if that is less."""
        while batch > 128 and epochs * self.tokens / batch < STEPS:
            batch //= 2
        steps = epochs * self.tokens / self._batch(batch)
        return {
            "train.epochs": (epochs, f"{epochs:g} epochs"),
            "train.batch_tokens": (batch, f"{batch:,} tokens per step"),
            "train.warmup": (min(400 if self.gpu else warmup, math.ceil(part * steps)), ""),
        }

    def _batch(self, batch: int) -> int:
        return self.recipe.train.batch_tokens if "train.batch_tokens" in self.given else batch

    def seen(self, epochs: float) -> str:
        """A reason."""
        return f"the data is seen {'about ' if self.recipe.train.minutes else ''}{epochs:g} times"


def careful_rate(case: Case) -> float:
    """The learning rate of a body that has learned to read: the wider, the smaller."""
    return float(f"{min(5e-4, 0.1 / case.recipe.model.width):.1g}")
