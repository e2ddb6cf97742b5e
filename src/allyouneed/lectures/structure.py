"""Pictures of structure, drawn from the parts and the shapes of a model: of a run, or of the named sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, one_hot

from allyouneed.figures.diagram import Part, plot_columns, plot_heads, plot_unrolled
from allyouneed.lectures.base import Lecture
from allyouneed.models.base import Body, Model
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.transformer import Transformer, TransformerConfig
from allyouneed.nn.attention import Attention
from allyouneed.nn.block import Block, Stack
from allyouneed.nn.layers import FeedForward
from allyouneed.nn.masks import Mask
from allyouneed.nn.recurrent import Recurrent
from allyouneed.nn.trace import Trace

VOCAB, PAPER = 1000, 37_000  # words of the untrained models: nano, and base as in the paper
OPENED = (Body, Model, Stack, Block, nn.ModuleList, nn.Sequential)  # what is drawn part by part
MOST = 3  # shapes in a box


def show(lecture: Lecture) -> dict[str, Any]:
    """The model of a run, or nano and base without training: its parts, its heads, and what follows from shapes."""
    if lecture.run:
        model = lecture.trained("lm/gpt").model
        found = {"parts": show_parts(lecture, model, lecture.run, "parts")}
    else:
        model = GPT(GPTConfig(**GPT.sizes["nano"], vocab=VOCAB))
        with torch.device("meta"):  # only its shapes are needed
            base = Transformer(TransformerConfig(**Transformer.sizes["base"], vocab=PAPER, target_vocab=PAPER))
        found = {"parts": show_parts(lecture, model, "GPT nano", "parts")}
        found["base"] = show_parts(lecture, base, "the Transformer, base", "base")
    attention = next((part for part in (model if lecture.run else base).modules() if isinstance(part, Attention)), None)
    if attention is not None and not attention.parameter_free:
        found |= show_heads(lecture, attention)
    block = next((part for part in model.modules() if isinstance(part, Block) and not hasattr(part, "cross")), None)
    if block is not None and not block.attention.parameter_free:
        found |= {**show_block(lecture, block), **show_kernel(lecture, block.attention)}
    return {**found, **show_unrolled(lecture, model), **show_one_hot(lecture, model)}


# The parts of a model


def times(*sizes: int) -> str:
    return " × ".join(f"{size:,}" for size in sizes)


def shapes_of(module: nn.Module) -> list[tuple[str, tuple[int, ...]]]:
    """The matrices of a module: the last part of the path of each, and its shape."""
    named = ((name.removesuffix(".weight"), tuple(weight.shape)) for name, weight in module.named_parameters())
    return [("" if name == "weight" else name.rpartition(".")[2], shape) for name, shape in named if len(shape) > 1]


def describe(name: str, module: nn.Module, width: int) -> tuple[str, str, int, str]:
    """A name, the shapes of its weights, the width of what comes out, and the kind of box."""
    shapes = shapes_of(module)
    shown = ", ".join(f"{part} {times(*shape)}".strip() for part, shape in shapes[:MOST]) + ", …" * (len(shapes) > MOST)
    title = name.replace("_", " ")
    if isinstance(module, Attention):
        what = "attention to the source" if module.cross else "self-attention"
        return f"{what}, {module.heads} heads of {module.head_width}", shown, width, "attention"
    if isinstance(module, FeedForward):
        return title, shown, width, "feed_forward"
    if isinstance(module, Recurrent):
        return f"{title}: {module.cell}, {len(module.layers)} layers", shown, module.out_width, "state"
    if any(isinstance(part, nn.Embedding) for part in module.modules()):
        return title, shown, shapes[0][1][-1], "embedding"
    if "norm" in name:
        return "norm", f"{sum(weight.numel() for weight in module.parameters()):,} numbers", width, "norm"
    linear = [part for part in module.modules() if isinstance(part, nn.Linear)]
    return title, shown, linear[-1].out_features if linear else width, "other"


def in_order(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """The parts of a module; in a block the norm of each part is before it or after it, as it is computed."""
    parts = dict(module.named_children())
    if not isinstance(module, Block):
        return list(parts.items())
    names = [name for name in ("attention", "cross", "feed_forward") if name in parts]
    pairs = [[f"{name}_norm", name] if module.prenorm else [name, f"{name}_norm"] for name in names]
    return [(name, parts[name]) for pair in pairs for name in pair]


def parts_of(module: nn.Module, name: str, rows: str, width: int, group: str = "") -> Iterator[tuple[Part, int]]:
    """The boxes of a module from the first to the last, with the width of what comes out of each. Of several equal
    layers the first is drawn."""
    if not any(True for _ in module.parameters()):
        return
    if not isinstance(module, OPENED):
        title, weights, width, kind = describe(name, module, width)
        reads = f"m × {width:,}" if isinstance(module, Attention) and module.cross else ""
        added = ", residual added" if isinstance(module, Attention | FeedForward) else ""
        yield Part(title, weights, f"{rows} × {width:,}{added}", kind, group, reads), width
        return
    children = in_order(module)
    if isinstance(module, nn.ModuleList) and len(module) > 1 and len({str(shapes_of(part)) for part in module}) == 1:
        children, group = children[:1], f"× {len(module)}#{id(module)}"
    for child, part in children:
        for box, after in parts_of(part, name if child.isdigit() else child, rows, width, group):
            width = after
            yield box, width


def with_branches(boxes: list[Part]) -> list[Part]:
    """Heads that stand side by side on one body: those after the first say what they read."""
    names = [box.name for box in boxes]
    if {"pooler", "words", "next"} <= set(names):  # BERT: the pooler and what follows it read [CLS] alone
        pooler = boxes.pop(names.index("pooler"))
        *below, after = boxes
        pooler = replace(pooler, out=pooler.out.replace("n", "1"), enters="of the body: [CLS]")
        return [*below, pooler, replace(after, out=after.out.replace("n", "1"))]
    return [replace(box, enters="of the body: words") if box.name == "word head" else box for box in boxes]


def columns_of(model: nn.Module) -> list[tuple[str, str, list[Part]]]:
    """One column, or an encoder and a decoder."""
    body = getattr(model, "body", None)
    if not all(hasattr(body, part) for part in ("source", "target", "encoder", "decoder")):
        return [("input", "n tokens", with_branches([part for part, _ in parts_of(model, "", "n", 0)]))]
    assert isinstance(body, nn.Module)
    found = []
    first = {name: part for name, part in body.named_children() if name in ("source", "encoder")}
    own = {name: part for name, part in body.named_children() if name not in first}
    rest = {name: part for name, part in model.named_children() if part is not body}
    for name, rows, parts in (("source", "m", first), ("target", "n", own | rest)):
        width, boxes = 0, list[Part]()
        for child, module in parts.items():
            for box, after in parts_of(module, child, rows, width):
                boxes.append(box)
                width = after
        found.append((name, f"{rows} tokens", boxes))
    return found


def show_parts(lecture: Lecture, model: nn.Module, name: str, part: str) -> list[Any]:
    """The architecture, with the shapes of its weights and of what goes along its arrows."""
    columns = columns_of(model)
    count = sum(weight.numel() for weight in model.parameters())
    lecture.tell(
        f"""The parts of {name}, from its own weights: {count:,} parameters. A box has the shapes of its matrices, an
        arrow the shape of what goes along it: n tokens, each a vector (m in a source). A frame with × is repeated."""
    )
    if not any(isinstance(module, Stack) for module in model.modules()):
        lecture.tell(
            """This model is no plain stack: its parts stand in the order of its code, and some of them read others
            than the one below. `ayn look` shows the code of each."""
        )
    title = f"The parts of {name}"
    lecture.draw(lambda out: plot_columns(columns, out, title), title, part)
    return [[asdict(box) | {"group": box.group.partition("#")[0]} for box in boxes] for _, _, boxes in columns]


# Attention


def show_heads(lecture: Lecture, layer: Attention) -> dict[str, Any]:
    """The recap: X, the matrices of each head, Q, K, V and Z, all Z side by side, W^O."""
    width, heads, key, value = layer.out.out_features, layer.heads, layer.head_width, layer.value_width
    shapes = {"X": f"n × {width}", "W": times(width, key), "Q": f"n × {key}", "Z": f"n × {value}"}
    shapes |= {"concat": f"n × {heads * value}", "W^O": times(*reversed(layer.out.weight.shape)), "out": f"n × {width}"}
    lecture.tell(
        f"""Multi-head attention once more, with the widths of this model: {heads} heads, each {key} wide, {width} in
        and {width} out. The heads share the width, so that eight heads have as many parameters as one."""
        if heads * key == width
        else f"""Multi-head attention once more: {heads} heads, each {key} wide, {width} in and {width} out."""
    )
    title = f"Multi-head attention, {heads} heads"
    lecture.draw(lambda out: plot_heads(heads, shapes, out, title), title, "heads")
    return {"heads": {"count": heads, **shapes}}


@torch.no_grad()
def show_block(lecture: Lecture, block: Block, tokens: int = 8) -> dict[str, Any]:
    """One block, step by step, with the shapes that it really computes."""
    width = block.attention.out.out_features
    trace, x = Trace(), torch.randn(1, tokens, width)
    block.eval().cpu().float()(x, Mask(causal=True), trace=trace.at(block))
    shape = {name.rpartition(".")[2]: times(*trace[name][0].shape) for name in trace}
    steps = [
        ("x: the tokens that enter", times(tokens, width), "nn/block.py: Block.forward"),
        ("q of each head: norm(x) W^Q", shape["queries"], "nn/attention.py: Attention.forward"),
        ("k of each head: norm(x) W^K", shape["keys"], "nn/attention.py: Attention.forward"),
        ("v of each head: norm(x) W^V", shape["values"], "nn/attention.py: Attention.forward"),
        ("q · k / √dₖ; in a decoder -∞ where j > i", shape["scores"], "nn/scores.py: scaled_dot; nn/masks.py: Mask"),
        ("softmax: the weights", shape["weights"], "nn/attention.py: attend"),
        ("z of each head: weights · v", shape["heads"], "nn/attention.py: attend"),
        ("x + [z₁; z₂; …] W^O", times(tokens, width), "nn/block.py: Block.forward"),
        ("feed-forward of norm(x)", shape["feed_forward"], "nn/layers.py: FeedForward"),
        ("x + feed-forward: what leaves", shape["layers"], "nn/block.py: Block.forward"),
    ]
    if not block.prenorm:
        steps = [(what.replace("norm(x)", "x").replace("x +", "norm of x +"), size, code) for what, size, code in steps]
    lecture.tell(
        f"""One block, as it reads {tokens} tokens. The first number of a shape is heads where there are three."""
    )
    lecture.table(["step", "shape", "code"], steps)
    return {"block": shape}


@torch.no_grad()
def show_kernel(lecture: Lecture, layer: Attention) -> dict[str, Any]:
    """W^Q as a kernel of width 1, which slides over time."""
    x, (queries, *_) = torch.randn(1, 10, layer.out.out_features), layer.sizes
    trace = Trace("queries")
    layer.cpu().float()(x, trace=trace.at(layer))
    product = trace["queries"].transpose(1, 2).flatten(2)  # all heads side by side
    weight, bias = layer.qkv.weight[:queries], None if layer.qkv.bias is None else layer.qkv.bias[:queries]
    convolution = conv1d(x.mT, weight[..., None], bias).mT  # (out, in, 1): a kernel of width 1
    apart = float((product - convolution).abs().max())
    lecture.tell(
        f"""W^Q is a kernel that is learned across the time steps: the same {times(*weight.shape)} matrix at each of
        them. A Conv1d of width 1 with the same weights gives the same queries; the largest difference is
        {apart:.1g}."""
    )
    return {"kernel": apart, "queries": times(*product.shape[1:])}


# Recurrent networks and one-hot vectors


def show_unrolled(lecture: Lecture, model: nn.Module) -> dict[str, Any]:
    """The recurrent edge beside the network that it stands for."""
    layer = next((part for part in model.modules() if isinstance(part, Recurrent)), None)
    cell = layer.layers[0] if layer is not None else None
    sizes = (int(cell.input_size), int(cell.hidden_size)) if isinstance(cell, nn.RNNBase) else (0, 0)
    shapes = {"x": f"{sizes[0] or 'd'}", "h": f"{sizes[1] or 'D'}", "o": "V"}
    lecture.tell(
        """A recurrent network has an edge from its state to itself. Unrolled over the steps it is a deep network, with
        the same three matrices at every step; the numbers in the boxes are widths."""
    )
    title = "A recurrent edge, and the network unrolled"
    lecture.draw(lambda out: plot_unrolled(4, shapes, out, title), title, "unrolled")
    return {"unrolled": shapes}


@torch.no_grad()
def show_one_hot(lecture: Lecture, model: nn.Module) -> dict[str, Any]:
    """A one-hot vector times E is a row of E."""
    found = next((part for part in model.modules() if isinstance(part, nn.Embedding)), None)
    if found is None:
        return {}
    table: Tensor = found.weight.cpu().float()
    word = min(5, len(table) - 1)
    hot = one_hot(torch.tensor(word), len(table)).float()
    apart = float((hot @ table - table[word]).abs().max())
    first = ", ".join(f"{value:.3f}" for value in (hot @ table)[:4].tolist())
    lecture.tell(
        f"""Word {word} as a one-hot vector is {len(table):,} numbers, all 0 but one. Times E, {times(*table.shape)}, it
        is row {word} of E ({first}, …); the largest difference is {apart:.1g}. So an embedding looks a row up instead
        of multiplying."""
    )
    return {"one-hot": {"N": len(table), "D": table.size(1), "apart": apart}}
