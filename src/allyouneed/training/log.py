"""The log of a training: metrics.jsonl and, if asked for, the event files of TensorBoard."""

from __future__ import annotations

from allyouneed.runfolder import RunFolder
from allyouneed.training.progress import open_board
from allyouneed.wholefile import Metrics


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
