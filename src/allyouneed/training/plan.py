"""How many steps a run has, and how often it is evaluated: as the recipe says, or as many as fit into train.minutes."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from allyouneed.config import STEPS, TrainConfig
from allyouneed.errors import UserError
from allyouneed.format import human_time
from allyouneed.tasks.base import Moment
from allyouneed.training.distributed import Ranks
from allyouneed.training.evaluating import Evaluator
from allyouneed.training.optim import learning_rate

EVALUATIONS = 10  # per run, with train.eval_every = 0
MEMORY = 30.0  # seconds; the pace is about that of the last ones
FIRST_SECONDS, FIRST_PART = 5.0, 0.03  # of training, before the first plan: at most so long, or this part of the budget
SLACK = 0.05  # a plan stays as long as it misses what is left of the budget by less
CLOSING, CLOSING_PART = 2.0, 0.05  # seconds for the last files and pictures, and the part of the budget, at most
AFTER = 1.0  # of them, after the scores
LAST = 0.02  # of the budget: a test takes at least so long, even if the time is over
SPARE = 1.25  # times the estimated seconds of the scores are kept for them
ENDING = 0.25  # of the budget, at most, is kept for the scores of the test split


@dataclass(frozen=True)
class Plan:
    """The steps of a run, and where its schedule stands. A plan that changes at step `since` keeps the place that the
    schedule has reached: what is left of it is spread over the steps that are left."""

    total: int
    every: int  # steps between evaluations
    since: int = 0
    start: float = 0.0  # the place of the schedule at step `since`

    @property
    def known(self) -> bool:
        """False as long as the pace of a run with a budget is being measured."""
        return self.total < STEPS

    def place(self, step: int) -> float:
        """The place of the schedule at a step: the step itself, unless the plan has changed."""
        if self.start == self.since:
            return step
        return self.start + (step - self.since) * (self.total - self.start) / max(1, self.total - self.since)

    def changed(self, step: int, total: int, warmup: int) -> Plan:
        """The plan with another number of steps, from this step on."""
        place = self.place(step)
        if place <= warmup:  # the warm-up counts steps
            return replace(self, total=total, since=0, start=0)
        done = (place - warmup) / max(1, self.total - warmup)
        return replace(self, total=total, since=step, start=warmup + done * max(0, total - warmup))


def interval(total: int, least: float) -> int:
    """Steps between evaluations: ten per run, or fewer, if there would be less than `least` steps between them."""
    return math.ceil(total / max(1, min(EVALUATIONS, int(total / max(1.0, least))))) or 1


class Pace:
    """Seconds per step, mostly of the last ones."""

    def __init__(self) -> None:
        self.steps = self.seconds = self.whole = 0.0

    def see(self, steps: int, seconds: float) -> None:
        keep = math.exp(-seconds / MEMORY)
        self.steps, self.seconds = keep * self.steps + steps, keep * self.seconds + seconds
        self.whole += seconds

    @property
    def step(self) -> float:
        return self.seconds / max(1.0, self.steps)


class Budget:
    """train.minutes: the time of the whole command, from reading the data to the last score. `before`: the seconds that
    the sessions before have used."""

    def __init__(self, minutes: float, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.minutes, self.began, self.clock, self.before = minutes, began, clock, 0.0
        self.pace = Pace()
        self.evaluation = 0.0  # seconds of the last one
        self.ending = 0.0  # seconds that the scores of the test split will take

    def elapsed(self) -> float:
        return self.before + self.clock() - self.began

    @property
    def paced(self) -> bool:
        """Whether enough steps were seen for a first plan."""
        return self.pace.whole >= min(FIRST_SECONDS, FIRST_PART * 60 * self.minutes)

    def check(self) -> None:
        """Raise a UserError if preparing took all the time."""
        if self.over:
            raise UserError(
                f"train.minutes = {self.minutes:g} is over before the first step: preparing took "
                f"{human_time(self.elapsed())}; give more time"
            )

    @property
    def until(self) -> float:
        """When the scores of the test split must be there, by the clock."""
        end = self.began - self.before + 60 * self.minutes
        return max(end - AFTER, self.clock() + LAST * 60 * self.minutes)

    @property
    def closing(self) -> float:
        return min(CLOSING, CLOSING_PART * 60 * self.minutes)

    @property
    def over(self) -> bool:
        return self.elapsed() >= 60 * self.minutes

    def look(self, evaluator: Evaluator, seconds: float | None = None) -> None:
        """Note how long an evaluation took, or will take, and from that the scores at the end."""
        self.evaluation = evaluator.seconds() if seconds is None else seconds
        self.ending = min(SPARE * evaluator.scoring_seconds(self.evaluation), ENDING * 60 * self.minutes)

    def plan(self, plan: Plan, step: int, config: TrainConfig, least: float) -> Plan:
        """The plan that fits what is left; the same one if it still fits."""
        left = 60 * self.minutes - self.elapsed() - self.evaluation - self.ending - self.closing
        every = plan.every
        if not plan.known:
            every = config.eval_every or interval(step + max(0, int(left / self.pace.step)), least)
        total = step + max(1, round(left / (self.pace.step + self.evaluation / every)))  # so that the last is logged
        if plan.known and abs(total - plan.total) <= max(1, SLACK * (plan.total - step)):
            return plan
        return replace(plan.changed(step, total, config.warmup), every=every)


class Pacer:
    """The steps of a run and their learning rates: as the recipe says or, with train.minutes, as many as fit. `batches`
    are those of an epoch, `least` the steps between evaluations; `began` is when the command did."""

    def __init__(self, config: TrainConfig, batches: int, least: float, began: float | None = None) -> None:
        self.config, self.least = config, least
        self.plan = first_plan(config, batches, least)
        began = time.monotonic() if began is None else began
        self.budget = Budget(config.minutes, began) if config.minutes else None

    @property
    def total(self) -> int:
        return self.plan.total

    @property
    def shown(self) -> int | None:
        """The number of steps, if it is known."""
        return self.plan.total if self.plan.known else None

    @property
    def every(self) -> int:
        return self.plan.every

    def rate(self, step: int) -> float:
        return learning_rate(self.plan.place(step), self.total, self.config)

    def moment(self, step: int) -> Moment:
        return Moment(step, self.total, self.plan.place(step))

    def see(self, steps: int, seconds: float) -> None:
        """Note how long some steps took."""
        if self.budget is not None:
            self.budget.pace.see(steps, seconds)

    def elapsed(self) -> float:
        return self.budget.elapsed() if self.budget is not None else 0.0

    @property
    def until(self) -> float:
        return self.budget.until if self.budget is not None else math.inf

    def resume(self, plan: Plan, elapsed: float) -> None:
        """Continue the plan of a checkpoint; without a budget the recipe decides."""
        if self.budget is not None:
            self.plan, self.budget.before = plan, elapsed

    def follow(self, step: int, ranks: Ranks, evaluator: Evaluator) -> str:
        """Plan the steps that still fit; the first process decides for all. Returns what has changed, if anything."""
        before = self.plan
        if self.budget is None or not (before.known or ranks.say("paced" if self.budget.paced else "")):
            return ""
        if not before.known:
            self.budget.look(evaluator)
        after = self.budget.plan(before, step, self.config, self.least)
        self.plan = Plan(**json.loads(ranks.say(json.dumps(asdict(after)))))
        if self.plan == before:
            return ""
        pace = f"a step takes {self.budget.pace.step:.3g} s"
        return f"plan: {self.total:,} steps, an evaluation every {self.every:,}, because {pace}"


def first_plan(config: TrainConfig, batches: int, least: float) -> Plan:
    """The plan before the first step. `batches` are those of an epoch, `least` the steps between evaluations."""
    if config.minutes:
        return Plan(STEPS, config.eval_every or STEPS)
    total = config.steps or math.ceil(config.epochs * batches)
    return Plan(total, config.eval_every or interval(total, least))
