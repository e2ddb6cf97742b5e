"""The training loop. Everything random is a function of (seed, step): a run that stops resumes as if it never had."""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor, nn

from allyouneed.config import TrainConfig
from allyouneed.errors import UserError
from allyouneed.models.base import Model
from allyouneed.randomness import make_key
from allyouneed.runtime import Runtime
from allyouneed.storage.checkpoints import Checkpoint
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import not_finite
from allyouneed.storage.wholefile import Metrics, remove, write_tensors, writing
from allyouneed.tasks.base import Carry, Task
from allyouneed.terminal import say
from allyouneed.training.compiling import stop_recording
from allyouneed.training.distributed import Ranks
from allyouneed.training.evaluating import Evaluator, NamedLosses, Sampler
from allyouneed.training.feed import Feed, Step
from allyouneed.training.interrupt import Interrupted, first_signal
from allyouneed.training.memory import is_out_of_memory
from allyouneed.training.optim import MovingAverage, make_optimizer, mean
from allyouneed.training.plan import Pacer
from allyouneed.training.progress import Log, Progress
from allyouneed.training.state import Pending, Position, State, Window, restore_training, training_tensors
from allyouneed.training.warning import Watch


class Trainer:
    """Trains one model on one task into one run folder."""

    def __init__(
        self,
        model: Model,
        task: Task,
        config: TrainConfig,
        folder: RunFolder,
        runtime: Runtime,
        ranks: Ranks,
        *,
        say: Callable[[str], None] = say,
        quiet: bool = False,
        began: float | None = None,
    ) -> None:
        self.model, self.task, self.config, self.folder = model, task, config, folder
        self.runtime, self.ranks, self.say, self.quiet = runtime, ranks, say, quiet or not ranks.first
        self.device = runtime.torch_device
        self.optimizer = make_optimizer(model, config)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.average = MovingAverage(model, config.ema) if config.ema else None
        feed = partial(Feed, ranks=ranks, device=self.device, batch_tokens=config.batch_tokens)
        self.feed = feed(task.examples("train"), seed=config.seed)
        self.valid = feed(task.examples("valid"), seed=0) if task.has("valid") else None
        self.losses = NamedLosses(task.weights)
        bf16 = runtime.precision == "bf16"
        self.arithmetic = partial(torch.autocast, self.device.type, torch.bfloat16, enabled=bf16)
        self.evaluator = Evaluator(model, task, self.losses, self.valid, ranks, self.arithmetic, say)
        self.sampler = Sampler(model, task, self.arithmetic, self.quiet)
        least, batches = self.evaluator.least_interval, len(self.feed.plan(0))
        self.pacer = Pacer(config, batches, least, task.eval_share, began, runtime.free_threads)
        self.pieces = config.accumulate  # micro-batches per step
        self.at = Position()  # how far the run has come
        self.carry: Carry = {}  # the recurrent state from batch to batch
        self.pending: list[Pending] = []  # steps whose losses have not been read
        self.log: Log | None = None
        self.window, self.watch = Window([0.0] * len(self.losses)), Watch()
        self.caution = ""  # a warning before the first step

    def fit(self) -> Position:
        """Train until the last step, an interruption or an error."""
        self.log = Log(self.folder, self.at.step, self.config.tensorboard) if self.ranks.first else None
        unit = {"token": "tok"}.get(self.task.unit, f"{self.task.unit}s")
        with (
            first_signal() as received,
            Progress(self.pacer.plan.shown, self.at.step, quiet=self.quiet, unit=unit) as progress,
        ):
            self.progress, self.clock = progress, time.monotonic()
            self._forget(lambda step: step > self.at.step)  # the run goes on before them
            try:
                if self.caution and not self.at.step:
                    self._warn(self.caution)
                fewer = self.at.step >= self.pacer.plan.total and not self.folder.model.exists()  # than were made
                if fewer or (self.model.useful_at_start and not self.at.step):
                    self._evaluate()
                self._loop(received)
            finally:
                if self.log is not None:
                    self.log.close()
        return self.at

    def _loop(self, received: list[int]) -> None:
        steps = self.feed.steps(self.at.epoch, self.at.batch, self.pieces)
        self.model.train()
        if self.pieces > 1:
            stop_recording(self.model)
        while self.at.step < self.pacer.plan.total and not self._given_up():
            pieces = self.pieces
            self._step(next(steps))
            if self.pieces != pieces:  # the batches made ahead are too large
                steps.close()
                steps = self.feed.steps(self.at.epoch, self.at.batch, self.pieces)
            if self.device.type == "cpu" or self.at.step % self.config.log_every == 0:
                self._read_losses()
                self._keep_pace()
            done = self.at.step >= self.pacer.plan.total
            if self.config.keep:
                self._write_along()
            if done or self.at.step % self.pacer.plan.every == 0:
                self._evaluate()
            every = self.config.save_every or self.pacer.plan.every
            stop = self._asked_to_stop(received)
            if done or stop or self.at.step % every == 0 or self._given_up():
                self.save(last=done or self._given_up())
            if stop and not done:
                steps.close()
                if not self.folder.model.exists():
                    self._write_model(self.at.step)  # so that an interrupted run can be used
                raise Interrupted((received or [signal.SIGTERM])[0], self.at.step)
        steps.close()

    def _keep_pace(self) -> None:
        """With train.minutes, plan the steps that still fit."""
        if self.pending or not self.pacer.follow(self.at.step, self.ranks, self.evaluator):
            return
        plan = self.pacer.plan
        self.progress.total = plan.shown
        self._log("plan", self.at.step, total=plan.total, every=plan.every, valid=plan.valid)
        for note in self.pacer.news(self.task, self.evaluator):
            self.progress.note(note)
        self.clock = time.monotonic()

    def _asked_to_stop(self, received: list[int]) -> bool:
        """Whether any process got a signal. Several processes ask each other only when they exchange losses anyway."""
        if self.ranks.world > 1 and self.pending:
            return False
        return bool(self.ranks.total([float(len(received))], self.device)[0])

    def _given_up(self) -> bool:
        return bool(self.config.patience) and self.at.waited >= self.config.patience

    def _step(self, work: Step) -> None:
        """One optimizer step. The gradient is that of sum / count over all micro-batches and processes."""
        rate, at = self.pacer.rate(self.at.step), self.pacer.moment(self.at.step)
        self._seed()
        sums = self.task.update(self.model, work.pieces, rate, at)
        if sums is not None:
            losses = self.losses.means(sums, work.size)
            norm = torch.zeros_like(losses[0])
        else:
            losses, work = self._learn(work)
            self.ranks.add_gradients(self.parameters)
            norm = nn.utils.clip_grad_norm_(self.parameters, self.config.clip or math.inf)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group["factor"]
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.at.step)
        self.at.step += 1
        self.at.units += work.size.units
        self.pending.append(Pending(self.at.step, work.epoch, work.batch, losses, norm, work.size.units))
        self.at.epoch, self.at.batch = (work.epoch + 1, 0) if work.last else (work.epoch, work.batch + 1)

    def _seed(self) -> None:
        """Seed what torch draws in a step (dropout) by the step and the process. torch.manual_seed would do the same,
        but takes a millisecond: it writes a stack trace for every kind of device that is not there."""
        key = make_key(self.config.seed, self.at.step, self.ranks.rank) >> 1
        torch.default_generator.manual_seed(key)
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(key)

    def _learn(self, work: Step) -> tuple[Tensor, Step]:
        """Compute the gradients of a step, in smaller pieces if memory runs out. Returns the losses and that step."""
        while True:
            carry = dict(self.carry)  # a failed attempt leaves nothing behind
            try:
                losses = self._gradients(work, carry)
            except (RuntimeError, MemoryError) as error:
                work = self._smaller(work, error)
                self._seed()
                continue
            self.carry = carry
            return losses, work

    def _gradients(self, work: Step, carry: Carry) -> Tensor:
        """Backpropagate Σ weight · sum / count piece by piece; returns this process's part of each loss."""
        total = torch.zeros(len(self.losses), device=self.device)
        for piece in work.pieces:
            with self.arithmetic():
                sums = self.task.losses(self.model, piece.to(self.device), self.pacer.moment(self.at.step), carry)
            losses = self.losses.means(sums, work.size)
            self.losses.total(losses).backward()
            total += losses.detach()
        return total

    def _smaller(self, work: Step, error: BaseException) -> Step:
        """If memory ran out, the same step in twice as many pieces, each half the size; other errors are raised."""
        rows = max((piece.rows for piece in work.pieces), default=0)
        if not is_out_of_memory(error):
            raise error
        if rows <= 1:
            raise UserError(
                f"out of memory at step {self.at.step + 1} with a single example: "
                "a smaller model.context, data.max_length or model is needed"
            ) from error
        self.optimizer.zero_grad(set_to_none=True)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.pieces *= 2
        stop_recording(self.model)
        self.progress.note(f"out of memory at step {self.at.step + 1}: now {self.pieces} micro-batches per step")
        numbers = self.feed.plan(work.epoch)[work.batch]
        return self.feed.step(work.epoch, work.batch, work.last, numbers, self.pieces)

    def _read_losses(self) -> None:
        """Read the losses of the pending steps, stop at the first that is not finite, and write the metrics."""
        if not self.pending:
            return
        values = torch.stack([torch.cat([p.losses, p.norm.to(p.losses.dtype)[None]]) for p in self.pending]).tolist()
        flat = self.ranks.total([loss for *losses, _ in values for loss in losses], self.device)
        now, many = time.monotonic(), len(self.losses)
        units, seconds = sum(p.units for p in self.pending), now - self.clock
        self.pacer.add(len(self.pending), units, seconds)
        self.at.seconds += seconds
        self.window.units += units
        self.window.seconds += seconds
        self.clock, speed = now, self.window.units / max(1e-9, self.window.seconds)
        for i, (p, (*_, norm)) in enumerate(zip(self.pending, values)):
            losses = flat[i * many : (i + 1) * many]
            loss = float(self.losses.total(losses))
            if not math.isfinite(loss) or not math.isfinite(norm):
                self._bad_number(p, loss, norm)
            self.window.losses = [old + new for old, new in zip(self.window.losses, losses)]
            self.watch.add(loss)
            rate = self.pacer.rate(p.step - 1)
            if p.step % self.config.log_every == 0 or p.step == self.pacer.plan.total:
                steps = (p.step - 1) % self.config.log_every + 1
                means = self.losses.by_name([total / steps for total in self.window.losses])
                self._log("train", p.step, **means, lr=rate, norm=norm, units_per_s=speed)
                self.window = Window([0.0] * many)
            self.progress.update(p.step, loss, speed, rate)
        self.pending.clear()

    def _bad_number(self, p: Pending, loss: float, norm: float) -> None:
        """Stop the run. A checkpoint of the weights before step p would fail again, so it is removed."""
        if self.ranks.first:
            bad = max(1, p.step - 1)  # step 0 is not learned
            self.folder.checkpoints.drop([step for step in self.folder.checkpoints.steps() if step >= bad])
        self._log("stopped", p.step, loss=loss, norm=norm, epoch=p.epoch, batch=p.batch)
        what = f"the loss became {loss}" if not math.isfinite(loss) else f"the gradient became {norm}"
        raise self._diverged(f"{what} at step {p.step} (epoch {p.epoch}, batch {p.batch})")

    def _diverged(self, what: str) -> UserError:
        steps = self.folder.checkpoints.steps()
        last = f"the last good checkpoint is step {steps[-1]}" if steps else "there is no good checkpoint"
        return UserError(f"{what}; {last}: resume with a smaller train.lr, more train.warmup or train.precision=fp32")

    def _check_finite(self, tensors: dict[str, Tensor]) -> None:
        if broken := not_finite(tensors):
            raise self._diverged(f"{broken} is not finite after step {self.at.step}")

    def _evaluate(self) -> None:
        """Compute the loss over the validation split; the best weights become the run's model."""
        self._read_losses()
        began = time.monotonic()
        if self.valid is None:
            self._write_model(self.at.step)
            return
        with self._result():
            losses = self.losses.by_name(self.evaluator.loss(self.pacer.plan.valid))
            loss = losses["loss"]
            if not math.isfinite(loss):
                raise self._diverged(f"the validation loss became {loss} at step {self.at.step}")
            score = self.evaluator.score(self.pacer.plan.valid)
            by_loss = losses[self.task.chooses_by] if score is None else loss
            best = self.at.rank(-score.value if score else by_loss, by_loss)
            samples = self.sampler.formatted(1) if self.sampler.affordable(self.at.seconds) else []
        if best:
            self._write_model(self.at.step)
        self._log("valid", self.at.step, **losses, **({score.name: score.value} if score else {}))
        parts = "".join(f", {name} {value:.4f}" for name, value in losses.items() if name != "loss")
        also = f"{parts}, {score.short}" if score else parts
        self.progress.note(f"step {self.at.step}: validation loss {loss:.4f}{also}{' (best)' if best else ''}")
        for line in samples:
            self.progress.note(line)
        if self.watch.evaluate(self.at.step, loss, self.at.waited):
            self._warn(self.watch.warning(self.task))
        if self._given_up():
            self.progress.note(f"no improvement in {self.at.waited} evaluations: stopping early")
        self.pacer.budget.evaluated(time.monotonic() - began)
        self.clock = time.monotonic()  # tokens/s counts training only

    def _result(self) -> AbstractContextManager[None]:
        """Inside the block, the model has the weights of the run's model: the moving average, if there is one."""
        return self.average.in_place() if self.average is not None else nullcontext()

    def _write_model(self, step: int | str) -> None:
        """Write model.safetensors, with its step and run in the notes, and remove the scores of the model before."""
        if not self.ranks.first:
            return
        with self._result():
            tensors = self.model.state_dict()
            self._check_finite(tensors)
            write_tensors(self.folder.model, tensors, {"step": str(step), "run": self.folder.identity()})
        self.folder.scores.unlink(missing_ok=True)

    def _write_along(self) -> None:
        """With train.keep, write the model as it is now if this step ends one of so many equal parts of the plan."""
        step, count, total = self.at.step, self.config.keep, self.pacer.plan.total
        if not self.ranks.first or step * count // total == (step - 1) * count // total:
            return
        out = self.folder.model_at(step)
        with writing(out):
            out.parent.mkdir(exist_ok=True)
        with self._result():
            write_tensors(out, self.model.state_dict(), {"step": str(step), "run": self.folder.identity()})
        parts = {other * count // total: other for other in self.folder.models()}  # a changed plan has other parts
        self._forget(lambda other: other * count < total or parts[other * count // total] != other)

    def _forget(self, which: Callable[[int], bool]) -> None:
        """Remove the models along the way of these steps."""
        for step, path in self.folder.models().items() if self.ranks.first else ():
            if which(step):
                remove(path)

    def save(self, last: bool) -> None:
        """Write a checkpoint if all of it is finite. Unless it is the last one, keep the one before it too: only the
        next step shows whether the new one is good."""
        self._read_losses()
        carried = self.ranks.gather(self.carry)
        if not self.ranks.first:
            return
        train = training_tensors(self.model, self.optimizer, self.average, carried)
        weights, written = self.model.state_dict(), self.log.metrics.offset() if self.log else 0
        self._check_finite({**weights, **train})
        self.at.elapsed = self.pacer.budget.elapsed() if self.config.minutes else 0.0
        identity, runtime = self.folder.identity(), asdict(self.runtime)
        state = State(identity, self.at, self.pieces, self.window, self.watch, self.pacer.plan, runtime, written)
        self.folder.checkpoints.save(self.at.step, weights, train, asdict(state))
        self.folder.checkpoints.prune(
            self.config.checkpoints if last else max(2, self.config.checkpoints),
            also={self.at.best_step, *self._averaged()} - {0},
        )

    def resume(self, checkpoint: Checkpoint, state: State) -> None:
        """Continue from a checkpoint with this state; `check_shapes` has accepted its weights."""
        self.at, self.window, self.watch = state.position, state.window, state.watch
        self.pacer.resume(state.plan, state.position.elapsed)
        self.pieces = min(state.pieces, 2 * self.config.batch_tokens)  # a larger number is not from a real run
        self.model.load_state_dict(checkpoint.model())
        fresh = self.task.fresh_carry(self.model)
        try:
            carried = restore_training(checkpoint.train(), self.model, self.optimizer, self.average, fresh)
        except (KeyError, ValueError):
            raise UserError(
                f"{checkpoint.path / 'train.safetensors'} does not fit the model; remove the checkpoint"
            ) from None
        if carried and len(carried) != self.ranks.world:
            self.say("resumed with another number of processes: the recurrent states start at zero")
            carried = {}
        self.carry = {name: t.to(self.device) for name, t in carried.get(self.ranks.rank, {}).items()}
        if self.ranks.first:
            with Metrics(self.folder.metrics) as metrics:
                metrics.truncate(state.metrics)
        if not self.runtime.same_arithmetic(state.runtime):
            self.say("resumed with another machine, precision, thread count or compiler: equal only up to rounding")

    def _averaged(self) -> list[int]:
        """The steps of the checkpoints to average: the last regular ones, without those of an interruption."""
        every, last = self.config.save_every or self.pacer.plan.every, self.pacer.plan.total
        due = [step for step in self.folder.checkpoints.steps() if step and (step % every == 0 or step == last)]
        return due[-self.config.average :] if self.config.average else []

    def finish(self) -> float | None:
        """With train.average, the mean of the last checkpoints becomes the run's model; returns its validation loss."""
        if not self.config.average:
            return None
        self.ranks.wait()  # until the first process has written the last checkpoint
        steps = self._averaged() or self.folder.checkpoints.steps()[-1:]
        models = [self.folder.checkpoints.weights(step) for step in steps]
        self.model.load_state_dict(mean(models))
        mean_of = ", ".join(map(str, steps))
        self._write_model(f"mean of {mean_of}")
        self.say(f"the model is the mean of the checkpoints of steps {mean_of}")
        if self.valid is None:
            return None
        return self.losses.by_name(self.evaluator.loss(self.pacer.plan.valid))["loss"]

    def _log(self, kind: str, step: int, **values: float | str) -> None:
        if self.log is not None:
            self.log.write(kind, step, self.at.seconds, **values)

    def _warn(self, text: str) -> None:
        self.progress.note(f"warning: {text}")
        self._log("warning", self.at.step, text=text)
