"""Position: how far a run has come. State: the content of state.json in a checkpoint. Pending and Window: steps that
are not yet in the log."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import Tensor

from allyouneed.checkpoints import Checkpoint
from allyouneed.errors import UserError
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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_state(checkpoint: Checkpoint, run: str, losses: int) -> State:
    """The state of a checkpoint; a UserError unless it has the identity `run` and as many named losses as `losses`."""
    try:
        values = checkpoint.state
        parts = {"position": Position, "window": Window, "watch": Watch, "plan": Plan}
        state = State(**{**values, **{name: cls(**values[name]) for name, cls in parts.items()}})
        for name, cls in parts.items():
            if missing := {f.name for f in fields(cls)} - NEWER - values[name].keys():
                raise KeyError(*missing)
        counted = [(f, getattr(part, f.name)) for part in (state.position, state.watch) for f in fields(part)]
        numbers, whole = [n for _, n in counted], [n for f, n in counted if isinstance(f.default, int)]
        fine = (
            state.position.step == checkpoint.step
            and all(type(n) is int and n >= 0 for n in (*whole, state.pieces, state.metrics))
            and state.pieces > 0
            and all(type(n) in (int, float) for n in (*numbers, *state.window.losses, state.window.seconds))
            and type(state.window.units) is int
            and all(type(n) is int and n >= 0 for n in (state.plan.total, state.plan.every, state.plan.since))
            and state.plan.every > 0
            and type(state.plan.start) in (int, float)
            and type(state.plan.valid) in (int, float)
            and isinstance(state.window.losses, list)
            and len(state.window.losses) == losses
            and isinstance(state.runtime["device"], str)
            and isinstance(state.runtime["compile"], bool)
        )
    except (TypeError, KeyError):
        fine = False
    if not fine:
        raise UserError(
            f"{checkpoint.path / 'state.json'} does not hold the state of a training; remove {checkpoint.path}"
        )
    if state.run != run:
        raise UserError(f"{checkpoint.path} is a checkpoint of another run; remove it")
    return state
