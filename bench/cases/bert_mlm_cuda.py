"""Training BERT (base) on a GPU to fill in hidden words: the loop of `ayn train` against transformers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.masked import MaskedPassages, Passages
from allyouneed.data.store import Ragged
from allyouneed.exchange.families.berts import BERT
from allyouneed.exchange.maps import export_tensors
from allyouneed.models.bert import Bert
from allyouneed.nn.losses import IGNORE
from allyouneed.recipe import Recipe
from allyouneed.tasks.pretrain import Pretrain
from allyouneed.text.layout import Layout
from bench.cases.gpt2_train_cuda import draw_tokens
from bench.training import Contest, training_case

CLS, SEP, MASK, FIRST = 1, 2, 3, 4  # the first id of a word


@dataclass(frozen=True)
class Size:
    layers: int = 12
    heads: int = 12
    width: int = 768
    length: int = 128
    rows: int = 256
    vocab: int = 16_000
    passages: int = 256 * 40


SIZES = {"base": Size(), "tiny": Size(layers=2, heads=2, width=16, length=12, rows=3, vocab=70, passages=60)}


class Hidden(Pretrain):
    """Drawn passages, each as long as a row, with hidden words."""

    def __init__(self, recipe: Recipe, size: Size) -> None:
        super().__init__(recipe)
        self.size, room = size, size.length - 2  # with [CLS] and [SEP]
        tokens = FIRST + draw_tokens(size.vocab - FIRST, size.passages * room).astype(np.int64)
        passages = Passages(Ragged(tokens, room * np.arange(size.passages + 1)), np.arange(size.passages))
        words = np.arange(FIRST, size.vocab)
        self.drawn = MaskedPassages(passages, Layout(start=(CLS,), end=(SEP,)), mask=MASK, words=words, pairs=False)

    def has(self, split: str) -> bool:
        return split == "train"

    def model_config(self) -> Any:
        return replace(self.recipe.model, vocab=self.size.vocab)

    def examples(self, split: str) -> MaskedPassages:
        return self.drawn


def make_task(size: str, train: dict[str, Any]) -> Hidden:
    s = SIZES[size]
    recipe = Recipe.parse(
        {
            "task": {"kind": "pretrain", "next": False},
            "model": {
                "kind": "bert", "layers": s.layers, "heads": s.heads, "width": s.width, "context": s.length,
                "pooler": "none", "dropout": 0.0, "attention_dropout": 0.0,
            },
            "text": {"kind": "bert"},
            "data": {},
            "train": {**train, "batch_tokens": s.rows * s.length},
        }
    )  # fmt: skip
    return Hidden(recipe, s)


def their_model(ours: Bert) -> nn.Module:
    from transformers import BertConfig, BertForMaskedLM

    c = ours.config
    config = BertConfig(
        vocab_size=c.vocab, hidden_size=c.width, num_hidden_layers=c.layers, num_attention_heads=c.heads,
        intermediate_size=4 * c.width, max_position_embeddings=c.context, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0, attn_implementation="sdpa",
    )  # fmt: skip
    model: nn.Module = BertForMaskedLM(config)
    rows = BERT.table(BERT.heads["BertForMaskedLM"], vars(c))
    missing, unexpected = model.load_state_dict(export_tensors(rows, ours.state_dict(), ours), strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith("cls.predictions.decoder") for name in missing), missing  # tied
    return model


def their_loss(model: Any, tensors: Any) -> Tensor:
    labels = torch.full_like(tensors["ids"], IGNORE)
    labels.view(-1)[tensors["chosen"]] = tensors["targets"]
    loss: Tensor = model(input_ids=tensors["ids"], token_type_ids=tensors["segments"], labels=labels).loss
    return loss


def tokens(batch: Batch) -> float:
    return float(batch.tensors["ids"].numel())


CONTEST = Contest(make_task, their_model, their_loss, "tokens", tokens, "transformers, compiled", "transformers")
SIZE = SIZES["base"]
WORK = (
    f"BERT with {SIZE.layers} layers, {SIZE.heads} heads, width {SIZE.width} and {SIZE.vocab:,} tokens, on {SIZE.rows} "
    f"rows of {SIZE.length} tokens per step, of which 15 % are to be filled in, beside transformers' BertForMaskedLM "
    "with sdpa attention, which is told that no row has padding; ours looks for it"
)
CASES = (training_case("bert-mlm-cuda", WORK, CONTEST, losses=50),)
