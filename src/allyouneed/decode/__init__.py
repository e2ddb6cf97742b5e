"""Greedy, sampling, beam: they know a Stepper, never a model."""

from allyouneed.decode.beam import Hypothesis, beam_search
from allyouneed.decode.decoder import Decoder, Event, Request, generate
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
    "generate",
    "greedy",
    "uniform",
]
