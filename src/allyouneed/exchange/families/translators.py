"""Marian and Pegasus: our Transformer, post-norm or pre-norm."""

from __future__ import annotations

from collections.abc import Collection

from allyouneed.exchange.families.base import ACTIVATIONS, Family, Head, Options, Setting, Settings
from allyouneed.exchange.maps import Row, both

SAME = {"attention_heads": "heads", "ffn_dim": "hidden"}  # of encoder and decoder


def _side(side: str) -> list[Row]:
    layer, ours = f"model.{side}.layers.{{i}}", f"body.{side}.blocks.{{i}}"
    qkv = " + ".join(f"{layer}.self_attn.{part}_proj" for part in "qkv")
    rows = [
        *both(qkv, f"{ours}.attention.qkv"),
        *both(f"{layer}.self_attn.out_proj", f"{ours}.attention.out"),
        *both(f"{layer}.self_attn_layer_norm", f"{ours}.attention_norm"),
        *both(f"{layer}.fc1", f"{ours}.feed_forward.into"),
        *both(f"{layer}.fc2", f"{ours}.feed_forward.out"),
        *both(f"{layer}.final_layer_norm", f"{ours}.feed_forward_norm"),
        *both(f"model.{side}.layer_norm", f"body.{side}.norm"),
    ]
    if side == "encoder":
        return rows
    kv = " + ".join(f"{layer}.encoder_attn.{part}_proj" for part in "kv")
    return [
        *rows,
        *both(f"{layer}.encoder_attn.q_proj", f"{ours}.cross.q"),
        *both(kv, f"{ours}.cross.kv"),
        *both(f"{layer}.encoder_attn.out_proj", f"{ours}.cross.out"),
        *both(f"{layer}.encoder_attn_layer_norm", f"{ours}.cross_norm"),
    ]


def _rows(model: Settings) -> list[Row]:
    source, target = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
    if model["share"]:
        source = target = "model.shared.weight"
    return [
        Row(source, "body.source.tokens.weight"),
        Row(target, "body.target.tokens.weight"),
        Row("model.encoder.embed_positions.weight", "body.source.positions.table.weight"),
        Row("model.decoder.embed_positions.weight", "body.target.positions.table.weight"),
        Row(target if model["tie"] else "lm_head.weight", "head.out.weight"),
        Row("final_logits_bias", "head.out.bias", shape=(1, -1)),
        *_side("encoder"),
        *_side("decoder"),
    ]


def _read(given: Options, names: Collection[str], model: Settings) -> Settings:
    """Encoder and decoder are of one size. A table of positions in the file is used, whatever it holds."""
    for part, ours in SAME.items():
        given.choose(f"decoder_{part}", {model[ours]: model[ours]}, given.take(f"decoder_{part}"))
    given.choose("scale_embedding", {True: True}, False)
    tables = any(name.endswith("embed_positions.weight") for name in names)
    return {"positions": "learned" if tables else "sinusoidal_half", "output_bias": True}


def _write(model: Settings) -> Settings:
    return {**{f"decoder_{part}": model[ours] for part, ours in SAME.items()}, "scale_embedding": True}


def _read_marian(given: Options, names: Collection[str], model: Settings) -> Settings:
    given.must(normalize_before=False, normalize_embedding=False, add_final_layer_norm=False)
    given.must(static_position_embeddings=True)
    target = given.take("decoder_vocab_size", model["vocab"])
    share = model["share"] and model["tie"]  # without tying, the library shares nothing
    return {**_read(given, names, model), "share": share, "target_vocab": model["vocab"] if share else target}


SETTINGS = (
    Setting("vocab_size", "vocab"),
    Setting("d_model", "width"),
    Setting("encoder_layers", "layers"),
    Setting("decoder_layers", "decoder_layers"),
    Setting("encoder_attention_heads", "heads"),
    Setting("encoder_ffn_dim", "hidden"),
    Setting("activation_function", "activation", "gelu", words=ACTIVATIONS),
    Setting("max_position_embeddings", "context", 1024),
    Setting("dropout", "dropout", 0.1),
    Setting("attention_dropout", "attention_dropout", 0.0),
    Setting("tie_word_embeddings", "tie", True),
)
NEUTRAL = frozenset({"activation_dropout", "encoder_layerdrop", "decoder_layerdrop", "classifier_dropout"})
OLDER = frozenset({"add_bias_logits", "classif_dropout", "extra_pos_embeddings", "num_hidden_layers", "is_decoder"})
COPIES = {
    "model.encoder.embed_tokens.weight": "body.source.tokens.weight",
    "model.decoder.embed_tokens.weight": "body.target.tokens.weight",
    "lm_head.weight": "head.out.weight",
}
MARIAN = Family(
    "transformer",
    {"MarianMTModel": Head("translate")},
    (*SETTINGS, Setting("share_encoder_decoder_embeddings", "share", True)),
    _rows,
    always={"prenorm": False},
    more=_read_marian,
    write=lambda model: {**_write(model), "decoder_vocab_size": model["target_vocab"]},
    ignored=("model.shared.weight",),
    copies=COPIES,
    neutral=NEUTRAL | OLDER,
)
PEGASUS = Family(
    "transformer",
    {"PegasusForConditionalGeneration": Head("translate")},
    SETTINGS,
    _rows,
    always={"prenorm": True},
    more=lambda given, names, model: (
        _read(given, names, model) | {"share": model["tie"], "target_vocab": model["vocab"]}
    ),
    write=_write,
    ignored=("model.shared.weight",),
    copies=COPIES,
    neutral=NEUTRAL
    | OLDER
    | {"static_position_embeddings", "normalize_before", "normalize_embedding", "add_final_layer_norm"},
)
