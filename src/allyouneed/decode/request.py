"""What is asked of a search, and what it reports."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from allyouneed.errors import UserError

T = TypeVar("T")


@dataclass(frozen=True)
class Request:
    """What to continue, how far, and how to choose the tokens."""

    input: Any  # what Stepper.start takes for one row
    max_new: int
    temperature: float = 0.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # 1: all
    seed: int = 0
    stop: Collection[int] = frozenset()  # ids that end the answer and are no part of it; one, for beam search
    answers: int = 1  # with the seeds seed, seed + 1, …, or the best of a beam; the input is read once for all of them
    guidance: float = 1.0  # logits = free + guidance · (asked - free) (Ho and Salimans, 2021)
    free: Any = None  # for guidance: the input that asks for nothing, as long as the one that asks
    beam: int | None = None  # beam search: live hypotheses; with 1 it is greedy, and its first end is the end
    alpha: float = 0.6  # of its length penalty, which is "gnmt" or "power"
    length_penalty: str = "gnmt"

    def __post_init__(self) -> None:
        fits = self.beam is None or 1 <= self.answers <= self.beam
        rules = {
            "max_new": (self.max_new >= 1, "it must be at least 1"),
            "temperature": (0 <= self.temperature < float("inf"), "it must be 0 (greedy) or more"),
            "top_k": (self.top_k >= 0, "it must be 0 (all) or more"),
            "top_p": (0 <= self.top_p <= 1, "it must be between 0 and 1"),
            "seed": (-(2**63) <= self.seed <= 2**63 - self.answers, "it must fit into 64 bits"),
            "alpha": (0 <= self.alpha <= 10, "the strength of the length penalty is between 0 (none) and 10"),
            "length_penalty": (self.length_penalty in ("gnmt", "power"), "it is 'gnmt' or 'power'"),
            "beam": (fits, f"it is at least 1, and n_best = {self.answers} between 1 and the beam"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise UserError(f"{name} = {getattr(self, name)!r}: {rule}")

    @property
    def inputs(self) -> list[Any]:
        """What its rows read: a guided answer has a second row, which reads the free input and gets the same tokens."""
        return [self.input] if self.free is None else [self.input, self.free]


@dataclass(frozen=True)
class Hypothesis:
    """An answer. score = logprob / penalty(n); logprob and n count the end token, `tokens` leaves it out."""

    tokens: list[int]
    score: float
    logprob: float
    finished: bool


@dataclass(frozen=True)
class Event:
    """One token of one answer, or all hypotheses of a beam search, the best first. `done` is None, "length", "stop" or
    "error". At a stop there is no token but its `end`, and the log-probability is that of the end; an error ends the
    whole request."""

    id: int
    token: int | None = None
    logprob: float = 0.0
    done: str | None = None
    answer: int = 0  # the number of the answer, if the request asks for several
    error: Exception | None = None
    hypotheses: list[Hypothesis] = field(default_factory=list)
    end: int | None = None  # of Request.stop, the one that has ended the answer


def alike(several: Sequence[T], request: Callable[[T], Request]) -> list[list[T]]:
    """Groups whose inputs have one length, so that reading them together pads none; an input of one token is alone."""
    groups: dict[Any, list[T]] = {}
    for number, one in enumerate(several):
        size = len(request(one).input)
        groups.setdefault(size if size > 1 else -number, []).append(one)
    return list(groups.values())
