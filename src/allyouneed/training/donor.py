"""--init: a new run starts from the body of another run, which it does not need after that."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from allyouneed.errors import UserError, option_name
from allyouneed.format import human_count
from allyouneed.models.base import Model
from allyouneed.predict.loading import load_processor, load_weights
from allyouneed.storage.runfolder import RunFolder
from allyouneed.tasks.base import Task
from allyouneed.terminal import Say
from allyouneed.training.starting import donor_folder


@torch.no_grad()
def load_body(model: Model, task: Task, new: RunFolder, say: Say) -> None:
    """Copy the body of the run train.init into the model, and its other parts if it has the same task and outputs. Say
    what was loaded, what is new and what was not used. `new` is the folder of the new run."""
    recipe = task.recipe
    donor = donor_folder(recipe.train.init)
    if donor.path.resolve() == new.path.resolve():
        raise UserError(
            f"train.init: a run cannot start from itself, {donor.path}; choose another {option_name('--out')}"
        )
    theirs_read = load_processor(donor)
    theirs, own = load_weights(donor, theirs_read), model.state_dict()
    body, others = _parts(own)
    for name, t in body.items():
        there = theirs.get(name)
        if there is not None:
            there = model.body.fitted(name.removeprefix("body."), there)
        if there is None or there.shape != t.shape:
            what = "is missing" if there is None else f"is {tuple(there.shape)}, not {tuple(t.shape)}"
            raise UserError(f"train.init: the body of {donor.path} does not fit this model: {name} {what}")
        t.copy_(there)
    taken = {}
    if theirs_read.recipe.task_kind == recipe.task_kind and task.same_outputs(theirs_read):
        unlike = {_module(n) for n, t in others.items() if n not in theirs or theirs[n].shape != t.shape}
        taken = {name: t for name, t in others.items() if _module(name) not in unlike}  # modules are taken whole
        for name, t in taken.items():
            t.copy_(theirs[name])
    values = human_count(sum(t.numel() for t in (*body.values(), *taken.values())))
    shaping = {name: str(getattr(recipe.model, name)) for name in task.kind.body_fields()}
    if recipe.model.limit is None:
        shaping.pop("context", None)
    shape = ", ".join(f"{name}={value}" for name, value in shaping.items() if value not in ("0", ""))
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
