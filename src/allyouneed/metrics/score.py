"""Score: a number with its signature."""

from __future__ import annotations

from dataclasses import dataclass, replace

_DIGITS = {"bits per byte": 4, "similarity": 4}


@dataclass(frozen=True)
class Score:
    """One number, its name, and the signature without which it cannot be compared. `low` and `high` are its 95 %
    interval, if it has one; the signature says how that was found."""

    name: str
    value: float
    signature: str
    low: float | None = None
    high: float | None = None

    def signed(self, more: str) -> Score:
        """The same score with `more` added to its signature."""
        return replace(self, signature=f"{self.signature}|{more}")

    @property
    def interval(self) -> str:
        return "" if self.low is None or self.high is None else f"[{self.low:.1f}, {self.high:.1f}]"

    @property
    def short(self) -> str:
        """Name, value and interval, without the signature."""
        digits = 4 if self.name.endswith("loss") else _DIGITS.get(self.name, 2)
        return f"{self.name} {self.value:.{digits}f} {self.interval}".rstrip()

    def __str__(self) -> str:
        return f"{self.short}  ({self.signature})"
