"""What search knows of a model: a Stepper and the State it carries, never the model itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class State(Protocol):
    """What a model remembers between steps, one row per hypothesis: a KVCache, a recurrent or convolutional state."""

    length: Tensor  # (B,) tokens seen, on the device
    seen: int | None  # places of each row that are read, all if None; what has no places ignores it

    def put(self, inputs: Tensor, other: Any) -> None:
        """Copy what `other` holds into these inputs, each with all its beams: requests join."""

    def reorder(self, rows: Tensor, stay: bool = False) -> None:
        """Row i becomes what row rows[i] was: beams. Rows of one input stay in their block. `stay`: so do the tensors
        in their places."""

    def turn(self) -> bool:
        """Before a reorder in place: what it reads and what it writes change places; whether they are as at first."""

    def select(self, inputs: Tensor) -> Any:
        """A new State with these inputs, each with all its beams: finished ones leave, and an input may come twice."""

    def expand(self, beams: int) -> Any:
        """A new State with each row `beams` times, one after another; what belongs to the input (the output of an
        encoder) is stored once for all of them."""

    def grow(self, room: int) -> None:
        """Make room for at least so many tokens."""

    @property
    def room(self) -> int:
        """How many tokens fit; a large number if there is no limit."""

    def storage(self) -> Any:
        """Where its tensors are, to be compared; None if a step moves them."""


class Stepper(Protocol):
    """One step of an autoregressive model. There is one input per row: the ids of a prompt for a language model, the
    ids of the source sentence for a translator."""

    @property
    def prompted(self) -> bool:
        """Whether a row holds its whole input after `start` (a language model), or one token (a translator)."""

    @property
    def limit(self) -> int | None:
        """The most tokens that a row can hold (learned positions), or None."""

    @property
    def piece(self) -> int | None:
        """The most tokens of a prompt that are read at once, so that others go on meanwhile; None: all."""

    @property
    def compiled(self) -> bool:
        """Whether its step is compiled; then the choice of tokens is, too."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def start(self, inputs: Sequence[Any], room: int) -> tuple[Tensor, Any]:
        """Logits (B, V) after each of the ragged inputs, and the state at that point."""

    def read_on(self, inputs: Sequence[Any], state: Any) -> Tensor:
        """Logits (B, V) after the next tokens of each ragged input, of which the first `piece` are read."""

    def read(self, ids: Tensor, lengths: Tensor, state: Any) -> Tensor:
        """The same for rows (B, T) of such lengths (B,), padded on the right."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """One token per row, (B,) -> logits (B, V) after it; the state advances by one."""

    def empty(self, rows: int, room: int) -> Any:
        """A state with so many free rows, into which requests are put."""

    def buffers(self) -> Iterable[Tensor]:
        """Tensors that a step reads, besides the weights and the state."""


def bucket(tokens: int, limit: int | None, records: bool) -> int:
    """Room for so many tokens. If steps are recorded, a power of two, for few shapes and copies; at a limit a multiple
    of 16, for kernels. Otherwise little more than the tokens need, for attention reads all of it."""
    power = 1 << (tokens - 1).bit_length()
    if not records:
        piece = max(16, power // 16)
        return -(-tokens // piece) * piece
    room = max(64, power)
    return room if limit is None else min(room, -(-limit // 16) * 16)


def part(tokens: int, room: int) -> int:
    """Of a room, the part that is read if the longest row has so many tokens: one of a few sizes."""
    piece = max(32, (1 << (tokens - 1).bit_length()) // 8)
    return min(room, -(-tokens // piece) * piece)
