"""ayn use RUN --embed: what makes the vectors, and the lines of the file that --nearest searches."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import UserError, shortened
from allyouneed.terminal import write

if TYPE_CHECKING:
    from allyouneed.predict.answers import Answer, Outcome
    from allyouneed.predict.embed import Embedding
    from allyouneed.predict.input_lines import Line
    from allyouneed.run import Run

NEAREST = 5  # lines per answer
MOST_LINES, MOST_TEXT = 1_000_000, 1 << 28  # lines and characters of a file that is searched


@dataclass(frozen=True)
class Wanted:
    """The options of `ayn use` about vectors."""

    embed: bool
    layers: str
    pool: str
    words: bool
    nearest: Path | None

    @property
    def flags(self) -> list[str]:
        given = {"--layers": self.layers, "--pool": self.pool, "--words": self.words, "--nearest": self.nearest}
        return [flag for flag, value in given.items() if value]

    def check(self, others: Iterable[str]) -> None:
        """Raise a UserError for options that contradict each other; `others` show something else than vectors."""
        mine = ["--embed"] * self.embed + self.flags
        for other in others if mine else ():
            raise UserError(f"{mine[0]} gives vectors, and {other} something else: give one of them")
        if self.words and self.nearest is not None:
            raise UserError("--words gives vectors of words, and --nearest compares whole texts: give one of them")


def prepare(run: Run, wanted: Wanted, decode: Mapping[str, Any]) -> Embedding | None:
    """What makes the vectors that are asked for; None if none are. The file of --nearest is read and embedded here,
    once."""
    if not wanted.embed and not wanted.flags:
        return None
    if not wanted.embed and run.recipe.task_kind != "embed":
        raise UserError(f"{wanted.flags[0]} is about vectors of texts: give it together with --embed")
    for key in decode:
        if key != "n_best" or wanted.nearest is None:
            raise UserError(f"--set {key} has no effect on vectors: only n_best has, with --nearest FILE")
    from allyouneed.training.memory import explain_memory

    made = run.embedding(wanted.layers or "last", wanted.pool, wanted.words)
    if wanted.nearest is not None:
        most = run.decode(method="sample", **{"n_best": NEAREST, **decode}).n_best
        lines = _read(wanted.nearest)
        with explain_memory():
            cut = made.search(lines, most, keep=True)
        if cut:
            write(
                f"{cut:,} of {len(lines):,} lines are longer than the {run.model.limit} tokens that this model reads: "
                "only their beginning is compared",
                err=True,
            )
    return made


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


def answers(made: Embedding, texts: Iterable[str]) -> Iterator[Answer]:
    """The answers to some texts; if memory runs out, a sentence says so."""
    from allyouneed.training.memory import explain_memory

    with explain_memory():
        yield from made.answers(texts)


def answer_lines(made: Embedding, lines: Iterable[str | UserError], first: int) -> Iterator[Line]:
    """Every line of input with its answer, or with the error that says why it has none."""
    from allyouneed.predict import input_lines as asked
    from allyouneed.predict.embed import TOGETHER
    from allyouneed.training.memory import explain_memory

    def answered(rows: Iterable[Any]) -> Iterator[Outcome]:
        source = iter(rows)
        while several := list(islice(source, TOGETHER)):
            with explain_memory():
                yield from made.answer(several)

    return asked.answer_lines(lines, first, str, made.check, answered)
