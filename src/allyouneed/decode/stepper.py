"""What search needs to know of a model: a Stepper, and the State it carries. Never the model itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from torch import Tensor


class State(Protocol):
    """What a decoder remembers between steps, a row a hypothesis: KVCache, a recurrent or convolutional state."""

    length: Tensor  # (B,) tokens seen, on the device

    def put(self, rows: Tensor, other: Any) -> None:
        """Copy the rows of `other` into these rows: a request joins."""

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] was: beams. Rows of one input stay in their block."""

    def select(self, rows: Tensor) -> Any:
        """A new, smaller State of whole inputs: finished ones leave. `rows` are inputs, not beams."""

    def expand(self, beams: int) -> Any:
        """A new State in which each row stands `beams` times, one after another; what belongs to the input
        (the memory of an encoder) is stored once for all of them."""

    def grow(self, room: int) -> None:
        """Make place for at least `room` tokens."""

    @property
    def room(self) -> int:
        """Tokens there is place for; a large number when there is no limit."""


class Stepper(Protocol):
    """One step of an autoregressive model. `inputs` are what a request brings, one for each row: the ids of a
    prompt for a language model, the ids of the source sentence for a translator."""

    prompted: ClassVar[bool]  # after `start` a row holds its whole input (a language model) or one token (a translator)

    @property
    def limit(self) -> int | None:
        """The most tokens a row may ever hold (absolute positions), or None."""

    def start(self, inputs: Sequence[Any], room: int) -> tuple[Tensor, Any]:
        """Logits (B, V) after each ragged prompt, and the state that stands there."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """One token a row, (B,) -> logits (B, V) after it; the state moves on by one."""

    def empty(self, rows: int, room: int) -> Any:
        """A state with so many free rows, into which requests are put."""
