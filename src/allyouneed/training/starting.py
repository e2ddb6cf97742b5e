"""The recipe of a run from what the user gave: a new run, one that starts from another, or one that is resumed."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from allyouneed import catalog
from allyouneed.config import TextConfig
from allyouneed.data import in_memory
from allyouneed.data.formats.file_paths import look
from allyouneed.data.in_memory import is_path
from allyouneed.data.registry import SETS, listing
from allyouneed.data.sources import IMAGES
from allyouneed.errors import UserError, nearest, option_name, shortened
from allyouneed.recipe import Recipe, override, read_recipe
from allyouneed.storage.runfolder import RunFolder
from allyouneed.training.donor import explicit_keys, inherit

# Own files, the name of a data set, or examples in memory; by split, if it is a dict with train, valid and test.
Given = Any
PATH = re.compile(r"\S*[/\\]\S*|\S+\.\w{1,5}")  # what is written as a path


def choose(recipe: str | Recipe, overrides: Sequence[str], data: Given | None) -> Recipe:
    """The recipe with `overrides`, and with `data` instead of its own."""
    _check_paths(overrides)
    found = (
        read_recipe(recipe, overrides)
        if isinstance(recipe, str)
        else Recipe.parse(override(recipe.to_dict(), overrides))
    )
    found = _with_absolute_paths(with_data(found, data))
    if found.train.init:
        found = inherit(found, overrides)
    return replace(found, given=_given(found, overrides)) if _follows(recipe, found) else found


def _follows(recipe: str | Recipe, chosen: Recipe) -> bool:
    """Whether the data decides settings: a recipe of the library that was made for built-in data gets data of another
    kind. All built-in data are small and written by rules."""
    if not isinstance(recipe, str) or recipe.endswith(".toml") or not chosen.data.follow:
        return False
    return _built_in(read_recipe(recipe).data.name) and (bool(chosen.data.path) or not _built_in(chosen.data.name))


def _built_in(name: str) -> bool:
    return name in SETS and SETS[name].built_in


def _given(recipe: Recipe, overrides: Sequence[str]) -> frozenset[str]:
    """The keys that the user has set; a run to start from sets those of its body and of the text."""
    cls = catalog.model(recipe.model_kind)
    given = explicit_keys(overrides, cls)
    if recipe.train.init:
        given |= {f"model.{name}" for name in cls.body_fields()} | {f"text.{f.name}" for f in fields(TextConfig)}
    return frozenset(given)


def _with_absolute_paths(recipe: Recipe) -> Recipe:
    """The recipe with absolute paths of its data and of the run to start from: they are found from every folder."""
    data = recipe.data

    def absolute(path: str) -> str:
        return path and os.path.abspath(os.path.expanduser(path))

    own: dict[str, Any] = {
        name: tuple(map(absolute, getattr(data, name))) for name in ("path", "valid_path", "test_path")
    }
    return recipe.with_(data=replace(data, **own), train=replace(recipe.train, init=absolute(recipe.train.init)))


def with_data(recipe: Recipe, data: Given | None) -> Recipe:
    """The recipe with other data: files, a data set by its name, or examples in memory."""
    if data is None:
        return recipe
    if not is_path(data):
        return _with_examples(recipe, data)
    given = [os.fsdecode(one) for one in ([data] if isinstance(data, str | os.PathLike) else data)]
    if not given:
        raise UserError("data is empty: give a file, a folder, a name from `ayn list data`, or examples")
    if "" in given:
        raise UserError("the name of the data is empty: give a file, a folder, or a name from `ayn list data`")
    names = [row.name for row in listing()]
    if _are_texts(data, names):
        return _with_texts(recipe, given)
    there = look(os.path.expanduser(given[0])) is not None
    if len(given) == 1 and not there and given[0] in names:
        return recipe.with_(data=replace(recipe.data, name=given[0], path=(), valid_path=(), test_path=()))
    if len(given) == 1 and not there and not Path(given[0]).suffix and os.sep not in given[0]:
        hint = nearest(given[0], [*names, *os.listdir()])
        known = hint if "did you mean" in hint else "; `ayn list data` shows the data sets"
        raise UserError(f"'{shortened(given[0])}' is neither a file here nor a data set{known}")
    return _with_absolute_paths(recipe.with_(data=replace(recipe.data, name="", path=tuple(given))))


def _are_texts(data: Given, names: Sequence[str]) -> bool:
    """Whether strings in a list are texts: none of them is a file, a data set, or written as a path. The command line
    gives paths."""
    if not isinstance(data, list | tuple) or not all(isinstance(one, str) for one in data):
        return False
    if len(data) == 1 and len(data[0].split()) < 2:  # a misspelt name
        return False
    return not any(PATH.fullmatch(one) or one in names or os.path.exists(os.path.expanduser(one)) for one in data)


def _with_texts(recipe: Recipe, texts: Sequence[str]) -> Recipe:
    shape = catalog.task(recipe.task_kind).shape
    if shape == "text":
        return _with_examples(recipe, [(text,) for text in texts])
    raise UserError(
        f"data is a list of strings, of which none is a file here ('{shortened(texts[0], 40)}', …), but the task "
        f"{recipe.task_kind} needs {in_memory.wanted_rows(shape)} for each example: give a list of such tuples, or a "
        "path"
    )


def _with_examples(recipe: Recipe, data: Any) -> Recipe:
    """The recipe with examples in memory, which are written to files; a split may also be a path."""
    shape, config = catalog.task(recipe.task_kind).shape, recipe.data
    paths: dict[str, tuple[str, ...]] = {}
    parts = in_memory.splits(data)
    written = [not is_path(part) for part in parts.values()]
    if config.encoding and any(written) and not all(written):
        raise UserError(
            f"data.encoding = {config.encoding} is for files, and a part of data is not in one: leave it out"
        )
    for split, part in parts.items():
        if not is_path(part):
            paths[split] = (str(in_memory.store_examples(part, shape, config.source, config.target)),)
            continue
        found = with_data(recipe, part).data
        if found.name:
            raise UserError(f"the split '{split}' of data is the data set '{found.name}': give it alone, or give files")
        paths[split] = found.path
    if all(written):
        config = replace(config, encoding="")
    if shape in ("tags", "text", *IMAGES):  # the file has one layout only
        config = replace(config, source="", target="")
    valid, test = paths.get("valid", ()), paths.get("test", ())
    return recipe.with_(data=replace(config, name="", path=paths["train"], valid_path=valid, test_path=test))


def _check_paths(overrides: Sequence[str]) -> None:
    """An empty path would silently mean other data than the user wants: that of the recipe, or a part of the file."""
    for text in overrides:
        key, _, value = text.partition("=")
        if key in ("data.path", "data.valid_path", "data.test_path") and not value.strip(' ,"'):
            raise UserError(f"{key} is empty: name a file or a folder, or leave {key} out")


def resumed(out: Path, recipe: str | Recipe, overrides: Sequence[str], data: Given | None) -> Recipe:
    """The recipe of the run in `out`, from its own copy; `overrides` may only change how it is trained. If no run has
    begun there, that of a new run."""
    _check_paths(overrides)
    kinds_asked = [text for text in overrides if text.startswith(("task.kind=", "model.kind="))]
    asked = read_recipe(recipe, kinds_asked) if isinstance(recipe, str) else recipe
    folder = RunFolder(out)
    folder.recover()
    if not folder.begun():
        return choose(recipe, overrides, data)
    folder.read_config(needed=False)
    before = folder.read_recipe()
    kinds = (before.task_kind, before.model_kind)
    if (asked.task_kind, asked.model_kind) != kinds:
        raise UserError(f"the run in {out} is a {kinds[1]} for {kinds[0]}, and this recipe is not: use another folder")
    after = _with_absolute_paths(with_data(Recipe.parse(override(before.to_dict(), overrides)), data))
    if after.train.init != before.train.init:
        raise UserError(f"the run in {out} has begun: train.init cannot change any more; leave it out")
    changing = {f"train.{f.name}" for f in fields(before.train)} | {"data.mirror", "data.workers", "task.questions"}
    changing -= {f"train.{name}" for name in ("optimizer", "ema", "seed", "batch_tokens")}  # which the state depends on
    if before.data.path and after.data.path:  # own files may have moved; `fit` checks that they are the same
        changing |= {"data.path", "data.valid_path", "data.test_path"}
    for section in ("task", "model", "text", "data", "train"):
        values = vars(getattr(before, section))
        for key, value in vars(getattr(after, section)).items():
            if value != values[key] and f"{section}.{key}" not in changing:
                raise UserError(
                    f"{section}.{key} was {values[key]!r} when the run in {out} began, and cannot become {value!r}; "
                    f"resume without it, or start again with {option_name('--overwrite')}"
                )
    return after


def default_out(recipe: str | Recipe) -> Path:
    """runs/<recipe>"""
    name = Path(recipe).stem if isinstance(recipe, str) and recipe.endswith(".toml") else recipe
    return Path("runs") / (str(name).replace("/", "-") if isinstance(name, str) else "run")
