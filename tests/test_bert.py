"""BERT: equal to Hugging Face's, and blind to what it must not see."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from allyouneed.batch import Tensors
from allyouneed.models.bert import Bert, BertBody, BertConfig
from allyouneed.models.labeller import Labeller
from allyouneed.nn.heads import ClassifyHead

SMALL = BertConfig(vocab=40, width=32, heads=4, layers=2, context=24, hidden=48)


def batch(vocab: int = 40) -> Tensors:
    ids = torch.randint(0, vocab, (3, 12), generator=torch.Generator().manual_seed(1))
    lengths = torch.tensor([12, 7, 4])
    segments = (torch.arange(12) > 3).long() * (torch.arange(12) < lengths[:, None])
    return {"ids": ids, "lengths": lengths, "segments": segments}


def theirs(ours: Bert) -> torch.nn.Module:
    """transformers' model with our weights."""
    from transformers import BertConfig as TheirConfig
    from transformers import BertForPreTraining

    c = ours.config
    config = TheirConfig(
        vocab_size=c.vocab,
        hidden_size=c.width,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        intermediate_size=c.hidden,
        max_position_embeddings=c.context,
        hidden_act=c.activation,
        layer_norm_eps=c.norm_eps,
        attn_implementation="eager",
    )
    found = BertForPreTraining(config).eval()
    body, own = "bert.encoder.layer", ours.state_dict()
    names = {
        "bert.embeddings.word_embeddings.weight": "body.embedding.tokens.weight",
        "bert.embeddings.position_embeddings.weight": "body.embedding.positions.table.weight",
        "bert.embeddings.token_type_embeddings.weight": "body.segments.weight",
    }
    modules = {
        "bert.embeddings.LayerNorm": "body.norm",
        "bert.pooler.dense": "body.pooler",
        "cls.predictions.transform.dense": "words.into",
        "cls.predictions.transform.LayerNorm": "words.norm",
        "cls.seq_relationship": "next",
    }
    for i in range(c.layers):
        block = f"body.stack.blocks.{i}"
        modules |= {
            f"{body}.{i}.attention.output.dense": f"{block}.attention.out",
            f"{body}.{i}.attention.output.LayerNorm": f"{block}.attention_norm",
            f"{body}.{i}.intermediate.dense": f"{block}.feed_forward.into",
            f"{body}.{i}.output.dense": f"{block}.feed_forward.out",
            f"{body}.{i}.output.LayerNorm": f"{block}.feed_forward_norm",
        }
    names |= {f"{a}.{part}": f"{b}.{part}" for a, b in modules.items() for part in ("weight", "bias")}
    state = {name: own[mine] for name, mine in names.items()}
    for i in range(c.layers):
        for part in ("weight", "bias"):
            whole = own[f"body.stack.blocks.{i}.attention.qkv.{part}"]
            for name, piece in zip(("query", "key", "value"), whole.chunk(3)):
                state[f"{body}.{i}.attention.self.{name}.{part}"] = piece
    state |= {"cls.predictions.decoder.weight": own["words.out.weight"]}
    state |= {f"cls.predictions.{name}": own["words.out.bias"] for name in ("bias", "decoder.bias")}
    missing = found.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    assert not [name for name in missing.missing_keys if "position_ids" not in name]
    return found


@pytest.mark.parametrize("change", [{}, {"activation": "relu"}, {"layers": 3, "heads": 2}], ids=str)
@torch.inference_mode()
def test_it_equals_transformers(change):
    torch.manual_seed(2)
    ours = Bert(replace(SMALL, **change)).eval()
    for p in ours.parameters():  # larger than at the start, so that every part counts
        p.data.add_(0.1 * torch.randn_like(p))
    tensors = batch()
    real = torch.arange(12) < tensors["lengths"][:, None]
    output = theirs(ours)(
        input_ids=tensors["ids"],
        token_type_ids=tensors["segments"],
        attention_mask=real.long(),
        output_hidden_states=True,
    )
    words, follows = ours(tensors)
    hidden = ours.body.read(tensors)
    assert torch.allclose(hidden[real], output.hidden_states[-1][real], atol=1e-5)
    assert torch.allclose(words[real], output.prediction_logits[real], atol=1e-5)
    assert torch.allclose(follows, output.seq_relationship_logits, atol=1e-5)


def test_padding_is_not_seen_and_every_word_is():
    model = Bert(SMALL).eval()
    tensors = batch()
    words, follows = model(tensors)
    ids = tensors["ids"].clone()
    ids[1, 7:] = 3
    others = model({**tensors, "ids": ids})
    assert torch.equal(words[1, :7], others[0][1, :7])
    assert torch.equal(follows, others[1])
    ids = tensors["ids"].clone()
    ids[0, 11] = (ids[0, 11] + 1) % 40
    assert not torch.allclose(words[0, 0], model({**tensors, "ids": ids})[0][0, 0])


def test_the_published_sizes():
    sizes = {name: (s["layers"], s["width"], s["heads"]) for name, s in Bert.sizes.items()}
    assert sizes["tiny"] == (2, 128, 2)
    assert sizes["base"] == (12, 768, 12)
    with torch.device("meta"):
        base = Bert(BertConfig(vocab=30522, **Bert.sizes["base"]))
    assert sum(p.numel() for p in base.parameters()) == 110_106_428  # BertForPreTraining of bert-base-uncased


def test_the_first_token_stands_for_the_text():
    body = BertBody(BertConfig(vocab=50, width=8, layers=1, heads=2, context=16)).eval()
    model = Labeller(body, ClassifyHead(8, 3, "first")).eval()
    ids, lengths = torch.randint(0, 50, (2, 6)), torch.tensor([6, 4])
    summary = (body(ids, lengths)[:, 0] @ body.pooler.weight.T + body.pooler.bias).tanh()
    wanted = summary @ model.head.out.weight.T + model.head.out.bias
    assert torch.allclose(model({"ids": ids, "lengths": lengths}), wanted, atol=1e-6)


def test_a_gated_activation_is_not_gated_before_the_words():
    model = Bert(BertConfig(vocab=50, width=8, layers=1, heads=2, context=16, activation="swiglu")).eval()
    ids = torch.randint(0, 50, (1, 5))
    words, following = model({"ids": ids, "lengths": torch.tensor([5])})
    assert (words.shape, following.shape) == ((1, 5, 50), (1, 2))
