"""What TAB offers for the arguments and options of the commands. Typer asks, for the script that its
--install-completion writes."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout, suppress
from glob import escape, glob
from importlib import resources
from itertools import pairwise
from typing import Any

from allyouneed import catalog
from allyouneed.cli import listing
from allyouneed.cli.listing import LISTS, SETTINGS, values_of
from allyouneed.config import SECTIONS
from allyouneed.errors import UserError
from allyouneed.recipe import recipe_names, recipe_text
from allyouneed.terminal import brief

Settings = dict[str, tuple[str, ...]]  # the values that each may have; () for any


def answer(app: Callable[..., Any]) -> int:
    """Print what typer offers; returns the exit code."""
    said, code, bash = io.StringIO(), 0, os.environ["_AYN_COMPLETE"] == "complete_bash"
    with suppress(Exception):  # TAB offers words, and never an error
        before = _join_words() if bash else ""
        try:
            with redirect_stdout(said):
                app(prog_name="ayn")
        except SystemExit as end:
            code = int(end.code or 0)
        for line in said.getvalue().splitlines():
            print(re.sub(r"([^\w@%+=:,./~-])", r"\\\1", line.removeprefix(before)) if bash else line)
    return code


def _join_words() -> str:
    """Bash takes "=" for a word of its own: of train.precision=b it completes only the b. Put such words together for
    typer; returns the start of the unfinished word that bash does not expect again."""
    at, words = int(os.environ["COMP_CWORD"]), [""]
    pieces = os.environ["COMP_WORDS"].split("\n")[: at + 1]
    for last, piece in pairwise([*pieces, *[""] * (at + 1 - len(pieces))]):
        if words[-1] and "=" in (piece, last):
            words[-1] += piece
        else:
            words.append(piece)
    os.environ |= {"COMP_WORDS": "\n".join(["ayn", *words[1:]]), "COMP_CWORD": str(len(words) - 1)}
    return re.sub("[^=]*$", "", " ".join(shlex.split(words[-1])))


def begun(known: Iterable[str], unfinished: str) -> list[str]:
    """The words that begin so. Zsh would evaluate what could end a quoted word."""
    bad = "\"'$`\\()" if os.environ["_AYN_COMPLETE"] == "complete_zsh" else ""
    return [word for word in known if word.startswith(unfinished) and brief(word) == word and not set(word) & set(bad)]


def one_of(words: Iterable[str]) -> Callable[..., list[str]]:
    return lambda incomplete: begun(words, incomplete)


def recipes(ctx: Any, incomplete: str) -> list[str]:
    return begun(recipe_names() if ctx.params.get("what", "settings") == "settings" else (), incomplete)


def lectures(incomplete: str) -> list[str]:
    return begun((name for name, _ in listing.lectures()), incomplete)


def runs(incomplete: str) -> list[str]:
    """The run folders that begin so, or that are in a folder that does."""
    start = os.path.expanduser(incomplete)
    recipes = [path for depth in ("*", "*/*") for path in glob(f"{escape(start)}{depth}/recipe.toml")]
    found = {os.path.dirname(recipe) for recipe in recipes}
    return begun(
        sorted(incomplete + run[len(start) :] for run in found if os.path.dirname(run) not in found), incomplete
    )


def data(incomplete: str) -> list[str]:
    """Data sets and, beside them, files; only files are left to the shell, which knows how to complete them."""
    names = begun((name for name, *_ in listing.data_sets()), incomplete)
    return [*names, *(begun(sorted(os.listdir()), incomplete) if names and incomplete else [])]


def settings(ctx: Any, incomplete: str) -> list[str]:
    """Those of the sections that the command takes; of a training, also those of the recipe's task and model."""
    if "recipe" not in ctx.params:
        return _assignments(_of_sections("decode", "data"), incomplete)
    recipe: Mapping[str, Any] = {}
    with suppress(UserError, ValueError, RecursionError):
        recipe = tomllib.loads(recipe_text(ctx.params["recipe"]))
    typed = dict(word.split("=", 1) for word in ctx.params["overrides"] or () if "=" in word)
    found: Settings = {"task.kind": tuple(catalog.TASKS), "model.kind": tuple(catalog.MODELS)}
    known = json.loads(resources.files("allyouneed.cli").joinpath(SETTINGS).read_text(encoding="utf-8"))
    for name in ("task", "model"):
        kind = typed.get(f"{name}.kind") or str(recipe.get(name, {}).get("kind"))
        found |= {f"{name}.{key}": tuple(values) for key, values in known[name].get(kind, {}).items()}
    return _assignments(found | _of_sections(*SECTIONS), incomplete)


def decode_settings(incomplete: str) -> list[str]:
    return _assignments(values_of(SECTIONS["decode"]), incomplete)


def _of_sections(*names: str) -> Settings:
    return {f"{name}.{key}": values for name in names for key, values in values_of(SECTIONS[name]).items()}


def _assignments(settings: Settings, unfinished: str) -> list[str]:
    """key=, or key=value once the key is clear: with several values the shell adds no space after the "="."""
    key, equals, _ = unfinished.partition("=")
    found = [key] if equals else begun(settings, unfinished)
    if equals or (len(found) == 1 and settings[found[0]]):
        return begun((f"{found[0]}={value}" for value in settings.get(found[0], ())), unfinished)
    return [f"{key}=" for key in found]


COMPLETERS: dict[str, Callable[..., list[str]]] = {  # by the name of an argument or option in the help
    "RECIPE": recipes,
    "RUN": runs,
    "DATA": data,
    "LECTURE": lectures,
    "LIST": one_of(LISTS),
    "SECTION.KEY=VALUE": settings,
    "KEY=VALUE": decode_settings,
}
