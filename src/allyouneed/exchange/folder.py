"""A model of another library, whatever files it came in; and a folder as the transformers library saves it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError
from allyouneed.exchange.families import find_family
from allyouneed.exchange.options import read_json, read_text
from allyouneed.exchange.vocabularies import read_tokenizers, tokenizer_config
from allyouneed.exchange.weights import Weights, read_weights
from allyouneed.text import Tokenizer

MOST_CHAT = 1 << 20  # bytes of a chat template
POOLS = {
    "pooling_mode_mean_tokens": "mean", "pooling_mode_max_tokens": "max", "pooling_mode_cls_token": "first",
    "pooling_mode_lasttoken": "last",
}  # fmt: skip
# Options of generation_config.json that older files have in config.json.
WRITING = (
    *("max_length", "min_length", "max_new_tokens", "do_sample", "num_beams", "early_stopping", "temperature", "top_k"),
    *("top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size", "bad_words_ids"),
    *("num_beam_groups", "diversity_penalty", "encoder_no_repeat_ngram_size", "forced_bos_token_id"),
    *("forced_eos_token_id", "num_return_sequences", "remove_invalid_values", "suppress_tokens", "renormalize_logits"),
    *("begin_suppress_tokens", "exponential_decay_length_penalty", "output_scores", "return_dict_in_generate"),
    *("cross_attention_hidden_size", "sep_token_id"),
)


@dataclass(frozen=True)
class Source:
    """`config` is what the transformers library has in config.json, and the tensors have the names that it gives them.
    `tokenizers` are by the names of their files in a run: tokenizer.json, and tokenizer.target.json if a translator has
    another one for the target. `chat` is a chat template in Jinja; `pool` is how sentence-transformers makes one
    vector of a text."""

    path: Path
    config: dict[str, Any]
    weights: Weights
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)  # generation_config.json
    chat: str = ""
    pictures: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json
    pool: str = ""  # of sentence-transformers
    named: dict[str, str] = field(default_factory=dict)  # {"eos_token": "</s>"}, as a chat template writes them


def read_folder(path: Path, architecture: str = "") -> Source:
    """What is in the folder. The weights stay on the disk until they are asked for. A model that this library does not
    have is refused before any other file is opened."""
    if not os.path.isfile(path / "config.json"):
        raise UserError(f"{path} has no config.json: a folder as the transformers library saves it has one")
    config = read_json(path / "config.json")
    family, head = find_family(config, architecture)
    older = {name: config.pop(name) for name in WRITING if name in config}
    generation = {name: config[name] for name in ("eos_token_id", "decoder_start_token_id") if name in config}
    settings = tokenizer_config(path)
    return Source(
        path,
        config,
        read_weights(path),
        read_tokenizers(path, config["model_type"]) if family.kind != "vit" else {},
        generation | (read_json(path / "generation_config.json") or older),
        _chat(path, settings),
        read_json(path / "preprocessor_config.json"),
        _pool(path) if head.task == "embed" else "",
        {name: token for name, token in settings.items() if name.endswith("_token") and isinstance(token, str)},
    )


def _pool(path: Path) -> str:
    """How sentence-transformers makes one vector of those of the tokens; "" if it is not said. Its other modules are
    refused, but scaling the vector to length one, which changes no cosine."""
    file = path / "modules.json"
    listed = read_json(file, list)
    kinds = [str(one.get("type")).rsplit(".", 1)[-1] if isinstance(one, dict) else "" for one in listed]
    if strange := [kind for kind in kinds if kind not in ("Transformer", "Pooling", "Normalize")]:
        raise UserError(f"{file}: this library has no module {strange[0]} after the model")
    if read_json(path / "sentence_bert_config.json").get("do_lower_case") is True:
        raise UserError(f"{path / 'sentence_bert_config.json'}: do_lower_case = true is not supported")
    given = read_json(path / "1_Pooling" / "config.json")
    chosen = [name for name, value in given.items() if name.startswith("pooling_mode_") and value is True]
    if isinstance(given.get("pooling_mode"), str):
        chosen = [f"pooling_mode_{given['pooling_mode']}_tokens".replace("cls_tokens", "cls_token")]
    if len(chosen) > 1 or not {*chosen} <= POOLS.keys():
        what = f"{' with '.join(chosen)} is not supported"
        raise UserError(f"1_Pooling/config.json: {what}; this library has one of {', '.join(POOLS)}")
    return POOLS[chosen[0]] if chosen else ""


def _chat(path: Path, settings: dict[str, Any]) -> str:
    """The template in its own file or in tokenizer_config.json; of several that one of the name "default"."""
    if os.path.isfile(path / "chat_template.jinja"):
        return read_text(path / "chat_template.jinja", MOST_CHAT)
    found = settings.get("chat_template")
    if isinstance(found, list):
        named = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""
