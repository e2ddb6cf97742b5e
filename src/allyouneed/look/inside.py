"""Inside: what each layer would say, the vectors of the tokens, the answer without some heads, and the positions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.look.view import View
from allyouneed.look.vocabulary import nearest
from allyouneed.nn.attention import Attention
from allyouneed.nn.convolution import ConvAttention, ConvStack
from allyouneed.nn.positions import Learned, Rotary, Sinusoidal
from allyouneed.predict.base import Predictor, Traced, best_of
from allyouneed.predict.inputs import BETWEEN

KINDS = ("weights", "embeddings", "layers", "logits")  # what is traced for a page
WORDS = 5  # of each layer, at each position
READ = 128  # positions at which each layer is read, at most: the last ones
TOKENS = 256  # whose vectors are compared, at most
ROWS = 256  # positions of a table that are shown, at most
LISTED = 10  # predictions of an answer
EACH_HEAD, EACH_TOKENS = 32, 80  # heads that are switched off one by one, and tokens of a text for that, at most
LAYER = re.compile(r"(.*)\.(?:blocks|layers|forward_layers|backward_layers)\.(\d+)\.layers")
SAYS = (
    "lm",
    "pretrain",
    "translate",
    "classify",
    "tag",
    "recognize",
)  # tasks that give probabilities of words or labels


def show_inside(
    view: View, predictor: Predictor, text: Any, given: Any, found: Mapping[str, Traced], decode: DecodeConfig
) -> None:
    """view.shown["lens"], ["vectors"] and ["switches"], as far as the model has them."""
    show_lens(view, predictor, found)
    show_vectors(view, [found] if BETWEEN not in str(text) else _each(predictor, str(text), decode) or [found])
    show_switches(view, predictor, given, found, decode)


# What each layer would say


def show_lens(view: View, predictor: Predictor, found: Mapping[str, Traced]) -> None:
    """view.shown["lens"]: the likely words, if the head read the embeddings, or the output of each layer."""
    model, task = predictor.model, predictor.recipe.task_kind
    body = model.body if task in ("lm", "pretrain", "translate") else None
    stack = getattr(body, "decoder", None) or getattr(body, "stack", None)
    if (
        not found or body is None or (task == "translate" and not hasattr(stack, "blocks"))
    ):  # its output has more than its layers
        return
    paths = {module: path for path, module in model.named_modules()}
    parts = [part for stage in body.stages()[1:] for part in stage if f"{paths[part]}.layers" in found]
    if stack is not None:
        parts = [part for part in parts if part in set(stack.blocks)]
    values = [found[f"{paths[part]}.layers"] for part in parts]
    entry = [one for name, one in found.items() if name.endswith("embeddings")][-1].value
    head = model.words if task == "pretrain" else model.head
    weight, known = head.out.weight, len(predictor.tokenizer)
    start = max(0, len(entry) - READ)

    def read(x: Tensor, first: bool = False) -> Tensor:
        """(T, D) -> the probabilities of the words (T, V)"""
        x = x[start:].to(weight)
        if isinstance(stack, ConvStack):
            x = stack.out(stack.norm(stack.into(x) if first else x))
        elif stack is not None:
            x = stack.norm(x)
        return head(x)[:, :known].float().softmax(-1).cpu()

    readable = [*([entry] if stack is not None or entry.size(-1) == values[0].value.size(-1) else [])]

    @cache
    def top() -> tuple[Tensor, Tensor]:
        with torch.inference_mode(), predictor.lock:
            rows = [read(x, True) for x in readable] + [read(one.value) for one in values]
            best = [p.topk(min(WORDS, known)) for p in rows]
        return torch.stack([b.values for b in best]), torch.stack([b.indices for b in best])

    shape = (len(readable) + len(values), len(entry) - start, min(WORDS, known))
    labels = found[f"{paths[parts[0]]}.layers"].axes[0].labels
    view.shown["lens"] = {
        "layers": [*(["embeddings"] if readable else []), *(f"layer {i + 1}" for i in range(len(values)))],
        "tokens": labels[start:],
        "start": start,
        "next": task != "pretrain",
        "p": view.numbers("lens.p", shape, lambda: top()[0]),
        "words": view.values("lens.words", lambda: [predictor.tokenizer.token(i) for i in top()[1].flatten().tolist()]),
    }


# Vectors


def layered(found: Mapping[str, Traced]) -> dict[str, tuple[list[str], dict[str, Tensor]]]:
    """The tokens, and their vectors (T, D) by layer, of each text that the model reads."""
    sides: dict[str, tuple[list[str], dict[str, Tensor]]] = {}
    for name, one in found.items():
        match = LAYER.fullmatch(name)
        if (match is None and not name.endswith("embeddings")) or (match and "_layers." in match[1]):
            continue
        side = "source" if re.match(r"body\.(encoder|source)", name) else "text"
        if re.match(r"body\.(decoder|target)", name):
            side = "answer so far"
        tokens, layers = sides.setdefault(side, ([], {}))
        if one.value.dim() != 2:
            continue
        tokens[:] = one.axes[0].labels or [str(i + 1) for i in range(len(one.value))]
        layer = "embeddings" if match is None else f"layer {int(match[2]) + 1}"
        if name.startswith("reader."):
            layer = "reader"
        if "backward_layers" in name:  # of two directions, as the body gives them
            layers["embeddings"] = torch.cat([layers["embeddings"][:, : one.value.size(1)]] * 2, -1)
            layers[layer] = torch.cat([layers[layer], one.value], -1)
        else:
            layers[layer] = one.value
    return sides


def show_vectors(view: View, several: list[Mapping[str, Traced]]) -> None:
    """view.shown["vectors"]: cosines of the tokens of texts in each layer, and of a token with itself in others."""
    texts = [layered(found) for found in several]
    view.shown["vectors"] = []
    for side in texts[0] if texts else ():
        tokens = [(token, number) for number, one in enumerate(texts) for token in one[side][0]][:TOKENS]
        names = list(texts[0][side][1])
        layers = {name: torch.cat([one[side][1][name] for one in texts])[:TOKENS] for name in names}
        key = f"vectors.{len(view.shown['vectors'])}"
        if len(names) < 2 or len({len(layer) for layer in layers.values()}) > 1:
            continue
        size = len(tokens)
        view.shown["vectors"].append(
            {
                "title": side,
                "tokens": [token for token, _ in tokens],
                "of": [number for _, number in tokens],
                "cut": sum(len(one[side][0]) for one in texts) > size,
                "layers": names,
                "cosines": [
                    view.numbers(f"{key}.{i}", (size, size), partial(cosines, layer), optional=True)
                    for i, layer in enumerate(layers.values())
                ],
                "own": view.numbers(
                    f"{key}.own", (size, len(names), len(names)), partial(own_cosines, list(layers.values()))
                ),
            }
        )


def cosines(vectors: Tensor) -> Tensor:
    """(N, D) -> (N, N)"""
    unit = F.normalize(vectors.float(), dim=-1)
    return unit @ unit.T


def own_cosines(layers: list[Tensor]) -> Tensor:
    """L tensors (N, D) -> (N, L, L); between layers of different widths there is none."""
    found = torch.full((len(layers[0]), len(layers), len(layers)), torch.nan)
    for i, a in enumerate(layers):
        for j, b in enumerate(layers):
            if a.size(-1) == b.size(-1):
                found[:, i, j] = F.cosine_similarity(a.float(), b.float(), dim=-1)
    return found


def _each(predictor: Predictor, text: str, decode: DecodeConfig) -> list[Mapping[str, Traced]]:
    """What the model computes for each of several texts by itself; nothing if it cannot read them so."""
    sides = [side.strip() for side in text.split(BETWEEN) if side.strip()]
    try:
        return [predictor.trace(predictor.read(side, decode), decode, ("embeddings", "layers")) for side in sides]
    except UserError:
        return []


# The answer without some heads


def show_switches(
    view: View, predictor: Predictor, given: Any, found: Mapping[str, Traced], decode: DecodeConfig
) -> None:
    """view.shown["switches"]: the answer with all heads, and what it becomes without each of them."""
    attentions = {path: len(found[f"{path}.weights"].value) for path in _attentions(predictor.model, found)}
    rows = said(predictor, found)
    if not attentions or not rows:
        return
    best = [int(p.argmax()) for _, p in rows]
    heads = [(path, head) for path, several in attentions.items() for head in range(several)]

    def without(path: str, head: int) -> list[float]:
        left = said(predictor, predictor.trace(given, decode, ("logits",), {path: [head]}))
        return [float(p[id]) for (_, p), id in zip(left, best)]

    tokens = max(one.value.size(-1) for name, one in found.items() if name.endswith(".weights"))
    quick = len(heads) <= EACH_HEAD and tokens <= EACH_TOKENS
    each = partial(view.numbers, "switches.each", (len(heads), len(rows)))
    view.shown["switches"] = {
        "attentions": [{"path": path, "heads": several} for path, several in attentions.items()],
        "rows": [{"token": token, "likely": _likely(predictor, p)} for token, p in rows],
        "each": each(lambda: torch.tensor([without(*head) for head in heads])) if quick else None,
    }


def said(predictor: Predictor, found: Mapping[str, Traced]) -> list[tuple[str, Tensor]]:
    """Where the model says something, and the probabilities of what: of the next word, of the words of each [MASK] or
    of a translation, or of labels."""
    logits = next((one for name, one in found.items() if name.endswith("logits")), None)
    task = predictor.recipe.task_kind
    if logits is None or task not in SAYS:
        return []
    if predictor.labels:
        p = logits.value.softmax(-1)
        return list(zip(logits.axes[0].labels, p)) if p.dim() > 1 else [("", p)]
    p, tokens = logits.value[:, : len(predictor.tokenizer)].softmax(-1), logits.axes[0].labels
    if task == "pretrain":
        mask = predictor.tokenizer.token(predictor.tokenizer.need("mask", "to find hidden words"))
        return [(token, row) for token, row in zip(tokens, p) if token == mask]
    return list(zip(tokens, p)) if task == "translate" else [(tokens[-1], p[-1])]


def _likely(predictor: Predictor, p: Tensor) -> list[tuple[str, float, int]]:
    name: Callable[[int], str] = predictor.labels.__getitem__ if predictor.labels else predictor.tokenizer.token
    return [(name(i), value, i) for i, value in best_of(p, LISTED)]


def _attentions(model: nn.Module, paths: Any) -> list[str]:
    """The attentions whose heads can be switched off."""
    kinds = Attention, ConvAttention
    return [path for path, part in model.named_modules() if isinstance(part, kinds) and f"{path}.weights" in paths]


# Positions


def show_positions(view: View, model: nn.Module) -> None:
    """view.shown["positions"]: the tables of positions; of rotary ones, the cosines and the sines of the angles."""
    tables: dict[tuple[Any, ...], tuple[str, str, Tensor]] = {}
    for path, part in model.named_modules():
        if isinstance(part, Learned):
            tables[(path,)] = path, "learned", part.table.weight
        elif isinstance(part, Sinusoidal):
            tables[("sinusoidal", part.width, part.layout)] = path, "sinusoidal", part.table
        elif isinstance(part, Rotary):
            tables[("rotary", part.head_width, part.base)] = path, "rotary", torch.cat(list(part.table), -1)
        elif re.search(r"body\.(positions|rows|columns)$", path) and isinstance(part, nn.Embedding):
            tables[(path,)] = path, "learned", part.weight  # of captions, and of the codes of images
    view.shown["positions"] = []
    for number, (path, kind, table) in enumerate(tables.values()):
        rows, side = min(len(table), ROWS), round((len(table) - 1) ** 0.5)
        view.shown["positions"].append(
            {
                "path": path,
                "kind": kind,
                "all": len(table) if kind == "learned" else None,
                "grid": side if path.endswith("patches.positions") and side**2 + 1 == rows else None,
                "table": view.numbers(
                    f"positions.{number}", (rows, table.size(1)), partial(table.narrow, 0, 0, rows), True
                ),
            }
        )


# What a live page asks for


def ask(predictor: Predictor, text: str, question: str, decode: DecodeConfig) -> View:
    """The answer to a question of a page, as JSON: {"what": "off", "off": [[path, head]], "ids": …} is the answer
    without these heads; "vectors", the cosines of several texts; "near", the words nearest to one."""
    view = View()
    try:
        asked = json.loads(question)
        if asked["what"] == "near":
            view.shown["near"] = nearest(predictor, int(asked["table"]), int(asked["row"]))
        elif asked["what"] == "vectors":
            show_vectors(view, _each(predictor, text, decode))
            for side in view.shown["vectors"]:  # few tokens: their numbers are sent at once
                for refs in (side["cosines"], [side["own"]]):
                    for ref in refs:
                        ref["values"] = torch.frombuffer(
                            bytearray(view.pieces.pop(ref["piece"])()), dtype=torch.float32
                        ).tolist()
        else:
            off: dict[str, list[int]] = {}
            parts = dict(predictor.model.named_modules())
            for path, head in asked["off"]:
                if not 0 <= int(head) < getattr(parts[path], "heads", 1):
                    raise KeyError
                off.setdefault(path, []).append(int(head))
            rows = said(predictor, predictor.trace(predictor.read(text, decode), decode, ("logits",), off))
            view.shown["rows"] = [
                {"token": token, "likely": _likely(predictor, p), "p": [float(p[int(i)]) for i in ids]}
                for (token, p), ids in zip(rows, asked["ids"])
            ]
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise UserError("the page asks for what this run does not have: load the page again") from error
    return view
