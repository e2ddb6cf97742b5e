"""Work that is recorded once as a CUDA graph, and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from allyouneed.runtime import attend_by_cudnn

EAGER = 4  # calls before a recording: kernels have been chosen by then, and short answers need no graph


class Recorded:
    """Work on CUDA. Starting a kernel takes the host longer than the kernel of a small model runs. So once the tensors
    that the work reads and writes have not moved for a few calls, it is recorded as a CUDA graph, and replayed from
    then on: the same kernels with the same tensors, so the same numbers."""

    def __init__(self, work: Callable[[], Tensor], reads: Callable[[], Iterable[Tensor]] = tuple) -> None:
        self.work, self.reads = work, reads
        self._storage: Any = None  # of the tensors at the last call
        self._calls = 0  # since they are there
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, storage: Any) -> Tensor:
        """What the work returns; the next call may overwrite it. `storage`: where its tensors are, None if they move"""
        if storage is None or torch.is_autocast_enabled("cuda"):  # which frees its copies of the weights at its end
            return self.work()
        if storage != self._storage:
            self._storage, self._calls, self._graph = storage, 0, None
        self._calls += 1
        if self._graph is None:
            before = torch.backends.cuda.cudnn_sdp_enabled()
            attend_by_cudnn(True)  # the shapes are fixed
            try:
                if self._calls <= EAGER:
                    return self.work()
                self._graph = self._record()
            finally:
                attend_by_cudnn(before)
        self._graph.replay()
        return self._result

    def _record(self) -> torch.cuda.CUDAGraph:
        self._held = list(self.reads())  # a table may be replaced by a longer one before the next replay
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                self._result = self.work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(aside)
        return graph
