"""Ctrl-C and SIGTERM end a run after the current step, with a checkpoint; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Interrupt:
    """Inside the block, the first signal is stored in `signal`; the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.signal = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number


class Terminated(KeyboardInterrupt):
    """SIGTERM outside of the training loop, where there is no step to finish first."""


@contextmanager
def terminable() -> Iterator[None]:
    """Inside the block, SIGTERM raises an exception as Ctrl-C does, so that everything cleans up."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class Interrupted(Exception):
    """The run was asked to stop, and stopped with a checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped at step {step}, with a checkpoint: train again with resume=True to continue")
        self.exit_code = 128 + number
        self.step = step
