"""The number of CPU threads with train.minutes: the one that is fastest now.

Threads wait for each other after each operation. Beside other busy processes two threads on two cores can be ten times
slower than one, and a small model gains little from a second one at any time.
"""

from __future__ import annotations

import torch

TRIAL, PART = 1.0, 0.01  # seconds to try a number of threads, and the part of the budget, at most
LEAST = 2  # steps of a trial
AGAIN = 20  # a trial is repeated after so many times the seconds that it took
FASTER = 1.1  # times: for less, the number stays


class Threads:
    """Tries `most` threads, half as many and so on down to one, later only the neighbours of what it has chosen."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most = self.used = most
        self.trial = min(TRIAL, PART * seconds)
        self.untried = [most >> i for i in range(most.bit_length())]
        self.speeds: dict[int, float] = {}  # units per second, by the number of threads
        self.steps = self.units = self.seconds = 0.0  # with this number of threads
        self.took = 0.0  # seconds of the trial

    @property
    def trying(self) -> bool:
        return bool(self.untried)

    def see(self, steps: int, units: int, seconds: float) -> None:
        """Note how long some steps took, and set the number of threads of the next ones."""
        self.steps, self.units, self.seconds = self.steps + steps, self.units + units, self.seconds + seconds
        if self.trying:
            self._try()
        elif self.seconds > AGAIN * self.took:
            near = {2 * self.used, self.used // 2} & {self.most >> i for i in range(self.most.bit_length())}
            self.untried, self.took, self.speeds = [self.used, *near], 0.0, {}
            self._next(self.used)

    def _try(self) -> None:
        if self.seconds < self.trial or self.steps < LEAST:
            return
        count = self.untried.pop(0)
        self.speeds[count], self.took = self.units / max(1e-9, self.seconds), self.took + self.seconds
        if not self.trying:
            best = max(self.speeds, key=lambda count: self.speeds[count])
            self.used = best if self.speeds[best] > FASTER * self.speeds.get(self.used, 0.0) else self.used
        self._next(self.untried[0] if self.trying else self.used)

    def _next(self, count: int) -> None:
        self.steps = self.units = self.seconds = 0.0
        torch.set_num_threads(count)

    def __str__(self) -> str:
        return f"{self.used} of {self.most} threads"
