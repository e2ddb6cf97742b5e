"""The live display of a training, a bar on a terminal, lines elsewhere; and its log: metrics.jsonl, TensorBoard."""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar
from rich.text import Text

from allyouneed.errors import UserError
from allyouneed.format import human_count, human_time
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import Metrics
from allyouneed.terminal import brief

BAR_SECONDS, LINE_SECONDS = 0.2, 5.0  # between two updates of the bar, and between two lines
MEMORY_SECONDS = 60.0  # the estimate of the time left uses about the last minute


class Progress:
    """Shows step, loss, speed and time left, inside `update`, never in a thread.

    Call it at every step: most updates only store their numbers.
    """

    def __init__(
        self,
        total_steps: int | None,
        start_step: int = 0,
        console: Console | None = None,
        quiet: bool = False,
        unit: str = "tok",
    ) -> None:
        self.console = console or Console(force_jupyter=False)  # or each line is an output of its own in a notebook
        self.total = total_steps  # None as long as it is not known
        self.quiet, self.unit = quiet, unit
        plain = not self.console.is_terminal or self.console.is_dumb_terminal
        self._pause = LINE_SECONDS if plain else BAR_SECONDS
        self._began = time.monotonic()
        self._shown = -math.inf
        self._waiting: tuple[int, float, float, float] | None = None
        self._pace, self._last_shown = Pace(MEMORY_SECONDS), 0
        self._bar: Bar | None = None
        if not plain and not quiet:
            status = TextColumn("{task.fields[status]}", markup=False)
            columns = (BarColumn(bar_width=None), TaskProgressColumn(), MofNCompleteColumn(), status)
            self._bar = Bar(*columns, console=self.console, expand=True, auto_refresh=False)
            self._bar.add_task("", total=total_steps, completed=start_step, status="")
            self._bar.start()

    def update(self, step: int, loss: float, tokens_per_s: float, lr: float) -> None:
        """Say that `step` steps are done. Shown at once if an update is due or this was the last step."""
        if self.quiet:
            return
        self._waiting = (step, loss, tokens_per_s, lr)
        if time.monotonic() - self._shown >= self._pause or step == self.total:
            self._show()

    def note(self, text: str) -> None:
        """Print a line of text above the bar."""
        if not self.quiet:
            self._print(text)

    def close(self) -> None:
        """Show the last update if it was not shown, and restore the terminal."""
        try:
            self._show()
        finally:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _show(self) -> None:
        if self._waiting is None:
            return
        (step, loss, tokens_per_s, lr), self._waiting = self._waiting, None
        now = time.monotonic()
        if self._shown > -math.inf:  # the first step only starts the clock: it may include compilation
            self._pace.add(step - self._last_shown, now - self._shown)
        self._shown, self._last_shown = now, step
        if self.total is not None and step >= self.total:
            when = f"took {human_time(now - self._began)}"
        else:
            left = ((self.total or math.nan) - step) * self._pace.step if self._pace.steps else math.nan
            when = f"{human_time(left)} left"
        value, speed = f"loss {loss:.4f}", f"{human_count(tokens_per_s)} {self.unit}/s"
        if self._bar is None:
            of = "" if self.total is None else f"/{self.total}"
            self._print(f"step {step}{of}  {value}  lr {lr:.1e}  {speed}  {when}")
        else:
            status = f"{value}  {speed}  {when}"
            self._bar.update(self._bar.task_ids[0], total=self.total, completed=step, status=status, refresh=True)

    def _print(self, text: str) -> None:
        # As Text, so that "[x]" and ":x:" in it are not read as markup.
        self.console.print(Text(brief(text)), soft_wrap=True)


class Pace:
    """Seconds per step, mostly of the last `memory` seconds."""

    def __init__(self, memory: float) -> None:
        self.memory = memory
        self.steps = self.seconds = self.whole = 0.0

    def add(self, steps: int, seconds: float) -> None:
        decay = math.exp(-seconds / self.memory)
        self.steps, self.seconds = decay * self.steps + steps, decay * self.seconds + seconds
        self.whole += seconds

    @property
    def step(self) -> float:
        return self.seconds / max(1.0, self.steps)


def board_writer() -> Any:
    """The writer class of TensorBoard; an error if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("train.tensorboard = true needs TensorBoard: pip install 'allyouneed[track]'") from None
    return SummaryWriter


class Log:
    """One record per event, by its kind: train, valid, plan, warning or stopped."""

    def __init__(self, folder: RunFolder, step: int, board: bool) -> None:
        self.metrics = Metrics(folder.metrics)
        # What the run wrote after this step before it was stopped is hidden.
        self.board = board_writer()(str(folder.path / "tensorboard"), purge_step=step + 1) if board else None

    def write(self, kind: str, step: int, seconds: float, **values: float | str) -> None:
        self.metrics.write({"kind": kind, "step": step, **values, "seconds": round(seconds, 3)})
        if self.board is not None:
            for name, value in values.items():
                if not isinstance(value, str):
                    self.board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        self.metrics.close()
        if self.board is not None:
            self.board.close()
