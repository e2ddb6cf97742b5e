"""Steps on CUDA as one graph: the host starts all kernels of a step at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from allyouneed.decode.stepper import State, Stepper

EAGER = 4  # steps before a recording: kernels have been chosen by then, and short answers need no graph


class Recorded:
    """stepper.step on CUDA. To start a kernel takes the host longer than the kernel of a small model runs. So once the
    tensors of the state have stayed in their places for a few steps, a step is recorded as a CUDA graph, and replayed
    from then on: the same kernels with the same tensors, so the same numbers."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self._places: Any = None  # of the state's tensors at the last step
        self._steps = 0  # since they are there
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, tokens: Tensor, state: State) -> Tensor:
        """What stepper.step(tokens, state) returns; the next call may overwrite it."""
        places = state.places()
        if places is None or torch.is_autocast_enabled("cuda"):  # which frees its copies of the weights at its end
            return self.stepper.step(tokens, state)
        if places != self._places:
            self._places, self._steps, self._graph = places, 0, None
        self._steps += 1
        if self._steps <= EAGER:
            return self.stepper.step(tokens, state)
        self._graph = self._graph or self._record(tokens, state)
        self._tokens.copy_(tokens)
        self._graph.replay()
        return self._logits

    def _record(self, tokens: Tensor, state: State) -> torch.cuda.CUDAGraph:
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        self._tokens = tokens.clone()
        self._kept = list(self.stepper.buffers())  # a table may be replaced by a longer one before the next replay
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._logits = self.stepper.step(self._tokens, state)
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(aside)
        return graph
