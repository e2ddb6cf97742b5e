"""Learning: the curves of a run, which grow while it trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allyouneed.errors import UserError
from allyouneed.figures.curves import read_metrics
from allyouneed.look.architecture import show_architecture
from allyouneed.look.view import View
from allyouneed.predict.processor import load_processor
from allyouneed.storage.runfolder import RunFolder

POINTS = 2000  # of a curve, at most


def show_learning(folder: RunFolder) -> list[dict[str, Any]]:
    """view.shown["learning"]: one entry per curve, with its steps and values; empty if the run was not trained here."""
    if not folder.metrics.is_file():
        return []
    curves: dict[tuple[str, str], dict[str, Any]] = {}
    for row in read_metrics(folder.metrics):
        for key, value in row.items():
            if row["kind"] != "plan" and isinstance(value, float) and key not in ("seconds", "units_per_s"):
                name = row["kind"], key
                curve = curves.setdefault(name, {"kind": name[0], "name": key, "steps": [], "values": []})
                curve["steps"].append(row["step"])
                curve["values"].append(value)
    for curve in curves.values():
        every = -(-len(curve["steps"]) // POINTS)
        for key in ("steps", "values"):
            curve[key] = curve[key][::-every][::-1]  # with the last point
    return list(curves.values())


def show_progress(folder: RunFolder, seen: int = -1) -> dict[str, Any]:
    """What a live page asks for again and again; the curves only if metrics.jsonl is no longer `seen` bytes long."""
    size = folder.metrics.stat().st_size if folder.metrics.is_file() else 0
    found = {"size": size, "training": folder.in_use(), "weights": folder.model.is_file()}
    return found if size == seen else {**found, "learning": show_learning(folder)}


class Begun:
    """A run that has no weights yet. As soon as there are any, `load` gives the run that is shown."""

    def __init__(self, folder: RunFolder, load: Callable[[], Any]) -> None:
        self.folder, self.load, self.loaded = folder, load, None

    def view(self, text: str = "") -> View:
        """What there is to see; a UserError about a text that nothing can read yet."""
        if self.loaded is None and (self.folder.model.is_file() or text.strip()):
            self.loaded = self.load()
        if self.loaded is not None:
            found: View = self.loaded.view(text)
            return found
        view, recipe = View(), self.folder.read_recipe()
        facts = {"name": self.folder.path.absolute().name, "task": recipe.task_kind, "model": recipe.model_kind}
        view.shown |= {"run": facts, "text": "", "notes": [], "sequences": {}, **show_progress(self.folder)}
        view.shown["notes"].append(
            "There are no weights yet: the first evaluation of the training writes them."
            if view.shown["training"]
            else "There are no weights: the training has stopped before its first evaluation. --resume continues it."
        )
        try:
            model = load_processor(self.folder).build_model()
            show_architecture(view, model, numbers=False)
            facts["parameters"] = sum(weight.numel() for weight in model.parameters())
        except UserError as error:
            view.shown["notes"].append(str(error))
        return view
