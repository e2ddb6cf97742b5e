"""GPT-2, and Llama with what is built like it, Qwen2 and Mistral: our GPT, with other parts in the same blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from allyouneed.errors import UserError
from allyouneed.exchange.families.base import ACTIVATIONS, Family, Head, Options, Setting, Settings
from allyouneed.exchange.maps import Row, both, without_biases

BLOCK = "body.stack.blocks.{i}"
SUMMARY = frozenset(f"summary_{what}" for what in ("activation", "first_dropout", "proj_to_labels", "type", "use_proj"))


LABELS = Head("classify", without_biases(both("score", "head.out")), {"pool": "last"})


def _gpt2_rows(model: Settings) -> list[Row]:
    at = "transformer.h.{i}"
    return [
        Row("transformer.wte.weight", "body.embedding.tokens.weight"),
        Row("transformer.wpe.weight", "body.embedding.positions.table.weight"),
        *both(f"{at}.ln_1", f"{BLOCK}.attention_norm"),
        *both(f"{at}.attn.c_attn", f"{BLOCK}.attention.qkv", transposed=True),
        *both(f"{at}.attn.c_proj", f"{BLOCK}.attention.out", transposed=True),
        *both(f"{at}.ln_2", f"{BLOCK}.feed_forward_norm"),
        *both(f"{at}.mlp.c_fc", f"{BLOCK}.feed_forward.into", transposed=True),
        *both(f"{at}.mlp.c_proj", f"{BLOCK}.feed_forward.out", transposed=True),
        *both("transformer.ln_f", "body.stack.norm"),
        Row("transformer.wte.weight" if model["tie"] else "lm_head.weight", "head.out.weight"),
    ]


GPT2 = Family(
    "gpt",
    {"GPT2LMHeadModel": Head("lm"), "GPT2Model": Head("lm", bare=True), "GPT2ForSequenceClassification": LABELS},
    (
        Setting("vocab_size", "vocab", 50257),
        Setting("n_positions", "context", 1024),
        Setting("n_embd", "width", 768),
        Setting("n_layer", "layers", 12),
        Setting("n_head", "heads", 12),
        Setting("n_inner", "hidden", 0),
        Setting("activation_function", "activation", "gelu_new", words=ACTIVATIONS),
        Setting("layer_norm_epsilon", "norm_eps", 1e-5),
        Setting("resid_pdrop", "dropout", 0.1),
        Setting("attn_pdrop", "attention_dropout", 0.1),
        Setting("tie_word_embeddings", "tie", True),
    ),
    _gpt2_rows,
    fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False, "add_cross_attention": False},
    prefix="transformer.",
    ignored=(".attn.bias", ".attn.masked_bias"),
    copies={"lm_head.weight": "head.out.weight"},
    neutral=SUMMARY | {"embd_pdrop", "n_ctx", "reorder_and_upcast_attn", "is_decoder"},
)


def _llama_rows(model: Settings) -> list[Row]:
    at = "model.layers.{i}"
    qkv = " + ".join(f"{at}.self_attn.{part}_proj" for part in "qkv")
    return [
        Row("model.embed_tokens.weight", "body.embedding.tokens.weight"),
        *both(f"{at}.input_layernorm", f"{BLOCK}.attention_norm"),
        *both(qkv, f"{BLOCK}.attention.qkv"),
        *both(f"{at}.self_attn.o_proj", f"{BLOCK}.attention.out"),
        *both(f"{at}.post_attention_layernorm", f"{BLOCK}.feed_forward_norm"),
        *both(f"{at}.mlp.gate_proj + {at}.mlp.up_proj", f"{BLOCK}.feed_forward.into"),
        *both(f"{at}.mlp.down_proj", f"{BLOCK}.feed_forward.out"),
        *both("model.norm", "body.stack.norm"),
        Row("model.embed_tokens.weight" if model["tie"] else "lm_head.weight", "head.out.weight"),
    ]


def _qwen2_rows(model: Settings) -> list[Row]:
    """Only queries, keys and values have biases."""
    return [row if ".qkv." in row.ours else without_biases([row])[0] for row in _llama_rows(model)]


def _read_rotary(given: Options, names: Collection[str], model: Settings) -> Settings:
    """The base and the scaling, which newer files have together in `rope_parameters`."""
    older = given.take("rope_scaling", None, dict)
    inside = Options(given.take("rope_parameters", older or {}, dict))
    outside = given.take("rope_theta", 10000.0, float)
    settings: Settings = {"rotary_base": inside.take("rope_theta", outside, float)}
    kinds = {kind: kind for kind in ("default", "linear", "llama3")}
    kind = inside.choose("rope_type", kinds, inside.choose("type", kinds, "default"))
    if kind != "default":
        settings["rotary_stretch"] = inside.take("factor", kind=float)
    if kind == "llama3":
        inside.must(low_freq_factor=1.0, high_freq_factor=4.0)
        settings["rotary_context"] = inside.take("original_max_position_embeddings")
    inside.finish()
    return settings


def _write_rotary(model: Settings) -> Settings:
    rope = {"rope_type": "default", "rope_theta": model["rotary_base"]}
    if model["rotary_stretch"] != 1:
        rope |= {"rope_type": "linear", "factor": model["rotary_stretch"]}
    if model["rotary_context"] and model["rotary_stretch"] != 1:
        rope |= {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
        rope["original_max_position_embeddings"] = model["rotary_context"]
    return {"rope_parameters": rope}


def _read_llama(given: Options, names: Collection[str], model: Settings) -> Settings:
    given.must(mlp_bias=model["bias"])
    return _read_rotary(given, names, model)


def _read_windowed(given: Options, names: Collection[str], model: Settings) -> Settings:
    """Every layer of a Mistral uses a sliding window; of a Qwen2, if it is switched on, the layers that `layer_types`
    names, or else those from `max_window_layers` on. One that is at least as long as any text changes nothing."""
    window, first = given.take("sliding_window", None), given.take("max_window_layers", 28)
    kinds = given.take("layer_types", ["sliding_attention"] if first < model["layers"] else [], list)
    mistral = not model["bias"]
    used = mistral or (given.take("use_sliding_window", False, bool) and "sliding_attention" in kinds)
    if used and window is not None and window < model["context"]:
        raise UserError(
            f"config.json: sliding_window = {window} is shorter than max_position_embeddings = {model['context']}: "
            "attention to the last tokens only is not supported"
        )
    return _read_rotary(given, names, model)


SETTINGS = (
    Setting("vocab_size", "vocab"),
    Setting("hidden_size", "width"),
    Setting("num_hidden_layers", "layers"),
    Setting("num_attention_heads", "heads"),
    Setting("head_dim", "head_width", 0),
    Setting("intermediate_size", "hidden"),
    Setting("hidden_act", "activation", "silu", words={"silu": "swiglu"}),
    Setting("rms_norm_eps", "norm_eps", 1e-6),
    Setting("tie_word_embeddings", "tie", False),
    Setting("attention_dropout", "attention_dropout", 0.0),
)  # what Llama, Mistral and Qwen2 call alike


def _llama(name: str, rows: Callable[[Settings], list[Row]], *settings: Setting, **other: Any) -> Family:
    """Llama, or a model built like it."""
    return Family(
        "gpt",
        {f"{name}ForCausalLM": Head("lm"), f"{name}ForSequenceClassification": LABELS},
        (*SETTINGS, *settings),
        rows,
        prefix="model.",
        ignored=("rotary_emb.inv_freq",),
        copies={"lm_head.weight": "head.out.weight"},
        neutral=frozenset({"is_decoder"}),
        **{**other, "always": {"norm": "rms", "positions": "rotary", "dropout": 0.0, **other.get("always", {})}},
    )


LLAMA = _llama(
    "Llama",
    _llama_rows,
    Setting("max_position_embeddings", "context", 2048),
    Setting("num_key_value_heads", "kv_heads", 0),
    Setting("attention_bias", "bias", False),
    more=_read_llama,
    write=lambda model: {**_write_rotary(model), "mlp_bias": model["bias"]},
)
MISTRAL = _llama(
    "Mistral",
    _llama_rows,
    Setting("max_position_embeddings", "context", 131072),
    Setting("num_key_value_heads", "kv_heads"),
    always={"bias": False},
    more=_read_windowed,
    write=lambda model: {**_write_rotary(model), "sliding_window": None},  # a missing one is 4,096
)
QWEN2 = _llama(
    "Qwen2",
    _qwen2_rows,
    Setting("max_position_embeddings", "context", 32768),
    Setting("num_key_value_heads", "kv_heads"),
    always={"bias": True},
    more=_read_windowed,
    write=_write_rotary,
)
