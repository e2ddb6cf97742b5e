"""What may come next on the command line when TAB is pressed. Typer's --install-completion writes the script that asks;
its own answer would take twice as long, because it checks every argument first."""

from __future__ import annotations

import json
import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from glob import escape, glob
from importlib import resources
from itertools import pairwise
from typing import Any

from allyouneed import catalog
from allyouneed.cli.listing import LISTS, SETTINGS, lectures, values_of
from allyouneed.config import ENGINES, PRECISIONS, SECTIONS
from allyouneed.errors import UserError
from allyouneed.recipe import recipe_names, recipe_text
from allyouneed.terminal import brief

Settings = dict[str, tuple[str, ...]]  # the values that each may have; () for any


def answer(app: Any, shell: str) -> int:
    """Print the candidates in the form that typer's script for the shell expects; returns the exit code."""
    found: list[str] = []
    with suppress(Exception):  # TAB offers words, and never an error
        words, unfinished, before = _typed(shell)
        found = [word.removeprefix(before) for word in candidates(app, words, unfinished) if brief(word) == word]
    if shell == "zsh":
        # Its script evaluates this line: what could end a quoted word is left out.
        listed = " ".join(
            '"{}"'.format(word.replace(":", r"\\:")) for word in found if not set(word) & set("\"'$`\\()")
        )
        print(f"_arguments '*: :(({listed}))'" if listed else "_files")
    elif shell == "fish" and os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if found else 1
    else:
        for word in found:
            print(re.sub(r"([^\w@%+=:,./~-])", r"\\\1", word) if shell == "bash" else word)
    return 0


def _typed(shell: str) -> tuple[list[str], str, str]:
    """The words before the cursor, the unfinished word at it, and the start of that word which bash takes for words of
    their own: of train.precision=b it completes only what follows the "="."""
    if shell != "bash":
        text = os.environ.get("_TYPER_COMPLETE_ARGS", "")
        words = _split(text)[1:]
        unfinished = words.pop() if words and not text.endswith(" ") else ""
        return words, unfinished, ""
    pieces = [" ".join(_split(piece)) for piece in os.environ.get("COMP_WORDS", "").split("\n")]
    at = int(os.environ.get("COMP_CWORD", "0"))
    pieces = [*pieces[: at + 1], *[""] * (at + 1 - len(pieces))]
    words = [""]
    for last, piece in pairwise(pieces):
        if words[-1] and (piece == "=" or last == "="):
            words[-1] += piece
        else:
            words.append(piece)
    before, equals, _ = words[-1].rpartition("=")
    return words[1:-1], words[-1], before + equals


def _split(text: str) -> list[str]:
    """Words without the quotes of the shell."""
    try:
        return shlex.split(text)
    except ValueError:  # a quote that is still open
        return text.split()


def candidates(app: Any, words: Sequence[str], unfinished: str) -> list[str]:
    """The words that begin with the unfinished one and can follow the others."""
    name = next((word for word in words if not word.startswith("-")), None)
    command = app if name is None else app.commands.get(name)
    if command is None:
        return []
    options = {flag: param for param in command.params if param.param_type_name == "option" for flag in param.opts}
    given: list[str] = []  # without options and their values
    waiting = None  # the option that takes the next word
    for word in words[words.index(name) + 1 :] if name is not None else words:
        if waiting is None and word.startswith("-"):
            option = options.get(word)
            waiting = option if option is not None and not option.is_flag else None
        else:
            given += [word] if waiting is None else []
            waiting = None
    if waiting is None and unfinished.startswith("-"):
        return _begun(options, unfinished)
    if name is None:
        return _begun(app.commands, unfinished)
    if waiting is None:
        arguments = [param for param in command.params if param.param_type_name == "argument"]
        several = arguments and arguments[-1].nargs == -1
        if len(given) >= len(arguments) and not several:
            return []
        waiting = arguments[min(len(given), len(arguments) - 1)]
    return _values(f"{waiting.name}", str(name), given, unfinished)


def _begun(known: Iterable[str], unfinished: str) -> list[str]:
    return [word for word in known if word.startswith(unfinished)]


def _values(parameter: str, command: str, given: Sequence[str], unfinished: str) -> list[str]:
    """What a parameter of a command may be; nothing for files, which the shell completes itself."""
    if parameter in ("run", "init"):
        return _runs(unfinished)
    if parameter == "data":
        return _data(unfinished)
    if parameter == "overrides":
        known = _of_recipe(given) if command == "train" else {**_of_section("decode"), **_of_section("data")}
        return _assignments(known, unfinished)
    if parameter == "set_":
        known = {key.partition(".")[2]: values for key, values in _of_section("decode").items()}
        return _assignments(known, unfinished)
    words: dict[str, Iterable[str]] = {
        "recipe": recipe_names() if command != "list" or given[:1] == ["settings"] else (),
        "name": (name for name, *_ in [*lectures(), ("all",)]),
        "what": LISTS,
        "pool": ("mean", "max", "first", "last"),
        "device": ("auto", "cpu", "cuda", "mps"),
        "precision": PRECISIONS,
        "engine": ENGINES,
        "to": ("hf", "onnx", "ct2"),
        "numbers": ("float32", "int8"),
    }
    return _begun(words.get(parameter, ()), unfinished)


def _runs(unfinished: str) -> list[str]:
    """The run folders that begin so, or that are in a folder that does."""
    start = os.path.expanduser(unfinished)
    recipes = [path for depth in ("*", "*/*") for path in glob(f"{escape(start)}{depth}/recipe.toml")]
    runs = {os.path.dirname(recipe) for recipe in recipes}
    return sorted(unfinished + run[len(start) :] for run in runs if os.path.dirname(run) not in runs)


def _data(unfinished: str) -> list[str]:
    """Data sets and, beside them, files; only files are left to the shell, which knows how to complete them."""
    from allyouneed.data.registry import listing

    names = _begun((row.name for row in listing()), unfinished)
    files = _begun(sorted(os.listdir()), unfinished) if names and unfinished else []
    return [*names, *files]


def _assignments(settings: Settings, unfinished: str) -> list[str]:
    """key=, or key=value once the key is clear: with several values the shell adds no space after the "="."""
    key, equals, _ = unfinished.partition("=")
    if equals:
        return _begun((f"{key}={value}" for value in settings.get(key, ())), unfinished)
    found = _begun(settings, unfinished)
    if len(found) == 1 and settings[found[0]]:
        return [f"{found[0]}={value}" for value in settings[found[0]]]
    return [f"{key}=" for key in found]


def _of_section(name: str) -> Settings:
    return {f"{name}.{key}": values for key, values in values_of(SECTIONS[name]).items()}


def _of_recipe(given: Sequence[str]) -> Settings:
    """The settings of a training: of every section, and of the recipe's task and model."""
    recipe: Mapping[str, Any] = {}
    with suppress(UserError, ValueError, RecursionError):
        recipe = tomllib.loads(recipe_text(given[0]))
    typed = dict(word.split("=", 1) for word in given[1:] if "=" in word)
    found: Settings = {"task.kind": tuple(catalog.TASKS), "model.kind": tuple(catalog.MODELS)}
    known = json.loads(resources.files("allyouneed.cli").joinpath(SETTINGS).read_text(encoding="utf-8"))
    for name in ("task", "model"):
        kind = typed.get(f"{name}.kind") or str(recipe.get(name, {}).get("kind"))
        found |= {f"{name}.{key}": tuple(values) for key, values in known[name].get(kind, {}).items()}
    for name in SECTIONS:
        found |= _of_section(name)
    return found
