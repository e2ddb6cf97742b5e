"""GGUF files, the format of llama.cpp, with a model of the architecture "llama"."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from allyouneed.errors import UserError, shortened
from allyouneed.exchange.folder import Source
from allyouneed.exchange.llama2c import Stored, mapped_weights
from allyouneed.exchange.options import Options, reading
from allyouneed.exchange.sentencepieces import NORMAL, isolate, number_pieces
from allyouneed.exchange.vocabularies import finish_tokenizer, scored_tokenizer
from allyouneed.storage.wholefile import open_to_read
from allyouneed.text import Tokenizer

TRAINED = 8192  # tokens that Llama 3 was trained on, before its positions were stretched
MOST_HEADER = 1 << 26  # bytes of all that stands before the tensors
NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9

WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
NEEDED = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}  # fmt: skip
NEUTRAL = ("rope.scaling.original_context_length", "tensor_data_layout")  # settings that change nothing

# How a text is cut before byte-level BPE: by each expression in turn. ByteLevel has the expression of GPT-2 inside.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)"
    r"|\s+"
)
CUTS: dict[str, tuple[str, ...]] = {
    "gpt-2": (),
    "smollm": (r"\p{N}",),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "llama-bpe": (LLAMA3,),
}


def read_gguf(path: Path) -> Source:
    """A GGUF file of a Llama, in one file, with its tokenizer and its chat template."""
    try:
        import gguf  # noqa: F401
    except ImportError:
        raise UserError(f"to read {path} the package gguf is needed: pip install gguf") from None
    with reading(path, "a GGUF file"), open_to_read(path) as file:
        facts, stored = Reader(file, os.path.getsize(path)).read()
    if (kind := str(facts.get("general.architecture"))) != "llama":
        raise UserError(f"{path} is of the architecture '{shortened(kind)}'; of GGUF files this library reads llama")
    if (parts := str(facts.get("split.count", 1))) not in ("0", "1"):
        raise UserError(f"{path} is one of {shortened(parts)} parts of a model; join them into one file first")
    config = _config(facts, stored, path)
    if factors := stored.pop("rope_freqs.weight", None):
        config |= _rope(factors.read(path).ravel(), config, path)
    weights = mapped_weights(path, {_their_name(name, path): tensor for name, tensor in stored.items()}, config)
    tokenizer, generation = _tokenizer(facts, path)
    chat = facts.get("tokenizer.chat_template")
    tokenizers = {"tokenizer.json": tokenizer}
    return Source(path, config, weights, tokenizers, generation, chat if isinstance(chat, str) else "")


class Reader:
    """The header of a GGUF file. Every length in it is checked against the size of the file before it is used: the
    package gguf makes an object of each number of a list, so that a file of some megabytes can fill the memory."""

    def __init__(self, file: BinaryIO, size: int) -> None:
        self.file, self.size, self.left = file, size, min(size, MOST_HEADER)

    def read(self) -> tuple[dict[str, Any], dict[str, Stored]]:
        """The metadata, and where the tensors are."""
        if self.take(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        if (version := self.number("I")) not in (2, 3):
            raise ValueError(f"it is of version {version}; this library reads versions 2 and 3")
        tensors, entries = self.number("Q"), self.number("Q")
        facts: dict[str, Any] = self.named(entries, lambda: self.value(self.number("I")))
        align = facts.get("general.alignment", 32)
        if type(align) is not int or not 1 <= align <= 1 << 16:
            raise ValueError(f"its general.alignment is {shortened(align)}")
        found: dict[str, Stored] = self.named(tensors, self.tensor)
        end = begin = -(-self.file.tell() // align) * align
        for name, tensor in sorted(found.items(), key=lambda pair: pair[1].start):
            found[name] = tensor = tensor._replace(start=begin + tensor.start)
            if tensor.start < end or tensor.end > self.size:
                raise ValueError(f"the tensor {shortened(name)} is not inside the file, or on top of another one")
            end = tensor.end
        return facts, found

    def named(self, count: int, value: Callable[[], Any]) -> dict[str, Any]:
        """Values after their names."""
        found: dict[str, Any] = {}
        for _ in range(count):
            if (name := self.text()) in found:
                raise ValueError(f"it has two entries {shortened(name)}")
            found[name] = value()
        return found

    def take(self, count: int) -> bytes:
        if count > self.left:
            raise ValueError("its header is longer than the file, or than any header may be")
        self.left -= count
        return self.file.read(count)

    def number(self, code: str) -> Any:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return float(str(np.float32(value))) if code == "f" else value  # 1e-5, not 9.999999747378752e-06

    def text(self) -> str:
        return self.take(self.number("Q")).decode()

    def value(self, kind: int) -> Any:
        """A number, a text, or a list of numbers or texts."""
        if kind == TEXT:
            return self.text()
        if kind != ARRAY:
            return self.number(self.code(kind))
        kind, count = self.number("I"), self.number("Q")
        if kind == TEXT:
            return [self.text() for _ in range(count)]
        code = self.code(kind)
        return np.frombuffer(self.take(count * struct.calcsize(f"<{code}")), f"<{code}").tolist()

    def code(self, kind: int) -> str:
        if kind not in NUMBERS:
            raise ValueError(f"it has a value of the unknown kind {kind}")
        return NUMBERS[kind]

    def tensor(self) -> Stored:
        """One tensor: its sizes, the fastest first, the kind of its numbers, and its distance from the first byte."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        count = self.number("I")
        if not 1 <= count <= 4:
            raise ValueError(f"it has a tensor of {count} dimensions")
        shape = tuple(self.number("Q") for _ in range(count))[::-1]
        kind = GGMLQuantizationType(self.number("I"))
        numbers, size = GGML_QUANT_SIZES[kind]
        if min(shape) < 1 or shape[-1] % numbers:
            raise ValueError(f"it has a tensor of the shape {shape}, which numbers of the kind {kind.name} cannot have")
        return Stored(self.number("Q"), shape, shape[-1] // numbers * size, kind)


def _rope(factors: np.ndarray, config: dict[str, Any], path: Path) -> dict[str, Any]:
    """How much slower each turn is, as an option of config.json: by the rule of Llama 3, or not at all."""
    if (factors == 1).all():
        return {}
    base, head = config["rope_theta"], config["head_dim"]
    turns = TRAINED / (2 * np.pi * base ** (np.arange(0, head, 2) / head))  # in the context of the training
    fast, factor = ((turns - 1) / 3).clip(0, 1), round(float(factors.max()), 4)
    if factors.shape != fast.shape or not np.allclose(factors, 1 / (fast + (1 - fast) / factor), rtol=1e-3):
        raise UserError(f"{path} has the tensor rope_freqs.weight: such scaled rotary positions are not supported")
    rule = {"rope_type": "llama3", "rope_theta": base, "factor": factor, "low_freq_factor": 1.0}
    rule |= {"high_freq_factor": 4.0, "original_max_position_embeddings": TRAINED}
    return {"rope_parameters": rule}


def _their_name(name: str, path: Path) -> str:
    layer = re.fullmatch(r"blk\.([0-9]{1,5})\.(\w+)\.(weight|bias)", name)
    if layer and layer[2] in LAYER:
        return f"model.layers.{int(layer[1])}.{LAYER[layer[2]]}.{layer[3]}"
    whole = re.fullmatch(r"(\w+)\.weight", name)
    if whole and whole[1] in WHOLE:
        return f"{WHOLE[whole[1]]}.weight"
    raise UserError(f"{path} has a tensor that a Llama has no place for: {shortened(name)}")


def _config(facts: dict[str, Any], stored: dict[str, Stored], path: Path) -> dict[str, Any]:
    """config.json from the metadata; a setting that is not known is refused by its name, unless it is zero."""
    settings = {name.removeprefix("llama."): value for name, value in facts.items() if name.startswith("llama.")}
    given = Options(settings, NEUTRAL, f"{path}, llama.*")
    config: dict[str, Any] = {theirs: given.take(name) for name, theirs in NEEDED.items()}
    width, heads = config["hidden_size"], config["num_attention_heads"]
    config["num_key_value_heads"] = given.take("attention.head_count_kv", heads)
    config["head_dim"] = head = given.take("attention.key_length", width // max(1, heads))
    config["rms_norm_eps"] = given.take("attention.layer_norm_rms_epsilon", kind=float)
    config["rope_theta"] = given.take("rope.freq_base", 10000.0, float)
    if small := [name for name, value in config.items() if not value]:
        raise UserError(f"{path}: {small[0]} has to be above 0")
    given.must(**{"attention.value_length": head, "rope.dimension_count": head, "attention.causal": True})
    given.must(**{f"rope.{name}": 1.0 for name in ("scaling.factor", "scaling.attn_factor", "scale_linear")})
    given.choose("rope.scaling.type", {"none": True, "linear": True}, "none")
    layers = {int(match[1]) for name in stored if (match := re.match(r"blk\.([0-9]{1,5})\.", name))}
    if layers != set(range(min(config["num_hidden_layers"], len(stored)))):
        raise UserError(f"{path}: llama.block_count is {config['num_hidden_layers']:,}, but its tensors are of others")
    table = stored.get("token_embd.weight")
    if table is None or len(table.shape) != 2:
        raise UserError(f"{path} has no tensor token_embd.weight with a row for each token")
    if (vocab := given.take("vocab_size", table.shape[0])) != table.shape[0]:
        raise UserError(f"{path}: llama.vocab_size is {vocab:,}, but token_embd.weight has {table.shape[0]:,} rows")
    given.finish()
    biases = [name for name in stored if name.endswith(".bias")]
    return config | {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "vocab_size": vocab,
        "tie_word_embeddings": "output.weight" not in stored,
        "attention_bias": any(".attn_" in name for name in biases),
        "mlp_bias": any(".ffn_" in name for name in biases),
    }  # fmt: skip


def _tokenizer(facts: dict[str, Any], path: Path) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and what generation_config.json says of its first and its last token."""
    prefix = "tokenizer.ggml."
    given = {name.removeprefix(prefix): facts[name] for name in facts if name.startswith(prefix)}
    kind, pieces = str(given.get("model")), given.get("tokens")
    if kind not in ("gpt2", "llama"):
        raise UserError(f"{path} has a tokenizer of the kind '{shortened(kind)}'; this library reads gpt2 and llama")
    if not isinstance(pieces, list) or not pieces or not isinstance(pieces[0], str):
        raise UserError(f"{path} has no tokens (tokenizer.ggml.tokens)")
    roles = {}
    for role, usual_id in (("bos", 1), ("eos", 2)):
        if (id := given.get(f"{role}_token_id", usual_id if kind == "llama" else None)) is not None:
            if type(id) is not int or not 0 <= id < len(pieces):
                raise UserError(f"{path}: tokenizer.ggml.{role}_token_id is {shortened(id)}, which is no token")
            roles[role] = id
    opens = given.get("add_bos_token", kind == "llama" or given.get("pre") == "llama-bpe") is True
    start = roles.get("bos") if opens else None
    end = roles.get("eos") if given.get("add_eos_token") is True else None
    usual_kinds = [NORMAL] * len(pieces) if kind == "gpt2" else None
    kinds = _numbers(given.get("token_type", usual_kinds), len(pieces), f"{path}, tokenizer.ggml.token_type")
    if kind == "llama":
        scores = _numbers(given.get("scores"), len(pieces), f"{path}, tokenizer.ggml.scores")
        space = given.get("add_space_prefix", True) is True
        made = scored_tokenizer(pieces, scores, kinds, path, start, end, space)
    else:
        made = finish_tokenizer(_byte_level(given, pieces, path), pieces, kinds, start, end, path)
    return made, {f"{role}_token_id": id for role, id in roles.items()}


def _byte_level(given: dict[str, Any], pieces: list[str], path: Path) -> dict[str, Any]:
    """The spec of a tokenizer of byte-level BPE."""
    name, merges = given.get("pre", "default"), given.get("merges")
    if not isinstance(name, str) or name not in CUTS:
        raise UserError(f"{path} cuts texts by '{shortened(name)}' (tokenizer.ggml.pre); known are {', '.join(CUTS)}")
    if not isinstance(merges, list):
        raise UserError(f"{path} has no list of merges (tokenizer.ggml.merges)")
    cuts = [isolate(cut) for cut in CUTS[name]]
    whole = name in ("gpt-2", "smollm")
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": whole}
    model = {"type": "BPE", "vocab": number_pieces(pieces, path), "merges": merges}
    return {
        "model": model | {"ignore_merges": name == "llama-bpe"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*cuts, last]} if cuts else last,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
    }


def _numbers(found: Any, count: int, where: str) -> list[Any]:
    """A list with a number for each token."""
    if not isinstance(found, list) or len(found) != count or not isinstance(found[0], int | float):
        raise UserError(f"{where}: there is not one number for each of the {count:,} tokens")
    return found
