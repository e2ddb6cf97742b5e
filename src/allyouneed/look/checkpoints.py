"""Checkpoints: the same text through the models that a training has kept along the way (train.keep)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.look.answer import LIKELY
from allyouneed.look.attention import traced
from allyouneed.look.view import View
from allyouneed.predict.base import Predictor, answered
from allyouneed.predict.processor import load_weights, store_by_columns
from allyouneed.storage.runfolder import RunFolder


class Seen(NamedTuple):
    """Of one model: what is shown, the attention of each layer (every head, and their mean), the image it makes."""

    said: dict[str, Any]
    weights: Sequence[torch.Tensor] = ()
    image: np.ndarray | None = None


class Through:
    """What each model says to one input. They are loaded into one second model, one after another, when they are asked
    for; the model of the run is left alone. Step 0 stands for that one."""

    def __init__(self, folder: RunFolder, predictor: Predictor, given: Any, decode: DecodeConfig) -> None:
        self.folder, self.own, self.given, self.decode = folder, predictor, given, decode
        self.second: Predictor | None = None
        self.lock = threading.Lock()
        self.known: dict[int, Seen] = {}

    def at(self, step: int) -> Seen:
        with self.lock:
            if step not in self.known:
                try:
                    self.known[step] = self._look(self._load(step) if step else self.own)
                except UserError as error:
                    self.known[step] = Seen({"error": str(error)})
            return self.known[step]

    def _load(self, step: int) -> Predictor:
        processor, like = self.own.processor, next(self.own.model.parameters())
        weights = load_weights(self.folder, processor, self.folder.model_at(step))
        self.second = self.second or type(self.own)(processor, processor.build_model())
        self.second.model.load_state_dict(weights)
        self.second.model.to(like.device, like.dtype).eval()
        if like.device.type == "cpu":
            store_by_columns(self.second.model)
        return self.second

    def _look(self, predictor: Predictor) -> Seen:
        (answer,) = answered(predictor.answers([self.given], self.decode))
        layers = traced(predictor.trace(self.given, self.decode, ("weights",)), "weights").values()
        try:
            likely = [(one.token, one.likely) for one in predictor.table(self.given, self.decode, LIKELY)]
        except UserError:  # of a classifier, its classes
            classes = sorted(answer.details.get("probabilities", {}).items(), key=lambda one: -one[1])
            likely = [("", classes[:LIKELY])] if classes else []
        said = {"text": answer.shown or answer.text, "logprob": answer.logprob, "likely": likely}
        said["attention"] = [{"rows": axes[1].labels, "columns": axes[2].labels} for _, axes in layers]
        return Seen(said, [torch.cat([one, one.mean(0, keepdim=True)]) for one, _ in layers], answer.image)

    def weights(self, step: int, layer: int) -> torch.Tensor:
        found = self.at(step).weights
        return found[layer] if layer < len(found) else torch.zeros(0)


def show_checkpoints(view: View, folder: RunFolder, predictor: Predictor, given: Any, decode: DecodeConfig) -> None:
    """view.shown["checkpoints"]: the steps, each with a reference to what its model says, its attention, its image."""
    models, layers = folder.models(), range(len(view.shown.get("attention", [])))
    if not models or "answer" not in view.shown:
        return
    through, image = Through(folder, predictor, given, decode), view.shown["answer"].get("image")

    def pixels(step: int) -> np.ndarray:
        found = through.at(step).image
        return np.zeros(image["shape"]) if found is None else found

    def shown(step: int) -> dict[str, Any]:
        put = partial(view.put, kind="parts", optional=True)
        return {
            "step": step,
            "said": view.put(f"checkpoints.{step}", lambda: through.at(step).said, "json"),
            "attention": [put(f"checkpoints.{step}.{i}", partial(through.weights, step, i)) for i in layers],
            "image": image and view.put(f"checkpoints.{step}.image", partial(pixels, step), "uint8", image["shape"]),
        }

    view.shown["checkpoints"] = [shown(step) for step in (*models, 0)]
