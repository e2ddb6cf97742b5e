"""Attention: the weights of every layer and head."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from allyouneed.look.view import View
from allyouneed.predict.base import Traced
from allyouneed.predict.images import rollout

THUMB = 24  # rows and columns of a small picture of a head, at most


class Sequences:
    """The rows of tokens that a page shows; the same tokens are the same sequence."""

    def __init__(self) -> None:
        self.names: dict[tuple[str, ...], str] = {}
        self.shown: dict[str, dict[str, Any]] = {}

    def add(self, labels: list[str], count: int, title: str) -> str:
        """The name of these tokens; those without labels are numbered."""
        tokens = labels or [str(i + 1) for i in range(count)]
        name = self.names.setdefault(tuple(tokens), f"s{len(self.names)}")
        self.shown.setdefault(name, {"title": title, "tokens": tokens})
        return name


def traced(found: Mapping[str, Traced], kind: str) -> dict[str, Traced]:
    """The values of a kind, by the path of their module."""
    return {name.removesuffix(f".{kind}"): one for name, one in found.items() if name.endswith(f".{kind}")}


def group_of(path: str) -> str:
    """Which part of the model an attention belongs to."""
    if path.endswith(("cross", "score")):
        return "cross"
    return "encoder" if ".encoder" in path else "decoder" if ".decoder" in path else "self"


# What stands beside the rows and the columns of the weights.
TITLES = {
    "self": ("text", "text"),
    "encoder": ("source", "source"),
    "decoder": ("answer so far", "answer so far"),
    "cross": ("answer", "source"),
}


def show_attention(view: View, sequences: Sequences, found: Mapping[str, Traced]) -> None:
    """view.shown["attention"]: one entry per layer, and what all layers of a group give together."""
    layers, groups = list[dict[str, Any]](), dict[str, list[Tensor]]()
    for path, (weights, axes) in traced(found, "weights").items():
        key, group, (_, rows, columns) = f"attention.{len(layers)}", group_of(path), weights.shape
        groups.setdefault(group, []).append(weights)
        lower = group != "cross" and rows == columns and not bool(weights.triu(1).any())
        matrix = partial(view.put, kind="lower" if lower else "parts", shape=(rows, columns))
        titles = TITLES[group]
        layers.append(
            {
                "path": path,
                "group": group,
                "layer": len(groups[group]),
                "rows": sequences.add(axes[1].labels, rows, titles[0]),
                "columns": sequences.add(axes[2].labels, columns, titles[1]),
                "heads": [matrix(f"{key}.{head}", one) for head, one in enumerate(weights)],
                "mean": matrix(f"{key}.mean", partial(weights.mean, 0)),
                "max": matrix(f"{key}.max", partial(weights.amax, 0)),
                "thumbs": view.put(f"{key}.thumbs", thumbs(weights), "parts"),
            }
        )
    if not layers:
        return
    view.shown["attention"] = layers
    view.shown["rollout"] = {
        group: view.put(f"rollout.{group}", partial(rollout, values), "parts", values[0].shape[1:])
        for group, values in groups.items()
        if group != "cross" and len(values) > 1
    }


def thumbs(weights: Tensor) -> Tensor:
    """(H, T, S) -> (H, at most THUMB, at most THUMB): the largest weight of each piece."""
    return F.adaptive_max_pool2d(weights, [min(THUMB, size) for size in weights.shape[1:]])
