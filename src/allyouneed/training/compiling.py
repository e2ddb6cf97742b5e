"""torch.compile: what is compiled (the whole loss of a model, as one function), and whether that pays."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from allyouneed.data.batches.base import Batch
from allyouneed.data.fetch import cache_folder
from allyouneed.errors import UserError
from allyouneed.models.base import Model
from allyouneed.nn import attention
from allyouneed.nn.block import Block
from allyouneed.nn.heads import LMHead, MaskedHead
from allyouneed.runtime import Runtime, can_compile
from allyouneed.storage.wholefile import write_json
from allyouneed.training.feed import Feed
from allyouneed.training.memory import is_out_of_memory

LEAST_GAIN = 1.05  # compiled code with a smaller speed-up is not worth it
# What is assumed of the first run of a model on a machine.
SECONDS, GAIN = 60.0, {"cuda": 2.0, "cpu": 1.2}


class Cost(NamedTuple):
    """The cost and the gain of compiling."""

    seconds: float
    gain: float  # eager seconds of a forward and backward pass, divided by compiled ones
    source: str


class Choice(NamedTuple):
    compile: bool
    why: str


@dataclass(frozen=True)
class Trial:
    """The model that trains and its first micro-batches: used to decide whether to compile, and to compile."""

    model: Model
    feed: Feed
    loss: Callable[[Batch], Tensor]  # as the training computes it
    about: Mapping[str, Any]  # what the cost depends on: the model and its settings
    runtime: Runtime
    pieces: int = 1  # micro-batches per step
    say: Callable[[str], None] = lambda line: None

    @cached_property
    def batches(self) -> list[Batch]:
        """One batch if all have the same shape. Otherwise all, starting with the one with the most different sizes:
        the compiler takes sizes that are equal in the first batch for the same size."""
        steps = (self.feed.split(numbers, self.pieces, key=0) for numbers in self.feed.plan(0)[:4])
        found = [batches[0].to(self.runtime.torch_device) for batches in steps if batches]
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
        self.say(f"trying torch.compile, which takes about {self.cost.seconds:.0f} s ({self.cost.source})")
        if self.runtime.device == "cpu":
            torch.use_deterministic_algorithms(True)  # otherwise compiled CPU code is not reproducible
        compile_loss(self.model, varied=self.varied, recorded=self.cuda and self.pieces == 1 and not self.varied)
        start = time.perf_counter()
        self.once()
        return time.perf_counter() - start

    def give_up(self) -> None:
        """Make the model's loss eager again."""
        for module in self.model.modules():
            for name in ("loss", "forward"):
                module.__dict__.pop(name, None)
        self.model.zero_grad(set_to_none=True)
        torch.use_deterministic_algorithms(self.runtime.deterministic)

    @cached_property
    def record(self) -> Path:
        """The file with the measured cost of compiling this model on this machine."""
        cpu = f"{platform.machine()} CPU, {self.runtime.threads} threads"
        device = torch.cuda.get_device_name() if self.cuda else cpu
        key = {**self.about, "device": device, "precision": self.runtime.precision, "varied": self.varied}
        text = json.dumps({**key, "torch": torch.__version__}, sort_keys=True, default=str)
        return _folder() / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.json"

    @cached_property
    def cost(self) -> Cost:
        """What an earlier run has measured, otherwise what is assumed; a damaged record counts as none."""
        with suppress(OSError, ValueError, TypeError, KeyError):
            known = json.loads(self.record.read_text(encoding="utf-8"))
            cost = Cost(float(known["seconds"]), float(known["gain"]), "as in an earlier run")
            if cost.seconds >= 0 and 0 < cost.gain < math.inf:
                return cost
        return Cost(SECONDS, GAIN["cuda" if self.cuda else "cpu"], "assumed")

    def remember(self, cost: Cost) -> None:
        """Write the cost for the next run, unless the cache cannot be written."""
        with suppress(OSError, UserError):
            self.record.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.record, {"seconds": cost.seconds, "gain": cost.gain})


def share_compiled_code() -> None:
    """Store compiled code in our cache, for later runs. Call this before anything else: torch sets its own folder when
    it loads its compiler, which many calls do."""
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_folder() / "torch"))


def _folder() -> Path:
    return cache_folder() / "compiled"


def compile_loss(model: Model, *, varied: bool, recorded: bool = False) -> None:
    """Compile the model's loss for training; evaluation, decoding and traces stay eager. The compiled loss is an
    attribute of the instance, so that no wrapper changes the names of tensors on disk. `recorded`: the kernels of a
    pass are recorded as a CUDA graph and started at once, which the host does much faster than one by one."""
    with suppress(ImportError):  # an older torch has none
        from torch.nn.attention.varlen import varlen_attn

        attention.varlen_attn = varlen_attn
    if varied and any(isinstance(module, Block) for module in model.modules()):
        _compile_parts(model)
        return
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


def _compile_parts(model: Model) -> None:
    """For varied shapes, compile the blocks, which have one code, and the losses of heads: about as fast as the whole
    loss, of which the compiler takes minutes for any shape."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    heads = [module for module in model.modules() if isinstance(module, LMHead | MaskedHead)]
    forward = torch.compile(Block.forward, dynamic=True)
    for block in blocks:
        block.__dict__["forward"] = partial(_in_training, block, block.forward, partial(forward, block))
    for head in heads:
        compiled = torch.compile(head.loss, dynamic=True)
        head.__dict__["loss"] = partial(_in_training, head, head.loss, compiled)


def _in_training(
    module: nn.Module, eager: Callable[..., Any], compiled: Callable[..., Any], *args: Any, **named: Any
) -> Any:
    usable = module.training and named.get("trace") is None and 1 not in _sizes([*args, *named.values()])
    return (compiled if usable else eager)(*args, **named)


def stop_recording(model: Model) -> None:
    """Before a step of several micro-batches: a recorded pass would overwrite the gradients of the one before it."""
    if getattr(model.__dict__.get("loss"), "recorded", False):
        del model.__dict__["loss"]
        compile_loss(model, varied=True)


def decide(wanted: str, trial: Trial, calls: int, seconds: float = 0.0, before: bool | None = None) -> Choice:
    """Decide whether to compile the model's loss, and do so. "auto" compiles if that saves more seconds over `calls`
    micro-batches, or over as many as fit into `seconds`, than it takes; a resumed run does as `before`."""
    how = "as asked"
    if wanted == "auto" and before is not None:
        wanted, how = ("on" if before else "off"), "as before"
    if wanted == "off":
        return Choice(False, f"not compiled: {how}")
    if not trial.model.compiles:
        return Choice(False, "not compiled: this kind of model is always eager")
    if obstacle := can_compile(trial.runtime.device):
        return Choice(False, f"not compiled: {obstacle}")
    try:
        if wanted == "on":
            return Choice(True, f"compiled: {how}, {trial.compile():.0f} s to compile")
        return _weigh(trial, lambda eager: seconds or calls * eager)
    except Exception as error:  # if the compiler fails, in whatever way, the loss stays eager
        trial.give_up()
        if is_out_of_memory(error):
            return Choice(False, "not compiled: not enough memory for a trial")
        kind, words = type(error).__name__, str(error).strip().splitlines()
        return Choice(False, f"not compiled: {kind}{f': {words[0]}' if words else ''}"[:214])


def _weigh(trial: Trial, work: Callable[[float], float]) -> Choice:
    """`work`: the seconds of all micro-batches, by those of one."""
    cost = trial.cost
    if cost.gain < LEAST_GAIN:
        return Choice(False, f"not compiled: {cost.gain:.2f}x the speed, {cost.source}")
    gained = 1 - 1 / cost.gain  # of the eager seconds
    eager = trial.once()  # the first round is the slowest: if compiling does not pay even then, measure no more
    if gained * work(eager) > cost.seconds:
        eager = trial.seconds()
    if (saves := gained * work(eager)) <= cost.seconds:
        takes = f"takes {cost.seconds:.0f} s ({cost.source})"
        return Choice(False, f"not compiled: it saves about {saves:.0f} s and {takes}")
    first, fast = trial.compile(), trial.seconds()
    found = Cost(max(0.0, first - fast * len(trial.batches)), eager / fast, "measured")
    trial.remember(found)
    if found.gain < LEAST_GAIN:
        trial.give_up()
        return Choice(False, f"not compiled: {found.gain:.2f}x the speed in a trial")
    return Choice(True, f"compiled: {found.gain:.1f}x as fast, {found.seconds:.0f} s to compile")


def _sizes(values: Iterable[Any]) -> set[int]:
    """Every size of the tensors in the arguments of a loss."""
    return {size for value in tree_leaves(list(values)) if isinstance(value, Tensor) for size in value.shape}
