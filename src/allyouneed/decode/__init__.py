"""Greedy search, sampling and beam search. They know a Stepper, never a model."""

from allyouneed.decode.request import Event, Hypothesis, Request
from allyouneed.decode.sample import choose, greedy, uniform
from allyouneed.decode.stepper import Stepper

__all__ = ["Event", "Hypothesis", "Request", "Stepper", "choose", "greedy", "uniform"]
