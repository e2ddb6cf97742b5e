"""What the commands share: how a run is named and loaded, how settings are read, and how rows are printed."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allyouneed.config import PRECISIONS
from allyouneed.errors import UserError
from allyouneed.format import columns

if TYPE_CHECKING:
    from allyouneed.run import Run

RunPath = Annotated[str, typer.Argument(metavar="RUN", help="Folder of a run.", show_default=False)]
Device = Annotated[str, typer.Option(metavar="NAME", help="auto, cpu, cuda, cuda:1 or mps.", show_default=False)]
Precision = Annotated[str, typer.Option(metavar="NAME", help=f"{', '.join(PRECISIONS)}.", show_default=False)]


def complain(problem: str) -> None:
    with suppress(OSError):  # standard error may be full, too
        typer.echo(f"ayn: {problem}", err=True)


def print_columns(rows: Sequence[tuple[str, ...]], fold: bool = True) -> None:
    """Aligned columns. On a terminal the last one is folded at the edge; elsewhere each row is one line."""
    width = shutil.get_terminal_size().columns if fold and sys.stdout.isatty() else 0
    typer.echo("\n".join(columns(rows, width)))


def load(path: str, device: str = "auto", precision: str = "auto") -> Run:
    from allyouneed import run

    return run.load(path, device, precision)


def decode_settings(overrides: list[str]) -> dict[str, Any]:
    """decode.key=value -> keyword arguments."""
    from allyouneed.recipe import override

    values = override({}, overrides)
    for section in values:
        if section != "decode":
            raise UserError(f"here only decode.key=value can be changed, not [{section}]")
    return dict(values.get("decode", {}))
