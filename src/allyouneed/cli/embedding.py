"""ayn use RUN --embed: what makes the vectors, and the lines of the file that --nearest searches."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import UserError, shortened
from allyouneed.terminal import write

if TYPE_CHECKING:
    from allyouneed.predict.embed import Embedding
    from allyouneed.run import Run

NEAREST = 5  # lines per answer
MOST_LINES, MOST_TEXT = 1_000_000, 1 << 28  # lines and characters of a file that is searched


def answer_by_vectors(run: Run, made: Embedding, nearest: Path | None, decode: Mapping[str, Any], one: bool) -> None:
    """From now on the run answers a text by its vectors, or by the lines of the file `nearest` that are nearest to it:
    by `one` of them, or by n_best. The file is read and embedded here, once."""
    from allyouneed.training.memory import explain_memory

    for key in decode:
        if key != "n_best" or nearest is None:
            raise UserError(f"--set {key} has no effect on vectors: only n_best has, with --nearest FILE")
    if nearest is not None:
        most = run.decode(method="sample", **{"n_best": NEAREST, **decode}).n_best
        lines = _read(nearest)
        with explain_memory():
            cut = made.search(lines, 1 if one else most, store=True)
        if cut:
            write(
                f"{cut:,} of {len(lines):,} lines are longer than the {run.model.limit} tokens that this model reads: "
                "only their beginning is compared",
                err=True,
            )
    run.predictor = made


def _read(path: Path) -> list[tuple[int, str]]:
    """The lines of a text file that are not blank, with their numbers."""
    from allyouneed.data.formats.textfile import TextFile

    path = Path(os.path.expanduser(path))
    if not os.path.isfile(path):
        there = "is not a plain file" if os.path.exists(path) else "does not exist"
        raise UserError(f"--nearest {shortened(path)} {there}: give a text file, whose lines are searched")
    found, size, file = [], 0, TextFile(path)
    for number, line in enumerate(file.iter_lines(), 1):
        size += len(line)
        if line.strip():
            found.append((number, line))
        if len(found) > MOST_LINES or size > MOST_TEXT:
            raise UserError(
                f"--nearest {shortened(path)} has more than {MOST_LINES:,} lines or {MOST_TEXT:,} characters, which is "
                "too much to search: give a smaller file"
            )
    code = file.encoding
    if not code.startswith("UTF"):
        write(f"{shortened(path.name)} is read as {code.partition(' ')[0]}, as it is not UTF-8", err=True)
    if not found:
        raise UserError(f"--nearest {shortened(path)} has no lines with text: there is nothing to search")
    return found
