"""One step by hand: what attention, a recurrent cell, word vectors, patches and image codes are computed from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.look.attention import Sequences
from allyouneed.look.view import View
from allyouneed.nn.recurrent import Recurrent, Weights
from allyouneed.nn.scores import Additive, AttentionScore, General
from allyouneed.predict.base import Predictor, Traced
from allyouneed.predict.images import CompressPredictor, ImageReader
from allyouneed.predict.words import Sum, WordsPredictor

Found = Mapping[str, Traced]
# What a trace records for this view, and for the weights of attention.
KINDS = ("weights", "queries", "keys", "values", "heads", "embeddings", "inputs", "states", "codes")
WORDS = 20  # words whose vectors are shown


def kinds_for(predictor: Predictor) -> Sequence[str]:
    """Logits are scores here for word vectors and for image codes; elsewhere there may be very many."""
    return (*KINDS, "logits") if isinstance(predictor, WordsPredictor | CompressPredictor) else KINDS


def show_hand(view: View, sequences: Sequences, predictor: Predictor, given: Any, found: Found) -> None:
    """view.shown["hand"]: the parts that this model has. Entries of its attention are those of the attention view."""
    model, rotary = predictor.model, getattr(predictor.recipe.model, "positions", "") == "rotary"
    parts: dict[str, Any] = {
        "attention": _attention(view, model, found, rotary),
        "cells": _cells(view, sequences, model, found),
    }
    if isinstance(predictor, WordsPredictor):
        parts["words"] = _words(view, predictor, given, found)
    if isinstance(predictor, ImageReader):
        parts["patches"] = _patches(view, predictor, given, found)
    if "codes" in found:
        parts["codes"] = _codes(view, predictor, found)
    if parts := {name: part for name, part in parts.items() if part}:
        view.shown["hand"] = parts


def _put(view: View, name: str, value: Tensor) -> dict[str, Any]:
    """A reference that a saved page may leave out."""
    return view.numbers(f"hand.{name}", value.shape, lambda: value, optional=True)


def _linear(view: View, name: str, layer: Any) -> dict[str, Any]:
    """The matrix and the bias of a linear layer."""
    bias = layer.bias is not None and _put(view, f"{name}.bias", layer.bias)
    return {"matrix": _put(view, f"{name}.matrix", layer.weight), "bias": bias or None}


# Attention


def _attention(view: View, model: nn.Module, found: Found, rotary: bool) -> list[dict[str, Any]]:
    layers = list[dict[str, Any]]()
    for path in (name.removesuffix(".weights") for name in found if name.endswith(".weights")):
        module: Any = model.get_submodule(path)
        key, weights = f"{len(layers)}", found[f"{path}.weights"].value
        square = weights.size(-2) == weights.size(-1) > 1
        layer: dict[str, Any] = {
            name: _put(view, f"{key}.{name}", found[f"{path}.{name}"].value) for name in ("queries", "keys", "values")
        }
        layer["kind"] = "Score" if isinstance(module, AttentionScore) else type(module).__name__
        layer["rotary"] = rotary and not getattr(module, "cross", False)
        layer["score"] = _score_name(module)
        layer["causal"] = square and not bool(weights.triu(1).any())
        if isinstance(module, Additive):
            layer["query"], layer["v"] = (
                _linear(view, f"{key}.query", module.q),
                _put(view, f"{key}.v", module.v.weight),
            )
        if isinstance(out := getattr(module, "out", None), nn.Linear):
            layer["out"] = _linear(view, f"{key}.out", out)
        layers.append(layer)
    return layers


def _score_name(module: Any) -> str:
    """additive, general, dot, cosine or scaled_dot"""
    if isinstance(module, Additive | General):
        return type(module).__name__.lower()
    score: Any = getattr(module, "score", "scaled_dot")
    return str(getattr(score, "__name__", score))


# Recurrent cells


def _cells(view: View, sequences: Sequences, model: nn.Module, found: Found) -> list[dict[str, Any]]:
    """One entry per layer and direction, in the order in which the model runs them."""
    cells = list[dict[str, Any]]()
    for path, module in model.named_modules():
        if not isinstance(module, Recurrent) or f"{path}.layers.0.states" not in found:
            continue
        for i, layer in enumerate(module.layers):
            x, states = (found[f"{path}.layers.{i}.{kind}"] for kind in ("inputs", "states"))
            for r in range(module.directions):
                key, weights = f"cell.{len(cells)}", Weights(*layer.all_weights[r])._asdict()  # type: ignore[index]
                state = dict(zip("hc", states.value[:, r].unbind(1)))
                cells.append(
                    {
                        "path": path,
                        "cell": module.cell,
                        "layer": i + 1,
                        "backward": r == 1 or ".backward_layers." in path,
                        "directions": module.directions,
                        "tokens": sequences.add(states.axes[0].labels, "source" if ".encoder" in path else "text"),
                        "x": _put(view, f"{key}.x", x.value),
                        "weights": {name: _put(view, f"{key}.weights.{name}", w) for name, w in weights.items()},
                    }
                    | {name: _put(view, f"{key}.{name}", value) for name, value in state.items()}
                )
    return cells


# Word vectors


@torch.inference_mode()
def _words(view: View, predictor: WordsPredictor, given: Sum, found: Found) -> dict[str, Any]:
    """Of each word that was asked for: its scores with all words, and the vectors of those it fits best."""
    model, ids, token = predictor.model, predictor.words().cpu(), predictor.tokenizer.token
    inputs, outputs = (table.weight.detach().float().cpu() for table in (model.inputs, model.outputs))
    units, own = F.normalize(inputs), [id for _, id in given.terms]
    goal = torch.stack([sign * units[id] for sign, id in given.terms]).sum(0)
    others = ids[~torch.isin(ids, torch.tensor(own))]
    near = others[(units[others] @ goal).topk(min(WORDS // 2, len(others))).indices]
    terms = []
    for i, (sign, id) in enumerate(given.terms):
        scores = found["outputs.logits"].value[i][ids]
        best = scores.topk(min(WORDS, len(ids))).indices
        terms.append(
            {
                "word": token(id),
                "sign": sign,
                "vector": _put(view, f"word.{i}.vector", inputs[id]),
                "scores": _put(view, f"word.{i}.scores", scores),
                "at": best.tolist(),
                "names": [token(int(id)) for id in ids[best]],
                "outputs": _put(view, f"word.{i}.outputs", outputs[ids[best]]),
            }
        )
    nearest = {"names": [token(int(id)) for id in near], "vectors": _put(view, "word.near", inputs[near])}
    return {"terms": terms, "nearest": nearest, "words": len(ids), "loss": model.config.loss}


# Images


def _patches(view: View, predictor: ImageReader, given: Any, found: Found) -> dict[str, Any]:
    """Pixels, and the linear layer that makes a vector of each patch. The page cuts the image itself."""
    model, config = predictor.model, predictor.recipe.model
    part: dict[str, Any] = {"patch": config.patch, "channels": config.channels, "skipped": 0}
    if isinstance(predictor, CompressPredictor):
        return (
            part
            | _linear(view, "patch", model.into)
            | {"mean": [0.0] * config.channels, "std": [1.0] * config.channels}
        )
    patches = model.body.patches
    part |= {"mean": model.preprocess.mean.tolist(), "std": model.preprocess.std.tolist(), "skipped": 1}
    part["first"] = _put(view, "patch.first", patches.cls)
    if config.positions != "none":
        part["positions"] = _put(view, "patch.positions", _positions(patches, config))
    return part | _linear(view, "patch", patches.into)


@torch.inference_mode()
def _positions(patches: Any, config: Any) -> Tensor:
    """(1 + N, D): a table or, if there is none, what is added to an image without light."""
    if patches.positions is not None:
        table: Tensor = patches.positions.table.weight
        return table
    dark = patches(patches.cls.new_zeros(1, config.channels, config.image, config.image))[0].float()
    alone = torch.cat([patches.cls[None], patches.into.bias.expand(len(dark) - 1, -1)]).float()
    return (dark - alone).cpu()


@torch.inference_mode()
def _codes(view: View, predictor: Any, found: Found) -> dict[str, Any]:
    """The codes of an image, and the scores that chose them; a drawing has only codes."""
    compress = isinstance(predictor, CompressPredictor)
    model = predictor.model if compress else predictor.processor.image_tokenizer.model
    config, codes = model.config, found["codes"].value
    part = {
        "grid": config.grid,
        "digits": config.digits,
        "levels": config.levels,
        "codebook": config.codebook,
        "codes": codes.flatten().tolist(),
        "unfold": _linear(view, "codes.unfold", model.unfold),
    }
    if compress:
        part["scores"] = _put(view, "codes.scores", found["choose.logits"].value)
    if model.codebook is not None:
        part["vectors"] = _put(view, "codes.vectors", model.codebook(codes.flatten().to(model.device)))
    return part
