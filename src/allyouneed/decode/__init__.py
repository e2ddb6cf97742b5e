"""Greedy search, sampling and beam search. They know a Stepper, never a model."""

from allyouneed.decode.beam import Hypothesis, beam_search
from allyouneed.decode.decoder import Decoder, Request
from allyouneed.decode.guided import Guided
from allyouneed.decode.sample import choose, greedy, uniform
from allyouneed.decode.stepper import Stepper

__all__ = ["Decoder", "Guided", "Hypothesis", "Request", "Stepper", "beam_search", "choose", "greedy", "uniform"]
