"""Samples: a few answers of a model beside their references, for a person who watches a training."""

from __future__ import annotations

from dataclasses import dataclass

from allyouneed.errors import shortened

MOST = 3  # samples of a split
AMONG = 1000  # they are taken from so many examples at its beginning
WIDTH = 100  # characters of each text
LINE = 120  # characters; a longer sample takes two lines


@dataclass(frozen=True)
class Sample:
    """What the model read, its answer, and the reference; the text is empty if the answer repeats it."""

    text: str
    answer: str
    reference: str | None = None

    def lines(self) -> list[str]:
        """One line, or two."""
        text, answer = shortened(self.text.strip(), WIDTH), shortened(self.answer.strip(), WIDTH) or "(nothing)"
        told = f" (reference: {shortened(self.reference.strip(), WIDTH)})" if self.reference is not None else ""
        first = f"  sample: {text} → " if text else "  sample: "
        if len(first + answer + told) <= LINE:
            return [first + answer + told]
        return [f"  sample: {text}", f"    → {answer}{told}"] if text else [first + answer, f"   {told}"]


def places(total: int) -> list[int]:
    """The numbers of the examples that are shown, spread over the beginning of a split."""
    among = min(total, AMONG)
    return sorted({(number + 1) * among // (MOST + 1) for number in range(MOST)} - {among})
