"""--init: a new run starts from the body of another run, which it does not need after that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor

from allyouneed import catalog
from allyouneed.errors import UserError, option_name
from allyouneed.format import human_count
from allyouneed.models.base import Model
from allyouneed.predict.loading import load_processor, load_weights
from allyouneed.recipe import Recipe
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import check_fit
from allyouneed.tasks.base import Task
from allyouneed.terminal import Say


def explicit_keys(overrides: Iterable[str], cls: Any) -> set[str]:
    """The keys that the user set, with those that a model.size sets."""
    given = dict(text.partition("=")[::2] for text in overrides)
    return {*given, *(f"model.{field}" for field in cls.sizes.get(given.get("model.size", ""), ()))}


def inherit(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe with the settings of the body taken from the run train.init, and its text settings, because a body
    reads the tokens of its own tokenizer. Another value in `overrides` is an error."""
    donor = RunFolder.open(recipe.train.init)
    given = donor.read_recipe()
    kind, cls = recipe.model_kind, catalog.model(recipe.model_kind)
    if not cls.body_fields():
        able = ", ".join(name for name in catalog.MODELS if catalog.model(name).body_fields())
        raise UserError(f"train.init: model.kind = '{kind}' cannot start from another run; these can: {able}")
    if given.model_kind != kind:
        raise UserError(
            f"train.init: {donor.path} is a run of the model '{given.model_kind}', and this recipe's is '{kind}'; "
            f"start from a run of '{kind}'"
        )
    wanted = explicit_keys(overrides, cls)
    body = _body_settings(cls, given.model)
    body |= {field: getattr(given.model, field) for field in cls.fits if f"model.{field}" not in wanted}
    # text.vectors together with train.init is an error that `fit` raises when the model is built.
    text = {**asdict(given.text), "path": "", "vectors": recipe.text.vectors, "freeze": recipe.text.freeze}
    for section, taken in (("model", body), ("text", text)):
        for field, value in taken.items():
            asked = getattr(getattr(recipe, section), field)
            if f"{section}.{field}" in wanted and asked != value:
                whose = "the body" if section == "model" else "the tokenizer"
                raise UserError(
                    f"{section}.{field} = {asked or 'empty'}, but {whose} of {donor.path} has {value or 'none'}: leave "
                    f"{section}.{field} out, or start from another run"
                )
    return recipe.with_(
        model=replace(recipe.model, **body),
        text=replace(given.text, **text),
        train=replace(recipe.train, init=str(donor.path)),
    )


def _body_settings(cls: Any, model: Any) -> dict[str, Any]:
    """The settings on which the shapes of a body depend."""
    return {name: getattr(model, name) for name in cls.body_fields() if name != "context" or model.limit is not None}


@torch.no_grad()
def load_body(model: Model, task: Task, new: RunFolder, say: Say) -> None:
    """Copy the body of the run train.init into the model, and its other parts if it has the same task and outputs. Say
    what was loaded, what is new and what was not used. `new` is the folder of the new run."""
    recipe = task.recipe
    donor = RunFolder.open(recipe.train.init)
    if donor.path.resolve() == new.path.resolve():
        raise UserError(
            f"train.init: a run cannot start from itself, {donor.path}; choose another {option_name('--out')}"
        )
    donor_run = load_processor(donor)
    theirs, own = load_weights(donor, donor_run), model.state_dict()
    body, others = _parts(own)
    fitted = {name: model.body.fitted(name.removeprefix("body."), theirs[name]) for name in body if name in theirs}
    found, needed = ({name: tuple(t.shape) for name, t in some.items()} for some in (fitted, body))
    check_fit(found, needed, f"train.init: the body of {donor.path} does not fit this model")
    for name, t in body.items():
        t.copy_(fitted[name])
    taken = {}
    if donor_run.recipe.task_kind == recipe.task_kind and task.same_outputs(donor_run):
        unlike = {_module(n) for n, t in others.items() if n not in theirs or theirs[n].shape != t.shape}
        taken = {name: t for name, t in others.items() if _module(name) not in unlike}  # modules are taken whole
        for name, t in taken.items():
            t.copy_(theirs[name])
    values = human_count(sum(t.numel() for t in (*body.values(), *taken.values())))
    settings = {name: str(value) for name, value in _body_settings(task.kind, recipe.model).items()}
    shape = ", ".join(f"{name}={value}" for name, value in settings.items() if value not in ("0", ""))
    also = f" and its {_names(taken)}" if taken else ""
    say(f"init: loaded the body of {donor.path}{also}, {values} values, with {shape}")
    left = _parts(theirs)[1].keys() - taken.keys()
    say(f"init: new: {_names(others.keys() - taken.keys())}; not used: {_names(left)}")


def _parts(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of the body, and the others, without those that are tied to the body."""
    body = {name: t for name, t in tensors.items() if name.startswith("body.")}
    tied = {t.data_ptr() for t in body.values()}
    others = {name: t for name, t in tensors.items() if name not in body and t.data_ptr() not in tied}
    return body, others


def _module(name: str) -> str:
    """The part of the model that a tensor is in: head, or a part of the reader."""
    return ".".join(name.split(".")[: 2 if name.startswith("reader.") else 1])


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted({_module(name) for name in names})) or "none"
