"""From a recipe to a trained run folder: data, tokenizers, model, loop, scores."""

from __future__ import annotations

import math
import os
import shlex
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from allyouneed import catalog
from allyouneed.config import LENGTHS
from allyouneed.data.batches.base import Batch
from allyouneed.data.facts import gather
from allyouneed.data.opening import read_data
from allyouneed.data.report import Report
from allyouneed.data.sources import Source
from allyouneed.errors import UserError
from allyouneed.figures import loss_curve
from allyouneed.format import human_count
from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.predict.loading import check_shapes, fill, load_processor
from allyouneed.predict.token_vectors import freeze_vectors, start_from_vectors
from allyouneed.recipe import Recipe, to_toml
from allyouneed.runtime import Runtime, allow_tf32, attend_by_cudnn, probe, versions
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import read_tensors
from allyouneed.storage.wholefile import Metrics
from allyouneed.tasks.base import Task, TestBudget
from allyouneed.tasks.baselines import beaten
from allyouneed.tasks.scoring import score_rows, score_run
from allyouneed.terminal import Say, say
from allyouneed.training.compiling import Choice, Trial, decide, share_compiled_code
from allyouneed.training.distributed import Ranks
from allyouneed.training.donor import load_body
from allyouneed.training.feed import Feed
from allyouneed.training.folds import fit_folds
from allyouneed.training.interrupt import terminable
from allyouneed.training.memory import check_weights, estimate, micro_batches
from allyouneed.training.progress import board_writer
from allyouneed.training.rules import follow
from allyouneed.training.state import read_state
from allyouneed.training.trainer import Trainer
from allyouneed.training.warning import small_data


def fit(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
    say: Say = say,
    began: float | None = None,
) -> RunFolder:
    """Train a recipe into the folder `out`, or resume the run there, if one has begun; then score it. train.minutes
    counts from `began`, a time.monotonic(), or from now."""
    if not recipe.train.folds:
        return Session(recipe, RunFolder(out), resume, overwrite, quiet, say, began).run()
    if Ranks().world > 1:
        raise UserError("train.folds trains in one process: leave it out under torchrun")

    def one(part: Recipe, out: Path, shown: bool, source: Source) -> RunFolder:
        return Session(part, RunFolder(out), resume, overwrite, quiet or not shown, say, source=source).run()

    return fit_folds(recipe, Path(out), one, _silent if quiet else say)


def _silent(text: str) -> None:
    pass


@dataclass
class Session:
    """One training in this process, from the recipe to the scores."""

    recipe: Recipe
    folder: RunFolder
    resume: bool
    overwrite: bool
    quiet: bool
    say: Say
    began: float | None = None
    source: Source | None = None  # the data, if it has been read
    followed: list[str] = field(default_factory=list)  # a line for each setting that the data decides

    def run(self) -> RunFolder:
        self.began, self.ranks = time.monotonic() if self.began is None else self.began, Ranks()
        ranks, folder = self.ranks, self.folder
        if not ranks.first or self.quiet:
            self.say = _silent
        if self.resume and self.recipe.given is not None and os.path.isfile(folder.recipe):
            self.recipe = folder.read_recipe()  # what its data has decided stays
        share_compiled_code()
        self.runtime = probe(self.recipe.train, rank=ranks.local, world=ranks.world)
        ranks.join(self.runtime.device)
        try:
            # If anything fails before the trainer is built, the old run in the folder stays and the new one is removed.
            with terminable(), ExitStack() as cleanup, ExitStack() as tentative:
                if ranks.first:
                    with ranks.leading():
                        self._claim(cleanup)
                        if not (self.resume and folder.begun()):
                            tentative.enter_context(folder.replacing())
                        self._describe()
                else:
                    ranks.follow()  # the first process writes the files that the others read
                    self.recipe = self.recipe if self.recipe.given is None else folder.read_recipe()
                    self._prepare(begun=True)
                trainer, task = self._trainer(), self.task
                trainer.caution = small_data(self.report, task, trainer.model, len(trainer.feed.plan(0)))
                if ranks.first and task.has("test") and task.recipe.train.test_limit >= 0:
                    task.baselines()  # learned now: train.minutes plans with what is left
                trainer.pacer.budget.begin(trainer.at.seconds)
                tentative.close()
                trainer.fit()
                _conclude(trainer, self.say)
            return folder
        finally:
            torch.set_num_threads(self.runtime.threads)  # train.minutes may have used fewer
            ranks.leave()

    def _claim(self, cleanup: ExitStack) -> None:
        """Check the settings, the folder and the data, lock the folder, and prepare the task."""
        recipe, folder = self.recipe, self.folder
        if recipe.train.tensorboard:
            board_writer()
        if not any(getattr(recipe.train, name) for name in LENGTHS):
            raise UserError("[train] needs steps, epochs or minutes")
        catalog.task(recipe.task_kind)(recipe).check()
        if not os.path.exists(folder.path):
            above = [path for path in folder.path.parents if not os.path.exists(path)]
            cleanup.callback(folder.drop_if_empty, above)  # after an error, no folder is left
        RunFolder.create(folder.path, resume=self.resume, overwrite=self.overwrite)
        if self.resume and folder.begun():
            cleanup.enter_context(folder.lock())
            self._prepare(begun=True)
            self.followed = folder.read_config(needed=False).get("followed", [])
            return
        self.source = self.source or read_data(recipe.data, catalog.task(recipe.task_kind).shape)
        if recipe.given is not None:
            # The rules see own files whole, before a part of them is held out.
            parts = {name: 0.0 for name in ("valid_part", "test_part") if f"data.{name}" not in recipe.given}
            facts = gather(self.source.split(replace(recipe.data, **parts)))  # type: ignore[arg-type]
            self.recipe, self.followed = follow(recipe, facts, self.runtime)
        self._prepare(begun=False)
        for line in [*self.followed, *([""] if self.followed else [])]:
            self.say(line)
        build, train = self.task.build_model, self.recipe.train
        check_weights(build, adam=train.optimizer == "adamw", device=self.runtime.torch_device)
        if self._borrows:
            self._start(build(), fresh=True, say=_silent)  # a UserError if the run cannot start from this
        cleanup.enter_context(folder.lock())
        RunFolder.create(folder.path, overwrite=self.overwrite)  # another run may have started here meanwhile

    def _prepare(self, *, begun: bool) -> Report:
        """Split and tokenize the data. A run that has begun has its own parts."""
        recipe, task = self.recipe, catalog.task(self.recipe.task_kind)(self.recipe)
        if begun and self.folder.read_config(needed=False).get("parts"):  # otherwise it was killed before it wrote them
            task = fill(task, self.folder)
        elif recipe.train.init:
            task.take_tokenizers(load_processor(RunFolder.open(recipe.train.init)))
        task.source = self.source
        self.task, self.report = task, task.prepare(self.say)
        task.model_config()
        for split in ("train", "valid"):
            if task.has(split):
                task.examples(split)
        return self.report

    def _describe(self) -> None:
        """Write recipe.toml, config.json and the parts of the run, before its first step."""
        recipe, task, folder = self.recipe, self.task, self.folder
        before = folder.read_config(needed=False)
        if before and before["data"]["fingerprint"] != task.data.fingerprint:
            if before["data"]["name"] != task.data.name:
                raise UserError(
                    f"{task.data.name} is not the data that the run in {folder.path} began with; "
                    "start a new run with it"
                )
            self.say("the data has changed since this run began: it continues, but not as if it had never stopped")
        about = {name: getattr(task.data, name) for name in ("name", "licence", "fingerprint", "understood")}
        config = {
            "task": recipe.task_kind,
            "options": vars(task.options),
            "kind": recipe.model_kind,
            "model": vars(task.model_config()),
            "data": {**about, "report": asdict(self.report)},
            "followed": self.followed,
            "versions": versions(),
        }
        parts, text = task.parts(), to_toml(recipe.to_dict())
        if before and before["parts"].keys() == parts.keys():
            folder.update_config(recipe=folder.write_recipe(text), **config)
        else:
            folder.describe(text, config, parts)

    @property
    def _borrows(self) -> bool:
        return bool(self.recipe.train.init or self.recipe.text.vectors)

    def _start(self, model: Model, *, fresh: bool, say: Say) -> None:
        """Freeze word vectors (text.freeze). In a fresh run, also load word vectors (text.vectors) or the body of
        another run (train.init)."""
        recipe, tokenizers = self.recipe, list(self.task.tokenizers.values())
        freeze_vectors(model, recipe.text, tokenizers)
        if not any(p.requires_grad for p in model.parameters()):
            raise UserError("nothing is left to learn: all parameters are frozen, see model.freeze and text.freeze")
        if not fresh:
            return
        if recipe.train.init and recipe.text.vectors:
            raise UserError(
                "train.init already brings the word vectors of its run: leave out text.vectors or train.init"
            )
        start_from_vectors(model, recipe.text, tokenizers, say)
        if recipe.train.init:
            load_body(model, self.task, self.folder, say)

    def _trainer(self) -> Trainer:
        """The model and its trainer, at the last checkpoint if the run is resumed."""
        task, folder, ranks, say, train = self.task, self.folder, self.ranks, self.say, self.recipe.train
        checkpoint, state = (folder.checkpoints.latest(complain=say) if self.resume else None), None
        if checkpoint is not None:
            state = read_state(checkpoint, folder.identity(), len(task.weights))
            check_shapes(task, checkpoint.path / "model.safetensors")
        torch.manual_seed(train.seed)
        model = task.build_model().to(self.runtime.torch_device)
        task.begin(model, say)
        self._start(model, fresh=state is None, say=say)
        need = estimate(train, task, model, partial(_loss, task, model, self.runtime))
        pieces, notes = micro_batches(train, need)
        runtime = self.runtime = _choose_compile(
            task, model, self.runtime, ranks, state.runtime if state else None, pieces, say
        )
        trainer = Trainer(model, task, train, folder, runtime, ranks, say=say, quiet=self.quiet, began=self.began)
        trainer.pieces = pieces
        parameters = sum(p.numel() for p in model.parameters())
        plan = trainer.pacer.plan
        length = f"{plan.total} steps" if plan.known else f"{train.minutes:g} minutes"
        say(f"model: {self.recipe.model_kind}, {human_count(parameters)} parameters; {length}")
        for line in (f"runtime: {runtime.why}", *notes):
            say(line)
        if checkpoint is not None and state is not None:
            trainer.resume(checkpoint, state)
            step, plan = trainer.at.step, trainer.pacer.plan
            over = plan.known and step > plan.total
            of = f" of {plan.total}" if plan.known else ""
            say(f"resumed at step {step}; {plan.total} were asked for" if over else f"resumed at step {step}{of}")
        elif self.resume:
            say(f"there is no checkpoint in {folder.path} to resume: the training starts from the beginning")
            if ranks.first:
                with Metrics(folder.metrics) as metrics:
                    metrics.truncate(0)
        if state is None and self._borrows:
            trainer.save(last=False)  # it never needs the other files again
        if ranks.first:
            folder.update_config(parameters=parameters, runtime=asdict(runtime))
        return trainer


def _loss(task: Task, model: Model, runtime: Runtime, batch: Batch) -> torch.Tensor:
    with torch.autocast(runtime.torch_device.type, torch.bfloat16, enabled=runtime.precision == "bf16"):
        return sum(task.losses(model, batch).values())  # type: ignore[return-value]


def _choose_compile(
    task: Task,
    model: Model,
    runtime: Runtime,
    ranks: Ranks,
    before: dict[str, Any] | None,
    pieces: int,
    say: Say,
) -> Runtime:
    """Compile as asked, as before, or as a trial decides. The first process decides for all."""
    train, examples = task.recipe.train, task.examples("train")
    attend_by_cudnn(not examples.varies)
    feed = Feed(examples, ranks, runtime.torch_device, seed=train.seed, batch_tokens=train.batch_tokens)
    trial = Trial(model, feed, partial(_loss, task, model, runtime), runtime, pieces, say)
    choice = Choice(False, "")
    if ranks.first:
        steps = train.steps or math.ceil(train.epochs * len(feed.plan(0)))
        as_before = before["compile"] if before is not None and before["device"] == runtime.device else None
        choice = decide(train.compile, trial, steps * pieces, 60 * train.minutes, as_before)
    choice = ranks.broadcast(choice)
    if choice.compile and not ranks.first:
        decide("on", trial, 0)
    return replace(runtime, compile=choice.compile, why=f"{runtime.why}; {choice.why}")


def _conclude(trainer: Trainer, say: Say) -> None:
    """Average the weights if asked, draw the loss curve, and score the test split."""
    averaged = trainer.finish()
    if not trainer.ranks.first:
        return
    folder, task = trainer.folder, trainer.task
    if math.isfinite(trainer.at.best):
        best = Score(task.chooses_by, trainer.at.best if task.chooses_by_loss else -trainer.at.best, "").short
        limit = trainer.evaluator.limit(trainer.pacer.plan.valid)
        of = f" ({task.item_name}: {limit:,} of {trainer.evaluator.examples:,})" if limit else ""
        say(f"best validation {best} at step {trainer.at.best_step}{of}")
    if averaged is not None:
        say(f"validation loss of the averaged weights {averaged:.4f}")
    loss_curve(folder.metrics, folder.path / "loss.png", title=str(folder.path.name), unit=task.unit)
    trainer.model.load_state_dict(read_tensors(folder.model))
    trainer.model.eval()
    folder.record([folder.path / "loss.png", *task.export(trainer.model, folder.path, say)])
    allow_tf32("fp32")  # the weights are fp32, and so are the scores
    attend_by_cudnn(False)
    if task.has("test"):
        _test(trainer, say)
    if not trainer.pacer.budget.over:
        for line in trainer.sampler.formatted(3):
            say(line)


def _test(trainer: Trainer, say: Say) -> None:
    """Score the test split, or the part of it that train.test_limit and train.minutes allow."""
    folder, task, recipe = trainer.folder, trainer.task, trainer.task.recipe
    train, again = recipe.train, shlex.join(["ayn", "test", str(folder.path)])
    if train.test_limit < 0:
        say(f"no test, because train.test_limit = {train.test_limit}; score the run with: {again}")
        return
    budget = TestBudget(train.test_limit, trainer.pacer.budget.until)
    scores = score_run(task, trainer.model, "test", recipe.decode, folder, say, budget=budget, baselines=True)
    if task.covered < (total := task.items("test")):
        cut = task.covered < min(train.test_limit or total, total)
        why = f"more do not fit into train.minutes = {train.minutes:g}" if cut else f"train.test_limit = {budget.limit}"
        say(f"the test: {task.covered:,} of {total:,} {task.item_name}, because {why}; score all with: {again}")
    for what, signature in score_rows(scores):
        say(f"{what}  {signature}".rstrip())
    if sentence := beaten(scores):
        say(sentence)


def begun_since(folder: str | Path, when: float) -> bool:
    """Whether the run in the folder began after this time."""
    file = RunFolder(folder).recipe
    return file.is_file() and file.stat().st_mtime >= when - 0.05  # the clock of a file system ticks more slowly
