"""The files of the llama2.c project: a model (.bin) and the tokenizer.bin beside it."""

from __future__ import annotations

import math
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allyouneed.errors import UserError, shortened
from allyouneed.exchange.folder import Source, Weights
from allyouneed.exchange.options import reading
from allyouneed.exchange.sentencepieces import BYTE, CONTROL, NORMAL, UNKNOWN
from allyouneed.exchange.vocabularies import scored_tokenizer
from allyouneed.storage.wholefile import open_to_read, read_bytes
from allyouneed.text import Tokenizer

MAGIC = struct.pack("<I", 0x616B3432)  # "ak42"; the first version had none
HEADER = {0: 28, 1: 256}  # bytes before the weights
ORDER = {
    0: "embedding attention_norm wq wk wv wo ffn_norm w1 w2 w3 norm tables classifier",
    1: "attention_norm ffn_norm norm embedding wq wk wv wo w1 w2 w3 classifier",
}
MOST_LAYERS = 10_000
MOST_BYTES = 1 << 26  # of a tokenizer.bin
FIRST = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]  # the pieces of every tokenizer.bin


class Stored(NamedTuple):
    """Where a tensor is in a file: its first byte, its shape, the bytes of a row, and the kind of its numbers in GGUF;
    without a kind they are 32-bit."""

    start: int
    shape: tuple[int, ...]
    row: int
    kind: Any = None

    @property
    def end(self) -> int:
        return self.start + math.prod(self.shape[:-1]) * self.row

    def read(self, path: Path) -> np.ndarray:
        """The numbers as 32-bit ones."""
        try:
            data = np.memmap(path, np.uint8, "r", self.start, (*self.shape[:-1], self.row))
            if self.kind is None:
                return np.array(data.view("<f4"), np.float32)
            from gguf.quants import dequantize

            with np.errstate(all="ignore"):
                return np.array(dequantize(data, self.kind), np.float32).reshape(self.shape)
        except NotImplementedError:
            raise UserError(f"{path} has numbers of the kind {self.kind.name}, not supported") from None
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read: {error}") from None


def mapped_weights(path: Path, stored: dict[str, Stored], config: dict[str, Any]) -> Weights:
    """The tensors of a Llama, read from a mapped file. In each head of width K such a file rotates the pairs
    (x_2i, x_2i+1), and the transformers library (x_i, x_i+K/2): the rows of queries and keys are put into another
    order."""
    several = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    heads = {name: count for name in stored if (count := several.get(name.split(".")[-2], 0))}
    for name, count in heads.items():
        if (rows := stored[name].shape[0]) % (2 * count):
            raise UserError(f"{path}: the tensor {name} has {rows} rows for {count} heads")

    def get(name: str) -> Tensor:
        array = stored[name].read(path)
        if name in heads:
            pairs = array.reshape(heads[name], -1, 2, *array.shape[1:])
            array = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(array.shape)
        return torch.from_numpy(array)

    return Weights({name: tensor.shape for name, tensor in stored.items()}, get)


def read_llama2c(path: Path) -> Source:
    """A model file of llama2.c, version 0 or 1, and its tokenizer.bin."""
    version, config = _read_header(path)
    stored, end = _layout(version, config)
    if (size := os.path.getsize(path)) != end:
        raise UserError(f"{path} has {size:,} bytes, but by its header it should have {end:,}")
    tokenizer = _read_tokenizer(path.parent / "tokenizer.bin", config["vocab_size"])
    # In its training data only <s> stands between two stories, so the start of another one is the end of this one.
    ends = {"bos_token_id": 1, "eos_token_id": [1, 2]}
    return Source(path, config, mapped_weights(path, stored, config), {"tokenizer.json": tokenizer}, ends)


def _layout(version: int, c: dict[str, Any]) -> tuple[dict[str, Stored], int]:
    """Where the tensors are, and the size of the file. Of each part, all layers follow one after the other."""
    width, hidden, vocab, head = c["hidden_size"], c["intermediate_size"], c["vocab_size"], c["head_dim"]
    inner, layer = c["num_key_value_heads"] * head, "model.layers.{i}."
    parts: dict[str, tuple[str, tuple[int, ...]]] = {
        "embedding": ("model.embed_tokens.weight", (vocab, width)),
        "attention_norm": (f"{layer}input_layernorm.weight", (width,)),
        "wq": (f"{layer}self_attn.q_proj.weight", (width, width)),
        "wk": (f"{layer}self_attn.k_proj.weight", (inner, width)),
        "wv": (f"{layer}self_attn.v_proj.weight", (inner, width)),
        "wo": (f"{layer}self_attn.o_proj.weight", (width, width)),
        "ffn_norm": (f"{layer}post_attention_layernorm.weight", (width,)),
        "w1": (f"{layer}mlp.gate_proj.weight", (hidden, width)),
        "w2": (f"{layer}mlp.down_proj.weight", (width, hidden)),
        "w3": (f"{layer}mlp.up_proj.weight", (hidden, width)),
        "norm": ("model.norm.weight", (width,)),
        "tables": ("", (2, c["max_position_embeddings"], head // 2)),  # cosines and sines, which nobody needs
        "classifier": ("", (0,)) if c["tie_word_embeddings"] else ("lm_head.weight", (vocab, width)),
    }
    stored, at = {}, HEADER[version]
    for name, shape in (parts[part] for part in ORDER[version].split()):
        for i in range(c["num_hidden_layers"] if "{i}" in name else 1):
            stored[name.replace("{i}", str(i))] = tensor = Stored(at, shape, 4 * shape[-1])
            at = tensor.end
    stored.pop("", None)
    return stored, at


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """The version of the file, and a config.json."""
    with reading(path, "a model of llama2.c"), open_to_read(path) as file:
        data = file.read(HEADER[1])
    version = int.from_bytes(data[4:8], "little") if data[:4] == MAGIC else 0
    if version not in HEADER:
        kind = "which holds 8-bit numbers" if version == 2 else "which is not known"
        raise UserError(f"{path} is of version {version} of llama2.c, {kind}; this library reads versions 0 and 1")
    if len(data) < HEADER[version]:
        raise UserError(f"{path} has only {len(data)} bytes; its header alone has {HEADER[version]}")
    width, hidden, layers, heads, kv_heads, vocab, context = struct.unpack_from("<7i", data, 8 if version else 0)
    tied, vocab = (data[36] == 1, vocab) if version else (vocab > 0, abs(vocab))
    possible = min(width, hidden, layers, heads, kv_heads, vocab, context) > 0 and layers <= MOST_LAYERS
    if not possible or width % (2 * heads) or heads % kv_heads:
        raise UserError(
            f"{path} is not a model of llama2.c: its header describes no model that can be (width {width}, hidden "
            f"{hidden}, layers {layers}, heads {heads}, kv_heads {kv_heads}, vocab {vocab}, context {context})"
        )
    return version, {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "hidden_size": width,
        "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": width // heads, "vocab_size": vocab,
        "max_position_embeddings": context, "tie_word_embeddings": tied, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    }  # fmt: skip


def _read_tokenizer(path: Path, vocab: int) -> Tokenizer:
    """The tokenizer.bin of a model with so many tokens. Before all stands the length of the longest piece, before each
    its score and its length."""
    pieces, scores, at = [], [], 4
    with reading(path, f"a tokenizer.bin of {vocab:,} tokens"):
        data = read_bytes(path, MOST_BYTES)
        for id in range(vocab):
            if at + 8 > len(data):
                raise ValueError(f"it ends after {id:,}")
            score, length = struct.unpack_from("<fi", data, at)
            at += 8 + length
            if length < 0 or at > len(data):
                raise ValueError(f"the token {id:,} has a length of {length:,} bytes")
            scores.append(score)
            pieces.append(data[at - length : at].decode().replace(" ", "▁"))
        if at != len(data):
            raise ValueError(f"there are {len(data) - at:,} bytes behind the last one")
        if vocab < len(FIRST):
            raise ValueError(f"it has less than the {len(FIRST)} that a tokenizer of Llama begins with")
        for id, (piece, name) in enumerate(zip(pieces, FIRST)):
            # In older files a byte is a character.
            if piece not in (name, f"\n{name}\n" if id < 3 else chr(id - 3).replace(" ", "▁")):
                raise ValueError(f"its token {id} is {shortened(repr(piece))}, where {name} should be")
    kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (vocab - len(FIRST))]
    return scored_tokenizer([*FIRST, *pieces[len(FIRST) :]], scores, kinds, path, start=1)
