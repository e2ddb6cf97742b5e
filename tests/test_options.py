"""Every option of every section, task and model, with absurd values: an error of one sentence, or a model that can be
built. Nothing is trained, and no weight is allocated."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch

from allyouneed import catalog
from allyouneed.config import SECTIONS, TextConfig
from allyouneed.errors import UserError
from allyouneed.recipe import Recipe, read_recipe, recipe_names
from allyouneed.run import train
from allyouneed.tasks.base import Task
from allyouneed.text import Tokenizer
from allyouneed.training import memory
from allyouneed.training.starting import choose
from conftest import TINY_LM

LONG = "9" * 5000
EXTREME: list[Any] = [
    *(
        "0",
        "-1",
        "1",
        "1e18",
        "1e30",
        "1e400",
        "-1e18",
        "0.5",
        "nan",
        "inf",
        "-inf",
        "",
        " ",
        "none",
        "true",
        "[",
        LONG,
    ),
    *(
        0,
        -1,
        10**18,
        10**30,
        10**5000,
        1e30,
        0.5,
        float("nan"),
        float("inf"),
        True,
        None,
        [],
        [1],
        {"a": 1},
        "x" * 10**5,
    ),
    *("a\0b", "caf\udce9", "/" + "x" * 5000, "~nobody/x", ["a\0b"], [["a"]], "\n"),
]


RECIPES = {name: read_recipe(name) for name in recipe_names()}


def recipes(section: str, kind: str) -> str:
    """The first recipe with this task or model."""
    return next(name for name, recipe in RECIPES.items() if kind in ("", getattr(recipe, f"{section}_kind", "")))


def options() -> Iterator[tuple[str, str, Any]]:
    """(recipe, section.key, the field)"""
    sections = [(section, "", cls) for section, cls in SECTIONS.items()]
    sections += [("task", kind, catalog.task(kind).Options) for kind in catalog.TASKS]
    sections += [("model", kind, catalog.model(kind).Config) for kind in catalog.MODELS]
    for section, kind, cls in sections:
        name = recipes(section, kind)
        yield from ((name, f"{section}.{field.name}", field) for field in fields(cls))


OPTIONS = {f"{name} {key}": (name, key, field) for name, key, field in options()}


@cache
def tokenizer(kind: str) -> Tokenizer:
    return Tokenizer.train(["one two three four five six"] * 20, TextConfig(kind=kind, vocab=270))


def dry(recipe: Recipe) -> None:
    """All that happens before the data is read, and a model without storage."""
    made: Task = catalog.task(recipe.task_kind)(recipe)
    made.check()
    made.tokenizers = {"tokenizer.json": tokenizer(recipe.text.kind)}
    if recipe.task_kind in ("classify", "tag"):
        made.labels, made.pair = ["a", "b"], False  # type: ignore[attr-defined]
    memory.check_weights(made.build_model, adam=True, device=torch.device("cpu"))


@cache
def plain(name: str) -> dict[str, Any]:
    return RECIPES[name].to_dict()


def parsed(name: str, key: str, value: Any) -> Recipe:
    """As the command line gives it, or as TOML does."""
    if isinstance(value, str):
        return choose(name, [f"{key}={value}"], None)
    values, (section, field) = plain(name), key.split(".")
    return Recipe.parse({**values, section: {**values[section], field: value}})


@pytest.mark.slow
@pytest.mark.parametrize("option", OPTIONS)
def test_an_absurd_value_is_an_error_or_a_model(option, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    name, key, field = OPTIONS[option]
    for value in EXTREME:
        with suppress(UserError):
            dry(parsed(name, key, value))
    high = field.metadata["high"]
    if high is not None and not field.metadata["derived"]:
        with suppress(UserError):
            recipe = parsed(name, key, high)
            if "layers" not in key:  # a thousand layers take seconds, even without storage
                dry(recipe)


@pytest.mark.parametrize("option", [name for name, (_, _, field) in OPTIONS.items() if field.type == "str"])
@pytest.mark.parametrize("text", ["caf\udce9", "a\0b"])
def test_text_that_no_file_can_hold_is_refused(text, option):
    name, key, _ = OPTIONS[option]
    with pytest.raises(UserError, match=rf"^{key} = .* is not valid text: it has a zero byte, or is not UTF-8$"):
        parsed(name, key, text)


@pytest.mark.parametrize("option", OPTIONS)
def test_every_number_has_both_bounds(option):
    field = OPTIONS[option][2]
    if field.type in ("int", "float"):
        assert field.metadata["low"] is not None
        assert field.metadata["high"] is not None
    assert field.metadata["help"]


HUGE = {
    "lm/gpt": ["model.width=1000000", "model.heads=1", "model.layers=100"],
    "lm/lstm": ["model.width=1000000", "model.layers=3"],
    "translate/transformer": ["model.hidden=10000000", "model.width=100000", "model.heads=1"],
    "wordvectors/cbow": ["model.width=10000", "text.vocab=16000000"],
}


@pytest.mark.parametrize("name", HUGE)
def test_a_model_that_does_not_fit_is_refused_before_anything_is_allocated(name, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda device: 1 << 19)
    with pytest.raises(UserError, match=r"the model has .* parameters: training needs .* and 512\.0 KiB are free"):
        dry(read_recipe(name, HUGE[name]))
    monkeypatch.undo()
    dry(read_recipe(name))  # the recipe's own fits


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("out", ["x" * 5000, "a\0b", "a" * 300 + "/b"])
def test_a_folder_that_cannot_be_is_a_sentence_in_python_too(out, resume, story):
    with pytest.raises(UserError):
        train("lm/gpt", *TINY_LM, data=story, out=out, resume=resume, quiet=True)
