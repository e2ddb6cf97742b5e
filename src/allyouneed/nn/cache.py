"""What a decoder remembers between steps. Owned by the caller; rows are right-padded, each with its own length."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Memory:
    """Keys and values of an encoded source, for every layer; one row a sentence, whatever the number of beams."""

    k: Tensor  # (L, B, Hkv, S, K)
    v: Tensor
    keep: Tensor  # (B, 1, 1, S) bool

    def select(self, rows: Tensor) -> Memory:
        return Memory(self.k.index_select(1, rows), self.v.index_select(1, rows), self.keep.index_select(0, rows))

    def put(self, rows: Tensor, other: Memory) -> None:
        size = other.k.size(3)
        if size > self.k.size(3):
            more = max(size, 2 * self.k.size(3)) - self.k.size(3)  # at least twice, so that it happens rarely
            self.k, self.v = _widen(self.k, more), _widen(self.v, more)
            self.keep = torch.nn.functional.pad(self.keep, (0, more))
        self.k[:, rows, :, :size], self.v[:, rows, :, :size] = other.k, other.v
        self.keep[rows] = False
        self.keep[rows, :, :, :size] = other.keep


class KVCache:
    """Keys and values of the tokens so far: zeros at first, written in place, right-padded with a length a row.

    So nobody left-pads, a ragged batch gives what single prompts give, and a prompt may come in pieces.
    """

    def __init__(self, k: Tensor, v: Tensor, length: Tensor, memory: Memory | None = None, beams: int = 1) -> None:
        self.k, self.v = k, v  # (L, B, Hkv, room, K)
        self.length = length  # (B,) on the device
        self.memory = memory
        self.beams = beams  # rows an input

    @staticmethod
    def zeros(layers: int, rows: int, heads: int, room: int, key_width: int, value_width: int, like: Tensor) -> KVCache:
        """An empty cache with the dtype and device of `like`."""
        shape = (layers, rows, heads, room)
        k, v = (torch.zeros(*shape, w, dtype=like.dtype, device=like.device) for w in (key_width, value_width))
        return KVCache(k, v, torch.zeros(rows, dtype=torch.long, device=like.device))

    @property
    def room(self) -> int:
        return self.k.size(3)

    def write(self, layer: int, k: Tensor, v: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
        """Put k, v (B, Hkv, T, K) at the positions `at` (B, T); returns all keys and values of the layer."""
        rows = torch.arange(at.size(0), device=at.device)[:, None]
        self.k[layer][rows, :, at] = k.transpose(1, 2).to(self.k.dtype)
        self.v[layer][rows, :, at] = v.transpose(1, 2).to(self.v.dtype)
        return self.k[layer], self.v[layer]

    def advance(self, count: Tensor | int) -> None:
        """Each row now holds `count` more tokens. In place: the address of `length` stays."""
        self.length += count

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] was. Beams stay within their sentence, so the memory stays as it is."""
        self.k, self.v = self.k.index_select(1, rows), self.v.index_select(1, rows)
        self.length = self.length[rows]

    def expand(self, beams: int) -> KVCache:
        """Each row `beams` times, one after another; the memory once for all of them."""
        k, v = (t.repeat_interleave(beams, dim=1) for t in (self.k, self.v))
        return KVCache(k, v, self.length.repeat_interleave(beams), self.memory, self.beams * beams)

    def select(self, rows: Tensor) -> KVCache:
        """Only these inputs, each with all its beams."""
        memory = self.memory.select(rows) if self.memory is not None else None
        rows = (rows[:, None] * self.beams + torch.arange(self.beams, device=rows.device)).flatten()
        k, v = self.k.index_select(1, rows), self.v.index_select(1, rows)
        return KVCache(k, v, self.length[rows], memory, self.beams)

    def put(self, rows: Tensor, other: KVCache) -> None:
        """A new request joins: copy the rows of `other` into these rows."""
        self.grow(other.room)
        self.k[:, rows, :, : other.room], self.v[:, rows, :, : other.room] = other.k, other.v
        self.length[rows] = other.length
        if self.memory is not None and other.memory is not None:
            self.memory.put(rows, other.memory)

    def grow(self, room: int) -> None:
        """Make place for at least `room` tokens."""
        if room > self.room:
            more = room - self.room
            self.k, self.v = _widen(self.k, more), _widen(self.v, more)


class RecurrentState:
    """What a recurrent or convolutional decoder remembers: tensors whose size does not grow with the text, so there is
    always room. What it reads of an encoded source is stored once an input, right-padded, for all its beams."""

    room = 1 << 62

    def __init__(
        self, parts: dict[str, Tensor], length: Tensor, memory: dict[str, Tensor] | None = None, beams: int = 1
    ) -> None:
        self.parts = parts  # by name, each (B, …)
        self.length = length  # (B,) on the device
        self.memory = memory or {}  # by name, each (inputs, S, …)
        self.beams = beams  # rows an input

    def advance(self, count: Tensor | int, **parts: Tensor) -> None:
        """Each row has read `count` more tokens and holds these tensors now."""
        self.parts = {**self.parts, **parts}
        self.length += count

    def reorder(self, rows: Tensor) -> None:
        """Row i becomes what row rows[i] was. Beams stay within their sentence, so the memory stays as it is."""
        self.parts = {name: t.index_select(0, rows) for name, t in self.parts.items()}
        self.length = self.length[rows]

    def expand(self, beams: int) -> RecurrentState:
        """Each row `beams` times, one after another; the memory once for all of them."""
        parts = {name: t.repeat_interleave(beams, dim=0) for name, t in self.parts.items()}
        return RecurrentState(parts, self.length.repeat_interleave(beams), self.memory, self.beams * beams)

    def select(self, rows: Tensor) -> RecurrentState:
        """Only these inputs, each with all its beams."""
        memory = {name: t.index_select(0, rows) for name, t in self.memory.items()}
        rows = (rows[:, None] * self.beams + torch.arange(self.beams, device=rows.device)).flatten()
        parts = {name: t.index_select(0, rows) for name, t in self.parts.items()}
        return RecurrentState(parts, self.length[rows], memory, self.beams)

    def put(self, rows: Tensor, other: RecurrentState) -> None:
        """A new request joins: copy the rows of `other` into these rows."""
        for name, t in other.parts.items():
            self.parts[name][rows] = t.to(self.parts[name].dtype)
        self.length[rows] = other.length
        for name, t in other.memory.items():
            more = t.size(1) - self.memory[name].size(1)
            if more > 0:  # at least twice, so that it happens rarely
                self.memory[name] = _lengthen(self.memory[name], max(more, self.memory[name].size(1)))
            self.memory[name][rows] = 0
            self.memory[name][rows, : t.size(1)] = t.to(self.memory[name].dtype)

    def grow(self, room: int) -> None:
        """There is always room."""


def _widen(t: Tensor, more: int) -> Tensor:
    """(…, room, K) -> (…, room + more, K)"""
    return torch.nn.functional.pad(t, (0, 0, 0, more))


def _lengthen(t: Tensor, more: int) -> Tensor:
    """(B, S, …) -> (B, S + more, …), zeros or False behind."""
    return torch.cat([t, t.new_zeros(t.size(0), more, *t.shape[2:])], dim=1)
