"""The files of the llama2.c project: a model (.bin) and the tokenizer.bin beside it."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allyouneed.errors import UserError, shortened
from allyouneed.exchange.sentencepieces import BYTE, CONTROL, NORMAL, UNKNOWN, USER, Piece, Pieces, to_spec
from allyouneed.exchange.source import Source
from allyouneed.text import Tokenizer
from allyouneed.text.template import template_spec
from allyouneed.wholefile import read_bytes

MAGIC = struct.pack("<I", 0x616B3432)  # "ak42"; the first version had none
HEADER = {0: 28, 1: 256}  # bytes before the weights
ORDER = {
    0: "embedding attention_norm wq wk wv wo ffn_norm w1 w2 w3 norm tables classifier",
    1: "attention_norm ffn_norm norm embedding wq wk wv wo w1 w2 w3 classifier",
}
MOST_LAYERS = 10_000
MOST_PIECES = 1 << 20
MOST_BYTES = 1 << 26  # of a tokenizer.bin
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@dataclass(frozen=True)
class Sizes:
    """What the header says. `tied`: the embedding is also the matrix before the softmax."""

    version: int
    width: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool

    def parts(self) -> list[tuple[str, tuple[int, ...]]]:
        """The names and shapes in the order of the file; {i} stands for each layer, one after the other."""
        width, hidden, head_width = self.width, self.hidden, self.width // self.heads
        inner, layer = self.kv_heads * head_width, "model.layers.{i}."
        known: dict[str, tuple[str, tuple[int, ...]]] = {
            "embedding": ("model.embed_tokens.weight", (self.vocab, width)),
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
            "tables": ("", (2, self.context, head_width // 2)),  # cosines and sines, which nobody needs
            "classifier": ("lm_head.weight", (0 if self.tied else self.vocab, width)),
        }
        return [known[part] for part in ORDER[self.version].split()]

    def size(self) -> int:
        """The bytes of the whole file."""
        numbers = sum(math.prod(shape) * (self.layers if "{i}" in name else 1) for name, shape in self.parts())
        return HEADER[self.version] + 4 * numbers

    def places(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
        """The name, the first byte and the shape of each tensor."""
        at = HEADER[self.version]
        for name, shape in self.parts():
            for i in range(self.layers if "{i}" in name else 1):
                if name and shape[0]:
                    yield name.replace("{i}", str(i)), at, shape
                at += 4 * math.prod(shape)


class Llama2cWeights:
    """The tensors of a model file, read from the mapped file when they are asked for."""

    def __init__(self, path: Path, sizes: Sizes) -> None:
        self._path, self._sizes = path, sizes
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._starts: dict[str, int] = {}
        for name, start, shape in sizes.places():
            self.shapes[name], self._starts[name] = shape, start

    def get(self, name: str) -> Tensor:
        try:
            mapped = np.memmap(self._path, "<f4", "r", self._starts[name], self.shapes[name])
        except (OSError, ValueError) as error:
            raise UserError(f"{self._path} cannot be read: {error}") from None
        array = np.array(mapped, np.float32)
        if "q_proj" in name or "k_proj" in name:
            array = to_halves(array, self._sizes.heads if "q_proj" in name else self._sizes.kv_heads)
        return torch.from_numpy(array)


def to_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """The rows of queries or keys for another way to rotate. In each head of width K this file turns the pairs
    (x_2i, x_2i+1), the transformers library turns (x_i, x_i+K/2)."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)


def read_llama2c(path: Path) -> Source:
    """A model file of llama2.c, version 0 or 1, and its tokenizer.bin."""
    sizes = _read_header(path)
    if (size := os.path.getsize(path)) != sizes.size():
        raise UserError(f"{path} has {size:,} bytes, but by its header it should have {sizes.size():,}")
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu",
        "hidden_size": sizes.width, "intermediate_size": sizes.hidden, "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads, "num_key_value_heads": sizes.kv_heads,
        "head_dim": sizes.width // sizes.heads, "vocab_size": sizes.vocab, "max_position_embeddings": sizes.context,
        "tie_word_embeddings": sizes.tied, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    }  # fmt: skip
    tokenizer = read_tokenizer_bin(path.parent / "tokenizer.bin", sizes.vocab)
    # In its training data only <s> stands between two stories, so the start of another one is the end of this one.
    ends = {"bos_token_id": 1, "eos_token_id": [1, 2]}
    return Source(path, config, Llama2cWeights(path, sizes), {"tokenizer.json": tokenizer}, ends)


def _read_header(path: Path) -> Sizes:
    if not os.path.isfile(path):
        raise UserError(f"there is no file {path}")
    try:
        with open(path, "rb") as file:
            data = file.read(HEADER[1])
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    version = int.from_bytes(data[4:8], "little") if data[:4] == MAGIC else 0
    if version not in HEADER:
        kind = "which holds 8-bit numbers" if version == 2 else "which is not known"
        raise UserError(f"{path} is of version {version} of llama2.c, {kind}; this library reads versions 0 and 1")
    if len(data) < HEADER[version]:
        raise UserError(f"{path} has only {len(data)} bytes; its header alone has {HEADER[version]}")
    width, hidden, layers, heads, kv_heads, vocab, context = struct.unpack_from("<7i", data, 8 if version else 0)
    tied = data[36] == 1 if version else vocab > 0
    sizes = Sizes(version, width, hidden, layers, heads, kv_heads, vocab if version else abs(vocab), context, tied)
    if (
        min(width, hidden, layers, heads, kv_heads, sizes.vocab, context) < 1
        or layers > MOST_LAYERS
        or width % (2 * heads)
        or heads % kv_heads
    ):
        shown = ", ".join(f"{name} {value}" for name, value in vars(sizes).items())
        raise UserError(f"{path} is not a model of llama2.c: its header describes no model that can be ({shown})")
    return sizes


def read_tokenizer_bin(path: Path, vocab: int) -> Tokenizer:
    """The tokenizer.bin of a model with so many tokens."""
    try:
        data = read_bytes(path, MOST_BYTES)
    except FileNotFoundError:
        raise UserError(f"there is no {path}: a model of llama2.c needs the tokenizer.bin beside it") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    try:
        pieces, scores = _entries(data, vocab)
        kinds = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (vocab - 259)]
        pieces[:259] = _first_pieces(pieces[:259])
    except (ValueError, struct.error) as error:
        raise UserError(f"{path} is not a tokenizer.bin of {vocab:,} tokens: {error}") from None
    return sentencepiece(pieces, scores, kinds, str(path), start=1)


def _entries(data: bytes, vocab: int) -> tuple[list[str], list[float]]:
    """The pieces and scores. Before all stands the length of the longest piece, before each its score and length."""
    pieces, scores, at = [], [], 4
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
    return pieces, scores


def _first_pieces(found: list[str]) -> list[str]:
    """The first 259 pieces by their usual names. Older files have the byte itself, as a character, for <0x41>."""
    wanted = ["<unk>", "<s>", "</s>", *BYTES]
    if len(found) < len(wanted):
        raise ValueError(f"it has less than the {len(wanted)} that a tokenizer of Llama begins with")
    for id, (piece, name) in enumerate(zip(found, wanted)):
        other = f"\n{name}\n" if id < 3 else chr(id - 3).replace(" ", "▁")
        if piece not in (name, other):
            raise ValueError(f"its token {id} is {shortened(repr(piece))}, where {name} should be")
    return wanted


def sentencepiece(
    pieces: Sequence[str],
    scores: Sequence[float],
    kinds: Sequence[int],
    where: str,
    start: int | None = None,
    end: int | None = None,
    space: bool = True,
) -> Tokenizer:
    """The tokenizer of a BPE model of SentencePiece, of which each piece has a score and a kind.

    Of all neighbours whose union is a piece, the union with the best score is made first, the leftmost one of equals.
    `start` and `end` are ids around a text; `space`: one is put before it. `where` is for messages."""
    number_pieces(pieces, where)
    if not len(pieces) == len(scores) == len(kinds) or not np.isfinite(scores).all() or UNKNOWN not in kinds:
        raise UserError(
            f"{where}: the tokenizer needs one score and one kind for each of its {len(pieces):,} pieces, and an "
            "unknown one"
        )
    model = Pieces(
        Path(where), tuple(map(Piece, pieces, scores, kinds)), list(kinds).index(UNKNOWN), bpe=True, byte_fallback=True,
        rules="", charsmap=b"", dummy_prefix=space, remove_extra_spaces=False,
    )  # fmt: skip
    spec = to_spec(model, model.ids, pieces[model.unk], model.texts(CONTROL, UNKNOWN))
    return finish_tokenizer(spec, pieces, kinds, start, end, where)


def number_pieces(pieces: Sequence[str], where: str) -> dict[str, int]:
    """Piece -> id."""
    if len(pieces) > MOST_PIECES:
        raise UserError(f"{where}: the tokenizer has {len(pieces):,} tokens; the most is {MOST_PIECES:,}")
    vocabulary: dict[str, int] = {}
    for id, piece in enumerate(pieces):
        if vocabulary.setdefault(piece, id) != id:
            raise UserError(f"{where}: the tokens {vocabulary[piece]:,} and {id:,} are both {shortened(piece)!r}")
    return vocabulary


def finish_tokenizer(
    spec: dict[str, Any], pieces: Sequence[str], kinds: Sequence[int], start: int | None, end: int | None, where: str
) -> Tokenizer:
    """The tokenizer.json of `spec` with special tokens and what stands around a text."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = {id for id, kind in enumerate(kinds) if kind in (UNKNOWN, CONTROL)} | ({start, end} - {None})
    spec["added_tokens"] = [
        {"id": id, "content": piece, "special": id in special, **flags}
        for id, piece in enumerate(pieces)
        if id in special or kinds[id] == USER
    ]
    ids = {pieces[id]: id for id in (start, end) if id is not None}
    first, last = ([] if id is None else [pieces[id]] for id in (start, end))
    if ids:
        text = [*first, "$A", *last]
        spec["post_processor"] = template_spec(text, [*text, *first, "$B", *last], ids)
    return Tokenizer.parse(json.dumps({"version": "1.0", **spec}).encode(), f"the tokenizer of {where}")
