"""Attention: the weights of every layer and head."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from allyouneed.look.view import Make, View
from allyouneed.predict.base import Traced
from allyouneed.predict.images import rollout

THUMB = 24  # rows and columns of a small picture of a head, at most


class Sequences:
    """The rows of tokens that a page shows; the same tokens are the same sequence."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, ...], str] = {}
        self.shown: dict[str, dict[str, Any]] = {}

    def add(self, tokens: list[str], title: str) -> str:
        name = self.names.setdefault(tuple(tokens), f"s{len(self.names)}")
        self.shown.setdefault(name, {"title": title, "tokens": tokens})
        return name


def group_of(path: str) -> str:
    """Which part of the model an attention belongs to."""
    if path.endswith(("cross", "score")):
        return "cross"
    return "encoder" if ".encoder" in path else "decoder" if ".decoder" in path else "self"


TITLES = {"self": ("text", "text"), "encoder": ("source", "source"), "decoder": ("answer so far", "answer so far")}


def show_attention(view: View, sequences: Sequences, found: Mapping[str, Traced]) -> None:
    """view.shown["attention"]: one entry per layer, and what all layers of a group give together."""
    weights = {name.removesuffix(".weights"): one for name, one in found.items() if name.endswith(".weights")}
    layers, groups = list[dict[str, Any]](), dict[str, list[Tensor]]()
    for path, traced in weights.items():
        group = group_of(path)
        groups.setdefault(group, []).append(traced.value)
        layers.append(_layer(view, sequences, f"attention.{len(layers)}", path, group, traced))
        layers[-1]["layer"] = len(groups[group])
    if not layers:
        return
    view.shown["attention"] = layers
    view.shown["rollout"] = {
        group: view.parts(f"rollout.{group}", values[0].shape[1:], partial(rollout, values))
        for group, values in groups.items()
        if group != "cross" and len(values) > 1
    }


def _layer(view: View, sequences: Sequences, key: str, path: str, group: str, traced: Traced) -> dict[str, Any]:
    weights = traced.value
    heads, rows, columns = weights.shape
    above, below = TITLES.get(group, ("answer", "source"))
    row_names, column_names = (traced.axes[i].labels for i in (1, 2))
    lower = group != "cross" and rows == columns and not bool(weights.triu(1).any())
    small = thumbs(weights)

    def matrix(name: str, make: Make) -> dict[str, Any]:
        return view.parts(f"{key}.{name}", (rows, columns), make, lower)

    return {
        "path": path,
        "group": group,
        "rows": sequences.add(row_names or _numbered(rows), above),
        "columns": sequences.add(column_names or _numbered(columns), below),
        "heads": [matrix(str(head), partial(weights.select, 0, head)) for head in range(heads)],
        "mean": matrix("mean", partial(weights.mean, 0)),
        "max": matrix("max", partial(weights.amax, 0)),
        "thumbs": view.parts(f"{key}.thumbs", small.shape, lambda: small),
    }


def thumbs(weights: Tensor) -> Tensor:
    """(H, T, S) -> (H, at most THUMB, at most THUMB): the largest weight of each piece."""
    size = [min(THUMB, n) for n in weights.shape[1:]]
    return F.adaptive_max_pool2d(weights.float(), size)


def _numbered(count: int) -> list[str]:
    return [str(i + 1) for i in range(count)]
