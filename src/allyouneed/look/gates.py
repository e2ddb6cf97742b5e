"""Gates: how far each gate of a recurrent layer or a convolution is open, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from allyouneed.look.attention import Sequences, group_of
from allyouneed.look.view import View
from allyouneed.predict.base import Traced

TITLES = {"encoder": "source", "decoder": "answer so far"}


def show_gates(view: View, sequences: Sequences, found: Mapping[str, Traced]) -> None:
    """view.shown["gates"]: one entry per layer, with the mean over its units and each unit, as tokens × directions ×
    gates (× units)."""
    shown = list[dict[str, Any]]()
    for name, traced in found.items():
        if not name.endswith(".gates"):
            continue
        path, value = name.removesuffix(".gates"), traced.value
        tokens, directions, count, units = value.shape
        group = group_of(path)
        shown.append(
            {
                "path": path,
                "group": "" if group == "self" else group,
                "backward": ".backward_" in f".{path}",  # a layer of its own that reads from the end
                "sequence": sequences.add(
                    traced.axes[0].labels or [str(i + 1) for i in range(tokens)], TITLES.get(group, "text")
                ),
                "directions": directions,
                "gates": traced.axes[2].labels or ["gate"] * count,
                "units": units,
                "mean": view.parts(f"gates.{len(shown)}.mean", value.shape[:3], partial(value.mean, -1)),
                "each": view.parts(f"gates.{len(shown)}.each", value.shape, value.clone, optional=True),
            }
        )
    if shown:
        view.shown["gates"] = shown
