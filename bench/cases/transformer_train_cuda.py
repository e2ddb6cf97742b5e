"""Training a Transformer (base) on a GPU on pairs of ragged lengths: the loop of `ayn train` against transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from allyouneed.data.batches.pairs import SentencePairs
from allyouneed.data.store import Ragged
from allyouneed.models.transformer import Transformer
from allyouneed.recipe import Recipe
from allyouneed.tasks.translate import Translate
from bench.cases.translate_marian import BOS, EOS, PAD, their_model
from bench.training import Contest, real_targets, training_case

FIRST, SHORTEST, LONGEST = 3, 4, 100  # the first id of a word, and words per sentence


@dataclass(frozen=True)
class Size:
    layers: int = 6
    heads: int = 8
    width: int = 512
    vocab: int = 32_000
    pairs: int = 30_000
    batch_tokens: int = 16_384


SIZES = {"base": Size(), "tiny": Size(layers=2, heads=2, width=16, vocab=70, pairs=80, batch_tokens=200)}


class Pairs(Translate):
    """Drawn sentences; each word of a target is a word of its source, further on in the vocabulary by one."""

    def __init__(self, recipe: Recipe, size: Size) -> None:
        super().__init__(recipe)
        self.size, draw = size, np.random.default_rng(0)
        long = draw.lognormal(3.1, 0.6, size.pairs)  # and a target is about as long as its source
        lengths = np.stack([long, long * draw.lognormal(0, 0.15, size.pairs)])
        lengths = np.clip(lengths, SHORTEST, LONGEST).astype(int)
        sources = [FIRST + draw.integers(size.vocab - FIRST - 1, size=n) for n in lengths[0]]
        targets = [np.resize(source, n) + 1 for source, n in zip(sources, lengths[1])]
        sides = [Ragged(np.concatenate(rows), np.cumsum([0, *map(len, rows)])) for rows in (sources, targets)]
        self.drawn = SentencePairs(*sides, source_eos=EOS, target_bos=BOS, target_eos=EOS, max_length=LONGEST + 1)

    def has(self, split: str) -> bool:
        return split == "train"

    def model_config(self) -> Any:
        return replace(self.recipe.model, vocab=self.size.vocab, target_vocab=self.size.vocab, bos=BOS)

    def build_model(self) -> Transformer:
        return Transformer(self.model_config())

    def examples(self, split: str) -> SentencePairs:
        return self.drawn


def make_task(size: str, train: dict[str, Any]) -> Pairs:
    s = SIZES[size]
    recipe = Recipe.parse(
        {
            "task": {"kind": "translate", "smoothing": 0.0},
            "model": {
                "kind": "transformer", "layers": s.layers, "heads": s.heads, "width": s.width, "hidden": 4 * s.width,
                "activation": "silu", "prenorm": False, "positions": "sinusoidal_half", "output_bias": True,
                "dropout": 0.0,
            },
            "text": {"kind": "word"},
            "data": {},
            "train": {**train, "batch_tokens": s.batch_tokens},
        }
    )  # fmt: skip
    return Pairs(recipe, s)


def their_loss(model: Any, tensors: Any) -> Tensor:
    source = tensors["source"]
    loss: Tensor = model(
        input_ids=source,
        attention_mask=(source != PAD).long(),
        decoder_input_ids=tensors["target"],
        labels=tensors["targets"],
        use_cache=False,
    ).loss
    return loss


CONTEST = Contest(
    make_task, their_model, their_loss, "target tokens", real_targets, "transformers, compiled", "transformers", True
)
SIZE = SIZES["base"]
WORK = (
    f"a Transformer of Marian's architecture ({SIZE.layers} + {SIZE.layers} layers, width {SIZE.width}, {SIZE.heads} "
    f"heads, feed-forward {4 * SIZE.width}, vocabulary {SIZE.vocab:,}, no label smoothing) on batches of at most "
    f"{SIZE.batch_tokens:,} tokens, pairs of {SHORTEST} to {LONGEST} words, those of about one length together; only "
    "real target tokens count. The peer is transformers' MarianMTModel, compiled for any shape (dynamic=True), with "
    "the same kind of batches"
)
CASES = (training_case("transformer-train-cuda", WORK, CONTEST, losses=50),)
