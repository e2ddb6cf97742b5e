"""How many parameters a model has, and how much work it does."""

from __future__ import annotations

from torch import nn

from allyouneed.models.base import Model
from allyouneed.models.word2vec import Word2Vec
from allyouneed.nn.attention import Attention


def flops(model: Model, context: int) -> int:
    """FLOPs per token of a forward pass: two for each weight of each matrix, and the attention to `context` tokens."""
    if isinstance(model, Word2Vec):
        return _of_words(model)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.RNNBase | nn.Conv1d | nn.Conv2d)]
    matrices = sum(2 * p.numel() for m in layers for p in m.parameters(recurse=False) if p.dim() > 1)
    attentions = [m for m in model.modules() if isinstance(m, Attention)]
    return matrices + sum(2 * a.heads * (a.head_width + a.value_width) * context for a in attentions)


def _of_words(model: Word2Vec) -> int:
    """Of the predictions of one word: window + 1 neighbours on average, against each negative sample."""
    c = model.config
    goals, near = (c.vocab if c.loss == "softmax" else 1 + c.negatives), c.window + 1
    if c.method == "cbow":
        return c.width * near + 2 * c.width * goals
    return 2 * c.width * goals * near


def parameters(model: Model) -> dict[str, int]:
    """By the path of their module, the same for all blocks: "body.decoder.blocks.*.cross"."""
    found: dict[str, int] = {}
    for name, p in model.named_parameters():  # tied ones come once
        pieces = ["*" if piece.isdigit() else piece for piece in name.split(".")[:-1]]
        part = ".".join(pieces[: pieces.index("*") + 2 if "*" in pieces else 2])
        found[part] = found.get(part, 0) + p.numel()
    return found
