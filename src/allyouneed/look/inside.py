"""Inside: what each layer would say, the vectors of the tokens, the answer without some heads, and the positions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.look.attention import traced
from allyouneed.look.view import View
from allyouneed.nn.attention import Attention
from allyouneed.nn.convolution import ConvAttention, ConvStack
from allyouneed.nn.positions import Learned, Rotary, Sinusoidal
from allyouneed.nn.recurrent import Recurrent
from allyouneed.predict.base import Predictor, Said, Traced, Without
from allyouneed.predict.inputs import BETWEEN

WORDS, LISTED = 5, 10  # listed for a layer, and for an answer
READ = 128  # positions at which each layer is read, at most: the last ones
TOKENS = ROWS = 256  # tokens whose vectors are compared, and positions that are shown, at most
EACH_HEAD, EACH_TOKENS = 32, 80  # heads that are switched off one by one, and tokens of a text for that, at most
LAYER = re.compile(r"(.*)\.(?:blocks|layers|forward_layers|backward_layers)\.(\d+)\.layers")
Several = list[Mapping[str, Traced]]


def show_inside(
    view: View, predictor: Predictor, text: Any, given: Any, found: Mapping[str, Traced], decode: DecodeConfig
) -> None:
    """view.shown["lens"], ["vectors"] and ["switches"], as far as the model has them."""

    def vectors(text: str) -> View:
        show_vectors(other := View(), read_each(predictor, text, decode))
        return other

    show_lens(view, predictor, found)
    show_vectors(view, (BETWEEN in str(text) and read_each(predictor, str(text), decode)) or [found])
    view.questions["vectors"] = vectors
    show_switches(view, predictor, given, found, decode)


def show_lens(view: View, predictor: Predictor, found: Mapping[str, Traced]) -> None:
    """view.shown["lens"]: what the head says if it reads the embeddings, or the output of each layer."""
    model, task = predictor.model, predictor.recipe.task_kind
    if not found or task not in ("lm", "pretrain", "translate"):
        return
    body, head = model.body, model.words if task == "pretrain" else model.head
    stack = getattr(body, "decoder", None) or getattr(body, "stack", None)
    paths = {module: f"{path}.layers" for path, module in model.named_modules()}
    parts = [part for stage in body.stages()[1:] for part in stage if paths[part] in found]
    values = [found[paths[part]] for part in parts if stack is None or part in set(stack.modules())]
    entry = [one.value for name, one in found.items() if name.endswith("embeddings")][-1]
    recurrent = isinstance(stack, Recurrent)  # a decoder whose output follows from its state, its context and its input
    first = [] if recurrent or (stack is None and entry.shape != values[0].value.shape) else [entry]
    known, start, token = len(predictor.tokenizer), max(0, len(entry) - READ), predictor.tokenizer.token

    def read(x: Tensor, enters: bool) -> Any:
        x = x[start:].to(head.out.weight)
        if recurrent:
            y, c = found["body.decoder.layers.0.inputs"].value[start:].to(x).split([entry.size(1), x.size(1)], dim=-1)
            x = body.output(x, c, y)
        elif isinstance(stack, ConvStack):
            x = stack.out(stack.norm(stack.into(x) if enters else x))
        elif stack is not None:
            x = stack.norm(x)
        return head(x)[:, :known].float().softmax(-1).cpu().topk(min(WORDS, known))

    @cache
    def top() -> list[Any]:
        with torch.inference_mode(), predictor.lock:
            return [read(x, i < len(first)) for i, x in enumerate([*first, *(one.value for one in values)])]

    shape = (len(first) + len(values), len(entry) - start, min(WORDS, known))
    view.shown["lens"] = {
        "layers": [*(["embeddings"] * len(first)), *(f"layer {i + 1}" for i in range(len(values)))],
        "tokens": values[0].axes[0].labels[start:],
        "start": start,
        "next": task != "pretrain",
        "recurrent": recurrent,
        "p": view.put("lens.p", lambda: torch.stack([best.values for best in top()]), shape=shape),
        "words": view.put("lens.words", lambda: [token(i) for best in top() for i in best.indices.flatten()], "json"),
    }


def layered(found: Mapping[str, Traced]) -> dict[str, tuple[list[str], dict[str, Tensor]]]:
    """Of each text that the model reads: its tokens, and their vectors (T, D) by layer."""
    sides: dict[str, tuple[list[str], dict[str, Tensor]]] = {}
    for name, (value, axes) in found.items():
        match = LAYER.fullmatch(name)
        if not (match or name.endswith("embeddings")) or (match and "_layers." in match[1]) or value.dim() != 2:
            continue
        place = re.match(r"body\.(?:(encoder|source)|decoder|target)", name)
        side = "text" if place is None else "source" if place[1] else "answer so far"
        _, layers = sides.setdefault(side, (axes[0].labels or [str(i + 1) for i in range(len(value))], {}))
        layer = "reader" if name.startswith("reader.") else f"layer {int(match[2]) + 1}" if match else "embeddings"
        if layer in layers:  # the backward direction
            layers["embeddings"] = torch.cat([layers["embeddings"][:, : value.size(1)]] * 2, -1)
            value = torch.cat([layers[layer], value], -1)
        layers[layer] = value
    return sides


def show_vectors(view: View, several: Several) -> None:
    """view.shown["vectors"]: cosines of the tokens of texts in each layer, and of a token with itself in others."""
    texts, view.shown["vectors"] = [layered(found) for found in several], []
    for side in texts[0] if texts else ():
        tokens = [(token, number) for number, one in enumerate(texts) for token in one[side][0]]
        layers = {name: torch.cat([one[side][1][name] for one in texts])[:TOKENS] for name in texts[0][side][1]}
        size, key = min(TOKENS, len(tokens)), f"vectors.{side}"
        if len(layers) < 2 or any(len(layer) != size for layer in layers.values()):
            continue
        shape, own = (size, len(layers), len(layers)), partial(own_cosines, list(layers.values()))
        each = [
            view.put(f"{key}.{name}", partial(cosines, x), shape=(size, size), optional=True)
            for name, x in layers.items()
        ]
        shown = {"title": side, "layers": [*layers], "cosines": each, "cut": size < len(tokens)}
        shown |= {"tokens": [token for token, _ in tokens[:size]], "of": [number for _, number in tokens[:size]]}
        view.shown["vectors"].append(shown | {"own": view.put(f"{key}.own", own, shape=shape)})


def cosines(vectors: Tensor) -> Tensor:
    """(N, D) -> (N, N)"""
    unit = F.normalize(vectors.float(), dim=-1)
    return unit @ unit.T


def own_cosines(layers: list[Tensor]) -> Tensor:
    """L tensors (N, D) -> (N, L, L); between layers of different widths there is none."""
    none = torch.full((len(layers[0]),), torch.nan)
    rows = [[F.cosine_similarity(a, b) if a.shape == b.shape else none for b in layers] for a in layers]
    return torch.stack([torch.stack(row, -1) for row in rows], 1)


def read_each(predictor: Predictor, text: str, decode: DecodeConfig) -> Several:
    """What the model computes for each of several texts by itself; nothing if it cannot read them so."""
    sides = [side.strip() for side in text.split(BETWEEN) if side.strip()]
    try:
        return [predictor.trace(predictor.read(side, decode), decode, ("embeddings", "layers")) for side in sides]
    except UserError:
        return []


def show_switches(
    view: View, predictor: Predictor, given: Any, found: Mapping[str, Traced], decode: DecodeConfig
) -> None:
    """view.shown["switches"]: the answer with all heads, and what becomes of it without each of them."""
    weights = traced(found, "weights")
    parts = [path for path, part in predictor.model.named_modules() if isinstance(part, Attention | ConvAttention)]
    attentions = {path: len(weights[path].value) for path in parts if path in weights}
    heads = [(path, head) for path in attentions for head in range(attentions[path])]
    if not heads or not (rows := predictor.says(given, decode, Without(found=found))):
        return

    def without(off: dict[str, list[int]]) -> list[Said]:
        if any(not 0 <= head < attentions[path] for path, several in off.items() for head in several):
            raise IndexError
        return predictor.says(given, decode, Without(off, found))

    def each() -> Tensor:
        """What the best of each row keeps without each head."""
        alone = [without({path: [head]}) for path, head in heads]
        return torch.tensor([[float(now.p[full.p.argmax()]) for now, full in zip(one, rows)] for one in alone])

    def answer(off: dict[str, list[int]], ids: list[list[int]]) -> View:
        """What the model says without these heads, and the probabilities of these tokens."""
        other, pairs = View(), zip(without(off), ids)
        other.shown["rows"] = [{"likely": one.likely(LISTED), "p": one.p[own].tolist()} for one, own in pairs]
        return other

    tokens = max(weights[path].value.size(-1) for path in attentions)
    quick = len(heads) <= EACH_HEAD and tokens <= EACH_TOKENS
    view.shown["switches"] = {
        "attentions": [{"path": path, "heads": several} for path, several in attentions.items()],
        "rows": [{"token": one.where, "likely": one.likely(LISTED)} for one in rows],
        "each": view.put("switches.each", each, shape=(len(heads), len(rows))) if quick else None,
    }
    view.questions["off"] = answer


def show_positions(view: View, model: nn.Module) -> None:
    """view.shown["positions"]: the tables of positions; of rotary ones, the cosines and the sines of the angles."""
    found: dict[Any, tuple[str, str, Tensor]] = {}
    for path, part in model.named_modules():
        if isinstance(part, Sinusoidal):
            found["sinusoidal", part.width] = path, "sinusoidal", part.table
        elif isinstance(part, Rotary):
            found["rotary", part.head_width] = path, "rotary", torch.cat(list(part.table), -1)
        elif isinstance(part, Learned):
            found[path] = path, "learned", part.table.weight
        elif re.fullmatch(r"body\.(positions|rows|columns)", path) and isinstance(part, nn.Embedding):
            found[path] = path, "learned", part.weight  # of captions, and of the codes of images
    view.shown["positions"] = []
    for path, kind, table in found.values():
        rows, side = min(len(table), ROWS), round((len(table) - 1) ** 0.5)
        grid = side if path.endswith("patches.positions") and side**2 + 1 == rows else None
        shown = {"path": path, "kind": kind, "grid": grid, "all": len(table) if kind == "learned" else None}
        view.shown["positions"].append(shown | {"table": view.put(f"positions.{path}", table[:rows], optional=True)})
