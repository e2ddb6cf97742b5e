"""A run -> a model folder of CTranslate2."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.errors import UserError
from allyouneed.exchange.to_onnx import NEVER, packages, plain
from allyouneed.models.base import Writer
from allyouneed.models.gpt import GPT
from allyouneed.models.transformer import Transformer
from allyouneed.nn.block import Block, BlockConfig, Stack
from allyouneed.nn.layers import Embedding
from allyouneed.nn.positions import sinusoid
from allyouneed.storage.wholefile import write_bytes, writing
from allyouneed.terminal import Say
from allyouneed.text import Tokenizer

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu_tanh": "GELUTanh", "silu": "SWISH", "swiglu": "SWISH"}
TABLE = 2048  # rows of a table of positions, at least
LARGEST = 2**32  # bytes of one tensor


def export_ct2(run: Any, folder: Path, quantization: str, say: Say) -> list[Path]:
    """Write model.bin, config.json, the vocabulary and the tokenizers of a translator or a GPT into an empty folder;
    returns the files. `quantization` is "float32", or "int8": a quarter of the size, and nearly the same numbers."""
    model = copy.deepcopy(plain(run.model))  # the package rounds numbers in their place
    if not isinstance(model, GPT | Transformer):
        raise UserError(
            f"a run of the model {run.recipe.model_kind} for the task {run.recipe.task_kind} cannot be written for "
            "CTranslate2; runs of gpt and transformer can"
        )
    _check(model)
    (library,) = packages("ctranslate2")
    specs = library.specs
    spec = _gpt(specs, model, run) if isinstance(model, GPT) else _translator(specs, model, run)
    spec.validate()
    spec.optimize(quantization=quantization)
    with writing(folder):
        spec.save(str(folder))
    for name, data in run.processor.parts().items():
        write_bytes(folder / name, data)
    reach = "any length" if model.config.positions == "rotary" else f"at most {_reach(model.config):,} tokens"
    say(f"CTranslate2: {quantization}, for texts of {reach}")
    if ends := getattr(run.processor, "ends", ()):
        say(f"the tokens {', '.join(map(str, ends))} end an answer too: give them to CTranslate2 as end_token")
    return sorted(folder.iterdir())


def _check(model: GPT | Transformer) -> None:
    """Refuse what CTranslate2 cannot express."""
    c = model.config
    if c.score != "scaled_dot":
        raise UserError(f"CTranslate2 has no attention with model.score = {c.score}, only scaled_dot")
    if c.value_width not in (0, c.key_width):
        raise UserError(
            f"CTranslate2 has no values of another width than the keys: model.value_width = {c.value_width}"
        )
    if c.positions == "rotary" and c.rotary_stretch != 1.0 and c.rotary_context:
        raise UserError("CTranslate2 can stretch all rotary turns, but not some of them: model.rotary_context is not 0")
    largest = max(4 * p.numel() for p in model.parameters())
    if largest >= LARGEST:
        raise UserError(f"a matrix of {largest / 2**30:.1f} GiB is too large for CTranslate2, which takes 4 GiB")


def _reach(config: Any) -> int:
    """Rows of the table of positions."""
    return config.context if config.positions == "learned" else max(TABLE, config.context)


def _options(specs: Any, c: BlockConfig) -> dict[str, Any]:
    """The arguments of the specs of an encoder and of a decoder."""
    rotary: dict[str, Any] = {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": c.rotary_base}
    if c.rotary_stretch != 1.0:
        linear = importlib.import_module("ctranslate2.specs.attention_spec").RotaryScalingType.Linear
        rotary |= {"rotary_scaling_type": linear, "rotary_scaling_factor": c.rotary_stretch}
    return {
        "num_heads": c.heads,
        "pre_norm": c.prenorm,
        "activation": getattr(specs.Activation, ACTIVATIONS[c.activation]),
        "ffn_glu": c.activation == "swiglu",
        "rms_norm": c.norm == "rms",
        "head_dim": c.key_width,
        "num_heads_kv": c.kv_heads or None,
        **(rotary if c.positions == "rotary" else {}),
    }


def _gpt(specs: Any, model: GPT, run: Any) -> Any:
    c, tokenizer = model.config, run.processor.tokenizer
    made = specs.TransformerDecoderSpec(c.layers, with_encoder_attention=False, **_options(specs, c))
    known = model.known or c.vocab
    _embed(made.embeddings, made, model.body.embedding, c, known)
    _decode(made, model.body.stack, model, known)
    spec = specs.TransformerDecoderModelSpec(made)
    spec.register_vocabulary(_vocabulary(tokenizer, known))
    _set_config(spec, c, tokenizer)
    return spec


def _translator(specs: Any, model: Transformer, run: Any) -> Any:
    c, body, target = model.config, model.body, run.processor.tokenizer
    source, options = run.processor.tokenizers["tokenizer.json"], _options(specs, model.config)
    encoder = specs.TransformerEncoderSpec(c.layers, **options)
    decoder = specs.TransformerDecoderSpec(c.decoder_layers or c.layers, **options)
    read, known = min(c.vocab, len(source)), model.known or c.target_vocab
    _embed(encoder.embeddings[0], encoder, body.source, c, read)
    _stack(encoder, body.encoder)
    _embed(decoder.embeddings, decoder, body.target, c, known)
    _decode(decoder, body.decoder, model, known, cross=True)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(_vocabulary(source, read))
    spec.register_target_vocabulary(_vocabulary(target, known))
    _set_config(spec, c, target)
    spec.config.decoder_start_token = _vocabulary(target, known)[c.bos]
    spec.config.add_source_eos = False  # the prompt of a sentence ends with it already
    return spec


def _set_config(spec: Any, c: BlockConfig, tokenizer: Tokenizer) -> None:
    tokens = _vocabulary(tokenizer, len(tokenizer))
    for name, id in (("bos_token", tokenizer.bos), ("eos_token", tokenizer.eos), ("unk_token", tokenizer.unk)):
        setattr(spec.config, name, tokens[id] if id is not None else f"<no {name}>")
    spec.config.layer_norm_epsilon = c.norm_eps


def _vocabulary(tokenizer: Tokenizer, rows: int) -> list[str]:
    """The token of each id. An id without one has a name that no token has."""
    names = {id: token for token, id in tokenizer._raw.get_vocab(with_added_tokens=True).items()}
    mark = "<id"
    while any(token.startswith(f"{mark} ") for token in names.values()):
        mark += "'"
    return [names.get(id, f"{mark} {id}>") for id in range(rows)]


def _embed(table: Any, scope: Any, embedding: Embedding, c: Any, rows: int) -> None:
    """The tokens and the positions. All positions but rotary ones are a table: CTranslate2's own sinusoid has other
    frequencies, and begins at 1."""
    table.weight = _rows(embedding.tokens.weight, rows)
    scope.scale_embeddings = embedding.scale != 1.0
    if c.positions == "rotary":
        return
    learned: Any = embedding.positions
    if c.positions == "learned":
        scope.position_encodings.encodings = learned.table.weight.detach()
    elif c.positions == "none":
        scope.position_encodings.encodings = torch.zeros(_reach(c), c.width)
    else:
        layout = "half" if c.positions.endswith("half") else "interleaved"
        scope.position_encodings.encodings = sinusoid(torch.arange(_reach(c)), c.width, layout)


def _decode(spec: Any, stack: Stack, model: Writer, rows: int, cross: bool = False) -> None:
    """The blocks and the output. The logit of a token that is never chosen gets a bias that makes it the smallest."""
    _stack(spec, stack, cross)
    out = model.head.out
    spec.projection.weight = _rows(out.weight, rows)
    if out.bias is not None or model.barred >= 0:
        bias = torch.zeros(rows) if out.bias is None else _rows(out.bias, rows).clone()
        if model.barred >= 0:
            bias[model.barred] = NEVER
        spec.projection.bias = bias


def _stack(spec: Any, stack: Stack, cross: bool = False) -> None:
    for layer, block in zip(spec.layer, stack.blocks):
        _block(layer, block, cross)  # type: ignore[arg-type]
    if stack.config.prenorm:
        _norm(spec.layer_norm, stack.norm)


def _block(spec: Any, block: Block, cross: bool) -> None:
    _attention(spec.self_attention, block.attention_norm, block.attention.qkv, block.attention.out)
    if cross:
        _attention(spec.attention, block.cross_norm, block.cross.q, block.cross.kv, block.cross.out)
    feed = block.feed_forward
    _norm(spec.ffn.layer_norm, block.feed_forward_norm)
    if feed.gated:
        gate, up = feed.into.weight.detach().chunk(2)
        spec.ffn.linear_0.weight, spec.ffn.linear_0_noact.weight = gate, up
        if feed.into.bias is not None:
            spec.ffn.linear_0.bias, spec.ffn.linear_0_noact.bias = feed.into.bias.detach().chunk(2)
    else:
        _linear(spec.ffn.linear_0, feed.into)
    _linear(spec.ffn.linear_1, feed.out)


def _attention(spec: Any, norm: nn.Module, *linears: nn.Linear) -> None:
    _norm(spec.layer_norm, norm)
    for there, here in zip(spec.linear, linears):
        _linear(there, here)


def _linear(spec: Any, linear: nn.Linear) -> None:
    spec.weight = linear.weight.detach()
    if linear.bias is not None:
        spec.bias = linear.bias.detach()


def _norm(spec: Any, norm: Any) -> None:
    spec.gamma = norm.weight.detach()
    if isinstance(norm, nn.LayerNorm):
        spec.beta = torch.zeros_like(spec.gamma) if norm.bias is None else norm.bias.detach()


def _rows(tensor: Tensor, rows: int) -> Tensor:
    """Without the rows that no token has, which are never chosen."""
    return tensor.detach()[:rows]
