"""Greedy search, sampling and beam search. They know a Stepper, never a model."""

from allyouneed.decode.beam import BeamRequest, Hypothesis, beam_search
from allyouneed.decode.sample import choose, greedy, uniform
from allyouneed.decode.stepper import Stepper

__all__ = ["BeamRequest", "Hypothesis", "Stepper", "beam_search", "choose", "greedy", "uniform"]
