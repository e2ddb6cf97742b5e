"""A run -> a folder for another library. It is written beside its target and moved there when it is complete."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError, nearest, option_name, shortened
from allyouneed.storage.wholefile import write_json, writing
from allyouneed.terminal import Say
from allyouneed.version import __version__

WAYS = ("hf", "onnx", "ct2")  # for transformers, ONNX Runtime, CTranslate2
NUMBERS = ("float32", "int8")
MARK = "allyouneed.json"  # in every export


def export_run(run: Any, out: str | os.PathLike[str], to: str, numbers: str, overwrite: bool, say: Say) -> list[Path]:
    """Write the run into the folder `out`, `to` one of WAYS; returns the files. `numbers`: the type of the weights for
    ct2."""
    from allyouneed.exchange import to_ct2, to_hf, to_onnx  # which import every model

    if to not in WAYS:
        raise UserError(f"there is no way to export to '{shortened(to)}'{nearest(to, WAYS)}")
    if numbers not in NUMBERS:
        raise UserError(f"weights of the type '{shortened(numbers)}' cannot be written: choose {' or '.join(NUMBERS)}")
    if numbers != "float32" and to != "ct2":
        raise UserError(f"{numbers} weights are for {option_name('--to')} ct2 only: leave them float32")
    target = Path(os.path.expanduser(out))
    _check_target(target, overwrite)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=".export-", dir=target.parent))
    try:
        folder = work / "new"
        folder.mkdir()
        if to == "ct2":
            made = to_ct2.export_ct2(run, folder, numbers, say)
        else:
            made = (to_hf.export_hf if to == "hf" else to_onnx.export_onnx)(run, folder, say)
        write_json(folder / MARK, {"exported": to, "from": str(run.folder.path), "version": __version__})
        made.append(folder / MARK)
        _check_target(target, overwrite)
        with writing(target):
            _replace(target, folder, work / "old")
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return [target / path.relative_to(folder) for path in made]


def _check_target(target: Path, overwrite: bool) -> None:
    """Only an older export is ever replaced."""
    if os.path.lexists(target) and not os.path.isdir(target):
        raise UserError(f"{target} is a file: give the name of a folder")
    if os.path.isdir(target) and os.listdir(target):
        replace = f"replace an older export with {option_name('--overwrite')}"
        if not overwrite:
            raise UserError(f"the folder {target} is not empty: give another, or {replace}")
        if not os.path.isfile(target / MARK):
            raise UserError(f"the folder {target} is not an export, so it is not replaced: give another")


def _replace(target: Path, folder: Path, old: Path) -> None:
    """Move the folder to its target; what was there comes back if that fails."""
    before = os.path.isdir(target)
    if before:
        os.rename(target, old)
    try:
        os.rename(folder, target)
    except BaseException:
        if before:
            os.rename(old, target)
        raise
