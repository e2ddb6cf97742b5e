"""The files of other libraries, and the options in those that are JSON, each of which has to be asked for."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError, shortened
from allyouneed.storage.runjson import parse_object
from allyouneed.storage.wholefile import read_bytes

LARGEST = 1 << 28  # bytes of a file
# Options of how a model writes, in generation_config.json or, in older files, in config.json: those that are used here,
# or change nothing that is written; and the others, with values that change nothing.
USED = {
    *("do_sample", "num_beams", "temperature", "top_k", "top_p", "length_penalty", "max_new_tokens", "max_length"),
    *("eos_token_id", "bos_token_id", "pad_token_id", "decoder_start_token_id", "stop_strings", "use_cache"),
    *("renormalize_logits", "transformers_version", "_from_model_config", "num_return_sequences"),
    *("output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate"),
    *("forced_eos_token_id", "is_assistant", "num_assistant_tokens", "num_assistant_tokens_schedule", "sep_token_id"),
    *("assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind", "return_legacy_cache"),
    "cache_implementation",
}
UNUSED = {"repetition_penalty": 1.0, "typical_p": 1.0, "num_beam_groups": 1, "encoder_repetition_penalty": 1.0}
UNUSED |= dict.fromkeys(
    (
        *("min_length", "early_stopping", "no_repeat_ngram_size", "bad_words_ids", "diversity_penalty"),
        *("encoder_no_repeat_ngram_size", "forced_bos_token_id", "remove_invalid_values", "suppress_tokens"),
        *("begin_suppress_tokens", "exponential_decay_length_penalty", "cross_attention_hidden_size"),
    ),
    0,
)
# What does not change the numbers of a model that is used: how it was trained, saved and made.
NEUTRAL = {
    *USED,
    *UNUSED,
    *("model_type", "architectures", "torch_dtype", "dtype", "_name_or_path", "_commit_hash", "return_dict"),
    *("torchscript", "use_bfloat16", "initializer_range", "initializer_factor", "init_std", "gradient_checkpointing"),
    *("pretraining_tp", "task_specific_params"),
    *("id2label", "label2id", "num_labels", "problem_type", "finetuning_task", "tokenizer_class", "prefix"),
    *("chunk_size_feed_forward", "is_encoder_decoder", "attn_implementation", "_attn_implementation_autoset"),
    *("auto_map", "model_max_length", "unk_token_id", "transformers.js_config", "is_llama_config", "rope_interleaved"),
    *("_num_labels", "output_past", "language", "name", "license", "tf_legacy_loss", "tie_encoder_decoder"),
    *("predict_special_tokens", "unsloth_fixed", "unsloth_version", "_attn_implementation", "sentence_transformers"),
    *("max_sequence_length", "adapters"),
}
MISSING = object()


class Options:
    """The options of a file. `take` gives a value and marks it as used; `finish` refuses the rest."""

    def __init__(self, values: Mapping[str, Any], neutral: Collection[str] = (), where: str = "config.json") -> None:
        self.values, self.left, self.where = dict(values), set(values) - NEUTRAL - {*neutral}, where

    def take(self, name: str, default: Any = MISSING, kind: type = int) -> Any:
        """The value of an option, of this kind. A missing one, or null, has its default; without one it is needed."""
        value = self._value(name)
        if value is None:
            if default is MISSING:
                raise UserError(f"{self.where} has no '{name}', which a model of this kind needs")
            return default
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind or (isinstance(value, int | float) and not 0 <= value < 2**40):
            raise UserError(f"{self.where}: '{name}' is {shortened(repr(value))}, which it cannot be")
        return value

    def choose(self, name: str, choices: Mapping[Any, Any], default: Any) -> Any:
        """Our word for theirs."""
        value = self._value(name)
        value = default if value is None else value
        if not isinstance(value, str | bool | int | float) or value not in choices:
            known = ", ".join(str(choice) for choice in choices)
            raise UserError(
                f"{self.where}: the option {name} = {shortened(str(value))} is not supported; this library has {known}"
            )
        return choices[value]

    def _value(self, name: str) -> Any:
        self.left.discard(name)
        return self.values.get(name)

    def must(self, **wanted: Any) -> None:
        """Options that may only have this value, which is also that of a missing one."""
        for name, value in wanted.items():
            self.choose(name, {value: value}, value)

    def finish(self) -> None:
        """Refuse options that were not taken and are set to something."""
        strange = [
            f"{shortened(name)} = {shortened(self.values[name])}"
            for name in sorted(self.left)
            if self.values[name] not in (None, False, 0, [], {}, "")
        ]
        if strange:
            raise UserError(f"{self.where}: the option {', '.join(strange)} is not supported")


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """What goes wrong while a file is read, which should be `what`, becomes a UserError that names it."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"there is no file {path}, which should be {what}") from None
    except (OSError, ValueError, RecursionError, struct.error) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{path} is damaged, or not {what} ({shortened(reason, 200)})") from None


def read_text(path: Path, most: int = LARGEST) -> str:
    with reading(path, "UTF-8 text"):
        return read_bytes(path, most).decode("utf-8")


def read_json(path: Path, kind: type = dict) -> Any:
    """An object or a list in a JSON file; empty if there is no such file."""
    if not os.path.isfile(path):
        return kind()
    text = read_text(path)
    with reading(path, "JSON"):
        found = parse_object(text) if kind is dict else json.loads(text)
        if not isinstance(found, kind):
            raise ValueError("it is not a list")
        return found
