"""ViT. The names are those that its files have, which are not those of the newer modules of the library."""

from __future__ import annotations

from allyouneed.exchange.families.base import ACTIVATIONS, Family, Head, Setting, Settings
from allyouneed.exchange.maps import Row, both, without_biases


def _vit_rows(model: Settings) -> list[Row]:
    at, layer, ours = "vit.embeddings", "vit.encoder.layer.{i}", "body.stack.blocks.{i}"
    width, patch = model["width"], model["patch"]
    qkv = " + ".join(f"{layer}.attention.attention.{part}" for part in ("query", "key", "value"))
    qkv_rows, pixels = both(qkv, f"{ours}.attention.qkv"), f"{at}.patch_embeddings.projection"
    return [
        Row(f"{at}.cls_token", "body.patches.cls", shape=(1, 1, width)),
        Row(f"{at}.position_embeddings", "body.patches.positions.table.weight", shape=(1, -1, width)),
        Row(f"{pixels}.weight", "body.patches.into.weight", shape=(width, model["channels"], patch, patch)),
        Row(f"{pixels}.bias", "body.patches.into.bias"),
        *both(f"{layer}.layernorm_before", f"{ours}.attention_norm"),
        *(qkv_rows if model["qkv_bias"] else without_biases(qkv_rows)),
        *both(f"{layer}.attention.output.dense", f"{ours}.attention.out"),
        *both(f"{layer}.layernorm_after", f"{ours}.feed_forward_norm"),
        *both(f"{layer}.intermediate.dense", f"{ours}.feed_forward.into"),
        *both(f"{layer}.output.dense", f"{ours}.feed_forward.out"),
        *both("vit.layernorm", "body.stack.norm"),
        *both("vit.pooler.dense", "body.pooler"),  # which our model does not have: it is said that it is not used
    ]


VIT = Family(
    "vit",
    {
        "ViTForImageClassification": Head("recognize", both("classifier", "head.out"), {"pool": "first"}),
        "ViTModel": Head("recognize", options={"pool": "first"}, bare=True),
    },
    (
        Setting("image_size", "image", 224),
        Setting("patch_size", "patch", 16),
        Setting("num_channels", "channels", 3),
        Setting("hidden_size", "width", 768),
        Setting("num_hidden_layers", "layers", 12),
        Setting("num_attention_heads", "heads", 12),
        Setting("intermediate_size", "hidden", 3072),
        Setting("hidden_act", "activation", "gelu", words=ACTIVATIONS),
        Setting("layer_norm_eps", "norm_eps", 1e-12),
        Setting("hidden_dropout_prob", "dropout", 0.0),
        Setting("attention_probs_dropout_prob", "attention_dropout", 0.0),
        Setting("qkv_bias", "qkv_bias", True),
    ),
    _vit_rows,
    prefix="vit.",
    neutral=frozenset({"encoder_stride", "pooler_act", "pooler_output_size"}),
)
