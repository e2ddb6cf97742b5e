"""Score: a number with its signature."""

from __future__ import annotations

from dataclasses import dataclass

_DIGITS = {"loss": 4, "bits per byte": 4}


@dataclass(frozen=True)
class Score:
    """One number, its name, and the signature without which it cannot be compared."""

    name: str
    value: float
    signature: str

    def __str__(self) -> str:
        return f"{self.name} {self.value:.{_DIGITS.get(self.name, 2)}f}  ({self.signature})"
