"""A folder as the transformers library saves it -> a Source."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError
from allyouneed.exchange.families import find_family
from allyouneed.exchange.source import Source
from allyouneed.exchange.vocabularies import read_tokenizers
from allyouneed.exchange.weights import WeightFiles
from allyouneed.runjson import parse_object
from allyouneed.wholefile import read_bytes

LARGEST = 1 << 28  # bytes of a JSON file
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


def read_folder(path: Path, architecture: str = "") -> Source:
    """What is in the folder. The weights stay on the disk until they are asked for. A model that this library does not
    have is refused before any other file is opened."""
    if not os.path.isfile(path / "config.json"):
        raise UserError(f"{path} has no config.json: a folder as the transformers library saves it has one")
    config = read_json(path / "config.json")
    family, _ = find_family(config, architecture)
    older = {name: config.pop(name) for name in WRITING if name in config}
    generation = {name: config[name] for name in ("eos_token_id", "decoder_start_token_id") if name in config}
    return Source(
        path,
        config,
        WeightFiles(path),
        read_tokenizers(path, config["model_type"]) if family.kind != "vit" else {},
        generation | (read_json(path / "generation_config.json") or older),
        _chat(path),
        read_json(path / "preprocessor_config.json"),
        _pooling(path),
        _named(path),
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


def _named(path: Path) -> dict[str, str]:
    """The special tokens by their roles: {"eos_token": "</s>"}."""
    found = read_json(path / "special_tokens_map.json") | read_json(path / "tokenizer_config.json")
    named = {name: token.get("content") if isinstance(token, dict) else token for name, token in found.items()}
    return {name: token for name, token in named.items() if name.endswith("_token") and isinstance(token, str)}


def read_json(path: Path, kind: type = dict) -> Any:
    """An object or a list in a JSON file; empty if there is no such file."""
    if not os.path.isfile(path):
        return kind()
    try:
        text = read_bytes(path, LARGEST).decode("utf-8")
        if kind is dict:
            return parse_object(text)
        found = json.loads(text)
        if not isinstance(found, kind):
            raise ValueError("it is not a list")
        return found
    except (ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} is damaged ({error})") from None


def _chat(path: Path) -> str:
    """The template in its own file or in tokenizer_config.json; of several that one of the name "default"."""
    own = path / "chat_template.jinja"
    if os.path.isfile(own):
        try:
            return read_bytes(own, MOST_CHAT).decode("utf-8")
        except (ValueError, OSError) as error:
            raise UserError(f"{own} is damaged ({error})") from None
    found = read_json(path / "tokenizer_config.json").get("chat_template")
    if isinstance(found, list):
        named = {str(one.get("name")): one.get("template") for one in found if isinstance(one, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""
