"""One step by hand: what attention, a recurrent cell, word vectors, patches and image codes are computed from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from allyouneed.look.attention import Sequences, traced
from allyouneed.look.view import View
from allyouneed.nn.recurrent import Recurrent, Weights
from allyouneed.nn.scores import Additive, AttentionScore, General
from allyouneed.predict.base import Predictor, Traced
from allyouneed.predict.images import CompressPredictor, ImageReader
from allyouneed.predict.words import Sum, WordsPredictor

Found = Mapping[str, Traced]
Put = Callable[[str, Any], dict[str, Any]]  # a name and an array -> a reference that a saved page may leave out
WORDS = 20  # words whose vectors are shown


@torch.inference_mode()
def show_hand(view: View, sequences: Sequences, predictor: Predictor, given: Any, found: Found) -> None:
    """view.shown["hand"]: the parts that this model has. Entries of its attention are those of the attention view."""

    def put(name: str, value: Any) -> dict[str, Any]:
        return view.put(f"hand.{name}", value, optional=True)

    parts: dict[str, Any] = {
        "attention": _attention(put, predictor, found),
        "cells": _cells(put, sequences, predictor.model, found),
    }
    if isinstance(predictor, WordsPredictor):
        parts["words"] = _words(put, predictor, given, found)
    if isinstance(predictor, ImageReader):
        parts["patches"] = _patches(put, predictor)
    if "codes" in found:
        parts["codes"] = _codes(put, predictor, found)
    if parts := {name: part for name, part in parts.items() if part}:
        view.shown["hand"] = parts


def _linear(put: Put, name: str, layer: Any) -> dict[str, Any]:
    """The matrix and the bias of a linear layer."""
    bias = None if layer.bias is None else put(f"{name}.bias", layer.bias)
    return {"matrix": put(f"{name}.matrix", layer.weight), "bias": bias}


def _attention(put: Put, predictor: Predictor, found: Found) -> list[dict[str, Any]]:
    layers, rotary = list[dict[str, Any]](), getattr(predictor.recipe.model, "positions", "") == "rotary"
    for path, (weights, _) in traced(found, "weights").items():
        module, key = predictor.model.get_submodule(path), str(len(layers))
        score: Any = getattr(module, "score", "scaled_dot")
        own = {name: put(f"{key}.{name}", found[f"{path}.{name}"].value) for name in ("queries", "keys", "values")}
        layer: dict[str, Any] = own | {
            "kind": "Score" if isinstance(module, AttentionScore) else type(module).__name__,
            "rotary": rotary and not getattr(module, "cross", False),
            "score": getattr(score, "__name__", score),  # scaled_dot, dot, cosine, additive or general
            "causal": weights.size(1) == weights.size(2) > 1 and not bool(weights.triu(1).any()),
        }
        if isinstance(module, Additive | General):
            layer["score"] = type(module).__name__.lower()
        if isinstance(module, Additive):
            layer |= {"query": _linear(put, f"{key}.query", module.q), "v": put(f"{key}.v", module.v.weight)}
        if isinstance(out := getattr(module, "out", None), nn.Linear):
            layer["out"] = _linear(put, f"{key}.out", out)
        layers.append(layer)
    return layers


def _cells(put: Put, sequences: Sequences, model: nn.Module, found: Found) -> list[dict[str, Any]]:
    """One entry per recurrent layer and direction, in the order in which the model runs them."""
    cells = list[dict[str, Any]]()
    several = [(path, part) for path, part in model.named_modules() if isinstance(part, Recurrent)]
    for (path, module), i in [(one, i) for one in several for i in range(len(one[1].layers))]:
        if (states := found.get(f"{path}.layers.{i}.states")) is None:
            continue
        tokens = sequences.add(states.axes[0].labels, len(states.value), "source" if ".encoder" in path else "text")
        for r in range(module.directions):
            key = f"cell.{len(cells)}"
            weights = Weights(*module.layers[i].all_weights[r])._asdict()  # type: ignore[index]
            facts = {"path": path, "cell": module.cell, "layer": i + 1, "directions": module.directions}
            facts |= {"backward": r == 1 or ".backward_layers." in path, "tokens": tokens}
            facts |= {name: put(f"{key}.{name}", value) for name, value in zip("hc", states.value[:, r].unbind(1))}
            facts["x"] = put(f"{key}.x", found[f"{path}.layers.{i}.inputs"].value)
            facts["weights"] = {name: put(f"{key}.weights.{name}", one) for name, one in weights.items()}
            cells.append(facts)
    return cells


def _words(put: Put, predictor: WordsPredictor, given: Sum, found: Found) -> dict[str, Any]:
    """Of each word that was asked for: its scores with all words, and the vectors of those it fits best."""
    model, ids, token = predictor.model, predictor.words().cpu(), predictor.tokenizer.token
    inputs, outputs = (table.weight.float().cpu() for table in (model.inputs, model.outputs))
    units = F.normalize(inputs)
    goal = torch.stack([sign * units[id] for sign, id in given.terms]).sum(0)
    others = ids[~torch.isin(ids, torch.tensor([id for _, id in given.terms]))]
    near = others[(units[others] @ goal).topk(min(WORDS // 2, len(others))).indices]
    terms = []
    for i, (sign, id) in enumerate(given.terms):
        scores = found["outputs.logits"].value[i][ids]
        best = scores.topk(min(WORDS, len(ids))).indices
        vectors = {"vector": inputs[id], "scores": scores, "outputs": outputs[ids[best]]}
        shown = {name: put(f"word.{i}.{name}", value) for name, value in vectors.items()}
        names = [token(int(one)) for one in ids[best]]
        terms.append({"word": token(id), "sign": sign, "at": best.tolist(), "names": names, **shown})
    nearest = {"names": [token(int(id)) for id in near], "vectors": put("word.near", inputs[near])}
    return {"terms": terms, "nearest": nearest, "words": len(ids), "loss": model.config.loss}


def _patches(put: Put, predictor: ImageReader) -> dict[str, Any]:
    """Pixels, and the linear layer that makes a vector of each patch. The page cuts the image itself."""
    model, config = predictor.model, predictor.recipe.model
    part: dict[str, Any] = {"patch": config.patch, "channels": config.channels}
    if isinstance(predictor, CompressPredictor):
        as_is = {"mean": [0.0] * config.channels, "std": [1.0] * config.channels, "skipped": 0}
        return part | as_is | _linear(put, "patch", model.into)
    patches, pixels = model.body.patches, model.preprocess
    part |= {"mean": pixels.mean.tolist(), "std": pixels.std.tolist(), "skipped": 1}
    part["first"] = put("patch.first", patches.cls)
    if config.positions != "none":  # what is added to an image without light
        dark = patches(patches.cls.new_zeros(1, config.channels, config.image, config.image))[0].float()
        alone = torch.cat([patches.cls[None], patches.into.bias.expand(len(dark) - 1, -1)]).float()
        part["positions"] = put("patch.positions", dark - alone)
    return part | _linear(put, "patch", patches.into)


def _codes(put: Put, predictor: Any, found: Found) -> dict[str, Any]:
    """The codes of an image, and the scores that chose them; a drawing has only codes."""
    compress = isinstance(predictor, CompressPredictor)
    model = predictor.model if compress else predictor.processor.image_tokenizer.model
    codes = found["codes"].value.flatten()
    part = {name: getattr(model.config, name) for name in ("grid", "digits", "levels", "codebook")}
    part |= {"codes": codes.tolist(), "unfold": _linear(put, "codes.unfold", model.unfold)}
    if compress:
        part["scores"] = put("codes.scores", found["choose.logits"].value)
    if model.codebook is not None:
        part["vectors"] = put("codes.vectors", model.codebook(codes.to(model.device)))
    return part
