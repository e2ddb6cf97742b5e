"""A model of another library, whatever files it came in; and a folder as the transformers library saves it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from allyouneed.errors import UserError
from allyouneed.exchange.families import find_family
from allyouneed.exchange.options import read_json, read_text
from allyouneed.exchange.vocabularies import read_tokenizers, tokenizer_config
from allyouneed.exchange.weights import WeightFiles
from allyouneed.text import Tokenizer

MOST_CHAT = 1 << 20  # bytes of a chat template
# Options of generation_config.json that older files have in config.json.
WRITING = (
    *("max_length", "min_length", "max_new_tokens", "do_sample", "num_beams", "early_stopping", "temperature", "top_k"),
    *("top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "bad_words_ids"),
    *("num_beam_groups", "diversity_penalty", "encoder_no_repeat_ngram_size", "forced_bos_token_id"),
    *("forced_eos_token_id", "num_return_sequences", "remove_invalid_values", "suppress_tokens", "renormalize_logits"),
    *("begin_suppress_tokens", "exponential_decay_length_penalty", "output_scores", "return_dict_in_generate"),
    *("cross_attention_hidden_size", "sep_token_id"),
)


class Weights(Protocol):
    """The names and shapes of all tensors, known before any is read; a tensor is read when it is asked for."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def get(self, name: str) -> Tensor: ...


@dataclass(frozen=True)
class Source:
    """`config` is what the transformers library has in config.json, and the tensors have the names that it gives them.
    `tokenizers` are by the names of their files in a run: tokenizer.json, and tokenizer.target.json if a translator has
    another one for the target. `chat` is a chat template in Jinja; `pooling` is how sentence-transformers makes one
    vector of a text."""

    path: Path
    config: dict[str, Any]
    weights: Weights
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)  # generation_config.json
    chat: str = ""
    pictures: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json
    pooling: dict[str, Any] = field(default_factory=dict)  # 1_Pooling/config.json
    named: dict[str, str] = field(default_factory=dict)  # {"eos_token": "</s>"}, as a chat template writes them


def read_folder(path: Path, architecture: str = "") -> Source:
    """What is in the folder. The weights stay on the disk until they are asked for. A model that this library does not
    have is refused before any other file is opened."""
    if not os.path.isfile(path / "config.json"):
        raise UserError(f"{path} has no config.json: a folder as the transformers library saves it has one")
    config = read_json(path / "config.json")
    family, _ = find_family(config, architecture)
    older = {name: config.pop(name) for name in WRITING if name in config}
    generation = {name: config[name] for name in ("eos_token_id", "decoder_start_token_id") if name in config}
    settings = tokenizer_config(path)
    return Source(
        path,
        config,
        WeightFiles(path),
        read_tokenizers(path, config["model_type"]) if family.kind != "vit" else {},
        generation | (read_json(path / "generation_config.json") or older),
        _chat(path, settings),
        read_json(path / "preprocessor_config.json"),
        _pooling(path),
        {name: token for name, token in settings.items() if name.endswith("_token") and isinstance(token, str)},
    )


def _pooling(path: Path) -> dict[str, Any]:
    """How sentence-transformers makes one vector of a text. Its other modules are refused, but scaling the vector to
    length one, which changes no cosine."""
    file = path / "modules.json"
    if os.path.isfile(file):
        listed = read_json(file, list)
        kinds = [str(one.get("type")).rsplit(".", 1)[-1] if isinstance(one, dict) else "" for one in listed]
        strange = [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]
        if strange:
            raise UserError(f"{file}: this library has no module {strange[0]} after the model")
    if read_json(path / "sentence_bert_config.json").get("do_lower_case") is True:
        raise UserError(f"{path / 'sentence_bert_config.json'}: do_lower_case = true is not supported")
    return read_json(path / "1_Pooling" / "config.json")


def _chat(path: Path, settings: dict[str, Any]) -> str:
    """The template in its own file or in tokenizer_config.json; of several that one of the name "default"."""
    if os.path.isfile(path / "chat_template.jinja"):
        return read_text(path / "chat_template.jinja", MOST_CHAT)
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""
