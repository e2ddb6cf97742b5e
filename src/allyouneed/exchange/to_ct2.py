"""A run -> a model folder of CTranslate2."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from allyouneed.errors import UserError
from allyouneed.exchange.to_onnx import NEVER, packages, plain
from allyouneed.models.base import Writer
from allyouneed.models.gpt import GPT
from allyouneed.models.transformer import Transformer
from allyouneed.nn.block import BlockConfig, Stack
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
    model = plain(run.model)  # a copy: the package rounds numbers in their place
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
    most = positions(model.config)
    reach = f"at most {most:,} tokens" if most else "any length"
    say(f"CTranslate2: {quantization}, for texts of {reach}")
    if ends := getattr(run.processor, "ends", ()):
        say(f"the tokens {', '.join(map(str, ends))} end an answer too: give them to CTranslate2 as end_token")
    return sorted(folder.iterdir())


def _check(model: GPT | Transformer) -> None:
    """Refuse what CTranslate2 cannot express."""
    c = model.config
    if c.score != "scaled_dot":
        raise UserError(f"CTranslate2 has no attention with model.score = {c.score}, only scaled_dot")
    if not c.residual or not c.feed_forward or c.norm == "none":
        missing = "residuals" if not c.residual else "feed-forward parts" if not c.feed_forward else "norms"
        raise UserError(f"CTranslate2 has no blocks without {missing}")
    if c.value_width not in (0, c.key_width):
        raise UserError(
            f"CTranslate2 has no values of another width than the keys: model.value_width = {c.value_width}"
        )
    if c.positions == "rotary" and c.rotary_stretch != 1.0 and c.rotary_context:
        raise UserError("CTranslate2 can stretch all rotary turns, but not some of them: model.rotary_context is not 0")
    largest = max(4 * p.numel() for p in model.parameters())
    if largest >= LARGEST:
        raise UserError(f"a matrix of {largest / 2**30:.1f} GiB is too large for CTranslate2, which takes 4 GiB")


def positions(config: Any) -> int:
    """Rows of the table of positions; 0: there is none, and a text may have any length."""
    if config.positions == "rotary":
        return 0
    return int(config.context if config.positions == "learned" else max(TABLE, config.context))


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
    rows = model.known or model.config.vocab
    made = specs.TransformerDecoderSpec(
        model.config.layers, with_encoder_attention=False, **_options(specs, model.config)
    )
    _fill_decoder(made, model.body.embedding, model.body.stack, model, rows)
    spec = specs.TransformerDecoderModelSpec(made)
    spec.register_vocabulary(vocabulary(run.processor.tokenizer, rows))
    _set_config(spec, model.config, run.processor.tokenizer)
    return spec


def _translator(specs: Any, model: Transformer, run: Any) -> Any:
    c, body, target = model.config, model.body, run.processor.tokenizer
    source, options = run.processor.tokenizers["tokenizer.json"], _options(specs, model.config)
    encoder = specs.TransformerEncoderSpec(c.layers, **options)
    decoder = specs.TransformerDecoderSpec(c.decoder_layers or c.layers, **options)
    read, rows = min(c.vocab, len(source)), model.known or c.target_vocab
    _fill_stack(encoder, encoder.embeddings[0], body.source, body.encoder, read)
    _fill_decoder(decoder, body.target, body.decoder, model, rows)
    spec = specs.TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(vocabulary(source, read))
    spec.register_target_vocabulary(vocabulary(target, rows))
    _set_config(spec, c, target)
    spec.config.decoder_start_token = vocabulary(target, rows)[c.bos]
    spec.config.add_source_eos = False  # the prompt of a sentence ends with it already
    return spec


def _set_config(spec: Any, c: BlockConfig, tokenizer: Tokenizer) -> None:
    tokens = vocabulary(tokenizer, len(tokenizer))
    for name, id in (("bos_token", tokenizer.bos), ("eos_token", tokenizer.eos), ("unk_token", tokenizer.unk)):
        setattr(spec.config, name, tokens[id] if id is not None else f"<no {name}>")
    spec.config.layer_norm_epsilon = c.norm_eps


def vocabulary(tokenizer: Tokenizer, rows: int) -> list[str]:
    """The token of each id. An id without one has a name that no token has."""
    names = {id: token for token, id in tokenizer._raw.get_vocab(with_added_tokens=True).items()}
    mark = "<id"
    while any(token.startswith(f"{mark} ") for token in names.values()):
        mark += "'"
    return [names.get(id, f"{mark} {id}>") for id in range(rows)]


def _fill_decoder(spec: Any, embedding: Embedding, stack: Stack, model: Writer, rows: int) -> None:
    """The logit of a token that is never chosen gets a bias that makes it the smallest."""
    _fill_stack(spec, spec.embeddings, embedding, stack, rows)
    out = model.head.out
    spec.projection.weight = out.weight.detach()[:rows]
    if out.bias is not None or model.barred >= 0:
        bias = torch.zeros(rows) if out.bias is None else out.bias.detach()[:rows].clone()
        if model.barred >= 0:
            bias[model.barred] = NEVER
        spec.projection.bias = bias


def _fill_stack(spec: Any, table: Any, embedding: Any, stack: Stack, rows: int) -> None:
    """The blocks, and the embeddings of the `rows` that have a token. All positions but rotary ones are a table:
    CTranslate2's own sinusoid has other frequencies, and begins at 1."""
    c: Any = stack.config
    table.weight = embedding.tokens.weight.detach()[:rows]
    spec.scale_embeddings = embedding.scale != 1.0
    if c.positions == "learned":
        spec.position_encodings.encodings = embedding.positions.table.weight.detach()
    elif c.positions == "none":
        spec.position_encodings.encodings = torch.zeros(positions(c), c.width)
    elif c.positions != "rotary":
        layout = "half" if c.positions.endswith("half") else "interleaved"
        spec.position_encodings.encodings = sinusoid(torch.arange(positions(c)), c.width, layout)
    for layer, block in zip(spec.layer, stack.blocks):
        _fill_block(layer, block)
    if c.prenorm:
        _fill(stack.norm, spec.layer_norm)


def _fill_block(layer: Any, block: Any) -> None:
    parts = [(layer.self_attention, block.attention_norm, [block.attention.qkv, block.attention.out])]
    if hasattr(layer, "attention"):
        parts.append((layer.attention, block.cross_norm, [block.cross.q, block.cross.kv, block.cross.out]))
    for part, norm, linears in parts:
        _fill(norm, part.layer_norm)
        for linear, spec in zip(linears, part.linear):
            _fill(linear, spec)
    _fill(block.feed_forward_norm, layer.ffn.layer_norm)
    gated = block.feed_forward.gated
    _fill(block.feed_forward.into, layer.ffn.linear_0, *([layer.ffn.linear_0_noact] if gated else []))
    _fill(block.feed_forward.out, layer.ffn.linear_1)


def _fill(module: Any, *specs: Any) -> None:
    """A linear layer or a norm. Several specs have its rows one after the other."""
    for name in ("weight", "bias"):
        tensor = getattr(module, name, None)
        if isinstance(module, nn.LayerNorm) and tensor is None:
            tensor = torch.zeros_like(module.weight)  # CTranslate2 needs one
        if tensor is not None:
            theirs = name if isinstance(module, nn.Linear) else {"weight": "gamma", "bias": "beta"}[name]
            for spec, part in zip(specs, tensor.detach().chunk(len(specs))):
                setattr(spec, theirs, part)
