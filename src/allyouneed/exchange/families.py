"""The families of models: what their config.json means, and the table of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from allyouneed.errors import UserError
from allyouneed.exchange.maps import Row, both
from allyouneed.exchange.options import Options

ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip


SUMMARY = frozenset(f"summary_{what}" for what in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj"))


@dataclass(frozen=True)
class Family:
    """One kind of model. `read` makes the settings of our [model] from a config.json. `ignored` are tensors that hold
    nothing learned, or nothing that we use, by the ends of their names; `prefix` is left out in some files."""

    kind: str  # our model
    tasks: dict[str, str]  # architecture -> our task
    read: Callable[[Options], dict[str, Any]]
    rows: Callable[[dict[str, Any]], list[Row]]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    neutral: frozenset[str] = frozenset()


def _read_gpt2(given: Options) -> dict[str, Any]:
    width = given.take("n_embd", 768)
    given.must(
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
        tie_word_embeddings=True,
    )
    return {
        "vocab": given.take("vocab_size", 50257),
        "context": given.take("n_positions", 1024),
        "width": width,
        "layers": given.take("n_layer", 12),
        "heads": given.take("n_head", 12),
        "hidden": given.take("n_inner", 4 * width),
        "activation": given.choose("activation_function", ACTIVATIONS, "gelu_new"),
        "norm_eps": given.take("layer_norm_epsilon", 1e-5, float),
        "dropout": given.take("resid_pdrop", 0.1, float),
        "attention_dropout": given.take("attn_pdrop", 0.1, float),
    }


def _gpt2_rows(model: dict[str, Any]) -> list[Row]:
    at, ours = "transformer.h.{i}", "body.stack.blocks.{i}"
    return [
        Row("transformer.wte.weight", "body.embedding.tokens.weight"),
        Row("transformer.wpe.weight", "body.embedding.positions.table.weight"),
        *both(f"{at}.ln_1", f"{ours}.attention_norm"),
        *both(f"{at}.attn.c_attn", f"{ours}.attention.qkv", turned=True),
        *both(f"{at}.attn.c_proj", f"{ours}.attention.out", turned=True),
        *both(f"{at}.ln_2", f"{ours}.feed_forward_norm"),
        *both(f"{at}.mlp.c_fc", f"{ours}.feed_forward.into", turned=True),
        *both(f"{at}.mlp.c_proj", f"{ours}.feed_forward.out", turned=True),
        *both("transformer.ln_f", "body.stack.norm"),
        Row("transformer.wte.weight", "head.out.weight"),
    ]


def _read_llama(given: Options) -> dict[str, Any]:
    width, heads = given.take("hidden_size"), given.take("num_attention_heads")
    given.choose("hidden_act", {"silu": "swiglu"}, "silu")
    bias = given.choose("attention_bias", {False: False, True: True}, False)
    given.must(mlp_bias=bias)
    return {
        "vocab": given.take("vocab_size"),
        "context": given.take("max_position_embeddings", 2048),
        "width": width,
        "layers": given.take("num_hidden_layers"),
        "heads": heads,
        "kv_heads": given.take("num_key_value_heads", heads),
        "head_width": given.take("head_dim", 0),
        "hidden": given.take("intermediate_size"),
        "activation": "swiglu",
        "norm": "rms",
        "norm_eps": given.take("rms_norm_eps", 1e-6, float),
        "bias": bias,
        "positions": "rotary",
        "rotary_base": _rotary_base(given),
        "tie": given.take("tie_word_embeddings", False, bool),
        "dropout": 0.0,
        "attention_dropout": given.take("attention_dropout", 0.0, float),
    }


def _rotary_base(given: Options) -> float:
    """`rope_theta`, which newer files have inside `rope_parameters`."""
    older = given.take("rope_scaling", None, dict)
    inside = Options(given.take("rope_parameters", older or {}, dict))
    inside.choose("type", {"default": "default"}, "default")
    inside.choose("rope_type", {"default": "default"}, "default")
    outside = given.take("rope_theta", 10000.0, float)
    base: float = inside.take("rope_theta", outside, float)
    inside.finish()
    return base


def _llama_rows(model: dict[str, Any]) -> list[Row]:
    at, ours = "model.layers.{i}", "body.stack.blocks.{i}"
    qkv = " + ".join(f"{at}.self_attn.{part}_proj" for part in "qkv")
    rows = [
        Row("model.embed_tokens.weight", "body.embedding.tokens.weight"),
        *both(f"{at}.input_layernorm", f"{ours}.attention_norm"),
        *both(qkv, f"{ours}.attention.qkv"),
        *both(f"{at}.self_attn.o_proj", f"{ours}.attention.out"),
        *both(f"{at}.post_attention_layernorm", f"{ours}.feed_forward_norm"),
        *both(f"{at}.mlp.gate_proj + {at}.mlp.up_proj", f"{ours}.feed_forward.into"),
        *both(f"{at}.mlp.down_proj", f"{ours}.feed_forward.out"),
        *both("model.norm", "body.stack.norm"),
    ]
    return [*rows, Row("model.embed_tokens.weight" if model["tie"] else "lm_head.weight", "head.out.weight")]


FAMILIES = {
    "gpt2": Family(
        "gpt",
        {"GPT2LMHeadModel": "lm", "GPT2Model": "lm"},
        _read_gpt2,
        _gpt2_rows,
        prefix="transformer.",
        ignored=("attn.bias", "attn.masked_bias"),
        neutral=SUMMARY | {"embd_pdrop", "n_ctx", "reorder_and_upcast_attn"},
    ),
    "llama": Family(
        "gpt",
        {"LlamaForCausalLM": "lm"},
        _read_llama,
        _llama_rows,
        prefix="model.",
        ignored=("rotary_emb.inv_freq",),
    ),
}


def find_family(config: dict[str, Any]) -> tuple[Family, str]:
    """The family of a config.json, and our task."""
    kind = config.get("model_type")
    if kind not in FAMILIES:
        raise UserError(f"config.json is of a model of type '{kind}'; this library reads {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    named = config.get("architectures") or [next(iter(family.tasks))]
    if not isinstance(named, list) or named[0] not in family.tasks:
        raise UserError(
            f"config.json is of the architecture {named}; of the type '{kind}' this library reads "
            f"{', '.join(family.tasks)}"
        )
    return family, family.tasks[named[0]]
