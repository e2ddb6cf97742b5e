"""Models as graphs that another runtime can run: tensors in, tensors out. A cache goes in and comes out longer."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.models.base import Model, Writer
from allyouneed.models.bert import Bert, BertBody
from allyouneed.models.embedder import Embedder
from allyouneed.models.gpt import GPT
from allyouneed.models.labeller import Labeller
from allyouneed.models.transformer import Transformer
from allyouneed.models.vit import Patches, ViTBody, cut_patches
from allyouneed.nn.block import Stack
from allyouneed.nn.layers import Embedding
from allyouneed.nn.masks import Prepared
from allyouneed.nn.positions import Rotary, Sinusoidal, sinusoid

NEVER = -1e9  # the logit of a token that is never chosen
BATCH, TIME = "batch", "time"
Axes = dict[str, list[str | int]]  # the axes of each tensor: their names, or the one size that they have


@dataclass(frozen=True)
class Graph:
    """One file: a module, tensors to trace it with, and the names of its inputs and outputs with their axes."""

    module: nn.Module
    example: tuple[Tensor, ...]
    inputs: Axes
    outputs: Axes


Session = Callable[..., list[Tensor]]  # tensors in, tensors out
# Runs the graphs, by the names of their files; gives pairs of what they compute and what the model computes.
Check = Callable[[dict[str, Session]], Iterator[tuple[Tensor, Tensor]]]


class Computed(nn.Module):
    """Positions without a table: for any length."""

    def __init__(self, compute: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.compute = compute

    def forward(self, positions: Tensor, room: int) -> Any:
        return self.compute(positions)


class RMS(nn.Module):
    """RMSNorm in operations that ONNX has had for long."""

    def __init__(self, old: nn.RMSNorm) -> None:
        super().__init__()
        self.weight, self.eps = old.weight, old.eps or 0.0

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class OneSize(nn.Module):
    """The patches of pictures of one size, with their positions as a table."""

    positions: Tensor

    def __init__(self, old: Patches) -> None:
        super().__init__()
        c = old.config
        self.patch, self.into, self.cls = c.patch, old.into, old.cls
        black = torch.zeros(1, c.channels, c.image, c.image)
        alone = torch.cat([old.cls[None], old.into.bias.expand(c.tokens - 1, -1)])
        self.register_buffer("positions", (old(black)[0] - alone).detach())

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.into(cut_patches(pixels, self.patch))
        return torch.cat([self.cls.expand(x.size(0), 1, -1), x], dim=1) + self.positions


REPLACED: dict[type[nn.Module], Callable[[Any], nn.Module]] = {
    Sinusoidal: lambda old: Computed(lambda positions: sinusoid(positions, old.width, old.layout)),
    Rotary: lambda old: Computed(lambda positions: old._angles(positions).unbind()),
    nn.RMSNorm: RMS,
    Patches: OneSize,
}


def _traceable(model: Model) -> Any:
    """A copy with the same weights, in which nothing depends on a length at the time of tracing."""
    made = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    for module in list(made.modules()):
        for name, part in list(module.named_children()):
            if type(part) in REPLACED:
                setattr(module, name, REPLACED[type(part)](part))
    return made


class Past:
    """The keys and values of one layer, which grow: what a Block writes to in the place of a LayerCache."""

    def __init__(self, k: Tensor, v: Tensor) -> None:
        self.k, self.v = k, v

    def write(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k, self.v = torch.cat([self.k, k], dim=2), torch.cat([self.v, v], dim=2)
        return self.k, self.v


class Decoder(nn.Module):
    """ids (B, T) after a past of P tokens -> their logits (B, T, V), and the past with them. The past are keys and
    values (B, L, Hkv, P, K); all rows have the same length. The memory of a translator are keys and values
    (B, L, Hkv, S, K) and where they are real (B, S)."""

    def __init__(self, embedding: Embedding, stack: Stack, head: nn.Module, known: int, barred: int) -> None:
        super().__init__()
        self.embedding, self.stack, self.head, self.known, self.barred = embedding, stack, head, known, barred

    def forward(self, ids: Tensor, keys: Tensor, values: Tensor, *memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        before, time = keys.size(3), ids.size(1)
        at = torch.arange(time) + before
        mask = Prepared((torch.arange(before + time) <= at[:, None])[None, None])  # (1, 1, T, P + T)
        others = Prepared(memory[2][:, None, None]) if memory else Prepared()
        rotary = self.stack.rotary(at, 1) if self.stack.rotary is not None else None
        x, pasts = self.embedding(ids, at, 1), []
        for i, block in enumerate(self.stack.blocks):
            source = (memory[0][:, i], memory[1][:, i]) if memory else None
            pasts.append(Past(keys[:, i], values[:, i]))
            x = block(x, mask, memory=source, memory_mask=others, rotary=rotary, cache=pasts[i])
        logits = self.head(self.stack.norm(x))[..., : self.known]
        if self.barred >= 0:
            logits = logits.masked_fill(torch.arange(self.known) == self.barred, NEVER)
        return logits, torch.stack([past.k for past in pasts], 1), torch.stack([past.v for past in pasts], 1)

    def past(self, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
        cache = self.stack.empty_cache(rows, tokens, torch.zeros(()))
        return cache.parts["k"], cache.parts["v"]


class Encoder(nn.Module):
    """source (B, S), right-padded, and lengths (B,) -> the keys and values for every layer of the decoder, and where
    they are real."""

    def __init__(self, body: Any) -> None:
        super().__init__()
        self.body = body

    def forward(self, source: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.body.decoder.encode_source(self.body.encode(source, lengths), lengths)
        return found["k"], found["v"], found["real"]


def _cache_axes(stack: Stack, time: str, name: str) -> Axes:
    k, v = (t.shape for t in stack.empty_cache(1, 0, torch.zeros(())).parts.values())
    return {f"{name}{kind}": [BATCH, t[1], t[2], time, t[4]] for kind, t in (("keys", k), ("values", v))}


def _decoder_graph(made: Decoder, limit: int | None, memory: tuple[Tensor, ...] = ()) -> Graph:
    rows, time = 2, min(2, limit or 2)
    past = made.past(rows, 2 if limit is None else min(2, limit - time))
    inputs: Axes = {"ids": [BATCH, TIME], **_cache_axes(made.stack, "past", "past_")}
    if memory:
        inputs |= {**_cache_axes(made.stack, "source", "memory_"), "memory_real": [BATCH, "source"]}
    outputs: Axes = {"logits": [BATCH, TIME, made.known], **_cache_axes(made.stack, "all", "")}
    return Graph(made, (torch.zeros(rows, time, dtype=torch.long), *past, *memory), inputs, outputs)


def _stepwise(made: Decoder, decoder: Session, ids: Tensor, first: int, memory: tuple[Tensor, ...] = ()) -> Tensor:
    """The logits (B, T, V) of a graph that reads the first tokens at once, and then one after another."""
    logits, *past = decoder(ids[:, :first], *made.past(len(ids), 0), *memory)
    found = [logits]
    for i in range(first, ids.size(1)):
        logits, *past = decoder(ids[:, i : i + 1], *past, *memory)
        found.append(logits)
    return torch.cat(found, dim=1)


def _choices(model: Writer, logits: Tensor) -> Tensor:
    """Logits (B, T, V) as a search sees them."""
    logits = logits[..., : model.known or None]
    if model.barred >= 0:
        logits[..., model.barred] = NEVER
    return logits


SIZES = ((1, 1, 1), (1, 5, 2), (3, 9, 1), (2, 12, 12))  # rows, tokens, tokens that are read at once


def gpt_graphs(model: GPT) -> tuple[dict[str, Graph], Check]:
    copied, known, limit = _traceable(model), model.known or model.config.vocab, model.limit
    made = Decoder(copied.body.embedding, copied.body.stack, copied.head, known, model.barred)

    def check(sessions: dict[str, Session]) -> Iterator[tuple[Tensor, Tensor]]:
        for rows, tokens, first in SIZES:
            ids = torch.randint(known, (rows, min(tokens, limit or tokens)))
            yield _stepwise(made, sessions["decoder.onnx"], ids, first), _choices(model, model(ids))

    return {"decoder.onnx": _decoder_graph(made, limit)}, check


def translator_graphs(model: Transformer) -> tuple[dict[str, Graph], Check]:
    copied, known, limit = _traceable(model), model.known or model.config.target_vocab, model.limit
    encoder = Encoder(copied.body)
    made = Decoder(copied.body.target, copied.body.decoder, copied.head, known, model.barred)
    source = torch.zeros(2, min(3, limit or 3), dtype=torch.long), torch.tensor([1, min(3, limit or 3)])
    outputs: Axes = {**_cache_axes(made.stack, "source", "memory_"), "memory_real": [BATCH, "source"]}
    inputs: Axes = {"source": [BATCH, "source"], "lengths": [BATCH]}
    graphs = {"encoder.onnx": Graph(encoder, source, inputs, outputs)}
    graphs["decoder.onnx"] = _decoder_graph(made, limit, encoder(*source))

    def check(sessions: dict[str, Session]) -> Iterator[tuple[Tensor, Tensor]]:
        for rows, tokens, first in SIZES:
            tokens = min(tokens, limit or tokens)
            source, lengths = _texts(model.config.vocab, rows, tokens)
            ids = torch.randint(known, (rows, tokens))
            memory = tuple(sessions["encoder.onnx"](source, lengths))
            found = _stepwise(made, sessions["decoder.onnx"], ids, first, memory)
            yield found, _choices(model, model(source, lengths, ids))

    return graphs, check


def _texts(vocab: int, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Random ids, and lengths of which the first is that of the longest row."""
    lengths = torch.randint(min(4, tokens), tokens + 1, (rows,))
    lengths[0] = tokens
    return torch.randint(vocab, (rows, tokens)), lengths


class Reader(nn.Module):
    """A model that reads whole texts or pictures, with its tensors one after another."""

    def __init__(self, model: Any, names: list[str], tokens: int) -> None:
        super().__init__()
        self.model, self.names, self.tokens = model, names, tokens

    def forward(self, *given: Tensor) -> Any:
        tensors = dict(zip(self.names, given))
        if "pixels" in tensors:  # each picture has as many patches
            tensors["lengths"] = torch.full((given[0].size(0),), self.tokens)
        found = self.model(tensors)
        return found[0] if isinstance(self.model, Bert) and self.model.next is None else found


def reader_graphs(model: Bert | Labeller | Embedder, config: Any) -> tuple[dict[str, Graph], Check]:
    pictures = isinstance(model.body, ViTBody)
    inputs: Axes = {"ids": [BATCH, TIME], "lengths": [BATCH]}
    if pictures:
        inputs = {"pixels": [BATCH, config.channels, config.image, config.image]}
    elif isinstance(model.body, BertBody) and not isinstance(model, Embedder) and config.segments > 1:
        inputs["segments"] = [BATCH, TIME]
    tokens = config.tokens if pictures else 0
    made, whole = (Reader(each, list(inputs), tokens) for each in (_traceable(model), model))

    def sample(rows: int, tokens: int) -> tuple[Tensor, ...]:
        if pictures:
            return (torch.randint(256, (rows, *inputs["pixels"][1:]), dtype=torch.uint8),)  # type: ignore[arg-type]
        ids, lengths = _texts(config.vocab, rows, min(tokens, model.limit or tokens))
        return (ids, lengths, torch.randint(config.segments, ids.shape)) if "segments" in inputs else (ids, lengths)

    def check(sessions: dict[str, Session]) -> Iterator[tuple[Tensor, Tensor]]:
        for rows, size in ((1, 4), (1, 5), (3, 9), (2, 12)):
            given = sample(rows, size)
            wanted = whole(*given)
            for found, value in zip(sessions["model.onnx"](*given), wanted if isinstance(wanted, tuple) else (wanted,)):
                if not pictures and value.dim() == 3:  # what stands in the padding means nothing
                    real = torch.arange(value.size(1)) < given[1][:, None]
                    found, value = found[real], value[real]
                yield found, value

    example = sample(2, 6)
    return {"model.onnx": Graph(made, example, inputs, _outputs(model, made(*example)))}, check


def _outputs(model: Bert | Labeller | Embedder, made: Any) -> Axes:
    """The outputs with their axes, from those of an example."""
    if isinstance(made, tuple):
        words, follows = made
        return {"words": [BATCH, TIME, words.size(-1)], "follows": [BATCH, follows.size(-1)]}
    name = "vectors" if isinstance(model, Embedder) else "words" if isinstance(model, Bert) else "logits"
    return {name: [BATCH, made.size(-1)] if made.dim() == 2 else [BATCH, TIME, made.size(-1)]}
