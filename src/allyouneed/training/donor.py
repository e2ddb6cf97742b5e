"""--init: a new run that starts from the body of another one. Afterwards it needs that other run no more."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from allyouneed import catalog
from allyouneed.errors import UserError
from allyouneed.format import human_count
from allyouneed.runfolder import RunFolder
from allyouneed.tasks.base import Say, Task
from allyouneed.tasks.saved import saved_task
from allyouneed.tensorfile import read_tensors
from allyouneed.training.starting import donor_recipe


@torch.no_grad()
def load_body(model: nn.Module, task: Task, new: RunFolder, say: Say) -> None:
    """Copy the body of the run train.init into the model, and its other parts where it was trained for the same task
    with the same outputs. Say what was loaded, what is new, what was left behind. `new` is the model's own run."""
    recipe = task.recipe
    donor = RunFolder(recipe.train.init)
    if donor.path.resolve() == new.path.resolve():
        raise UserError(f"train.init: a run cannot start from itself, {donor.path}; choose another folder with --out")
    tensors, own = read_tensors(donor.model), model.state_dict()
    found, needed = _body(tensors), _body(own)
    for name, t in needed.items():
        there = found.get(name)
        if there is None or there.shape != t.shape:
            what = "is missing" if there is None else f"is {tuple(there.shape)}, not {tuple(t.shape)}"
            raise UserError(f"train.init: the body of {donor.path} does not fit this model: body.{name} {what}")
        t.copy_(there)
    others, theirs = _others(own), _others(tensors)
    kept = {}
    if donor_recipe(donor).task_kind == recipe.task_kind and task.same_outputs(saved_task(donor)):
        unlike = {_part(n) for n, t in others.items() if n not in theirs or theirs[n].shape != t.shape}
        kept = {name: t for name, t in others.items() if _part(name) not in unlike}  # a part comes whole or not at all
        for name, t in kept.items():
            t.copy_(theirs[name])
    values = human_count(sum(t.numel() for t in (*needed.values(), *kept.values())))
    shape = ", ".join(f"{name}={getattr(recipe.model, name)}" for name in catalog.model(recipe.model_kind).body_fields)
    also = f" and its {_parts(kept)}" if kept else ""
    say(f"init: the body of {donor.path}{also}, {values} values, was loaded; with it come {shape}")
    say(f"init: new are {_parts(others.keys() - kept)}; left behind were {_parts(theirs.keys() - kept)}")


def _body(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those of the body, by their names inside it: it is `body` in a language model, `reader.body` in a labeller."""
    cut = {name: f".{name}".partition(".body.")[2] for name in tensors}
    return {inside: tensors[name] for name, inside in cut.items() if inside}


def _others(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t for name, t in tensors.items() if ".body." not in f".{name}"}


def _part(name: str) -> str:
    """The module that a tensor is in."""
    return ".".join(name.split(".")[: 2 if name.startswith("reader.") else 1])


def _parts(names: Iterable[str]) -> str:
    return ", ".join(sorted({_part(name) for name in names})) or "none"
