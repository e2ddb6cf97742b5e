"""Run the checks of an exercise on a student's file: each says in words what is not right yet."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from allyouneed.errors import UserError
from allyouneed.exercises import blanks
from allyouneed.exercises.checks import CHECKS, WrongError


@dataclass(frozen=True)
class Result:
    """What a check is about, and what is wrong; nothing if it is right."""

    about: str
    wrong: str = ""


def check(name: str, file: Path) -> Iterator[Result]:
    """Each check of an exercise, on the student's file."""
    own = _load(file)
    for about, test in CHECKS[name].items():
        yield Result(about, _wrong(test, own, file))


def _load(file: Path) -> SimpleNamespace:
    """What the file defines."""
    try:
        source = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {error}") from None
    if left := blanks(source):
        raise UserError(f"{file} still has a ... in line{'s' * (len(left) > 1)} {', '.join(map(str, left))}")
    names: dict[str, Any] = {"__name__": file.stem, "__file__": str(file)}
    try:
        exec(compile(source, str(file), "exec"), names)
    except Exception as error:
        raise UserError(f"{file} cannot be run: {_said(error, file)}") from None
    return SimpleNamespace(**names)


def _wrong(test: Callable[[Any], None], own: Any, file: Path) -> str:
    try:
        test(own)
    except WrongError as error:
        return str(error)
    except Exception as error:
        if isinstance(error, AttributeError) and error.obj is own:
            return f"{file.name} has no function {error.name}"
        return _said(error, file)
    return ""


def _said(error: Exception, file: Path) -> str:
    """An error, and the last line of the student's file that it went through."""
    said = f"{type(error).__name__}: {error}"
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    return f"line {lines[-1]}: {said}" if lines else said
