"""The architecture: the modules of a model with their shapes, their parameters, their formulas and their code."""

from __future__ import annotations

import inspect
import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import allyouneed
from allyouneed.look.view import View

READING = threading.Lock()  # inspect reads files for all threads into one cache, which is not safe


def show_architecture(view: View, model: nn.Module, numbers: bool = True) -> None:
    """view.shown["architecture"]: a tree of modules, and the code of each class in it. A weight that several modules
    share counts once; `numbers` are the mean and the range of each."""

    def found() -> dict[str, Any]:
        kinds = {type(module) for module in model.modules() if type(module).__module__.startswith("allyouneed")}
        with READING:
            code = {kind.__name__: _code(kind) for kind in kinds}
        return {"tree": _tree(model, "", set(), numbers), "code": code}

    view.shown["architecture"] = view.put("architecture", found, "json")


def _tree(module: nn.Module, path: str, seen: set[int], numbers: bool) -> dict[str, Any]:
    found = dict(module.named_parameters(recurse=False))
    weights = [_weight(name, weight, id(weight) in seen, numbers) for name, weight in found.items()]
    own = [weight for weight in found.values() if id(weight) not in seen]
    seen |= {id(weight) for weight in own}
    parts = [_tree(part, f"{path}.{name}".removeprefix("."), seen, numbers) for name, part in module.named_children()]
    return {
        "path": path,
        "kind": type(module).__name__,
        "options": "" if parts else module.extra_repr(),
        "weights": weights,
        "parameters": sum(weight.numel() for weight in own) + sum(part["parameters"] for part in parts),
        "parts": parts,
    }


def _weight(name: str, weight: Tensor, shared: bool, numbers: bool) -> dict[str, Any]:
    found, values = {"name": name, "shape": list(weight.shape), "shared": shared}, weight.detach().float()
    if not numbers or not values.numel():
        return found
    facts = (*torch.std_mean(values, correction=0), *values.aminmax())  # two passes: there may be many numbers
    return found | dict(zip(("std", "mean", "min", "max"), map(float, facts)))


def _code(kind: type) -> dict[str, str]:
    """Where a class is, what it says of itself, which for most modules is its formula, and its lines."""
    lines, line = inspect.getsourcelines(kind)
    file = Path(inspect.getfile(kind)).relative_to(Path(allyouneed.__file__).parent)
    says = " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())
    return {"file": f"{file}:{line}", "says": says, "lines": "".join(lines)}
