"""Greedy search, sampling and beam search. They know a Stepper, never a model."""

from allyouneed.decode.beam import Hypothesis, beam_search
from allyouneed.decode.decoder import Decoder, Event, Request
from allyouneed.decode.sample import choose, greedy, uniform
from allyouneed.decode.stepper import State, Stepper

__all__ = [
    "Decoder",
    "Event",
    "Hypothesis",
    "Request",
    "State",
    "Stepper",
    "beam_search",
    "choose",
    "greedy",
    "uniform",
]
