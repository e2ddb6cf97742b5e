"""How far a run has come, and what a checkpoint holds: state.json, and the tensors of train.safetensors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from allyouneed.errors import UserError
from allyouneed.storage.checkpoints import Checkpoint
from allyouneed.tasks.base import Carry
from allyouneed.training.optim import MovingAverage
from allyouneed.training.plan import Plan
from allyouneed.training.warning import Watch

NEWER = {"best_loss", "valid"}  # that checkpoints of earlier versions do not have


@dataclass
class Position:
    """How far a run has come; with the tensors of a checkpoint, all that is needed to resume it."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    units: int = 0  # tokens, words or texts seen
    best: float = math.inf  # the loss, or minus the score that the task chooses by
    best_loss: float = math.inf  # the loss at that step
    best_step: int = 0
    waited: int = 0  # evaluations since the best
    seconds: float = 0.0
    elapsed: float = 0.0  # seconds of the commands so far, with all that is not training

    def rank(self, goal: float, loss: float) -> bool:
        """Note an evaluation of this step; both numbers are better if they are lower. Returns whether it is the best so
        far. A tie goes to the lower loss, then to the later step, which is no improvement to wait for."""
        found, before = (goal, loss), (self.best, self.best_loss)
        self.waited = 0 if found < before else self.waited + 1
        if found <= before:
            self.best, self.best_loss, self.best_step = goal, loss, self.step
        return found <= before


@dataclass(frozen=True)
class Pending:
    """A step whose loss has not been read yet: reading makes the host wait for the device."""

    step: int
    epoch: int
    batch: int
    losses: Tensor  # this process's part of each named loss, in the order of `NamedLosses.names`
    norm: Tensor
    units: int


@dataclass
class Window:
    """Sums since the last line of metrics: each named loss, units, and seconds."""

    losses: list[float]
    units: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class State:
    """The content of state.json."""

    run: str  # the identity of the run
    position: Position
    pieces: int  # micro-batches per step
    window: Window
    watch: Watch
    plan: Plan
    runtime: dict[str, Any]
    metrics: int  # bytes of metrics.jsonl


def read_state(checkpoint: Checkpoint, run: str, losses: int) -> State:
    """The state of a checkpoint; a UserError unless it has the identity `run` and as many named losses as `losses`."""
    try:
        state: State = _parsed(State, checkpoint.state)
        fine = state.position.step == checkpoint.step and len(state.window.losses) == losses
        fine = fine and min(state.pieces, state.plan.every) > 0
        fine = fine and isinstance(state.runtime["device"], str) and isinstance(state.runtime["compile"], bool)
    except (TypeError, KeyError):
        fine = False
    if not fine:
        raise UserError(
            f"{checkpoint.path / 'state.json'} does not hold the state of a training; remove {checkpoint.path}"
        )
    if state.run != run:
        raise UserError(f"{checkpoint.path} is a checkpoint of another run; remove it")
    return state


def _parsed(kind: Any, value: Any) -> Any:
    """A value of JSON as this type: a dataclass with all of its fields, a list, an object, text or a number; whole
    numbers are not negative. Anything else is a TypeError or a KeyError."""
    if is_dataclass(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        if missing := hints.keys() - NEWER - value.keys():
            raise KeyError(*missing)
        values = {name: _parsed(hints[name], each) for name, each in value.items()}
        return kind(**values)  # type: ignore[operator]
    if get_origin(kind) is list and isinstance(value, list):
        return [_parsed(get_args(kind)[0], each) for each in value]
    known = (int, float) if kind is float else (get_origin(kind) or kind,)
    if type(value) not in known or (kind is int and value < 0):
        raise TypeError
    return value


# The state of each optimizer per parameter.
MEMORY: dict[type, set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.SGD: {"momentum_buffer"},
}


def training_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: MovingAverage | None, carried: Sequence[Carry]
) -> dict[str, Tensor]:
    """The tensors by name: "optimizer/<parameter>/exp_avg", "ema/<parameter>", "carry/<process>/h", …"""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    found = {f"carry/{rank}/{name}": t for rank, carry in enumerate(carried) for name, t in carry.items()}
    for p, state in optimizer.state.items():
        found |= {f"optimizer/{names[p]}/{key}": t for key, t in state.items() if isinstance(t, Tensor)}
    if average is not None:
        found |= {f"ema/{name}": t for name, t in average.averages.items()}
    return found


def restore_training(
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    fresh: Carry,
) -> dict[int, Carry]:
    """Load what `training_tensors` returned into the optimizer and the average. Returns the carry of each process,
    which must have the shapes of `fresh`. A ValueError or KeyError means that the tensors do not fit the model."""
    parameters = dict(model.named_parameters())
    carried: dict[int, Carry] = {}
    averages = dict(average.averages) if average is not None else {}
    for path, t in tensors.items():
        kind, _, name = path.partition("/")
        if kind == "optimizer":
            name, _, key = name.rpartition("/")
            p = parameters[name]
            _check(path, t, torch.empty((), dtype=p.dtype, device="meta") if key == "step" else p)
            optimizer.state[p][key] = torch.empty_like(t, device=p.device).copy_(t)
        elif kind == "carry":
            rank, _, name = name.partition("/")
            _check(path, t, fresh[name])
            carried.setdefault(int(rank), {})[name] = t
        elif kind == "ema" and average is not None:
            _check(path, t, averages[name])
            averages.pop(name).copy_(t)
    complete = all(state.keys() == MEMORY[type(optimizer)] for state in optimizer.state.values())
    if averages or not complete or any(carry.keys() != fresh.keys() for carry in carried.values()):
        raise ValueError("a part of the state is missing")
    return carried


def _check(name: str, t: Tensor, like: Tensor) -> None:
    if (t.shape, t.dtype) != (like.shape, like.dtype):
        raise ValueError(f"{name} is {t.dtype} {tuple(t.shape)}, not {like.dtype} {tuple(like.shape)}")
