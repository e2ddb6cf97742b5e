"""ayn list: what there is, by name, with a line about each."""

from __future__ import annotations

import json
import sys
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from allyouneed import catalog
from allyouneed.config import SECTIONS
from allyouneed.recipe import read_recipe, recipe_names, recipe_text

Rows = list[tuple[str, ...]]
SETTINGS = "settings.json"  # the settings of tasks and models, for completion: to import these would import torch


def recipes() -> Rows:
    return [(name, recipe_text(name).splitlines()[0].lstrip("# ")) for name in recipe_names()]


def data_sets() -> Rows:
    from allyouneed.data.registry import listing

    return [(row.name, row.shape, f"{row.what}; {row.licence}; {row.origin}") for row in listing()]


def settings() -> Rows:
    """Every section.key with its default and its line of help; for [task] and [model] also the kind."""
    sections: list[tuple[str, str, type]] = [(name, "", cls) for name, cls in SECTIONS.items()]
    sections += [("task", kind, catalog.task(kind).Options) for kind in catalog.TASKS]
    sections += [("model", kind, catalog.model(kind).Config) for kind in catalog.MODELS]
    return [(key, kind, value, about) for name, kind, cls in sections for key, value, about in _section(name, cls)]


def recipe_settings(name: str) -> Rows:
    """Every section.key of a recipe with its value and its line of help."""
    recipe = read_recipe(name)
    return [row for section in ("task", "model", *SECTIONS) for row in _section(section, getattr(recipe, section))]


def _section(name: str, values: Any) -> list[tuple[str, str, str]]:
    """section.key of each setting with its value, or with its default, and its line of help."""
    rows = []
    for f in fields(values):
        value = f.default if isinstance(values, type) else getattr(values, f.name)
        shown = ", ".join(map(repr, value)) if isinstance(value, tuple) else str(value)
        if not f.metadata["derived"]:
            rows.append((f"{name}.{f.name}", shown, f"{f.metadata['help']}{_allowed(f)}"))
    return rows


def values_of(cls: type) -> dict[str, tuple[str, ...]]:
    """The settings of a section with the values that each may have; () for any."""
    listed = [f for f in fields(cls) if not f.metadata["derived"]]
    return {f.name: ("true", "false") if f.type == "bool" else tuple(f.metadata["choices"]) for f in listed}


def values_of_kinds() -> dict[str, dict[str, dict[str, tuple[str, ...]]]]:
    """The same for every kind of task and model."""
    models = {kind: catalog.model(kind) for kind in catalog.MODELS}
    return {
        "task": {kind: values_of(catalog.task(kind).Options) for kind in catalog.TASKS},
        "model": {kind: {"size": tuple(model.sizes), **values_of(model.Config)} for kind, model in models.items()},
    }


def write_settings() -> None:
    """Write the file that completion reads."""
    Path(__file__).with_name(SETTINGS).write_text(json.dumps(values_of_kinds(), indent=1) + "\n", encoding="utf-8")


def _allowed(f: Field[Any]) -> str:
    """The choices of a setting, or its range."""
    choices, low, high = (f.metadata[key] for key in ("choices", "low", "high"))
    if choices:
        return f" ({', '.join(choices)})"
    ends = [*([f"from {low:g}"] if low is not None else []), *([f"to {high:g}"] if high is not None else [])]
    return f" ({' '.join(ends)})" if ends else ""


def models() -> Rows:
    return [
        (kind, size, ", ".join(f"{key} {value}" for key, value in values.items()))
        for kind in sorted(catalog.MODELS)
        for size, values in catalog.model(kind).sizes.items()
    ]


def tasks() -> Rows:
    """The first line of the file of each task says what the task is."""
    about = {kind: sys.modules[catalog.task(kind).__module__].__doc__ or "" for kind in sorted(catalog.TASKS)}
    return [(kind, text.splitlines()[0].removeprefix(f"{kind}: ").rstrip(".")) for kind, text in about.items()]


def lectures() -> Rows:
    from allyouneed.lectures import TOPICS

    return [(name, topic.needs, f"{topic.about} ({topic.slides})") for name, topic in TOPICS.items()]


LISTS = {
    "recipes": recipes,
    "data": data_sets,
    "models": models,
    "tasks": tasks,
    "lectures": lectures,
    "settings": settings,
}
