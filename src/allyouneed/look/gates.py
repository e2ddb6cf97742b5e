"""Gates: how far each gate of a recurrent layer or a convolution is open, token by token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allyouneed.look.attention import Sequences, group_of, traced
from allyouneed.look.view import View
from allyouneed.predict.base import Traced

TITLES = {"self": "text", "encoder": "source", "decoder": "answer so far"}


def show_gates(view: View, sequences: Sequences, found: Mapping[str, Traced]) -> None:
    """view.shown["gates"]: one entry per layer, with the mean over its units and each unit, as tokens × directions ×
    gates (× units)."""
    shown = list[dict[str, Any]]()
    for path, (value, axes) in traced(found, "gates").items():
        key, group = f"gates.{len(shown)}", group_of(path)
        shown.append(
            {
                "path": path,
                "group": "" if group == "self" else group,
                "backward": ".backward_" in f".{path}",  # a layer of its own that reads from the end
                "sequence": sequences.add(axes[0].labels, len(value), TITLES[group]),
                "directions": value.size(1),
                "gates": axes[2].labels or ["gate"] * value.size(2),
                "units": value.size(3),
                "mean": view.put(f"{key}.mean", value.mean(-1), "parts"),
                "each": view.put(f"{key}.each", value, "parts", optional=True),
            }
        )
    view.shown |= {"gates": shown} if shown else {}
