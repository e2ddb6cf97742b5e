"""Training steps on a GPU: the loop of `ayn train` against a model of another library in a loop written by hand."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.data.batches.base import Batch
from allyouneed.errors import UserError
from allyouneed.models.base import Model
from allyouneed.nn.losses import IGNORE
from allyouneed.runtime import attend_by_cudnn, probe
from allyouneed.storage.runfolder import RunFolder
from allyouneed.tasks.base import Task
from allyouneed.training.distributed import Ranks
from allyouneed.training.fit import _choose_compile
from bench.cases.gpt_train_step import OurLoop, first_work
from bench.harness import OURS, Case, Peer, Prepared, same

STEPS = 20  # per call
LEARNING_RATE = 3e-4
GIB = 1 << 30
WORK = (
    "CUDA, bf16 autocast, no dropout; fused AdamW, gradient norm clipped at 1. Ours is the loop of `ayn train "
    "train.compile=on` with its batches, metrics and checks, without evaluations and checkpoints. The peer is under "
    "torch.compile, in a loop written by hand, its batches on the GPU from the beginning. The memory is what a side "
    "takes of the GPU while it trains in a process of its own, as the driver tells it."
)


@dataclass(frozen=True)
class Contest:
    """A model that is trained on both sides. Its functions are sent to other processes, so they have names."""

    make_task: Callable[[str, dict[str, Any]], Task]  # of a size, with settings of [train]
    their_model: Callable[[Any], nn.Module]  # with the weights of ours, in its own library
    their_loss: Callable[[Any, Any], Tensor]  # the mean loss of their model on the tensors of our batch
    unit: str
    units: Callable[[Batch], float]  # how many of them a batch has
    peer: str
    module: str
    varied: bool = False  # batches have different shapes


def real_targets(batch: Batch) -> float:
    """Tokens that are predicted; padding is none."""
    return float((batch.tensors["targets"] != IGNORE).sum())


def our_loop(contest: Contest, size: str, folder: Path, *, device: str, compile: str) -> OurLoop:
    """The loop that `ayn train` builds from such a recipe."""
    train = {
        "steps": 1, "lr": LEARNING_RATE, "schedule": "constant", "warmup": 0, "beta2": 0.95, "weight_decay": 0.1,
        "clip": 1.0, "device": device, "precision": "bf16" if device == "cuda" else "fp32", "compile": compile,
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    task = contest.make_task(size, train)
    runtime = probe(task.recipe.train)
    torch.manual_seed(task.recipe.train.seed)
    model = task.build_model().to(runtime.torch_device)
    runtime = _choose_compile(task, model, runtime, Ranks(), None, 1, lambda line: None)
    if compile == "on" and not runtime.compile:
        raise UserError(f"ours was not compiled: {runtime.why}")
    run = RunFolder.create(folder, resume=False, overwrite=False)
    return OurLoop(model, task, task.recipe.train, run, runtime, Ranks(), quiet=True)


def our_losses(loop: OurLoop, steps: int) -> list[float]:
    """The losses of our loop in its first `steps` steps."""
    feed = loop.feed.steps(0, 0, 1)
    for _ in range(steps):
        loop._step(next(feed))
    feed.close()
    found = [float(p.losses.sum()) for p in loop.pending]
    loop.pending.clear()
    return found


def our_steps(loop: OurLoop) -> None:
    attend_by_cudnn(not loop.task.examples("train").varies)  # as the loop of a run has it
    loop.some_steps(STEPS)


class HandLoop:
    """A training loop as people write it: bf16 autocast, fused AdamW, all batches on the device from the start."""

    def __init__(self, contest: Contest, ours: OurLoop, start: Model, *, compile: bool) -> None:
        self.loss, self.device = contest.their_loss, ours.device
        self.model = contest.their_model(start).to(self.device).train()
        dynamic = True if contest.varied else None
        self.call: Any = torch.compile(self.model, dynamic=dynamic) if compile else self.model
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95), fused=True)
        feed, numbers = ours.feed, ours.feed.plan(0)[:STEPS]
        self.batches = cycle([feed.split(some, 1, key=0)[0].to(self.device).tensors for some in numbers])

    def step(self, tensors: Any) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            loss = self.loss(self.call, tensors)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def some_steps(self) -> None:
        attend_by_cudnn(True)  # the default of torch
        for tensors in islice(self.batches, STEPS):
            loss = self.step(tensors)
        loss.item()


def build_side(contest: Contest, side: str, size: str, device: str) -> Callable[[], None]:
    """What runs some steps of a side. For the other side, our loop makes the batches, and is gone then."""
    compiled, how = device == "cuda", "on" if device == "cuda" and side == OURS else "off"
    ours = our_loop(contest, size, Path(tempfile.mkdtemp()) / "run", device=device, compile=how)
    if side == OURS:
        return partial(our_steps, ours)
    return HandLoop(contest, ours, ours.model, compile=compiled).some_steps


def memory_alone(build: Callable[[], Callable[[], None]]) -> float:
    """GiB that a side takes of the GPU in a process of its own. Not torch.cuda.max_memory_allocated: that counts what
    is asked of torch's allocator, and a recorded pass asks for nothing when it is replayed; its memory is in a pool of
    the graph, which counts as free."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_watched, build).result()


def _watched(build: Callable[[], Callable[[], None]]) -> float:
    torch.cuda.synchronize()  # the driver's own memory of a process is there from now on
    before = least = torch.cuda.mem_get_info()[0]
    steps = build()
    steps()
    _give_back()  # what only the building and the compiling took
    for _ in range(3):
        steps()
        least = min(torch.cuda.mem_get_info()[0], least)
    return (before - least) / GIB


def _give_back() -> None:
    """Give all memory that holds nothing back to the driver; what a graph needs stays."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


def prepare(contest: Contest, peers: set[str], folder: Path, size: str, device: str, losses: str) -> Prepared:
    compiled, steps = device == "cuda", int(losses)
    how = "compiled" if compiled else "again"
    eager = our_losses(our_loop(contest, size, folder / "eager", device=device, compile="off"), steps)
    ours = our_loop(contest, size, folder / "ours", device=device, compile="on" if compiled else "off")
    start = {name: tensor.cpu().clone() for name, tensor in ours.model.state_dict().items()}
    found = our_losses(ours, steps)
    gaps = [abs(a - b) for a, b in zip(eager, found)]
    told = f"mean difference {np.mean(gaps):.4f}, largest {max(gaps):.4f}, last losses {eager[-1]:.4f} eager, "
    told += f"{found[-1]:.4f} {how}"
    checked = same(f"ours {how} has the first {steps} losses of ours eager to 0.02 ({told})", np.mean(gaps) < 0.02)
    sides: dict[str, Callable[[], None]] = {OURS: partial(our_steps, ours)}
    if contest.peer in peers:
        first = ours.task.build_model()
        first.load_state_dict(start)
        theirs = HandLoop(contest, ours, first, compile=compiled)
        work = first_work(ours).pieces[0].to(ours.device).tensors
        gap = abs(float(theirs.step(work)) - found[0])
        told = f"from the same weights, the first loss of both agrees to 0.01 (difference {gap:.4f})"
        checked += "; " + same(told, gap < 0.01)
        sides[contest.peer] = theirs.some_steps
    numbers = ours.feed.plan(0)[:STEPS]
    units = np.mean([contest.units(ours.feed.split(some, 1, key=0)[0]) for some in numbers])

    def scores() -> dict[str, dict[str, list[float]]]:
        if not compiled:
            return {}
        taken = {name: memory_alone(partial(build_side, contest, name, size, device)) for name in sides}
        return {name: {"GiB of GPU memory": [gib]} for name, gib in taken.items()}

    return Prepared(sides, STEPS * float(units), checked, scores)


def training_case(name: str, work: str, contest: Contest, losses: int) -> Case:
    options = {"size": "base", "device": "cuda", "losses": str(losses)}
    quick = {"size": "tiny", "losses": "5"}
    what = f"{STEPS} training steps of {work}; {WORK}"
    return Case(
        name, what, contest.unit, [Peer(contest.peer, contest.module)], partial(prepare, contest), 0, options, quick
    )
