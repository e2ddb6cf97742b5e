"""What a decoder remembers between steps. The caller owns it; rows are right-padded, each with its own length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.nn.masks import Mask, Prepared

# An encoder's output, for every layer and step of a decoder: "keys" (B, S, K), "values" (B, S, D), and "real" (B, S),
# False at padding.
Encoded = dict[str, Tensor]


class _State:
    """Tensors by name with one row per hypothesis, and those of an encoded source with one row per input, which all
    beams of the input share."""

    def __init__(
        self,
        parts: dict[str, Tensor],
        length: Tensor | None = None,
        source: dict[str, Tensor] | None = None,
        beams: int = 1,
    ) -> None:
        self.parts = parts  # each (B, …)
        if length is None:  # nothing has been read
            some = next(iter(parts.values()))
            length = some.new_zeros(some.size(0), dtype=torch.long)
        self.length = length  # (B,) on the device
        self.source = source or {}  # each (inputs, …), right-padded with zeros or False
        self.beams = beams  # rows per input: B = inputs · beams
        self.spare: dict[str, Tensor] = {}  # the parts before they were reordered in place

    def positions(self, count: int) -> Tensor:
        """Where the next `count` tokens of each row go: (B, count)."""
        return self.length[:, None] + torch.arange(count, device=self.length.device)

    def advance(self, count: Tensor | int, **parts: Tensor) -> None:
        """Each row has read `count` more tokens and holds these tensors now. The address of `length` stays."""
        self.parts = {**self.parts, **parts}
        self.length += count

    def reorder(self, rows: Tensor, stay: bool = False) -> None:
        """Row i becomes what row rows[i] was. Beams stay with their input, so the source stays as it is. `stay`: the
        rows are those of the spare tensors, after a `turn`, and those of now are written in place."""
        if stay:
            for name, t in self.parts.items():
                torch.index_select(self.spare[name], 0, rows, out=t)
            self.length.copy_(self.length[rows])
        else:
            self.parts, self.length = {name: t[rows] for name, t in self.parts.items()}, self.length[rows]

    def turn(self) -> bool:
        """Exchange the parts for the spare ones; whether they are the first of the two now."""
        if [t.shape for t in self.spare.values()] != [t.shape for t in self.parts.values()]:
            self.spare = {name: torch.empty_like(t) for name, t in self.parts.items()}
        self.parts, self.spare = self.spare, self.parts
        now, before = (next(iter(parts.values())).data_ptr() for parts in (self.parts, self.spare))
        return now < before

    def expand(self, beams: int) -> Self:
        """Each row `beams` times, one after another; the source is stored once for all of them."""
        parts = {name: t.repeat_interleave(beams, dim=0) for name, t in self.parts.items()}
        return type(self)(parts, self.length.repeat_interleave(beams), self.source, self.beams * beams)

    def _rows(self, inputs: Tensor) -> Tensor:
        """The rows of all beams of these inputs."""
        return (inputs[:, None] * self.beams + torch.arange(self.beams, device=inputs.device)).flatten()

    def select(self, inputs: Tensor) -> Self:
        """A copy of these inputs, each with all its beams."""
        rows = self._rows(inputs)
        parts = {name: t.index_select(0, rows) for name, t in self.parts.items()}
        source = {name: t.index_select(0, inputs) for name, t in self.source.items()}
        return type(self)(parts, self.length[rows], source, self.beams)

    def put(self, inputs: Tensor, other: Self) -> None:
        """New requests join: copy `other`, which has as many beams, into these inputs."""
        rows = self._rows(inputs)
        self.length[rows] = other.length
        for mine, theirs, at in ((self.parts, other.parts, rows), (self.source, other.source, inputs)):
            for name, t in theirs.items():
                mine[name] = _fit(mine[name], t)
                mine[name].index_fill_(0, at, 0)
                where: tuple[Any, ...] = (at, *(slice(size) for size in t.shape[1:]))
                mine[name][where] = t.to(mine[name].dtype)


class RecurrentState(_State):
    """What a recurrent or convolutional decoder remembers: tensors that do not grow with the text, so there is always
    room."""

    room = 1 << 62
    seen: int | None = None

    def grow(self, room: int) -> None:
        """There is always room."""

    def storage(self) -> None:
        """Each step makes new tensors."""


class LayerCache(NamedTuple):
    """One layer of a KVCache during one forward pass."""

    k: Tensor  # (B, Hkv, seen, K), a view of the cache
    v: Tensor
    rows: Tensor  # (B, 1): 0, 1, …
    at: Tensor  # (B, T) positions of the new tokens

    def write(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k, v (B, Hkv, T, K) of the new tokens in place; returns all keys and values of the layer."""
        self.k[self.rows, :, self.at] = k.transpose(1, 2).to(self.k.dtype)
        self.v[self.rows, :, self.at] = v.transpose(1, 2).to(self.v.dtype)
        return self.k, self.v


class KVCache(_State):
    """Keys and values of the tokens so far, "k" and "v" (B, L, Hkv, room, K): zeros at first, written in place,
    right-padded. So nobody pads on the left, a ragged batch gives what single prompts give, and a prompt may come in
    pieces. Of an encoded source it holds "k" and "v" (inputs, L, Hkv, S, K), and "real" (inputs, S), False at padding.
    Of each row, only the first `seen` places are read, if the caller knows that there is nothing behind them.
    """

    seen: int | None = None

    @property
    def room(self) -> int:
        return self.parts["k"].size(3)

    def mask(self, at: Tensor, given: Mask) -> Mask:
        """Tokens at the positions `at` (B, T) see themselves and all before them, as far as `given` allows."""
        past = torch.arange(self.room, device=at.device)[: self.seen] <= at[:, None, :, None]  # (B, 1, T, seen)
        if given.allowed is None:
            return Prepared(past)  # which never hides a token from itself
        if given.allowed.size(-1) != self.room:
            raise ValueError(f"the mask is for {given.allowed.size(-1)} keys, the cache has room for {self.room}")
        return Mask(past & given.allowed[..., : self.seen])

    def layers(self, at: Tensor) -> Iterator[LayerCache]:
        """What each layer needs in a forward pass over tokens at the positions `at` (B, T), one after the other."""
        k, v, rows = self.parts["k"], self.parts["v"], torch.arange(at.size(0), device=at.device)[:, None]
        return (LayerCache(k[:, i, :, : self.seen], v[:, i, :, : self.seen], rows, at) for i in range(k.size(1)))

    def storage(self) -> list[tuple[int, torch.Size]]:
        """Where its tensors are, whichever are the spare ones. They stay there until it grows."""
        both = *self.parts.values(), *self.spare.values()
        return sorted((t.data_ptr(), t.shape) for t in (self.length, *both, *self.source.values()))

    def grow(self, room: int) -> None:
        """Make room for at least so many tokens."""
        more = max(0, room - self.room)
        self.parts = {name: F.pad(t, (0, 0, 0, more)) for name, t in self.parts.items()} if more else self.parts


def _fit(mine: Tensor, other: Tensor) -> Tensor:
    """The tensor, padded at the end of each dimension (but the rows) in which `other` is larger, to a multiple of 16:
    sums over whole vectors of the processor stay the same to the bit, however much padding follows. At least doubled,
    so that this happens rarely, but on a CPU, where it costs less than a larger tensor does."""
    least = [0 if mine.device.type == "cpu" else own for own in mine.shape[1:]]
    more = [
        max(-(-theirs // 16) * 16 - own, n) if theirs > max(own, 1) else max(0, theirs - own)
        for own, theirs, n in zip(mine.shape[1:], other.shape[1:], least)
    ]
    return F.pad(mine, [n for size in reversed(more) for n in (0, size)]) if any(more) else mine
