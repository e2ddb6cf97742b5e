"""The tokenizers of a run -> files that AutoTokenizer of the transformers library opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from allyouneed.models.bert import BertConfig
from allyouneed.predict.lm import LMProcessor
from allyouneed.predict.processor import Processor
from allyouneed.terminal import Say
from allyouneed.text import Layout, Tokenizer
from allyouneed.text.template import Template, template_spec
from allyouneed.wholefile import write_text

ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
TARGET = "target_tokenizer"


def write_tokenizers(processor: Processor, folder: Path, say: Say) -> None:
    """tokenizer.json gives the ids that the run's own model reads, with the special tokens around them."""
    kind = processor.recipe.task_kind
    for name, tokenizer in processor.tokenizers.items():
        place = folder if name == "tokenizer.json" else folder / TARGET
        place.mkdir(exist_ok=True)
        if kind == "translate":
            spec = _framed(tokenizer, Template(end=(tokenizer.need("eos", "to end a sentence"),)), "")
        elif kind == "lm":
            spec = json.loads(tokenizer.to_json())
        else:
            layout = Layout.of(tokenizer)
            spec = _framed(tokenizer, Template(layout.start, layout.between, layout.end), layout.prefix)
        write_text(place / "tokenizer.json", json.dumps(spec, ensure_ascii=False, indent=1))
        about: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        model = processor.recipe.model
        apart = ["token_type_ids"] if isinstance(model, BertConfig) and model.segments > 1 else []
        about["model_input_names"] = ["input_ids", *apart, "attention_mask"]
        if (limit := model.limit) is not None:
            about["model_max_length"] = limit
        about |= {f"{role}_token": _written(tokenizer, getattr(tokenizer, role)) for role in ROLES}
        if isinstance(processor, LMProcessor) and processor.chat:
            write_text(place / "chat_template.jinja", processor.chat)
        known = {key: value for key, value in about.items() if value is not None}
        write_text(place / "tokenizer_config.json", json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    if len(processor.tokenizers) > 1:
        say(f'the tokenizer of the target: AutoTokenizer.from_pretrained(folder, subfolder="{TARGET}")')


def _written(tokenizer: Tokenizer, id: int | None) -> str | None:
    return None if id is None else tokenizer.token(id)


def _framed(tokenizer: Tokenizer, template: Template, prefix: str) -> dict[str, Any]:
    """tokenizer.json that puts these ids around texts, and the prefix before each."""
    spec: dict[str, Any] = json.loads(tokenizer.to_json())
    if tokenizer.template == template and not prefix:
        return spec
    if prefix:
        before = {"type": "Prepend", "prepend": prefix}
        own = spec["normalizer"]
        spec["normalizer"] = {"type": "Sequence", "normalizers": [*([own] if own else []), before]}
    ids = {tokenizer.token(id): id for part in template for id in part}
    start, between, end = ([tokenizer.token(id) for id in part] for part in template)
    spec["post_processor"] = template_spec([*start, "$A", *end], [*start, "$A", *between, "$B", *end], ids)
    return spec
