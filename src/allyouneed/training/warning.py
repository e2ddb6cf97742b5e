"""Warnings: the data set is too small for the model; the model memorizes its training examples."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from allyouneed.config import LENGTHS
from allyouneed.data.report import Report
from allyouneed.data.sources import IMAGES
from allyouneed.format import either, human_count
from allyouneed.models.base import Model
from allyouneed.tasks.base import Task

RISES = 3  # evaluations in a row with a higher validation loss than the one before
ABOVE = 1.02  # times the lowest validation loss: less is noise
PARAMETERS = 20  # per token of the training data; the recipes on their own data have fewer than ten
EXAMPLES = 50  # fewer are too few for any model that starts at random


@dataclass
class Watch:
    """Watches for a validation loss that only rises while the training loss falls. A checkpoint keeps it."""

    total: float = 0.0  # of the training losses since the last evaluation
    steps: int = 0
    trained: float = math.inf  # the mean training loss before the last evaluation
    found: float = math.inf  # the validation loss of the last evaluation
    lowest: float = math.inf
    lowest_step: int = 0
    rises: int = 0
    start: float = math.inf  # the mean training loss before the rises
    warned: int = 0

    def add(self, loss: float) -> None:
        """A step of the training."""
        self.total += loss
        self.steps += 1

    def evaluate(self, step: int, loss: float, waited: int) -> bool:
        """An evaluation, `waited` evaluations after the best one. Returns True once per run, if the validation loss
        only rises; a score that still improves is a reason not to warn."""
        before, trained = self.trained, self.total / self.steps if self.steps else self.trained
        if loss <= self.found:
            self.rises = 0
        else:
            self.start = before if self.rises == 0 else self.start
            self.rises += 1
        if loss < self.lowest:
            self.lowest, self.lowest_step = loss, step
        self.found, self.trained, self.total, self.steps = loss, trained, 0.0, 0
        rising = self.rises >= RISES and loss >= ABOVE * self.lowest and trained < self.start
        if not rising or waited < RISES or self.warned:
            return False
        self.warned = 1
        return True

    def warning(self, task: Task) -> str:
        """What `evaluate` has found, and what to try."""
        length = next(name for name in LENGTHS if vars(task.recipe.train)[name])
        dropout = vars(task.recipe.model).get("dropout")
        tries = [
            "more data",
            *([f"more model.dropout (now {dropout:g})"] if dropout is not None else []),
            f"fewer train.{length}",
            *_smaller(task),
        ]
        return (
            f"the validation loss has risen from {self.lowest:.4f} at step {self.lowest_step} to {self.found:.4f}, "
            f"while the training loss fell: the model memorizes its training examples; try {either(tries)}"
        )


def small_data(report: Report, task: Task, model: Model, batches: int) -> str:
    """A sentence if the training data is too small for the model, and what to try; "" if it is not. `batches`: of an
    epoch."""
    train = next(part for part in report.parts if part.name == "train")
    # Images have one length.
    tokens = train.examples * task.longest if task.shape in IMAGES else sum(side.total for side in train.sides)
    tables = {id(p) for table in model.tables() for p in table.parameters()}
    parameters = sum(p.numel() for p in model.parameters() if p.requires_grad and id(p) not in tables)
    large = parameters > PARAMETERS * tokens and not task.recipe.train.init  # a body that has learned needs less data
    few = task.shape != "text" and train.examples < EXAMPLES
    if not (large or few or batches <= 1):
        return ""
    if not (large or few):
        batch = task.recipe.train.batch_tokens
        return (
            f"all training data is one batch: try a train.batch_tokens below {batch:,}, so that an epoch has more steps"
        )
    many = f"{train.examples:,} {report.things} with " if task.shape != "text" else ""
    return (
        f"the training data is small for this model: {many}{tokens:,} {report.unit} for {human_count(parameters)} "
        f"parameters (embeddings left out); try {either(['more data', *_smaller(task)])}"
    )


def _smaller(task: Task) -> list[str]:
    """How to make this model smaller; the body of another run keeps its size."""
    own = {field.name for field in fields(task.recipe.model)}
    if task.recipe.train.init:
        return ["model.freeze=body"] if "freeze" in own and task.recipe.model.freeze != "body" else []
    settings = [*(["model.size"] if len(task.kind.sizes) > 1 else []), *(["model.width"] if "width" in own else [])]
    return [f"a smaller {' or '.join(settings)}"] if settings else []
