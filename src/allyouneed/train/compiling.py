"""Whether torch.compile pays: tried on a copy of the model, block by block, with a real batch."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from allyouneed.nn.block import Block
from allyouneed.runtime import Runtime, can_compile

SHORT = 180.0  # seconds; a run that takes less does not repay compiling


def compile_blocks(model: nn.Module) -> None:
    """In place, so that no wrapper ever reaches the names on disk."""
    for block in model.modules():
        if isinstance(block, Block):
            block.compile(dynamic=None)


def decide(wanted: str, runtime: Runtime, model: nn.Module, loss: Callable[[nn.Module], Tensor], steps: int) -> Runtime:
    """The runtime with its `compile` settled; `loss` computes one micro-batch's loss with a given model."""
    if wanted == "off":
        return runtime.decided(False, "not compiled: as asked")
    obstacle = can_compile(runtime.device)
    if wanted == "on":
        return runtime.decided(not obstacle, f"not compiled: {obstacle}" if obstacle else "compiled: as asked")
    if obstacle:
        return runtime.decided(False, f"not compiled: {obstacle}")
    trial = copy.deepcopy(model)
    eager = _seconds(trial, loss)
    if eager * steps < SHORT:
        return runtime.decided(False, f"not compiled: the run is short (about {eager * steps:.0f} s)")
    if runtime.deterministic or runtime.device == "cpu":
        torch.use_deterministic_algorithms(True)  # compiled CPU code does not repeat itself otherwise
    compile_blocks(trial)
    try:
        compiled = _seconds(trial, loss)
    except Exception as error:  # a compiler can fail in any way; the eager model is there
        return runtime.decided(False, f"not compiled: {type(error).__name__} while trying")
    gain = eager / compiled
    if gain > 1.05:
        return runtime.decided(True, f"compiled: {gain:.2f}x as fast in a trial")
    if not runtime.deterministic:
        torch.use_deterministic_algorithms(False)
    return runtime.decided(False, f"not compiled: {gain:.2f}x the speed in a trial")


def _seconds(model: nn.Module, loss: Callable[[nn.Module], Tensor]) -> float:
    """The best of a few forward and backward passes, after three that warm up."""
    best = float("inf")
    for i in range(8):
        start = time.perf_counter()
        value = loss(model)
        value.backward()
        value.item()
        if value.is_cuda:
            torch.cuda.synchronize()
        model.zero_grad()
        if i >= 3:
            best = min(best, time.perf_counter() - start)
    return best
