"""Work that is recorded once as a CUDA graph, and replayed."""

from __future__ import annotations

from collections import Counter
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

    def __init__(self, work: Callable[[], Any], reads: Callable[[], Iterable[Tensor]] = tuple) -> None:
        self.work, self.reads = work, reads
        self._storage: Any = None  # of the tensors at the last call
        self._calls = Counter[Any]()  # by the kind of work, since the tensors are there
        self._graphs: dict[Any, tuple[torch.cuda.CUDAGraph, Any]] = {}  # and what each returns
        self._held: list[Tensor] = []  # a table may be replaced by a longer one before the next replay

    def __call__(self, storage: Any, kind: Any = None) -> Any:
        """What the work returns; the next call may overwrite it. `storage`: where its tensors are, None if they move;
        `kind`: all else that decides which kernels run, so that there is a recording for each."""
        if storage is None or torch.is_autocast_enabled("cuda"):  # which frees its copies of the weights at its end
            return self.work()
        if storage != self._storage:
            self._storage, self._calls, self._graphs, self._held = storage, Counter(), {}, []
        self._calls[kind] += 1
        if kind not in self._graphs:
            before = torch.backends.cuda.cudnn_sdp_enabled()
            attend_by_cudnn(True)  # the shapes are fixed
            try:
                if self._calls[kind] <= EAGER:
                    return self.work()
                self._graphs[kind] = self._record()
            finally:
                attend_by_cudnn(before)
        graph, result = self._graphs[kind]
        graph.replay()
        return result

    def _record(self) -> tuple[torch.cuda.CUDAGraph, Any]:
        self._held += self.reads()
        graph, aside = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        pool = next((other.pool() for other, _ in self._graphs.values()), None)  # they never run at the same time
        with torch.cuda.stream(aside):
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                result = self.work()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(aside)
        return graph, result
