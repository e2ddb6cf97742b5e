"""A run -> ONNX graphs: tensors in, tensors out; a cache goes in and comes out longer. Each is compared with the model
before it counts as written."""

from __future__ import annotations

import copy
import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.errors import UserError
from allyouneed.models.base import Model, Writer
from allyouneed.models.bert import Bert, BertBody
from allyouneed.models.embedder import Embedder
from allyouneed.models.gpt import GPT, GPTBody
from allyouneed.models.labeller import Labeller
from allyouneed.models.transformer import Transformer
from allyouneed.models.vit import ViTBody
from allyouneed.nn.block import Stack
from allyouneed.nn.layers import Embedding
from allyouneed.nn.masks import Prepared
from allyouneed.nn.positions import Rotary, Sinusoidal, sinusoid
from allyouneed.storage.wholefile import write_bytes, write_json, writing
from allyouneed.terminal import Say
from allyouneed.version import __version__

OPSET = 18
LARGEST = 2**31 - 2**24  # bytes of weights: a file of ONNX ends at 2 GiB
ALLOWED = 1e-4  # difference of a value from the model's, if the largest value is 1 or smaller
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


# What stands in the place of `forward` in the trace: positions without a table, for any length, and RMSNorm in
# operations that ONNX has had for long.
FORWARD: dict[type[nn.Module], Callable[..., Any]] = {
    Sinusoidal: lambda self, positions, room: sinusoid(positions, self.width, self.layout),
    Rotary: lambda self, positions, room: self._angles(positions).unbind(),
    nn.RMSNorm: lambda self, x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + (self.eps or 0.0)) * self.weight,
}


def _traceable(model: Model) -> Any:
    """A copy with the same weights, in which nothing depends on a length at the time of tracing."""
    made = copy.deepcopy(model, {id(p): p for p in model.parameters()})
    for module in made.modules():
        if type(module) in FORWARD:
            module.forward = partial(FORWARD[type(module)], module)
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


def writer_graphs(model: GPT | Transformer) -> tuple[dict[str, Graph], Check]:
    """A decoder, and the encoder of a translator."""
    copied, limit, graphs = _traceable(model), model.limit, dict[str, Graph]()
    translates, body = isinstance(model, Transformer), copied.body
    known = model.known or (model.config.target_vocab if isinstance(model, Transformer) else model.config.vocab)
    embedding, stack = (body.target, body.decoder) if translates else (body.embedding, body.stack)
    made, memory, memory_axes = Decoder(embedding, stack, copied.head, known, model.barred), (), Axes()
    if translates:
        encoder, size = Encoder(body), min(3, limit or 3)
        source = torch.zeros(2, size, dtype=torch.long), torch.tensor([1, size])
        memory, memory_axes = encoder(*source), _cache_axes(stack, "source", "memory_")
        memory_axes["memory_real"] = [BATCH, "source"]
        inputs: Axes = {"source": [BATCH, "source"], "lengths": [BATCH]}
        graphs["encoder.onnx"] = Graph(encoder, source, inputs, memory_axes)
    time = min(2, limit or 2)
    past = made.past(2, 2 if limit is None else min(2, limit - time))
    example = (torch.zeros(2, time, dtype=torch.long), *past, *memory)
    inputs = {"ids": [BATCH, TIME], **_cache_axes(stack, "past", "past_"), **memory_axes}
    outputs: Axes = {"logits": [BATCH, TIME, known], **_cache_axes(stack, "all", "")}
    graphs["decoder.onnx"] = Graph(made, example, inputs, outputs)

    def check(sessions: dict[str, Session]) -> Iterator[tuple[Tensor, Tensor]]:
        for rows, tokens, first in SIZES:
            tokens = min(tokens, limit or tokens)
            given = _texts(model.config.vocab, rows, tokens) if translates else ()
            ids = torch.randint(known, (rows, tokens))
            memory = tuple(sessions["encoder.onnx"](*given)) if translates else ()
            yield _stepwise(made, sessions["decoder.onnx"], ids, first, memory), _choices(model, model(*given, ids))

    return graphs, check


def _texts(vocab: int, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
    """Random ids, and lengths of which the first is that of the longest row."""
    lengths = torch.randint(min(4, tokens), tokens + 1, (rows,))
    lengths[0] = tokens
    return torch.randint(vocab, (rows, tokens)), lengths


class Reader(nn.Module):
    """A model that reads whole texts or images, with its tensors one after another."""

    def __init__(self, model: Any, names: list[str], tokens: int) -> None:
        super().__init__()
        self.model, self.names, self.tokens = model, names, tokens

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        tensors = dict(zip(self.names, given))
        if "pixels" in tensors:  # each image has as many patches
            tensors["lengths"] = torch.full((given[0].size(0),), self.tokens)
        found = self.model(tensors)
        if not isinstance(self.model, Bert):
            return (found,)
        return found if self.model.next is not None else found[:1]


def reader_graphs(model: Bert | Labeller | Embedder, config: Any) -> tuple[dict[str, Graph], Check]:
    images = isinstance(model.body, ViTBody)
    inputs: Axes = {"ids": [BATCH, TIME], "lengths": [BATCH]}
    if images:
        inputs = {"pixels": [BATCH, config.channels, config.image, config.image]}
    elif isinstance(model.body, BertBody) and not isinstance(model, Embedder) and config.segments > 1:
        inputs["segments"] = [BATCH, TIME]
    tokens = config.tokens if images else 0
    made, whole = (Reader(each, list(inputs), tokens) for each in (_traceable(model), model))

    def sample(rows: int, tokens: int) -> tuple[Tensor, ...]:
        if images:
            return (torch.randint(256, (rows, *inputs["pixels"][1:]), dtype=torch.uint8),)  # type: ignore[arg-type]
        ids, lengths = _texts(config.vocab, rows, min(tokens, model.limit or tokens))
        return (ids, lengths, torch.randint(config.segments, ids.shape)) if "segments" in inputs else (ids, lengths)

    def check(sessions: dict[str, Session]) -> Iterator[tuple[Tensor, Tensor]]:
        for rows, size in ((1, 4), (1, 5), (3, 9), (2, 12)):
            given = sample(rows, size)
            for found, value in zip(sessions["model.onnx"](*given), whole(*given)):
                if not images and value.dim() == 3:  # what stands in the padding means nothing
                    real = torch.arange(value.size(1)) < given[1][:, None]
                    found, value = found[real], value[real]
                yield found, value

    example = sample(2, 6)
    first = "vectors" if isinstance(model, Embedder) else "words" if isinstance(model, Bert) else "logits"
    outputs = {  # (B, T, V) or (B, V)
        name: [*[BATCH, TIME][: value.dim() - 1], value.size(-1)]
        for name, value in zip((first, "follows"), made(*example))
    }
    return {"model.onnx": Graph(made, example, inputs, outputs)}, check


def packages(*names: str) -> list[Any]:
    """Optional packages, imported."""
    try:
        return [importlib.import_module(name) for name in names]
    except ImportError as error:
        raise UserError(f"this export needs other packages ({error}): pip install {' '.join(names)}") from None


def plain(model: Model) -> Model:
    """A copy of the model on the CPU with fp32 weights."""
    return copy.deepcopy(model).to("cpu", torch.float32)


def export_onnx(run: Any, folder: Path, say: Say) -> list[Path]:
    """Write the graphs of a run, its tokenizers and labels, and config.json into an empty folder; returns the files. A
    graph that gives other numbers than the model is an error.

    lm: decoder.onnx. translate: encoder.onnx and decoder.onnx. All others: model.onnx."""
    model = plain(run.model)
    with torch.random.fork_rng(devices=[]), torch.no_grad():  # the same inputs in every check
        torch.manual_seed(0)
        if isinstance(model, GPT | Transformer):
            graphs, check = writer_graphs(model)
        elif isinstance(model, Bert | Labeller | Embedder) and isinstance(model.body, BertBody | GPTBody | ViTBody):
            graphs, check = reader_graphs(model, run.processor.model_config())
        else:
            raise UserError(
                f"a run of the model {run.recipe.model_kind} for the task {run.recipe.task_kind} cannot be written as "
                "ONNX; runs of gpt, transformer, bert and vit can"
            )
        packages("onnx", "onnxruntime")
        size = sum(4 * p.numel() for p in model.parameters())
        if size > LARGEST:
            raise UserError(f"the weights take {size / 2**30:.1f} GiB; a file of ONNX holds less than 2 GiB")
        for name, graph in graphs.items():
            _trace(graph, folder / name)
        _compare({name: _session(folder / name) for name in graphs}, check, say)
    for name, data in run.processor.parts().items():
        write_bytes(folder / name, data)
    write_json(folder / "config.json", _config(run, graphs))
    return sorted(folder.iterdir())


def _config(run: Any, graphs: dict[str, Graph]) -> dict[str, Any]:
    tokens: dict[str, Any] = {"ends": list(getattr(run.processor, "ends", ()))}
    if run.processor.tokenizers:
        tokens |= {role: getattr(run.processor.tokenizer, role) for role in ("bos", "eos", "pad", "unk")}
    return {
        "made by": f"allyouneed {__version__}",
        "task": run.recipe.task_kind,
        "model": {"kind": run.recipe.model_kind, **asdict(run.processor.model_config())},
        "tokens": tokens,
        "graphs": {name: {"inputs": graph.inputs, "outputs": graph.outputs} for name, graph in graphs.items()},
    }


def _trace(graph: Graph, path: Path) -> None:
    """Write one graph. What depends on sizes is recorded in the graph itself; a test at other sizes follows, so the
    tracer need not warn. Nothing is folded: that would store a matrix twice that is also an embedding."""
    axes = graph.inputs | graph.outputs
    with warnings.catch_warnings(), writing(path):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph.module.eval(),
            graph.example,
            str(path),
            input_names=list(graph.inputs),
            output_names=list(graph.outputs),
            dynamic_axes={name: {i: a for i, a in enumerate(axes[name]) if isinstance(a, str)} for name in axes},
            opset_version=OPSET,
            do_constant_folding=False,
            dynamo=False,
        )


def open_graph(path: Path) -> Any:
    """A written graph, to be run on the CPU."""
    (runtime,) = packages("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # nothing is printed: what fails is raised
    return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _session(path: Path) -> Session:
    """Runs a written graph."""
    session = open_graph(path)
    names = [one.name for one in session.get_inputs()]

    def run(*tensors: Tensor) -> list[Tensor]:
        given = {name: tensor.numpy() for name, tensor in zip(names, tensors)}
        return [torch.from_numpy(found) for found in session.run(None, given)]

    return run


def _compare(sessions: dict[str, Session], check: Check, say: Say) -> None:
    worst, count = 0.0, 0
    for found, wanted in check(sessions):
        if found.shape != wanted.shape:
            raise UserError(f"ONNX gives values of the shape {tuple(found.shape)}, not {tuple(wanted.shape)}")
        scale = max(1.0, float(wanted.masked_fill(wanted == NEVER, 0).abs().max()))
        difference = float((found - wanted).abs().max()) / scale
        if not difference <= ALLOWED:  # NaN is no number to agree with
            raise UserError(f"ONNX gives other values than the model: they differ by {difference:.1g}")
        worst, count = max(worst, difference), count + 1
    say(f"ONNX gives the values of the model: {count} inputs, largest difference {worst:.1g}")
