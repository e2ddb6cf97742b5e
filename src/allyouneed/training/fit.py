"""From a recipe to a trained run folder: data, tokenizers, model, loop, scores."""

from __future__ import annotations

import json
import math
import os
import shlex
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
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
from allyouneed.training.compiling import Choice, Trial, decide, go_on, share_compiled_code
from allyouneed.training.distributed import Ranks
from allyouneed.training.donor import load_body
from allyouneed.training.feed import Feed
from allyouneed.training.folds import fit_folds
from allyouneed.training.interrupt import terminable
from allyouneed.training.memory import check_weights, estimate, micro_batches
from allyouneed.training.progress import board_writer
from allyouneed.training.rules import follow
from allyouneed.training.starting import donor_folder
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
        return _fit(recipe, out, resume, overwrite, quiet, say, began)
    if Ranks().world > 1:
        raise UserError("train.folds trains in one process: leave it out under torchrun")

    def one(part: Recipe, place: Path, shown: bool, source: Source) -> RunFolder:
        return _fit(part, place, resume, overwrite, quiet or not shown, say, None, source)

    return fit_folds(recipe, Path(out), one, _silent if quiet else say)


def _fit(
    recipe: Recipe,
    out: str | Path,
    resume: bool,
    overwrite: bool,
    quiet: bool,
    say: Say,
    began: float | None,
    source: Source | None = None,
) -> RunFolder:
    """One training. `source`: its data, if that has been read."""
    began, ranks = time.monotonic() if began is None else began, Ranks()
    if not ranks.first or quiet:
        say = _silent
    folder = RunFolder(out)
    if resume and recipe.given is not None and os.path.isfile(folder.recipe):
        recipe = folder.read_recipe()  # what its data has decided stays
    share_compiled_code()
    runtime = probe(recipe.train, rank=ranks.local, world=ranks.world)
    ranks.join(runtime.device)
    try:
        # If anything fails before the trainer is built, the old run in the folder is kept and the new one removed.
        with terminable(), ExitStack() as held, ExitStack() as tentative:
            if ranks.first:
                with ranks.leading():
                    task, report, followed = _claim(recipe, folder, runtime, resume, overwrite, held, say, source)
                    if not (resume and folder.begun()):
                        tentative.enter_context(folder.replacing())
                    _describe(task, report, followed, folder, say)
            else:
                ranks.follow()  # the first process writes the files that the others read
                task, report = _prepare(recipe if recipe.given is None else folder.read_recipe(), folder, say, None)
            trainer = _trainer(task.recipe, task, folder, runtime, ranks, resume, say, quiet, began)
            trainer.caution = small_data(report, task, trainer.model, len(trainer.feed.plan(0)))
            if ranks.first and task.has("test") and task.recipe.train.test_limit >= 0:
                task.baselines()  # learned now: train.minutes plans with what is left
            trainer.pacer.begin(trainer.at.seconds)
            tentative.close()
            trainer.fit()
            _conclude(trainer, say)
        return folder
    finally:
        torch.set_num_threads(runtime.threads)  # train.minutes may have used fewer
        ranks.leave()


def _claim(
    recipe: Recipe,
    folder: RunFolder,
    runtime: Runtime,
    resume: bool,
    overwrite: bool,
    held: ExitStack,
    say: Say,
    source: Source | None,
) -> tuple[Task, Report, list[str]]:
    """Check the settings, the folder and the data, and lock the folder. Also returns what follows from the data."""
    if recipe.train.tensorboard:
        board_writer()
    if not any(getattr(recipe.train, name) for name in LENGTHS):
        raise UserError("[train] needs steps, epochs or minutes")
    catalog.task(recipe.task_kind)(recipe).check()
    if not os.path.exists(folder.path):
        above = [path for path in folder.path.parents if not os.path.exists(path)]
        held.callback(folder.drop_if_empty, above)  # after an error, no folder is left
    RunFolder.create(folder.path, resume=resume, overwrite=overwrite)
    if resume and folder.begun():
        held.enter_context(folder.lock())
        return *_prepare(recipe, folder, say, source), _read_config(folder).get("followed", [])
    source = source or read_data(recipe.data, catalog.task(recipe.task_kind).shape)
    recipe, followed = _follow(recipe, source, runtime)
    task, report = _prepare(recipe, None, say, source)
    for line in [*followed, *([""] if followed else [])]:
        say(line)
    check_weights(task.build_model, adam=recipe.train.optimizer == "adamw", device=runtime.torch_device)
    if _borrows(recipe):
        _start(task.build_model(), task, folder, _silent)  # a UserError if the run cannot start from this
    held.enter_context(folder.lock())
    RunFolder.create(folder.path, overwrite=overwrite)  # another run may have started here meanwhile
    return task, report, followed


def _follow(recipe: Recipe, source: Source, runtime: Runtime) -> tuple[Recipe, list[str]]:
    """The recipe with the settings that the data decides, and a line for each."""
    if recipe.given is None:
        return recipe, []
    held_out = ("valid_part", "test_part")  # of own files; the rules see them whole
    parts: dict[str, Any] = {name: 0.0 for name in held_out if f"data.{name}" not in recipe.given}
    return follow(recipe, gather(source.split(replace(recipe.data, **parts))), runtime)


def _silent(text: str) -> None:
    pass


def _prepare(recipe: Recipe, begun: RunFolder | None, say: Say, source: Source | None) -> tuple[Task, Report]:
    """Split and tokenize the data. A run that has begun has its own parts."""
    if begun is not None and _read_config(begun).get("parts"):  # otherwise it was killed before it wrote them
        task = fill(catalog.task(recipe.task_kind)(recipe), begun)
    else:
        task = catalog.task(recipe.task_kind)(recipe)
        if recipe.train.init:
            task.take_tokenizers(load_processor(donor_folder(recipe.train.init)))
    task.source = source
    report = task.prepare(say)
    task.model_config()
    for split in ("train", "valid"):
        if task.has(split):
            task.examples(split)
    return task, report


def _describe(task: Task, report: Report, followed: list[str], folder: RunFolder, say: Say) -> None:
    """Write recipe.toml, config.json and the parts of the run, before its first step."""
    recipe = task.recipe
    before = _read_config(folder)
    if before and before["data"]["fingerprint"] != task.data.fingerprint:
        if before["data"]["name"] != task.data.name:
            raise UserError(
                f"{task.data.name} is not the data that the run in {folder.path} began with; start a new run with it"
            )
        say("the data has changed since this run began: it continues, but not as if it had never stopped")
    config = {
        "task": recipe.task_kind,
        "options": vars(task.options),
        "kind": recipe.model_kind,
        "model": vars(task.model_config()),
        "data": {
            "name": task.data.name,
            "licence": task.data.licence,
            "fingerprint": task.data.fingerprint,
            "understood": task.data.understood,
            "report": asdict(report),
        },
        "followed": followed,
        "versions": versions(),
    }
    parts, text = task.parts(), to_toml(recipe.to_dict())
    if before and before["parts"].keys() == parts.keys():
        folder.update_config(recipe=folder.write_recipe(text), **config)
    else:
        folder.describe(text, config, parts)


def _borrows(recipe: Recipe) -> bool:
    return bool(recipe.train.init or recipe.text.vectors)


def _start(model: Model, task: Task, folder: RunFolder, say: Say, fresh: bool = True) -> None:
    """Freeze word vectors (text.freeze). In a fresh run, also load word vectors (text.vectors) or the body of another
    run (train.init)."""
    recipe, tokenizers = task.recipe, list(task.tokenizers.values())
    freeze_vectors(model, recipe.text, tokenizers)
    if not any(p.requires_grad for p in model.parameters()):
        raise UserError("nothing is left to learn: all parameters are frozen, see model.freeze and text.freeze")
    if not fresh:
        return
    if recipe.train.init and recipe.text.vectors:
        raise UserError("train.init already brings the word vectors of its run: leave out text.vectors or train.init")
    start_from_vectors(model, recipe.text, tokenizers, say)
    if recipe.train.init:
        load_body(model, task, folder, say)


def _trainer(
    recipe: Recipe,
    task: Task,
    folder: RunFolder,
    runtime: Runtime,
    ranks: Ranks,
    resume: bool,
    say: Say,
    quiet: bool,
    began: float,
) -> Trainer:
    train, before = recipe.train, None
    checkpoint = folder.checkpoints.latest(complain=say) if resume else None
    if checkpoint is not None:
        before = read_state(checkpoint, folder.identity(), len(task.weights)).runtime
        check_shapes(task, checkpoint.path / "model.safetensors")
    torch.manual_seed(train.seed)
    model = task.build_model().to(runtime.torch_device)
    task.begin(model, say)
    _start(model, task, folder, say, fresh=checkpoint is None)
    pieces, told = micro_batches(train, estimate(train, task, model, partial(_loss, task, model, runtime)))
    runtime = _choose_compile(recipe, task, model, runtime, ranks, before, pieces, say)
    trainer = Trainer(model, task, train, folder, runtime, ranks, say=say, quiet=quiet, began=began)
    trainer.pieces = pieces
    parameters = sum(p.numel() for p in model.parameters())
    plan = trainer.pacer.plan
    length = f"{plan.total} steps" if plan.known else f"{train.minutes:g} minutes"
    say(f"model: {recipe.model_kind}, {human_count(parameters)} parameters; {length}")
    say(f"runtime: {runtime.why}")
    for line in told:
        say(line)
    if checkpoint is not None:
        trainer.resume(checkpoint)
        step, plan = trainer.at.step, trainer.pacer.plan
        over = plan.known and step > plan.total
        of = f" of {plan.total}" if plan.known else ""
        say(f"resumed at step {step}; {plan.total} were asked for" if over else f"resumed at step {step}{of}")
    elif resume:
        say(f"there is no checkpoint in {folder.path} to resume: the training starts from the beginning")
        if ranks.first:
            with Metrics(folder.metrics) as metrics:
                metrics.truncate(0)
    if checkpoint is None and _borrows(recipe):
        trainer.save_start()
    if ranks.first:
        folder.update_config(parameters=parameters, runtime=runtime.to_dict())
    return trainer


def _loss(task: Task, model: Model, runtime: Runtime, batch: Batch) -> torch.Tensor:
    with torch.autocast(runtime.torch_device.type, torch.bfloat16, enabled=runtime.precision == "bf16"):
        return sum(task.losses(model, batch).values())  # type: ignore[return-value]


def _choose_compile(
    recipe: Recipe,
    task: Task,
    model: Model,
    runtime: Runtime,
    ranks: Ranks,
    before: dict[str, Any] | None,
    pieces: int,
    say: Say,
) -> Runtime:
    """Compile as asked, as before, or as a trial decides. The first process decides for all."""
    train, examples = recipe.train, task.examples("train")
    attend_by_cudnn(not examples.varies)

    def draw() -> list[Batch]:
        feed = Feed(examples, ranks, runtime.torch_device, seed=train.seed, batch_tokens=train.batch_tokens)
        some = [feed.split(numbers, pieces, key=0) for numbers in feed.plan(0)[:4]]
        return [parts[0].to(runtime.torch_device) for parts in some if parts]

    about = {"model": recipe.model_kind, "config": vars(task.model_config()), "task": recipe.task_kind}
    loss = partial(_loss, task, model, runtime)
    trial, answer = Trial(model, draw, loss, about, runtime, pieces, say), ""
    if ranks.first:
        if train.compile == "auto" and before is not None and before["device"] == runtime.device:
            choice = go_on(before["compile"], trial)
        else:
            steps = train.steps or math.ceil(train.epochs * len(examples.plan(train.seed, 0, train.batch_tokens)))
            choice = decide(train.compile, trial, calls=steps * pieces, seconds=60 * train.minutes)
        answer = json.dumps(choice)
    choice = Choice(*json.loads(ranks.say(answer)))
    if choice.compile and not ranks.first:
        go_on(True, trial)
    return runtime.decided(*choice)


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
    if trainer.pacer.budget is None or not trainer.pacer.budget.over:
        for line in trainer.sampler.lines(3):
            say(line)


def _test(trainer: Trainer, say: Say) -> None:
    """Score the test split, or the part of it that train.test_limit and train.minutes allow."""
    folder, task, recipe = trainer.folder, trainer.task, trainer.task.recipe
    train, again = recipe.train, shlex.join(["ayn", "test", str(folder.path)])
    if train.test_limit < 0:
        say(f"no test, because train.test_limit = {train.test_limit}; score the run with: {again}")
        return
    budget = TestBudget(train.test_limit, trainer.pacer.until)
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


def _read_config(folder: RunFolder) -> dict[str, Any]:
    return folder.read_config() if folder.config.exists() else {}
