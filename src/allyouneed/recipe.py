"""Recipes: frozen dataclasses <- TOML <- "section.key=value". An unknown key is an error that suggests the nearest."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from allyouneed import catalog
from allyouneed.config import LENGTHS, SECTIONS, DataConfig, DecodeConfig, TextConfig, TrainConfig, build
from allyouneed.errors import UserError, nearest, shortened


@dataclass(frozen=True)
class Recipe:
    """All settings of a run. `task` and `model` hold the Options and Config of their kinds."""

    task_kind: str
    model_kind: str
    task: Any
    model: Any
    text: TextConfig
    data: DataConfig
    train: TrainConfig
    decode: DecodeConfig
    # The keys that the user has set, if the data may decide the others (training/rules.py); None: all stays as it is.
    given: frozenset[str] | None = field(default=None, compare=False)

    @staticmethod
    def parse(values: Mapping[str, Any]) -> Recipe:
        """Nested dictionaries, as TOML gives them -> a checked Recipe."""
        known = ("task", "model", *SECTIONS)
        for name in values:
            if name not in known:
                raise UserError(f"a recipe has no section [{shortened(name)}]{nearest(name, known)}")
        for name, section in values.items():
            if not isinstance(section, Mapping):
                raise UserError(f"'{name}' is a section of the recipe: write [{name}] and its keys below it")
        sections = {name: dict(values.get(name, {})) for name in known}
        task_kind = _kind(sections["task"], "task")
        model_kind = _kind(sections["model"], "model")
        task, model = catalog.task(task_kind), catalog.model(model_kind)
        if task_kind not in model.tasks:
            able = ", ".join(name for name in catalog.MODELS if task_kind in catalog.model(name).tasks)
            raise UserError(f"model.kind = '{model_kind}' cannot do the task '{task_kind}'; these can: {able}")
        size = sections["model"].pop("size", None)
        if size is not None:
            if size not in model.sizes:
                raise UserError(
                    f"model.size: {model_kind} has no size '{shortened(size)}'{nearest(str(size), model.sizes)}"
                )
            sections["model"] = {**model.sizes[size], **sections["model"]}
        return Recipe(
            task_kind=task_kind,
            model_kind=model_kind,
            task=build(task.Options, sections["task"], "task"),
            model=build(model.Config, sections["model"], "model"),
            **{name: build(cls, sections[name], name) for name, cls in SECTIONS.items()},
        )

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries that `parse` takes, with every default."""
        return {
            "task": {"kind": self.task_kind, **asdict(self.task)},
            "model": {"kind": self.model_kind, **asdict(self.model)},
            **{name: asdict(getattr(self, name)) for name in SECTIONS},
        }

    def with_(self, **sections: Any) -> Recipe:
        """A copy with some sections replaced."""
        return replace(self, **sections)


def _kind(section: dict[str, Any], name: str) -> str:
    if "kind" not in section:
        raise UserError(f'[{name}] needs a kind, for example kind = "{"lm" if name == "task" else "gpt"}"')
    return str(section.pop("kind"))


def recipe_names() -> list[str]:
    """Every recipe that ships with the library: "lm/gpt", "translate/transformer", …"""
    top = resources.files("allyouneed") / "recipes"
    return sorted(
        f"{folder.name}/{entry.name.removesuffix('.toml')}"
        for folder in top.iterdir()
        if folder.is_dir()
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def recipe_text(name: str) -> str:
    """The text of a recipe, by its name or by the path of the user's own file."""
    if name.endswith(".toml"):
        path = Path(name)
        if not os.path.isfile(path):
            beside = path.parent.glob("*.toml") if os.path.isdir(path.parent) else ()
            hint = nearest(path.name, (entry.name for entry in beside))
            raise UserError(f"there is no recipe file {shortened(name)}{hint}")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{name} is not UTF-8 text (byte {error.start})") from None
        except OSError as error:
            raise UserError(f"{name} cannot be read: {error.strerror}") from None
    if name not in recipe_names():
        raise UserError(f"there is no recipe '{shortened(name)}'{nearest(name, recipe_names())}")
    return (resources.files("allyouneed") / "recipes" / f"{name}.toml").read_text(encoding="utf-8")


def read_recipe(name: str, overrides: Sequence[str] = ()) -> Recipe:
    """A recipe by name or path, with "section.key=value" overrides."""
    try:
        values = tomllib.loads(recipe_text(name))
    except (ValueError, RecursionError) as error:  # not TOML, a number with too many digits, lists nested too deep
        raise UserError(f"recipe {name} is not valid TOML: {error}") from None
    return Recipe.parse(override(values, overrides))


def as_overrides(*settings: str | Mapping[str, Any]) -> list[str]:
    """Settings of Python as overrides: "train.lr=1e-3", {"train.lr": 1e-3} or {"train": {"lr": 1e-3}}."""
    found = []
    for item in settings:
        if isinstance(item, str):
            found.append(item)
            continue
        for name, value in item.items():
            inside = {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, Mapping) else {name: value}
            found += [f"{path}={v if isinstance(v, str) else _toml(v)}" for path, v in inside.items()]
    return found


def override(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Nested dictionaries with "section.key=value" overrides, still as strings; `build` converts the types."""
    result = {name: dict(section) if isinstance(section, Mapping) else section for name, section in values.items()}
    for text in overrides:
        path, equals, value = text.partition("=")
        section, dot, key = path.partition(".")
        if not equals or not dot or not key:
            having = [name for name, cls in SECTIONS.items() if path in {f.name for f in fields(cls)}]
            example = f"{having[0]}.{path}={value}" if having and value else "train.lr=1e-3"
            raise UserError(f"'{shortened(text)}' is not of the form section.key=value, for example {example}")
        inside = result.setdefault(section, {})
        if not isinstance(inside, dict):
            raise UserError(f"'{section}' is not a section of the recipe")
        inside[key] = value
    given = {text.partition("=")[0] for text in overrides}
    for name, keys in _replaced(values, result, given).items():
        for key in keys:
            if f"{name}.{key}" not in given:
                result[name].pop(key, None)
    return result


def _replaced(values: Mapping[str, Any], result: dict[str, Any], given: set[str]) -> dict[str, set[str]]:
    """The settings of a recipe, by section, that what the user has `given` replaces. Those that the user gave are
    among them: they stay, and are errors if they do not fit."""
    found: dict[str, set[str]] = {"task": set(), "model": set(), "train": set()}
    for name, kinds in (("task", catalog.TASKS), ("model", catalog.MODELS)):  # those that another kind does not have
        if f"{name}.kind" in given and isinstance(values.get(name), Mapping):
            before, kind = str(values[name].get("kind")), result[name]["kind"]
            if kind != before and {kind, before} <= kinds.keys():
                old, new = _choices(name, before), _choices(name, kind)
                wrong = {key for key in new.keys() & result[name] if new[key] and result[name][key] not in new[key]}
                found[name] |= (old.keys() & result[name]) & (old.keys() - new.keys() | wrong)
    model, train = result.get("model"), result.get("train")
    if "model.size" in given and isinstance(model, dict) and model.get("kind") in catalog.MODELS:
        found["model"] |= catalog.model(model["kind"]).sizes.get(model["size"], {}).keys()
    if isinstance(train, dict) and given & {f"train.{name}" for name in LENGTHS}:
        found["train"] |= set(LENGTHS)
    return found


def _choices(name: str, kind: str) -> dict[str, tuple[str, ...]]:
    """The keys of a section of this kind, and the values that each may have; () means any value."""
    if name == "task":
        return {f.name: f.metadata["choices"] for f in fields(catalog.task(kind).Options)}
    model = catalog.model(kind)
    return {"size": tuple(model.sizes), **{f.name: f.metadata["choices"] for f in fields(model.Config)}}


def to_toml(values: Mapping[str, Any]) -> str:
    """Sections of plain values as TOML text."""
    parts = []
    for name, section in values.items():
        parts.append(f"[{name}]")
        parts += [f"{key} = {_toml(value)}" for key, value in section.items()]
        parts.append("")
    return "\n".join(parts)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    # JSON escapes as TOML does, except for DEL, which TOML wants escaped, too.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
