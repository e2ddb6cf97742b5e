"""How many steps a run has, and how often it is evaluated: as the recipe says, or as many as fit into train.minutes."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from allyouneed.config import STEPS, TrainConfig
from allyouneed.errors import UserError
from allyouneed.format import either, human_time
from allyouneed.tasks.base import Moment, Task
from allyouneed.training.distributed import Ranks
from allyouneed.training.evaluating import Evaluator
from allyouneed.training.optim import learning_rate, warmup
from allyouneed.training.progress import Pace

TRIAL, PART = 1.0, 0.01  # seconds to try a number of threads, and the part of the budget, at most
LEAST = 2  # steps of a trial
AGAIN = 20  # a trial is repeated after so many times the seconds that it took
FASTER = 1.1  # times: for less, the number stays


class Threads:
    """Tries `most` threads, half as many and so on down to one, later only the neighbours of what it has chosen."""

    def __init__(self, most: int, seconds: float) -> None:
        self.used, self.counts = most, [most >> i for i in range(most.bit_length())]
        self.trial = min(TRIAL, PART * seconds)
        self.untried = list(self.counts)
        self.speeds: dict[int, float] = {}  # units per second, by the number of threads
        self.steps = self.units = self.seconds = 0.0  # with this number of threads
        self.took = 0.0  # seconds of the trial

    @property
    def trying(self) -> bool:
        return bool(self.untried)

    def add(self, steps: int, units: int, seconds: float) -> None:
        """Note how long some steps took, and set the number of threads of the next ones."""
        self.steps, self.units, self.seconds = self.steps + steps, self.units + units, self.seconds + seconds
        if self.untried:
            if self.seconds < self.trial or self.steps < LEAST:
                return
            self.speeds[self.untried.pop(0)] = self.units / max(1e-9, self.seconds)
            self.took += self.seconds
            best = max(self.speeds, key=lambda count: self.speeds[count])
            if not self.untried and self.speeds[best] > FASTER * self.speeds.get(self.used, 0.0):
                self.used = best
        elif self.seconds > AGAIN * self.took:
            near = {2 * self.used, self.used // 2} & set(self.counts)
            self.untried, self.took, self.speeds = [self.used, *near], 0.0, {}
        else:
            return
        self.steps = self.units = self.seconds = 0.0
        torch.set_num_threads(self.untried[0] if self.untried else self.used)

    def __str__(self) -> str:
        return f"{self.used} of {self.counts[0]} threads"


EVALUATIONS = 10  # per run, with train.eval_every = 0
MEMORY = 30.0  # seconds; the pace is about that of the last ones
FIRST_SECONDS, FIRST_PART = 5.0, 0.03  # of training, before the first plan: at most so long, or this part of the budget
SLACK = 0.05  # a plan stays as long as it misses what is left of the budget by less
NEWS = 0.25  # a plan is announced again if its steps have changed by more than this part
FEW = 300  # steps: hardly a model learns anything in fewer
# The parts of a budget. All that is not training (preparing, validation, test, closing) shares what is left.
TRAINING = 0.78  # at least, unless preparing takes longer than the others may
SCORING = 0.08  # of the budget, for validation and test together, even if preparing has taken all that they may
CLOSING, CLOSING_PART = 2.0, 0.05  # seconds for the last files and images, and the part of the budget, at most
AFTER = 1.0  # of them, after the scores
LAST = 0.02  # of the budget: a test takes at least so long, even if the time is over
SPARE = 1.25  # times the estimated seconds of the test are kept for it
ENOUGH = 1000  # validation examples: with fewer, there are fewer evaluations instead
FEWEST = 5  # evaluations
SMALLEST = 128  # tokens per step; the rules choose no smaller batch


@dataclass(frozen=True)
class Plan:
    """The steps of a run, and where its schedule stands. A plan that changes at step `since` keeps the place that the
    schedule has reached: what is left of it is spread over the steps that are left."""

    total: int
    every: int  # steps between evaluations
    since: int = 0
    start: float = 0.0  # the place of the schedule at step `since`
    valid: float = 1.0  # the part of the validation split that each evaluation reads

    @property
    def known(self) -> bool:
        """False as long as the pace of a run with a budget is being measured."""
        return self.total < STEPS

    @property
    def shown(self) -> int | None:
        """The number of steps, if it is known."""
        return self.total if self.known else None

    def place(self, step: int) -> float:
        """The place of the schedule at a step: the step itself, unless the plan has changed."""
        if self.start == self.since:
            return step
        return self.start + (step - self.since) * (self.total - self.start) / max(1, self.total - self.since)

    def changed(self, step: int, total: int, config: TrainConfig) -> Plan:
        """The plan with another number of steps, from this step on."""
        place, before, after = self.place(step), warmup(self.total, config), warmup(total, config)
        if place <= before:  # the warm-up counts steps
            return replace(self, total=total, since=0, start=0)
        done = (place - before) / max(1, self.total - before)
        return replace(self, total=total, since=step, start=after + done * max(0, total - after))


def interval(total: int, least: float) -> int:
    """Steps between evaluations: ten per run, or fewer, if there would be less than `least` steps between them."""
    return math.ceil(total / max(1, min(EVALUATIONS, int(total / max(1.0, least))))) or 1


def validation(seconds: float, whole: float, examples: int) -> tuple[int, float]:
    """How often to evaluate, and on which part of the validation split, if all evaluations may take `seconds` and one
    of the whole split takes `whole`: ten times or, rather than on less than ENOUGH examples, less often."""
    affordable = seconds / max(1e-9, whole)  # evaluations of the whole split
    wanted = min(1.0, ENOUGH / max(1, examples))
    times = max(FEWEST, min(EVALUATIONS, int(affordable / wanted)))
    return times, min(1.0, affordable / times)


class Budget:
    """train.minutes: the time of the whole command, from reading the data to the last score; infinite if there is none.
    `before`: the seconds that the sessions before have used. If the machine becomes slower, evaluations and the test do
    too."""

    def __init__(self, minutes: float, began: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.minutes, self.seconds, self.began, self.clock, self.before = minutes, 60 * minutes, began, clock, 0.0
        self.pace = Pace(MEMORY)
        self.prepared = 0.0  # seconds that were not training, before the first step
        self.validated = 0.0  # seconds of all evaluations
        self.last = 0.0  # seconds of the last evaluation
        self.pace_then = 0.0  # seconds per step at that time
        self.fresh = 0.0  # seconds of training after which this is no longer the pace of now
        self.test = 0.0  # steps that would take as long as the test

    def elapsed(self) -> float:
        return self.before + self.clock() - self.began

    def begin(self, trained: float) -> None:
        """The first step is next, after `trained` seconds of training by the sessions before. Raises a UserError if
        preparing took all the time."""
        self.prepared = self.elapsed() - trained
        if self.over and not trained:
            raise UserError(
                f"train.minutes = {self.minutes:g} is over before the first step: preparing took "
                f"{human_time(self.elapsed())}; give more time"
            )

    @property
    def paced(self) -> bool:
        """Whether enough steps were seen for a first plan."""
        return self.pace.whole >= min(FIRST_SECONDS, FIRST_PART * self.seconds)

    @property
    def scoring(self) -> float:
        """Seconds for validation and test: what training, preparing and closing leave."""
        left = (1 - TRAINING) * self.seconds - self.prepared - self.closing
        return max(left, SCORING * self.seconds)

    @property
    def ending(self) -> float:
        """Seconds that are kept for the test: half of those for scoring, or fewer, if it needs fewer."""
        return min(self.scoring / 2, SPARE * self.test * self.pace.step)

    @property
    def closing(self) -> float:
        return min(CLOSING, CLOSING_PART * self.seconds)

    @property
    def until(self) -> float:
        """When the scores of the test split must be there, by the clock."""
        end = self.began - self.before + self.seconds
        return max(end - AFTER, self.clock() + LAST * self.seconds)

    @property
    def over(self) -> bool:
        return self.elapsed() >= self.seconds

    def evaluated(self, seconds: float) -> None:
        """Note how long an evaluation took."""
        self.validated += seconds
        self.last, self.fresh = seconds, self.pace.whole + MEMORY

    def evaluation(self) -> float:
        """Seconds of the next evaluation: those of the last one, at the pace of now."""
        if self.pace.whole <= self.fresh:  # the machine was as it is now, even if the pace has not shown it yet
            self.pace_then = self.pace.step
        return self.last * self.pace.step / max(1e-9, self.pace_then)

    def first(self, step: int, config: TrainConfig, evaluator: Evaluator, eval_share: float) -> Plan:
        """The first plan, when the pace is known: how much validation and test fit beside the training. `eval_share` is
        the part of the time that a task wants to spend on validation."""
        whole = evaluator.seconds()
        self.test = evaluator.scoring_seconds(whole) / max(1e-9, self.pace.step)
        seconds = min(self.scoring / 2, eval_share * self.seconds)
        times, valid = validation(seconds, whole, evaluator.examples)
        if config.eval_every:
            times = max(1, round(self._left() / self.pace.step / config.eval_every))
            valid = min(1.0, seconds / max(1e-9, whole * times))
        self.last, self.fresh = valid * whole, self.pace.whole + MEMORY
        total = step + max(1, int((self._left() - seconds) / self.pace.step))
        every = config.eval_every or math.ceil(total / times)
        return Plan(total, every, valid=valid)

    def _left(self) -> float:
        """Seconds for training and validation."""
        return self.seconds - self.elapsed() - self.ending - self.closing

    def plan(self, plan: Plan, step: int, config: TrainConfig) -> Plan:
        """The plan that fits what is left; the same one if it still fits."""
        evaluation = self.evaluation()
        left = self._left() - evaluation
        total = step + max(1, round(left / (self.pace.step + evaluation / plan.every)))  # so that the last is logged
        every = plan.every
        affordable = max(0, int((self.scoring / 2 - self.validated) / max(1e-9, evaluation)) - 1)  # before the last one
        if not config.eval_every and (total - step) // every > affordable:  # then they come less often
            every = math.ceil((total - step + 1) / (affordable + 1))
            total = step + max(1, round(left / (self.pace.step + evaluation * affordable / max(1, total - step))))
        if every == plan.every and abs(total - plan.total) <= max(1, SLACK * (plan.total - step)):
            return plan
        return replace(plan.changed(step, total, config), every=every)


class Pacer:
    """The steps of a run and their learning rates: as the recipe says or, with train.minutes, as many as fit. `batches`
    are those of an epoch, `least` the steps between evaluations, `eval_share` the part of the time that these may take;
    `began` is when the command did, `threads` how many it has, if it may use fewer."""

    def __init__(
        self,
        config: TrainConfig,
        batches: int,
        least: float,
        eval_share: float = 0.05,
        began: float | None = None,
        threads: int = 1,
    ) -> None:
        self.config, self.eval_share = config, eval_share
        self.plan = first_plan(config, batches, least)
        self.announced = 0  # steps of the plan that `news` has named
        self.budget = Budget(config.minutes or math.inf, time.monotonic() if began is None else began)
        fixed = not config.minutes or config.threads or threads == 1
        self.threads = None if fixed else Threads(threads, 60 * config.minutes)

    def rate(self, step: int) -> float:
        return learning_rate(self.plan.place(step), self.plan.total, self.config)

    def moment(self, step: int) -> Moment:
        return Moment(step, self.plan.place(step) / max(1, self.plan.total))

    def add(self, steps: int, units: int, seconds: float) -> None:
        """Note how long some steps took. Those that try another number of threads say nothing about the pace."""
        trying = self.threads is not None and self.threads.trying
        if self.threads is not None:
            self.threads.add(steps, units, seconds)
        if not trying:
            self.budget.pace.add(steps, seconds)

    def resume(self, plan: Plan, elapsed: float) -> None:
        """Continue the plan of a checkpoint; without a budget the recipe decides."""
        if self.config.minutes:
            self.plan, self.budget.before = plan, elapsed

    def follow(self, step: int, ranks: Ranks, evaluator: Evaluator) -> bool:
        """Plan the steps that still fit; the first process decides for all. Returns whether the plan has changed."""
        before = self.plan
        if not self.config.minutes or not (before.known or ranks.broadcast(self.budget.paced)):
            return False
        if before.known:
            after = self.budget.plan(before, step, self.config)
        else:
            after = self.budget.first(step, self.config, evaluator, self.eval_share)
        self.plan = ranks.broadcast(after)
        return self.plan != before

    def news(self, task: Task, evaluator: Evaluator) -> list[str]:
        """Lines about the plan: all of it at first, then only that it has become much longer or shorter."""
        total, minutes = self.plan.total, self.config.minutes
        if abs(total - self.announced) <= NEWS * self.announced:
            return []
        first, self.announced = not self.announced, total
        pace = f"{self.budget.pace.step:.3g} s{f' with {self.threads}' if self.threads is not None else ''}"
        found = [f"plan: {total:,} steps, an evaluation every {self.plan.every:,}, because a step takes {pace}"]
        if first and (limit := evaluator.limit(self.plan.valid)):
            found.append(
                f"validation: {limit:,} of {evaluator.examples:,} {task.item_name}, because more do not fit into "
                f"train.minutes = {minutes:g}"
            )
        if first and total < FEW:
            found.append(f"warning: {few_steps(total, minutes, task)}")
        return found


def few_steps(total: int, minutes: float, task: Task) -> str:
    """Says that a budget is too small to learn much, and what would help."""
    own, train = vars(task.recipe.model), task.recipe.train
    tries = [f"train.minutes={math.ceil(minutes * FEW / max(1, total)):g}"]
    if train.batch_tokens > SMALLEST:
        tries.append(f"a smaller train.batch_tokens (now {train.batch_tokens:,})")
    tries += [f"a smaller model.{name} (now {own[name]})" for name in ("width", "layers") if name in own]
    return f"train.minutes = {minutes:g} allows only about {total:,} steps, too few to learn much: try {either(tries)}"


def first_plan(config: TrainConfig, batches: int, least: float) -> Plan:
    """The plan before the first step. `batches` are those of an epoch, `least` the steps between evaluations."""
    if config.minutes:
        return Plan(STEPS, config.eval_every or STEPS)
    total = config.steps or math.ceil(config.epochs * batches)
    return Plan(total, config.eval_every or interval(total, least))
