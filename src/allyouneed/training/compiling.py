"""Whether torch.compile pays: tried on a copy of the model, block by block, with a real batch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from allyouneed.nn.block import Block
from allyouneed.runtime import Runtime, can_compile
from allyouneed.training.memory import is_out_of_memory

SHORT = 600.0  # seconds; compiling takes about a minute, and a run that takes less than this does not repay it
Loss = Callable[[nn.Module], Tensor]


def compile_blocks(model: nn.Module) -> None:
    """In place, so that no wrapper ever reaches the names on disk."""
    for block in model.modules():
        if isinstance(block, Block):
            block.compile(dynamic=None)


def decide(wanted: str, runtime: Runtime, model: nn.Module, losses: Sequence[Loss], steps: int) -> Runtime:
    """The runtime with its `compile` settled. `losses` compute real micro-batches of different shapes with a given
    model: a compiler that must start again for each length shows it here."""
    if wanted == "off":
        return runtime.decided(False, "not compiled: as asked")
    if not any(isinstance(module, Block) for module in model.modules()):
        return runtime.decided(False, "not compiled: it has no blocks")
    obstacle = can_compile(runtime.device)
    if wanted == "on":
        return runtime.decided(not obstacle, f"not compiled: {obstacle}" if obstacle else "compiled: as asked")
    if obstacle:
        return runtime.decided(False, f"not compiled: {obstacle}")
    trial = copy.deepcopy(model)
    try:
        eager = _seconds(trial, losses)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return runtime.decided(False, "not compiled: no memory for a trial")
    if eager * steps < SHORT:
        return runtime.decided(False, f"not compiled: the run is short (about {eager * steps:.0f} s)")
    if runtime.device == "cpu":
        torch.use_deterministic_algorithms(True)  # compiled CPU code does not repeat itself otherwise
    compile_blocks(trial)
    try:
        gain = eager / _seconds(trial, losses)
    except Exception as error:  # a compiler can fail in any way; the eager model is there
        gain, failed = 0.0, f"not compiled: {type(error).__name__} while trying"
    else:
        failed = f"not compiled: {gain:.2f}x the speed in a trial"
    if gain > 1.05:
        return runtime.decided(True, f"compiled: {gain:.2f}x as fast in a trial")
    torch.use_deterministic_algorithms(runtime.deterministic)
    return runtime.decided(False, failed)


def _seconds(model: nn.Module, losses: Sequence[Loss]) -> float:
    """A forward and backward pass, the mean over the batches of the last of three rounds."""
    start = 0.0
    for _ in range(3):
        start = time.perf_counter()
        for loss in losses:
            value = loss(model)
            value.backward()
            value.item()
            model.zero_grad()
        if value.is_cuda:
            torch.cuda.synchronize()
    return (time.perf_counter() - start) / len(losses)
