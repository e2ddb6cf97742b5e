"""The architecture: the modules of a model with their shapes, their parameters and where their code is."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from torch import nn

import allyouneed


def show_architecture(model: nn.Module) -> dict[str, Any]:
    """view.shown["architecture"]: a tree of modules. A weight that several modules share counts once."""
    return _tree(model, "", set())


def _tree(module: nn.Module, path: str, seen: set[int]) -> dict[str, Any]:
    weights = [
        {"name": name, "shape": list(weight.shape), "shared": id(weight) in seen}
        for name, weight in module.named_parameters(recurse=False)
    ]
    own = [weight for weight in module.parameters(recurse=False) if id(weight) not in seen]
    seen |= {id(weight) for weight in own}
    parts = [_tree(part, f"{path}.{name}".removeprefix("."), seen) for name, part in module.named_children()]
    return {
        "path": path,
        "kind": type(module).__name__,
        "says": _formula(module),
        "file": _file(module),
        "weights": weights,
        "parameters": sum(weight.numel() for weight in own) + sum(part["parameters"] for part in parts),
        "parts": parts,
    }


def _formula(module: nn.Module) -> str:
    """The first paragraph of the docstring, which for most modules is their formula."""
    if not type(module).__module__.startswith("allyouneed"):
        return ""
    return " ".join((inspect.getdoc(type(module)) or "").split("\n\n")[0].split())


def _file(module: nn.Module) -> str:
    """nn/attention.py:85"""
    kind = type(module)
    if not kind.__module__.startswith("allyouneed"):
        return ""
    home, line = Path(allyouneed.__file__).parent, inspect.getsourcelines(kind)[1]
    return f"{Path(inspect.getfile(kind)).relative_to(home)}:{line}"
