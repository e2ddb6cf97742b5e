"""The live display of a training, a bar on a terminal, lines elsewhere; and its log: metrics.jsonl, TensorBoard."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, SupportsFloat

from allyouneed.errors import UserError
from allyouneed.format import human_count, human_time
from allyouneed.terminal import brief

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import Metrics

BAR_SECONDS, LINE_SECONDS = 0.2, 5.0  # between two updates of the bar, and between two lines
MEMORY_SECONDS = 60.0  # the estimate of the time left uses about the last minute


class Progress:
    """Shows step, loss, speed and time left; draws inside `update`, never in a thread.

    Call it at every step: most updates only store their numbers. A loss that is still a tensor on another device is
    read only when it is shown.
    """

    def __init__(
        self,
        total_steps: int | None,
        start_step: int = 0,
        console: Console | None = None,
        plain: bool | None = None,
        quiet: bool = False,
        unit: str = "tok",
    ) -> None:
        from rich.console import Console

        self.console = console or Console()
        self.total = total_steps
        self.quiet, self.unit = quiet, unit
        if plain is None:
            plain = not self.console.is_terminal or self.console.is_dumb_terminal
        self._pause = LINE_SECONDS if plain else BAR_SECONDS
        self._began = time.monotonic()
        self._drawn = -math.inf
        self._waiting: tuple[int, SupportsFloat, float, float] | None = None
        self._rate = Rate()
        self._bar = None if plain or quiet else _bar(self.console, total_steps, start_step)

    def plan(self, total: int | None) -> None:
        """Set the number of steps; None as long as it is not known."""
        self.total = total
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], total=total)

    def update(self, step: int, loss: SupportsFloat, tokens_per_s: float, lr: float) -> None:
        """Say that `step` steps are done. Shown at once if an update is due or this was the last step."""
        if self.quiet:
            return
        self._waiting = (step, loss, tokens_per_s, lr)
        if time.monotonic() - self._drawn >= self._pause or step == self.total:
            self._draw()

    def note(self, text: str) -> None:
        """Print a line of text above the bar."""
        if not self.quiet:
            self._print(text)

    def close(self) -> None:
        """Show the last update if it was not shown, and restore the terminal."""
        try:
            self._draw()
        finally:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _draw(self) -> None:
        if self._waiting is None:
            return
        (step, loss, tokens_per_s, lr), self._waiting = self._waiting, None
        now = time.monotonic()
        self._drawn = now
        self._rate.see(step, now)
        if self.total is not None and step >= self.total:
            when = f"took {human_time(now - self._began)}"
        else:
            when = f"{human_time(self._rate.left(step, self.total or math.nan))} left"
        value, speed = f"loss {float(loss):.4f}", f"{human_count(tokens_per_s)} {self.unit}/s"
        if self._bar is None:
            of = "" if self.total is None else f"/{self.total}"
            self._print(f"step {step}{of}  {value}  lr {lr:.1e}  {speed}  {when}")
        else:
            self._bar.update(self._bar.task_ids[0], completed=step, status=f"{value}  {speed}  {when}", refresh=True)

    def _print(self, text: str) -> None:
        from rich.text import Text

        # As Text, so that "[x]" and ":x:" in it are not read as markup.
        self.console.print(Text(brief(text)), soft_wrap=True)


class Rate:
    """Seconds per step, as a moving average. The first step only starts the clock: it may include compilation."""

    def __init__(self) -> None:
        self.steps = self.seconds = 0.0
        self.last: tuple[int, float] | None = None

    def see(self, step: int, now: float) -> None:
        if self.last is not None:
            steps, seconds = step - self.last[0], now - self.last[1]
            keep = math.exp(-seconds / MEMORY_SECONDS)
            self.steps = keep * self.steps + steps
            self.seconds = keep * self.seconds + seconds
        self.last = (step, now)

    def left(self, step: int, total: float) -> float:
        """Seconds until `total`; NaN as long as it is unknown."""
        return (total - step) * self.seconds / self.steps if self.steps > 0 else math.nan


def _bar(console: Console, total: int | None, start: int) -> Bar:
    from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(bar_width=None),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[status]}", markup=False),
    )
    bar = Bar(*columns, console=console, expand=True, auto_refresh=False)
    bar.add_task("", total=total, completed=start, status="")
    bar.start()
    return bar


def board_writer() -> Any:
    """The writer class of TensorBoard; an error if it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("train.tensorboard = true needs TensorBoard: pip install 'allyouneed[track]'") from None
    return SummaryWriter


def open_board(folder: Path, step: int) -> Any:
    """A writer for TensorBoard; what the run wrote after this step before it was stopped is hidden."""
    return board_writer()(str(folder), purge_step=step + 1)


class Log:
    """One record per event, by its kind: train, valid, plan, warning or stopped."""

    def __init__(self, folder: RunFolder, step: int, board: bool) -> None:
        self.metrics = Metrics(folder.metrics)
        self.board = open_board(folder.path / "tensorboard", step) if board else None

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
