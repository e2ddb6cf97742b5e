"""Guidance: a Stepper around a Stepper, away from what it would write unasked (Ho and Salimans, 2021)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from allyouneed.decode.stepper import State, Stepper


class Guided:
    """logits = free + strength · (asked - free). `free` gives the input that asks for nothing, as long as the one that
    asks: every row has a second row behind it, which reads that and gets the same tokens."""

    def __init__(self, stepper: Stepper, free: Callable[[Any], Any], strength: float) -> None:
        self.stepper, self.free, self.strength, self.prompted = stepper, free, strength, stepper.prompted

    @property
    def limit(self) -> int | None:
        return self.stepper.limit

    def _guide(self, logits: Tensor) -> Tensor:
        """(2B, V) -> (B, V)"""
        asked, free = logits.float().view(-1, 2, logits.size(-1)).unbind(1)
        return free + self.strength * (asked - free)

    def start(self, inputs: Sequence[Any], room: int) -> tuple[Tensor, Any]:
        both = [one for given in inputs for one in (given, self.free(given))]
        logits, state = self.stepper.start(both, room)
        return self._guide(logits), Pairs(state)

    def step(self, tokens: Tensor, state: Pairs) -> Tensor:
        state.agree()
        logits = self.stepper.step(tokens.repeat_interleave(2), state.inner)
        state.length += 1
        return self._guide(logits)

    def empty(self, rows: int, room: int) -> Pairs:
        return Pairs(self.stepper.empty(2 * rows, room))

    def buffers(self) -> Iterable[Tensor]:
        return self.stepper.buffers()


class Pairs:
    """What a Decoder needs of a State, not what beams need: each row is two rows of another State."""

    def __init__(self, inner: State) -> None:
        self.inner = inner
        self.length = inner.length[::2].clone()

    def agree(self) -> None:
        """Who decodes may have set the length of a free row."""
        self.inner.length.copy_(self.length.repeat_interleave(2))

    def put(self, rows: Tensor, other: Pairs) -> None:
        self.inner.put(_both(rows), other.inner)
        self.length[rows] = other.length

    def grow(self, room: int) -> None:
        self.inner.grow(room)

    @property
    def room(self) -> int:
        return self.inner.room

    def places(self) -> Any:
        inner = self.inner.places()
        return None if inner is None else (self.length.data_ptr(), inner)


def _both(rows: Tensor) -> Tensor:
    """(N,) -> (2N,): the rows of the other state."""
    return torch.stack([2 * rows, 2 * rows + 1], dim=1).flatten()
