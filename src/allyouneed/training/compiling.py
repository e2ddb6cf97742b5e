"""torch.compile: what is compiled (the whole loss of a model, as one function), and whether that pays."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from allyouneed.data.batches.base import Batch
from allyouneed.data.fetch import cache_folder
from allyouneed.errors import UserError
from allyouneed.models.base import Model
from allyouneed.runtime import Runtime, can_compile
from allyouneed.storage.wholefile import write_json
from allyouneed.training.memory import is_out_of_memory

LEAST_GAIN = 1.05  # compiled code with a smaller speed-up is not worth it


@dataclass(frozen=True)
class Cost:
    """Cost and gain of compiling: measured in an earlier run, or assumed."""

    seconds: float  # to compile
    gain: float  # eager seconds of a forward and backward pass, divided by compiled ones

    def saves(self, eager: float) -> float:
        """The seconds that compiling saves of so many eager ones."""
        return eager * (1 - 1 / self.gain)


# For the first run of a model on a machine. Compiling for varied shapes takes several times as long as for one shape.
ASSUMED = {"cuda": Cost(seconds=60.0, gain=2.0), "cpu": Cost(seconds=60.0, gain=1.2)}
VARIED = 4


class Choice(NamedTuple):
    compile: bool
    why: str


@dataclass(frozen=True)
class Trial:
    """The model that trains and its first micro-batches: used to decide whether to compile, and to compile."""

    model: Model
    first_batches: Callable[[], Sequence[Batch]]
    loss: Callable[[Batch], Tensor]  # as the training computes it
    about: Mapping[str, Any]  # what the costs depend on: the model and its settings
    runtime: Runtime
    pieces: int = 1  # micro-batches per step
    say: Callable[[str], None] = lambda line: None

    @cached_property
    def batches(self) -> list[Batch]:
        """One batch if all have the same shape. Otherwise all, starting with the one with the most different sizes:
        the compiler takes sizes that are equal in the first batch for the same size."""
        found = list(self.first_batches())
        if len({batch.shapes for batch in found}) == 1:
            return found[:1]
        return sorted(found, key=lambda batch: -len(_sizes(batch.tensors.values()) - {1}))

    @property
    def cuda(self) -> bool:
        return self.runtime.device.startswith("cuda")

    @property
    def varied(self) -> bool:
        """Whether the batches have different shapes."""
        return len(self.batches) > 1

    def once(self) -> float:
        """Mean seconds of a forward and backward pass per micro-batch."""
        self.model.train()
        start = time.perf_counter()
        for batch in self.batches:
            self.loss(batch).backward()
            self.model.zero_grad(set_to_none=True)
        if self.cuda:
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / len(self.batches)

    def seconds(self) -> float:
        """The best of three rounds, or of fewer if they take long."""
        start, best = time.perf_counter(), math.inf
        for _ in range(3):
            best = min(best, self.once())
            if time.perf_counter() - start > 2:
                break
        return best

    def compile(self) -> float:
        """Say so, and compile the model's loss; returns the seconds it took. The batches are always the first ones of a
        run, so that a resumed run gets the same code."""
        known, minutes = recall(self.record), round(self.assumed.seconds / 60)
        time_needed = f"the first time it takes about {'a minute' if minutes == 1 else f'{minutes} minutes'}"
        if known:
            time_needed = f"it took {known.seconds:.0f} s in an earlier run"
        self.say(f"trying torch.compile; {time_needed}")
        if self.runtime.device == "cpu":
            torch.use_deterministic_algorithms(True)  # otherwise compiled CPU code is not reproducible
        compile_loss(self.model, varied=self.varied, recorded=self.cuda and self.pieces == 1 and not self.varied)
        start = time.perf_counter()
        self.once()
        return time.perf_counter() - start

    def give_up(self) -> None:
        """Make the model's loss eager again."""
        self.model.__dict__.pop("loss", None)
        self.model.zero_grad(set_to_none=True)
        torch.use_deterministic_algorithms(self.runtime.deterministic)

    @property
    def assumed(self) -> Cost:
        cost = ASSUMED["cuda" if self.cuda else "cpu"]
        return replace(cost, seconds=cost.seconds * VARIED) if self.varied else cost

    @property
    def record(self) -> Path:
        """The file with the measured cost of compiling this model on this machine."""
        cpu = f"{platform.machine()} CPU, {self.runtime.threads} threads"
        device = torch.cuda.get_device_name() if self.cuda else cpu
        shapes = "varied" if self.varied else "fixed"
        key = {**self.about, "device": device, "precision": self.runtime.precision, "shapes": shapes}
        text = json.dumps({**key, "torch": torch.__version__}, sort_keys=True, default=str)
        return _folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"


def share_compiled_code() -> None:
    """Store compiled code in our cache, for later runs. Call this before anything else: torch sets its own folder when
    it loads its compiler, which many calls do."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_folder() / "torch"))


def compile_loss(model: Model, *, varied: bool, recorded: bool = False) -> None:
    """Compile the model's loss for training; evaluation, decoding and traces stay eager. The compiled loss is an
    attribute of the instance, so that no wrapper changes the names of tensors on disk. `recorded`: the kernels of a
    pass are recorded as a CUDA graph and started at once, which the host does much faster than one by one."""
    eager = model.loss
    # dynamic=None: the compiler assumes fixed sizes until another shape comes.
    compiled = torch.compile(eager, dynamic=True if varied else None, mode="reduce-overhead" if recorded else None)

    def loss(*args: Any, **named: Any) -> Tensor:
        # A size of one would be compiled separately, for few batches.
        usable = model.training and not (varied and 1 in _sizes([*args, *named.values()]))
        found: Tensor = (compiled if usable else eager)(*args, **named)
        return found

    loss.recorded = recorded  # type: ignore[attr-defined]
    model.__dict__["loss"] = loss


def stop_recording(model: Model) -> None:
    """Before a step of several micro-batches: a recorded pass would overwrite the gradients of the one before it."""
    if getattr(model.__dict__.get("loss"), "recorded", False):
        del model.__dict__["loss"]
        compile_loss(model, varied=True)


def decide(wanted: str, trial: Trial, calls: int, seconds: float = 0.0) -> Choice:
    """Decide whether to compile the model's loss, and do so. "auto" compiles if that saves more seconds over `calls`
    micro-batches, or over as many as fit into `seconds`, than it takes."""
    if wanted == "off":
        return Choice(False, "not compiled: as asked")
    if not trial.model.compiles:
        return Choice(False, "not compiled: this kind of model is always eager")
    if wanted == "on":
        return _attempt(trial, lambda: _compile(trial, "compiled: as asked"))
    return _attempt(trial, lambda: _weigh(trial, lambda eager: seconds or calls * eager))


def go_on(compiled: bool, trial: Trial) -> Choice:
    """Compile a resumed run if it was compiled before and still can be."""
    if not compiled:
        return Choice(False, "not compiled, as before")
    return _attempt(trial, lambda: _compile(trial, "compiled, as before"))


def _attempt(trial: Trial, choose: Callable[[], Choice]) -> Choice:
    """If the compiler fails, in whatever way, the loss stays eager."""
    if obstacle := can_compile(trial.runtime.device):
        return Choice(False, f"not compiled: {obstacle}")
    try:
        return choose()
    except Exception as error:
        trial.give_up()
        if is_out_of_memory(error):
            return Choice(False, "not compiled: not enough memory for a trial")
        kind, words = type(error).__name__, str(error).strip().splitlines()
        return Choice(False, f"not compiled: {kind}{f': {words[0]}' if words else ''}"[:214])


def _compile(trial: Trial, why: str) -> Choice:
    return Choice(True, f"{why}, {trial.compile():.0f} s to compile")


def _weigh(trial: Trial, work: Callable[[float], float]) -> Choice:
    """`work`: the seconds of all micro-batches, by those of one."""
    known = recall(trial.record)
    cost = known or trial.assumed
    if cost.gain < LEAST_GAIN:
        return Choice(False, f"not compiled: {cost.gain:.2f}x the speed in an earlier run")
    eager = trial.once()  # the first round is the slowest: if compiling does not pay even then, measure no more
    if cost.saves(work(eager)) > cost.seconds:
        eager = trial.seconds()
    saves = cost.saves(work(eager))
    if saves <= cost.seconds:
        source = "as in an earlier run" if known else "assumed"
        return Choice(False, f"not compiled: it saves about {saves:.0f} s and takes {cost.seconds:.0f} s ({source})")
    first, fast = trial.compile(), trial.seconds()
    found = Cost(max(0.0, first - fast * len(trial.batches)), eager / fast)
    remember(trial.record, found)
    if found.gain < LEAST_GAIN:
        trial.give_up()
        return Choice(False, f"not compiled: {found.gain:.2f}x the speed in a trial")
    return Choice(True, f"compiled: {found.gain:.1f}x as fast, {found.seconds:.0f} s to compile")


def recall(record: Path) -> Cost | None:
    """The cost that an earlier run has measured; None if there is no file, or a damaged one."""
    try:
        cost = Cost(**{name: float(value) for name, value in json.loads(record.read_text(encoding="utf-8")).items()})
    except (OSError, ValueError, TypeError, AttributeError):
        return None
    return cost if cost.seconds >= 0 and 0 < cost.gain < math.inf else None


def remember(record: Path, cost: Cost) -> None:
    """Write the cost for the next run, unless the cache cannot be written."""
    with suppress(OSError, UserError):
        record.parent.mkdir(parents=True, exist_ok=True)
        write_json(record, asdict(cost))


def _folder() -> Path:
    return cache_folder() / "compiled"


def _sizes(values: Iterable[Any]) -> set[int]:
    """Every size of the tensors in the arguments of a loss."""
    return {size for value in tree_leaves(list(values)) if isinstance(value, Tensor) for size in value.shape}
