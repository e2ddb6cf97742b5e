"""A run -> a folder for another library. It is written beside its place and moved there when it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError, nearest, shortened, told
from allyouneed.wholefile import writing

WAYS = {"hf": "transformers", "onnx": "ONNX Runtime", "ct2": "CTranslate2"}
NUMBERS = ("float32", "int8")


def export_run(
    run: Any, to: str, out: str | os.PathLike[str], numbers: str, overwrite: bool, say: Callable[[str], None]
) -> list[Path]:
    """Write the run `to` one of WAYS; returns the files. `numbers` is the type of the weights for ct2."""
    if to not in WAYS:
        raise UserError(f"there is no way to export to '{shortened(to)}'{nearest(to, WAYS)}")
    if numbers not in NUMBERS:
        raise UserError(f"weights of the type '{shortened(numbers)}' cannot be written: choose {' or '.join(NUMBERS)}")
    if numbers != "float32" and to != "ct2":
        raise UserError(f"{numbers} weights are for {told('--to')} ct2 only: leave them float32")
    place = Path(out).expanduser()
    if os.path.lexists(place) and not os.path.isdir(place):
        raise UserError(f"{place} is a file: give the name of a folder")
    if os.path.isdir(place) and os.listdir(place) and not overwrite:
        raise UserError(f"the folder {place} is not empty: give another, or replace what is in it with --overwrite")
    with writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".export-", dir=place.parent))
    try:
        folder = work / "new"
        folder.mkdir()
        made = _export(run, to, folder, numbers, say)
        _refuse_others(place, folder)
        with writing(place):
            if os.path.isdir(place):
                os.rename(place, work / "old")
            os.rename(folder, place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [place / path.relative_to(folder) for path in made]


def _export(run: Any, to: str, folder: Path, numbers: str, say: Callable[[str], None]) -> list[Path]:
    if to == "hf":
        from allyouneed.exchange.to_hf import export_hf

        scores = [(split, s.name, s.value, s.signature) for split, found in run.scores().items() for s in found]
        return export_hf(run.task, run.model, folder, say, {**run.config, "scores": scores})
    if to == "onnx":
        from allyouneed.exchange.to_onnx import export_onnx

        return export_onnx(run, folder, say)
    from allyouneed.exchange.to_ct2 import export_ct2

    return export_ct2(run, folder, numbers, say)


def _refuse_others(place: Path, folder: Path) -> None:
    """Only an older export is replaced, never anything else that is in the folder."""
    inside = {path.relative_to(place) for path in place.rglob("*") if not path.is_dir()} if place.is_dir() else set()
    others = sorted(str(path) for path in inside if not os.path.lexists(folder / path))
    if others:
        raise UserError(f"{place} has other files than an export, such as {others[0]}: give another folder")
