"""The predictions of a test, one JSON object per line: `ayn test RUN --out FILE`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from allyouneed.config import DataConfig
from allyouneed.errors import UserError, shortened, told
from allyouneed.runfolder import RunFolder
from allyouneed.tasks.base import Answering, Task
from allyouneed.wholefile import write_pieces


def check_out(out: str | os.PathLike[str], task: Task, folder: RunFolder, data: Iterable[DataConfig]) -> Path:
    """Where predictions are to be written; a UserError if that is impossible, or would destroy a file of the run or
    the data. Another file is replaced."""
    if not isinstance(task, Answering):
        raise UserError(
            f"a test of the task '{task.recipe.task_kind}' has no answer to each example that {told('--out')} could "
            "hold: it scores running text; leave it out"
        )
    path = Path(os.path.expanduser(os.fspath(out)))
    shown, option = shortened(path), told("--out")
    if os.path.isdir(path):
        raise UserError(f"{option} {shown} is a folder: give the name of a file, for example predictions.jsonl")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise UserError(f"{option} {shown} is not a plain file: give another name")
    if not os.path.isdir(path.parent):
        raise UserError(f"{option} {shown}: there is no folder {shortened(path.parent)}; make it, or give another name")
    real = os.path.realpath(path)
    for config in data:
        for given in (*config.path, *config.valid_path, *config.test_path):
            if _holds(given, real):
                raise UserError(f"{option} {shown} is in the place of the data {shortened(given)}: give another name")
    inside = os.path.relpath(real, os.path.realpath(folder.path)) if _holds(folder.path, real) else ""
    if inside and (path.suffix != ".jsonl" or inside == folder.metrics.name or os.sep in inside):
        raise UserError(
            f"{option} {shown} is inside the run, which keeps its own files there: give another name, for example "
            f"{folder.path / 'predictions.jsonl'}"
        )
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise UserError(f"{option} {shown}: you may not write into {shortened(path.parent)}; give another folder")
    return path


def _holds(place: str | os.PathLike[str], path: str) -> bool:
    """Whether a path is this file, or is inside this folder."""
    own = os.path.realpath(place)
    return path == own or (os.path.isdir(own) and path.startswith(os.path.join(own, "")))


def write_predictions(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object per line; the file is written whole or not at all. What is not UTF-8 in the name of a picture is
    written as JSON spells it, \\udce9, and read back as it was."""
    lines = (f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)
    write_pieces(path, (line.encode("utf-8", "backslashreplace") for line in lines))
