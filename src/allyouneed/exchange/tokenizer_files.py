"""The tokenizers of a run -> files that AutoTokenizer of the transformers library opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from allyouneed.tasks.base import Say, Task
from allyouneed.text import Layout, Tokenizer
from allyouneed.text.template import Template
from allyouneed.wholefile import write_text

ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
TARGET = "target_tokenizer"


def write_tokenizers(task: Task, folder: Path, say: Say) -> None:
    """tokenizer.json gives the ids that the run's own model reads, with the special tokens around them."""
    kind = task.recipe.task_kind
    chat = getattr(task, "chat", "")
    for name, tokenizer in task.tokenizers.items():
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
        apart = ["token_type_ids"] if getattr(task.recipe.model, "segments", 0) > 1 else []
        about["model_input_names"] = ["input_ids", *apart, "attention_mask"]
        if (limit := task.recipe.model.limit) is not None:
            about["model_max_length"] = limit
        about |= {f"{role}_token": _written(tokenizer, getattr(tokenizer, role)) for role in ROLES}
        if chat:
            write_text(place / "chat_template.jinja", chat)
        known = {key: value for key, value in about.items() if value is not None}
        write_text(place / "tokenizer_config.json", json.dumps(known, indent=2, ensure_ascii=False) + "\n")
    if len(task.tokenizers) > 1:
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
    names = {id: tokenizer.token(id) for ids in template for id in ids}

    def special(ids: tuple[int, ...], segment: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": names[id], "type_id": segment}} for id in ids]

    def text(which: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": which, "type_id": segment}}

    start, between, end = template
    spec["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [*special(start, 0), text("A", 0), *special(end, 0)],
        "pair": [*special(start, 0), text("A", 0), *special(between, 0), text("B", 1), *special(end, 1)],
        "special_tokens": {name: {"id": name, "ids": [id], "tokens": [name]} for id, name in names.items()},
    }
    return spec
