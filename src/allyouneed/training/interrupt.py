"""Ctrl-C and SIGTERM end a run after the current step, with a checkpoint; a second one ends it at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType


@contextmanager
def _handling(handler: Callable[[int, FrameType | None], None], *signals: int) -> Iterator[None]:
    """Inside the block, these signals call the handler; Python allows that in its main thread only."""
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in signals} if main else {}
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


@contextmanager
def first_signal() -> Iterator[list[int]]:
    """Inside the block, the first SIGINT or SIGTERM is noted in the list; the second raises KeyboardInterrupt."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    with _handling(note, signal.SIGINT, signal.SIGTERM):
        yield received


class Terminated(KeyboardInterrupt):
    """SIGTERM outside of the training loop, where there is no step to finish first."""


def terminable() -> AbstractContextManager[None]:
    """Inside the block, SIGTERM raises an exception as Ctrl-C does, so that everything cleans up."""

    def end(number: int, frame: FrameType | None) -> None:
        raise Terminated

    return _handling(end, signal.SIGTERM)


class Interrupted(Exception):
    """The run was asked to stop, and stopped with a checkpoint."""

    def __init__(self, number: int, step: int) -> None:
        super().__init__(f"stopped at step {step}, with a checkpoint: train again with resume=True to continue")
        self.exit_code = 128 + number
        self.step = step
