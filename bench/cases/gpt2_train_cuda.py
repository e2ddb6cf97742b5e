"""Training GPT-2 (124M) on a GPU: the loop of `ayn train` against transformers' GPT2LMHeadModel, both compiled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor, nn

from allyouneed.data.batches.windows import Windows
from allyouneed.models.base import Model
from allyouneed.models.gpt import GPT
from allyouneed.recipe import Recipe
from allyouneed.tasks.lm import LM
from bench.training import Contest, real_targets, training_case


@dataclass(frozen=True)
class Size:
    layers: int = 12
    heads: int = 12
    width: int = 768
    context: int = 1024
    rows: int = 32
    vocab: int = 50_257
    tokens: int = 5_000_000


SIZES = {"base": Size(), "tiny": Size(layers=2, heads=2, width=16, context=12, rows=3, vocab=70, tokens=2000)}


class Tokens(LM):
    """Language modelling on given token ids, with a vocabulary of the size of GPT-2's."""

    def __init__(self, recipe: Recipe, tokens: np.ndarray, vocab: int) -> None:
        super().__init__(recipe)
        self.tokens, self.vocab = tokens, vocab

    def has(self, split: str) -> bool:
        return split == "train"

    def build_model(self) -> Model:
        return GPT(replace(self.recipe.model, vocab=self.vocab))

    def model_config(self) -> Any:
        return replace(self.recipe.model, vocab=self.vocab)

    def examples(self, split: str) -> Windows:
        return Windows(self.tokens, self.recipe.model.context)


def draw_tokens(vocab: int, count: int) -> np.ndarray:
    """Tokens with the frequencies of words (the n-th with probability ~ 1/n); half of them repeat the token 8 places
    before, so that a model has something to learn."""
    draw = np.random.default_rng(0)
    weights = 1 / np.arange(1, vocab + 1)
    tokens = draw.choice(vocab, size=count, p=weights / weights.sum()).astype(np.uint16)
    for i in np.flatnonzero(draw.random(count) < 0.5):
        tokens[i] = tokens[max(0, i - 8)]
    return tokens


def make_task(size: str, train: dict[str, Any]) -> Tokens:
    s = SIZES[size]
    recipe = Recipe.parse(
        {
            "task": {"kind": "lm"},
            "model": {
                "kind": "gpt", "layers": s.layers, "heads": s.heads, "width": s.width, "context": s.context,
                "dropout": 0.0,
            },
            "text": {"kind": "char"},
            "data": {},
            "train": {**train, "batch_tokens": s.rows * s.context},
        }
    )  # fmt: skip
    return Tokens(recipe, draw_tokens(s.vocab, s.tokens), s.vocab)


def their_names(ours: GPT, layers: int) -> dict[str, Tensor]:
    """Our weights under the names of transformers, whose matrices are transposed."""
    weights = {name.removeprefix("body."): tensor.detach() for name, tensor in ours.state_dict().items()}
    rows = {"wte": "embedding.tokens", "wpe": "embedding.positions.table", "ln_f": "stack.norm"}
    inside = {
        "ln_1": "attention_norm", "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out",
        "ln_2": "feed_forward_norm", "mlp.c_fc": "feed_forward.into", "mlp.c_proj": "feed_forward.out",
    }  # fmt: skip
    for i in range(layers):
        rows |= {f"h.{i}.{theirs}": f"stack.blocks.{i}.{own}" for theirs, own in inside.items()}
    found = {}
    for theirs, own in rows.items():
        turned = theirs.startswith("h.") and "ln_" not in theirs
        found[f"transformer.{theirs}.weight"] = weights[f"{own}.weight"].T if turned else weights[f"{own}.weight"]
        if f"{own}.bias" in weights:
            found[f"transformer.{theirs}.bias"] = weights[f"{own}.bias"]
    return found


def their_model(ours: GPT) -> nn.Module:
    """transformers' GPT-2 with sdpa attention."""
    from transformers import GPT2Config, GPT2LMHeadModel

    c = ours.config
    config = GPT2Config(
        vocab_size=c.vocab, n_positions=c.context, n_embd=c.width, n_layer=c.layers, n_head=c.heads, attn_pdrop=0.0,
        resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False, attn_implementation="sdpa",
    )  # fmt: skip
    model: nn.Module = GPT2LMHeadModel(config)
    missing, unexpected = model.load_state_dict(their_names(ours, c.layers), strict=False)
    assert not unexpected, unexpected
    assert set(missing) <= {"lm_head.weight"}, missing
    return model


def their_loss(model: Any, tensors: Any) -> Tensor:
    # `shift_labels`: the targets are the next tokens already, as ours are.
    targets = tensors["targets"].contiguous()
    loss: Tensor = model(input_ids=tensors["ids"], labels=targets, shift_labels=targets).loss
    return loss


CONTEST = Contest(make_task, their_model, their_loss, "tokens", real_targets, "transformers, compiled", "transformers")
SIZE = SIZES["base"]
WORK = (
    f"GPT-2 with {SIZE.layers} layers, {SIZE.heads} heads, width {SIZE.width}, learned positions, a tied output matrix "
    f"and {SIZE.vocab:,} tokens, on {SIZE.rows} windows of {SIZE.context} tokens per step, beside transformers' "
    "GPT2LMHeadModel with sdpa attention"
)
CASES = (training_case("gpt2-train-cuda", WORK, CONTEST, losses=200),)
