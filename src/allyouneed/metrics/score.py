"""Score: a number with its signature."""

from __future__ import annotations

from dataclasses import dataclass

_DIGITS = {"bits per byte": 4, "similarity": 4}


@dataclass(frozen=True)
class Score:
    """One number, its name, and the signature without which it cannot be compared."""

    name: str
    value: float
    signature: str

    def signed(self, more: str) -> Score:
        """The same score with `more` added to its signature."""
        return Score(self.name, self.value, f"{self.signature}|{more}")

    @property
    def short(self) -> str:
        """Name and value, without the signature."""
        digits = 4 if self.name.endswith("loss") else _DIGITS.get(self.name, 2)
        return f"{self.name} {self.value:.{digits}f}"

    def __str__(self) -> str:
        return f"{self.short}  ({self.signature})"
