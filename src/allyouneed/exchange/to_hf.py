"""A run -> a folder that the transformers library opens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from allyouneed import catalog
from allyouneed.config import build
from allyouneed.errors import UserError
from allyouneed.exchange.families import FAMILIES, Family, Head
from allyouneed.exchange.folder import POOLS
from allyouneed.exchange.maps import Row, export_tensors
from allyouneed.exchange.options import Options
from allyouneed.models.base import Model
from allyouneed.models.bert import BertConfig
from allyouneed.nn.positions import Sinusoidal
from allyouneed.predict.base import Writing
from allyouneed.predict.lm import LMProcessor
from allyouneed.predict.processor import Processor
from allyouneed.storage.wholefile import write_json, write_tensors, write_text
from allyouneed.terminal import Say
from allyouneed.text import Layout, Tokenizer
from allyouneed.text.layout import post_processor
from allyouneed.text.tokenizer import NAMES
from allyouneed.version import __version__

# Settings that do not change what a trained model computes, or that are not the model's.
FREE = ("freeze", "dropout", "attention_dropout", "drop_path", "output_bias", "bos")
ROTARY = ("rotary_base", "rotary_stretch", "rotary_context")
TARGET = "target_tokenizer"  # the folder of a second tokenizer
# The class that opens a model of each task, and the pipeline that it is for.
OPENED_BY = {
    "lm": ("AutoModelForCausalLM", "text-generation"),
    "pretrain": ("AutoModelForMaskedLM", "fill-mask"),
    "classify": ("AutoModelForSequenceClassification", "text-classification"),
    "tag": ("AutoModelForTokenClassification", "token-classification"),
    "answer": ("AutoModelForQuestionAnswering", "question-answering"),
    "embed": ("AutoModel", "feature-extraction"),
    "recognize": ("AutoModelForImageClassification", "image-classification"),
    "translate": ("AutoModelForSeq2SeqLM", "translation"),
}


@dataclass(frozen=True)
class Form:
    """A model as one of the families has it."""

    kind: str  # model_type
    name: str  # of the architecture
    family: Family
    head: Head
    settings: dict[str, Any]

    @property
    def table(self) -> list[Row]:
        return self.family.table(self.head, self.settings)


def export_hf(run: Any, folder: Path, say: Say) -> list[Path]:
    """Write config.json, weights, tokenizer and a model card."""
    processor, model = run.processor, run.model
    form, weights = find_form(processor, model, str(run.config.get("family", "")))
    write_tensors(folder / "model.safetensors", their_tensors(form, weights, model), {"format": "pt"})
    write_json(folder / "config.json", config_json(form, processor))
    if issubclass(catalog.predictor(processor.recipe.task_kind), Writing):
        write_json(folder / "generation_config.json", _generation(processor, say))
    if processor.tokenizers:
        _write_tokenizers(processor, folder, say)
    if processor.recipe.task_kind == "recognize":
        write_json(folder / "preprocessor_config.json", _images(processor))
    if processor.recipe.task_kind == "embed":
        _write_pooling(processor, folder, say)
    write_text(folder / "README.md", _card(form.name, run))
    if form.head.bare and "body.pooler.weight" in {row.ours for row in form.table} - weights.keys():
        say(f"this run has no pooler: {form.name} of transformers gives one random weights")
    say(f"a {form.name} for transformers")
    return sorted(path for path in folder.rglob("*") if path.is_file())


def find_form(processor: Processor, model: Model, family: str = "") -> tuple[Form, dict[str, Tensor]]:
    """How transformers has this model, and its weights; a UserError says what it has not. A run that was imported goes
    back to its `family`."""
    kind, weights = processor.recipe.model_kind, dict(model.state_dict())
    settings = _plain(vars(processor.model_config()))
    settings["qkv_bias"] = any(bool(t.any()) for name, t in weights.items() if name.endswith(".attention.qkv.bias"))
    if kind == "transformer":
        settings, weights = _with_tables(settings, weights, model)
    found = []
    for name, known in FAMILIES.items():
        heads = {arch: head for arch, head in known.heads.items() if head.task == processor.recipe.task_kind}
        if known.kind == kind and heads:
            arch = next((a for a, head in heads.items() if _fits(head, weights)), list(heads)[-1])
            form = Form(name, arch, known, heads[arch], settings)
            found.append((_differences(form, processor, weights), name != family, form))
    if not found:
        able = sorted({f"{known.kind} for {head.task}" for known in FAMILIES.values() for head in known.heads.values()})
        raise UserError(
            f"transformers has no model like a run of '{kind}' for the task '{processor.recipe.task_kind}'; these can "
            f"be exported: {', '.join(able)}"
        )
    differences, _, form = min(found, key=lambda one: (len(one[0]), one[1]))
    if differences:
        own, theirs = (" and ".join(filter(None, side)) for side in zip(*differences))
        nearest = f"{form.name}, with {theirs}: a training with that can be exported" if theirs else form.name
        raise UserError(f"transformers has no {kind} with {own}; what comes nearest is {nearest}")
    return form, weights


def their_tensors(form: Form, weights: Mapping[str, Tensor], model: Model) -> dict[str, Tensor]:
    """As transformers saves them."""
    tensors = export_tensors(form.table, weights, model)
    if form.family.kind == "transformer" and not form.settings["output_bias"]:
        tensors["final_logits_bias"] = torch.zeros(1, form.settings["target_vocab"])
    prefix = form.family.prefix if form.head.bare else ""
    return {name.removeprefix(prefix): tensor.cpu() for name, tensor in tensors.items()}


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with the values that 0 stands for."""
    found = dict(settings)
    if "heads" in found:
        found["kv_heads"] = found["kv_heads"] or found["heads"]
        found["head_width"] = found["head_width"] or found["width"] // found["heads"]
        found["value_width"] = found["value_width"] or found["head_width"]
        found["hidden"] = found["hidden"] or 4 * found["width"]
    if "decoder_layers" in found:
        found["decoder_layers"] = found["decoder_layers"] or found["layers"]
    return found


def _with_tables(
    settings: dict[str, Any], weights: dict[str, Tensor], model: Model
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A translator whose sinusoids are tables in its file, which transformers reads. Without tying, it shares no
    table."""
    settings = {**settings, "share": settings["share"] and settings["tie"]}
    sides = {"source": model.body.source.positions, "target": model.body.target.positions}
    if settings["positions"] == "sinusoidal_half" and not settings["prenorm"]:
        return settings, weights  # which Marian computes itself
    for name, positions in sides.items():
        if isinstance(positions, Sinusoidal):
            size = settings["context"]
            table = positions(torch.arange(size, device=model.device), size)
            weights = {**weights, f"body.{name}.positions.table.weight": table.float()}
            settings = {**settings, "positions": "learned"}
    return settings, weights


def _fits(head: Head, weights: Mapping[str, Tensor]) -> bool:
    return all(row.ours in weights and weights[row.ours].numel() for row in head.rows)


def _differences(form: Form, processor: Processor, weights: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """The settings that the family cannot express, and those in their place: what comes back from its config.json."""
    rows = form.table
    # Instead of rotary positions it could have a table of them, as it has if they are learned.
    table_too = form.settings["positions"] == "rotary"
    there = [row for row in rows if row.ours in weights or (table_too and row.ours.endswith(".positions.table.weight"))]
    names = [name for row in there for name in row.names]
    config = form.family.config(form.settings)
    try:
        found = form.family.read(Options(config, form.family.neutral), names)
    except UserError as error:  # an activation, for instance, that they have no word for
        return [(str(error), "")]
    cls = processor.kind.Config
    known = {field.name for field in fields(cls)}
    found |= _plain(vars(build(cls, {name: value for name, value in found.items() if name in known}, "model")))
    free = {*FREE, *(ROTARY if form.settings["positions"] != "rotary" else ())}
    asked = form.settings.keys() & found.keys() - free
    pairs = [(f"model.{name} =", value, found[name]) for name, value in form.settings.items() if name in asked]
    options = vars(processor.options)
    pairs += [(f"task.{name} =", options[name], value) for name, value in form.head.options.items()]
    different = [(f"{name} {own}", f"{name} {theirs}") for name, own, theirs in pairs if own != theirs]
    biased = [row.ours for row in rows if not row.names and row.ours in weights and weights[row.ours].any()]
    return different + [(f"numbers other than 0 in {name}", "") for name in biased[:1]]


def config_json(form: Form, processor: Any) -> dict[str, Any]:
    config: dict[str, Any] = {"architectures": [form.name], "model_type": form.kind, "dtype": "float32"}
    config |= form.family.config(form.settings)
    if processor.recipe.task_kind in ("classify", "tag", "recognize") and not form.head.bare:
        config["id2label"] = {str(i): label for i, label in enumerate(processor.labels)}
        config["label2id"] = {label: i for i, label in enumerate(processor.labels)}
    if processor.tokenizers:
        config |= {f"{role}_token_id": getattr(processor.tokenizer, role) for role in ("bos", "eos", "pad")}
    if form.family.kind == "transformer":
        config |= {"is_encoder_decoder": True, "decoder_start_token_id": processor.model_config().bos}
    return config | ({"pad_token_id": 1} if form.kind == "roberta" else {})


def _generation(processor: Any, say: Say) -> dict[str, Any]:
    """[decode] as transformers has it."""
    decode, tokenizer = processor.recipe.decode, processor.tokenizer
    found: dict[str, Any] = {f"{role}_token_id": getattr(tokenizer, role) for role in ("bos", "eos", "pad")}
    room = getattr(processor.model_config(), "context", None) or decode.max_new
    found |= {"max_new_tokens": min(decode.max_new, room), "do_sample": decode.method == "sample"}
    if decode.method == "sample":
        found |= {"temperature": decode.temperature, "top_k": decode.top_k, "top_p": decode.top_p}
    if decode.method == "beam":
        found |= {"num_beams": decode.beam, "length_penalty": decode.alpha}
        if decode.length_penalty != "power":
            say(
                f"generation_config.json: transformers has only the length penalty n^alpha; this run is decoded with "
                f"{decode.length_penalty}, so its beams may end in other places"
            )
    if processor.recipe.task_kind == "translate":
        found["decoder_start_token_id"] = processor.model_config().bos
        if processor.options.start == "pad":
            found |= {"bad_words_ids": [[processor.model_config().bos]], "renormalize_logits": True}
    else:
        found["eos_token_id"] = [id for id in (tokenizer.eos, *processor.ends) if id is not None] or None
    if decode.stop:
        say("generation_config.json: the strings of decode.stop are not written: give them to generate()")
    return {name: value for name, value in found.items() if value is not None}


def _images(processor: Any) -> dict[str, Any]:
    side = processor.recipe.model.image
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": side, "width": side},
        "resample": 3,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": processor.mean,
        "image_std": processor.std,
    }


def _write_pooling(processor: Processor, folder: Path, say: Say) -> None:
    """What sentence-transformers reads."""
    pool = processor.options.pool
    if pool in ("mean", "max") and not processor.options.specials:
        say("sentence-transformers pools over the special tokens too, and this run does not: its files are not written")
        return
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (path, name) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling")))
    ]
    write_json(folder / "modules.json", modules)
    (folder / "1_Pooling").mkdir()
    config = {"word_embedding_dimension": processor.recipe.model.width}
    write_json(folder / "1_Pooling/config.json", config | {name: own == pool for name, own in POOLS.items()})


def _write_tokenizers(processor: Processor, folder: Path, say: Say) -> None:
    """tokenizer.json gives the ids that the run's own model reads, with the special tokens around them."""
    kind = processor.recipe.task_kind
    for name, tokenizer in processor.tokenizers.items():
        path = folder if name == "tokenizer.json" else folder / TARGET
        path.mkdir(exist_ok=True)
        if kind == "translate":
            spec = _framed(tokenizer, Layout(end=(tokenizer.need("eos", "to end a sentence"),)))
        elif kind == "lm":
            spec = json.loads(tokenizer.to_json())
        else:
            spec = _framed(tokenizer, tokenizer.layout())
        write_text(path / "tokenizer.json", json.dumps(spec, ensure_ascii=False, indent=1))
        about: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
        model = processor.recipe.model
        apart = ["token_type_ids"] if isinstance(model, BertConfig) and model.segments > 1 else []
        about["model_input_names"] = ["input_ids", *apart, "attention_mask"]
        if (limit := model.limit) is not None:
            about["model_max_length"] = limit
        ids = {role: id for role in NAMES if (id := getattr(tokenizer, role)) is not None}
        about |= {f"{role}_token": tokenizer.token(id) for role, id in ids.items()}
        if isinstance(processor, LMProcessor) and processor.chat:
            write_text(path / "chat_template.jinja", processor.chat)
        write_json(path / "tokenizer_config.json", about)
    if len(processor.tokenizers) > 1:
        say(f'the tokenizer of the target: AutoTokenizer.from_pretrained(folder, subfolder="{TARGET}")')


def _framed(tokenizer: Tokenizer, layout: Layout) -> dict[str, Any]:
    """tokenizer.json that puts these ids around texts, and the prefix before each."""
    spec: dict[str, Any] = json.loads(tokenizer.to_json())
    if tokenizer.template == layout:
        return spec
    if layout.prefix:
        before = {"type": "Prepend", "prepend": layout.prefix}
        own = spec["normalizer"]
        spec["normalizer"] = {"type": "Sequence", "normalizers": [*([own] if own else []), before]}
    around = (layout.start, layout.between, layout.end)
    ids = {tokenizer.token(id): id for part in around for id in part}
    start, between, end = ([tokenizer.token(id) for id in part] for part in around)
    spec["post_processor"] = post_processor(start, between, end, ids)
    return spec


def _card(name: str, run: Any) -> str:
    """README.md: what the model is, what it was trained on, and how well it does."""
    kind = run.recipe.task_kind
    opened, pipeline = OPENED_BY[kind]
    data = run.config.get("data", {}).get("name") or "not known here: this model was trained elsewhere"
    scores = [
        f"| {split} | {score.name} | {score.value:.4g} | `{score.signature}` |"
        for split, found in run.scores().items()
        for score in found
    ]
    table = "\n".join(["| split | score | value | how |", "| --- | --- | --- | --- |", *scores]) if scores else "None."
    reader = "AutoImageProcessor" if kind == "recognize" else "AutoTokenizer"
    return f"""---
library_name: transformers
pipeline_tag: {pipeline}
tags:
- allyouneed
---

# {name}

A `{run.recipe.model_kind}` for the task `{kind}`, exported from allyouneed {__version__}.

```python
from transformers import {opened}, {reader}

model = {opened}.from_pretrained(".")
reader = {reader}.from_pretrained(".")
```

## Data

{data}

## Scores

{table}
"""
