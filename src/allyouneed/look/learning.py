"""Learning: the curves of a run."""

from __future__ import annotations

from typing import Any

from allyouneed.figures.curves import read_metrics
from allyouneed.storage.runfolder import RunFolder

POINTS = 2000  # of a curve, at most


def show_learning(folder: RunFolder) -> list[dict[str, Any]]:
    """view.shown["learning"]: one entry per curve, with its steps and values; empty if the run was not trained here."""
    if not folder.metrics.is_file():
        return []
    curves: dict[tuple[str, str], dict[str, Any]] = {}
    for row in read_metrics(folder.metrics):
        for key, value in row.items():
            if isinstance(value, float) and key not in ("seconds", "units_per_s"):
                name = row["kind"], key
                curve = curves.setdefault(name, {"kind": name[0], "name": key, "steps": [], "values": []})
                curve["steps"].append(row["step"])
                curve["values"].append(value)
    for curve in curves.values():
        every = -(-len(curve["steps"]) // POINTS)
        curve["steps"], curve["values"] = curve["steps"][::every], curve["values"][::every]
    return list(curves.values())
