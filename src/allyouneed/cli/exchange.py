"""ayn import: a model of another library becomes a run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer


def import_command(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Folder with config.json, weights and tokenizer.json.")],
    out: Annotated[Path | None, typer.Option(metavar="RUN", help="Folder of the run.  [default: runs/DIR]")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing run.")] = False,
) -> None:
    """Make a run of a model that the transformers library has saved: GPT-2, or Llama and what
    is built like it. Nothing in the folder is executed.

    \b
    Example:
      ayn import downloads/gpt2 --out runs/gpt2
      ayn use runs/gpt2 "Once upon a time"
    """
    from allyouneed.exchange.importing import import_run

    folder = out or Path("runs") / path.absolute().name
    import_run(path, folder, overwrite=overwrite, say=typer.echo)
    typer.echo(f"try:\n  {shlex.join(['ayn', 'use', str(folder)])}")
