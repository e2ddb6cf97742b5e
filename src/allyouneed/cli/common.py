"""What the commands share: how a run is named and loaded, how settings are read, and how rows are printed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allyouneed.config import ENGINES, PRECISIONS, SECTIONS
from allyouneed.errors import UserError, nearest, shortened
from allyouneed.format import columns
from allyouneed.terminal import brief, write

if TYPE_CHECKING:
    from allyouneed.run import Run


def argument(metavar: str, help: str = "") -> Any:
    """Without a line of help it stands in the first line of the command's help alone."""
    return typer.Argument(metavar=metavar, help=help, hidden=not help)


def option(metavar: str, help: str, *names: str) -> Any:
    """An option that its metavar repeats has its name given: typer 0.27 needs it."""
    return typer.Option(*names, metavar=metavar, help=help)


def flag(name: str, help: str) -> Any:
    return typer.Option(name, help=help)


RunPath = Annotated[str, argument("RUN", "Folder of a run.")]
Data = Annotated[
    list[str] | None,
    option("DATA", "Own file, folder or data set; twice: parallel files.", "--data"),
]
Mirror = Annotated[str | None, option("DIR", "Folder with copies of the public data sets.")]
Overwrite = Annotated[bool, flag("--overwrite", "Replace an existing run, or export.")]
Device = Annotated[str, option("NAME", "auto, cpu, cuda, cuda:1 or mps.")]
Precision = Annotated[str, option("NAME", f"{', '.join(PRECISIONS)}.")]
Engine = Annotated[str, option("NAME", f"{', '.join(ENGINES)} (int8).")]


def complain(problem: str) -> None:
    with suppress(OSError):  # standard error may be full, too
        write(f"ayn: {brief(problem)}", err=True)


def print_columns(rows: Sequence[tuple[str, ...]], fold: bool = True) -> None:
    """Aligned columns. On a terminal the last one is folded at the edge; elsewhere each row is one line."""
    width = shutil.get_terminal_size().columns if fold and sys.stdout.isatty() else 0
    write("\n".join(columns(rows, width)))


def load(path: str, device: str = "auto", precision: str = "auto", engine: str = "torch") -> Run:
    from allyouneed import run

    return run.load(path, device, precision, engine)


def as_paths(data: list[str] | None) -> list[str | Path] | None:
    """What was given with --data is a path, never a text; an empty one stays as it is, for the error."""
    return [Path(one) if one else one for one in data] if data is not None else None


def given_settings(overrides: list[str], *sections: str) -> dict[str, Any]:
    """section.key=value -> keyword arguments; only these sections may be given."""
    from allyouneed.recipe import override

    values = override({}, overrides)
    for section, given in values.items():
        if section not in sections:
            allowed = " and ".join(f"{section}.key=value" for section in sections)
            raise UserError(f"here only {allowed} can be changed, not [{section}]")
        known = {field.name for field in fields(SECTIONS[section])}
        for key in given.keys() - known:
            raise UserError(f"[{section}] has no key '{shortened(key)}'{nearest(key, known)}")
    return {key: value for given in values.values() for key, value in given.items()}
