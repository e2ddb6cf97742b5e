"""Random numbers that are functions of a key and an index, never of a state (splitmix64; Steele et al., 2014).

So a run can stop anywhere and go on, parts can be drawn on several cores in any order, and a compiled kernel draws what
these lines draw.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
WORD = 1 << 64


def make_key(*numbers: int) -> int:
    """64 bits of several whole numbers."""
    key = 0
    for number in numbers:
        value = ((key ^ number) + GOLDEN) % WORD
        value = ((value ^ (value >> 30)) * FIRST) % WORD
        value = ((value ^ (value >> 27)) * SECOND) % WORD
        key = value ^ (value >> 31)
    return key


def draw(key: int | Tensor, indices: Tensor) -> Tensor:
    """64 bits for each index (int64): `mix` of key + index · golden ratio. One key for all indices, or one for each."""
    return mix(indices * signed(GOLDEN) + (signed(key) if isinstance(key, int) else key))


def mix(bits: Tensor) -> Tensor:
    """Every bit of the result depends on every bit of the argument; int64, products wrap around."""
    bits = (bits ^ shifted(bits, 30)) * signed(FIRST)
    bits = (bits ^ shifted(bits, 27)) * signed(SECOND)
    return bits ^ shifted(bits, 31)


def shifted(bits: Tensor, by: int) -> Tensor:
    """Shifted right, zeros coming in; >> alone would repeat the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)


def signed(value: int) -> int:
    """64 bits as an int64."""
    return value - WORD if value >= WORD // 2 else value
