"""Dropout: where each model has it, as strong as its settings say, and never when nothing is learned."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn

from allyouneed.models.convnet import ConvNet, ConvNetConfig
from allyouneed.models.convseq2seq import ConvSeq2Seq, ConvSeq2SeqConfig
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.labeller import Labeller
from allyouneed.models.rnn import RNN, RNNBody, RNNConfig
from allyouneed.models.seq2seq import Seq2Seq, Seq2SeqConfig
from allyouneed.models.transformer import Transformer, TransformerConfig
from allyouneed.nn.attention import Attention
from allyouneed.nn.heads import ClassifyHead, TagHead

IDS, LENGTHS = torch.arange(4, 14).view(2, 5), torch.tensor([5, 3])
SMALL: dict[str, Any] = {"vocab": 20, "width": 8, "layers": 2, "dropout": 0.3}
BOTH = {**SMALL, "target_vocab": 20}
LOOKING = {"heads": 2, "attention_dropout": 0.2}
TEXT, PAIR, LABELS = (IDS,), (IDS, LENGTHS, IDS), ({"ids": IDS, "lengths": LENGTHS},)


def labeller(head: type[nn.Module]) -> Labeller:
    body = RNNBody(RNNConfig(**{**SMALL, "layers": 1, "tie": False}))
    return Labeller(body, head(8, 3, dropout=0.3))


# A model, what it reads, and how often each dropout works in one pass over five tokens.
MODELS: dict[str, tuple[Any, tuple[Any, ...], dict[str, int]]] = {
    "gpt": (
        lambda: GPT(GPTConfig(**SMALL, **LOOKING)),
        TEXT,
        {"body.embedding": 1, "body.stack.blocks.0": 2, "body.stack.blocks.1": 2},
    ),
    "transformer": (
        lambda: Transformer(TransformerConfig(**BOTH, **LOOKING)),
        PAIR,
        {
            "body.source": 1, "body.target": 1, "body.encoder.blocks.0": 2, "body.encoder.blocks.1": 2,
            "body.decoder.blocks.0": 3, "body.decoder.blocks.1": 3,
        },
    ),
    "rnn": (lambda: RNN(RNNConfig(**SMALL)), TEXT, {"body": 2, "body.recurrent": 1}),
    "seq2seq": (
        lambda: Seq2Seq(Seq2SeqConfig(**BOTH, score="additive")),
        PAIR,
        {"body.source": 1, "body.target": 1, "body.encoder": 1, "body.decoder": 5, "body": 1},
    ),
    "convnet": (
        lambda: ConvNet(ConvNetConfig(**SMALL)),
        TEXT,
        {"body.embedding": 1, "body.stack.blocks.0.gated": 1, "body.stack.blocks.1.gated": 1, "body": 1},
    ),
    "convseq2seq": (
        lambda: ConvSeq2Seq(ConvSeq2SeqConfig(**BOTH)),
        PAIR,
        {
            "body.source": 1, "body.target": 1, "body.encoder.blocks.0.gated": 1,
            "body.encoder.blocks.1.gated": 1, "body.decoder.blocks.0.gated": 1, "body.decoder.blocks.1.gated": 1,
            "body": 1,
        },
    ),
    "classifier": (lambda: labeller(ClassifyHead), LABELS, {"body": 2, "head": 1}),
    "tagger": (lambda: labeller(TagHead), LABELS, {"body": 2, "head": 1}),
}  # fmt: skip


@pytest.mark.parametrize("kind", MODELS)
def test_every_part_is_dropped_as_often_and_as_strongly_as_it_should(kind):
    make, inputs, expected = MODELS[kind]
    model, calls = make().train(), Counter[str]()
    dropouts = {
        name.rpartition("dropout")[0].rstrip("."): m for name, m in model.named_modules() if isinstance(m, nn.Dropout)
    }
    for name, module in dropouts.items():
        module.register_forward_hook(lambda *_, name=name: calls.update([name]))
    model(*inputs)
    assert calls == expected
    assert {module.p for name, module in dropouts.items() if calls[name]} == {0.3}
    assert {m.dropout for m in model.modules() if isinstance(m, Attention)} <= {0.2}


@pytest.mark.parametrize("kind", MODELS)
def test_only_training_is_random(kind):
    make, inputs, _ = MODELS[kind]
    torch.manual_seed(0)
    model = make().train()
    assert not torch.equal(model(*inputs), model(*inputs))
    model.eval()
    assert torch.equal(model(*inputs), model(*inputs))


@pytest.mark.parametrize("kind", ["gpt", "transformer"])
def test_attention_weights_are_dropped_in_training_alone(kind):
    make, inputs, _ = MODELS[kind]
    torch.manual_seed(0)
    model = make().train()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    assert not torch.equal(model(*inputs), model(*inputs))
    model.eval()
    assert torch.equal(model(*inputs), model(*inputs))
