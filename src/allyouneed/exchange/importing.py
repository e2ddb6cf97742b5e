"""A model of another library -> a run folder."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from allyouneed import catalog
from allyouneed.config import DecodeConfig, build
from allyouneed.data.formats.conll import PER_WORD
from allyouneed.errors import UserError, shortened
from allyouneed.exchange.families import Family, Head, find_family
from allyouneed.exchange.folder import Source, read_folder
from allyouneed.exchange.ggufs import read_gguf
from allyouneed.exchange.llama2c import read_llama2c
from allyouneed.exchange.maps import export_tensors, import_tensors
from allyouneed.exchange.options import UNUSED, USED, Options
from allyouneed.predict.inputs import check_template
from allyouneed.predict.processor import Processor
from allyouneed.recipe import Recipe, to_toml
from allyouneed.runtime import versions
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import check_fit, not_finite
from allyouneed.storage.wholefile import write_tensors
from allyouneed.terminal import Say, say
from allyouneed.text import Tokenizer

MOST_LABELS = 1_000_000
WITH_WORDS = ("lm", "pretrain", "translate")  # tasks whose head gives scores of words


def import_run(
    path: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    architecture: str = "",
    overwrite: bool = False,
    say: Say = say,
) -> RunFolder:
    """Write a run folder from a model of another library: a folder as transformers saves it, or a file of GGUF or
    llama2.c. Nothing in it is executed, every size is checked before memory is taken for it, and `out` is complete or
    as before. With an `architecture` it is read as that one, and tensors of other heads are left out."""
    source = read_source(Path(path), architecture)
    family, head = find_family(source.config, architecture)
    given = Options(source.config, family.neutral)
    model = family.read(given, source.weights.shapes.keys())
    given.must(problem_type="single_label_classification")
    given.finish()
    options = dict(head.options)
    if head.task == "classify" and model.get("pooler") == "none":
        model["pooler"] = "tanh"  # which is missing, and will be named
    if head.task == "pretrain":
        options["next"] = model["pooler"] != "none"
    if head.task == "embed":
        options |= {"specials": True, **({"pool": source.pool} if source.pool else {})}
    if head.task == "translate":
        options["start"] = _start(source)
    own = {field.name for field in fields(catalog.model(family.kind).Config)}
    values = {
        "task": {"kind": head.task, **options},
        "model": {"kind": family.kind, **{name: value for name, value in model.items() if name in own}},
        "decode": _decode(source.generation, head, say),
        "text": {"joint": "tokenizer.target.json" not in source.tokenizers},
    }
    with _their_names(family):
        processor: Processor = catalog.predictor(head.task).Processor(Recipe.parse(values))
    processor.read_parts(_parts(processor, head, source))
    _check_rows(source, model)
    tensors = _tensors(source, family, head, processor, model, say, strict=not architecture)
    return _write(Path(out), processor, tensors, source, overwrite, say)


@contextmanager
def _their_names(family: Family) -> Iterator[None]:
    """A message about settings of ours gets the names that they have in config.json."""
    theirs = {f"model.{setting.ours}": setting.theirs for setting in family.settings if not setting.more}
    try:
        yield
    except UserError as error:
        message = re.sub(r"model\.\w+", lambda found: theirs.get(found[0], found[0]), str(error))
        raise UserError(f"config.json: {message}") from None


def read_source(path: Path, architecture: str = "") -> Source:
    """A folder, or a file of one of the other formats."""
    if os.path.isdir(path):
        return read_folder(path, architecture)
    if not os.path.exists(path):
        raise UserError(
            f"there is no folder or file {shortened(path)}; a model of the Hugging Face Hub has hf: before its name"
        )
    if path.suffix == ".gguf":
        return read_gguf(path)
    if path.suffix == ".bin":
        return read_llama2c(path)
    raise UserError(f"{shortened(path)} is not a model: give a folder, a .gguf file, or a .bin file of llama2.c")


def _parts(processor: Processor, head: Head, source: Source) -> dict[str, bytes]:
    """The files that a run has besides its weights: the tokenizers, and what a training learns from its data."""
    parts = {name: tokenizer.to_json().encode() for name, tokenizer in source.tokenizers.items()}
    extras, labels = processor.extras(), list[str]()
    if head.task in ("classify", "tag", "recognize"):
        labels = extras["labels"] = _labels(source.config) if not head.bare else []
    if head.task == "tag" and not any(label.startswith(("B-", "I-")) for label in labels):
        extras["scheme"] = PER_WORD
    if head.task == "recognize":
        extras |= _normalised(source.images, processor.recipe.model.channels)
    if head.task == "lm":
        extras |= _writing(source, source.tokenizers["tokenizer.json"])
    return parts | ({processor.file: json.dumps(extras).encode()} if extras else {})


def _writing(source: Source, tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokens that end an answer, and the chat template with its special tokens."""
    check_template(source.chat)
    given = source.generation
    ends = given.get("eos_token_id")
    ends = ends if isinstance(ends, list) else [ends]
    named = {
        f"{role}_token": tokenizer.token(id)
        for role in ("bos", "eos")
        if type(id := given.get(f"{role}_token_id")) is int and 0 <= id < len(tokenizer)
    }
    ends = [end for end in ends if type(end) is int and end != tokenizer.eos]
    return {"ends": ends, "chat": source.chat, "named": source.named or named}


def _labels(config: Mapping[str, Any]) -> list[str]:
    """The names of the classes, in the order of their numbers."""
    found = config.get("id2label")
    if found is None:
        count = config.get("num_labels") or 2
        if type(count) is not int or not 0 < count < MOST_LABELS:
            raise UserError(f"config.json: 'num_labels' is {count!r}, which it cannot be")
        return [f"LABEL_{i}" for i in range(count)]
    try:
        labels = {int(number): str(label) for number, label in found.items()}
    except (ValueError, AttributeError):
        raise UserError("config.json: 'id2label' does not give a name for each number") from None
    if sorted(labels) != list(range(len(labels))):
        raise UserError("config.json: 'id2label' does not number labels from 0 on")
    if len(labels) < 2:
        raise UserError(
            f"config.json: 'id2label' has fewer than two labels ({len(labels)}): a model of numbers has no task here"
        )
    several = {label for label, count in Counter(labels.values()).items() if count > 1}  # ImageNet has two cranes
    return [f"{labels[i]} ({i})" if labels[i] in several else labels[i] for i in range(len(labels))]


def _normalised(given: Mapping[str, Any], channels: int) -> dict[str, list[float]]:
    """The mean and the standard deviation of each channel, of pixels from 0 to 1."""
    if given.get("do_rescale") is False or given.get("rescale_factor", 1 / 255) not in (1 / 255, 0.00392156862745098):
        raise UserError("preprocessor_config.json: this library rescales pixels to parts of 1, and this model does not")
    found = {}
    for name, ours, plain in (("image_mean", "mean", 0.0), ("image_std", "std", 1.0)):
        values = given.get(name, [0.5] * channels) if given.get("do_normalize") is not False else [plain] * channels
        if not isinstance(values, list) or len(values) != channels or not all(type(x) in (int, float) for x in values):
            raise UserError(f"preprocessor_config.json: '{name}' is not a list of {channels} numbers")
        found[ours] = [float(x) for x in values]
    if min(found["std"]) <= 0:
        raise UserError("preprocessor_config.json: 'image_std' is not above 0")
    return found


def _start(source: Source) -> str:
    """The role of the first token of every target."""
    tokenizer = source.tokenizers.get("tokenizer.target.json") or source.tokenizers["tokenizer.json"]
    first = source.generation.get("decoder_start_token_id")
    roles = {tokenizer.pad: "pad", tokenizer.bos: "bos"}
    if type(first) is not int or first not in roles:
        raise UserError(
            f"config.json: decoder_start_token_id = {first} is neither the padding of the tokenizer ({tokenizer.pad}) "
            f"nor its first token ({tokenizer.bos})"
        )
    return roles[first]


def _decode(given: Mapping[str, Any], head: Head, say: Say) -> dict[str, Any]:
    """[decode] from generation_config.json. What this library cannot do is printed."""
    sample, beams = given.get("do_sample") is True, given.get("num_beams") or 1
    found: dict[str, Any] = {"method": "sample" if sample else "beam" if beams != 1 else "greedy"}
    if head.task == "translate":
        found["times_source"] = 0
    if sample:
        found["top_k"] = 50  # theirs, if the file does not say
        found |= {name: given[name] for name in ("temperature", "top_k", "top_p") if given.get(name) is not None}
    elif beams != 1:
        penalty = given.get("length_penalty")
        found |= {"beam": beams, "length_penalty": "power", "alpha": 1.0 if penalty is None else penalty}
    if given.get("stop_strings"):
        found["stop"] = given["stop_strings"]
    if given.get("max_new_tokens"):
        found["max_new"] = given["max_new_tokens"]
    elif head.task == "translate" and type(given.get("max_length")) is int:
        found["max_new"] = given["max_length"] - 1  # which counts the first token
    if type(found.get("max_new")) is int and type(given.get("forced_eos_token_id")) is int:
        found["max_new"] = max(1, found["max_new"] - 1)  # the last of theirs is the end, which is not one of ours
    build(DecodeConfig, found, "generation_config.json")
    barred = [[given.get("pad_token_id", given.get("decoder_start_token_id"))]]
    for name, value in given.items():
        same = name in USED or value in (None, False, 0, [], {}, "", UNUSED.get(name, 0))
        if not same and not (name == "bad_words_ids" and value == barred):
            say(f"generation_config.json: {shortened(name)} is not used: this library does not have it")
    return found


def _check_rows(source: Source, model: Mapping[str, Any]) -> None:
    rows = {"tokenizer.json": model.get("vocab"), "tokenizer.target.json": model.get("target_vocab")}
    for name, tokenizer in source.tokenizers.items():
        if len(tokenizer) > (most := rows[name] or 0):
            raise UserError(f"the tokenizer has {len(tokenizer):,} ids, but the model only {most:,} rows")


def _tensors(
    source: Source, family: Family, head: Head, processor: Processor, model: Mapping[str, Any], say: Say, strict: bool
) -> dict[str, torch.Tensor]:
    with torch.device("meta"), _their_names(family):
        outline = processor.build_model()
    rows = family.table(head, model)
    names = {name for row in rows for name in row.names}
    stored: dict[str, str] = {}
    for name in source.weights.shapes:
        current = _current_name(name, names, family)
        if stored.setdefault(current, name) != name:
            raise UserError(f"the weights have the same tensor twice: {stored[current]} and {name}")
    copies = family.copies if head.task in WITH_WORDS else {}
    spare = {*copies, *(name for name in stored if name.endswith(family.ignored))}
    unknown = sorted(stored[name] for name in stored if name not in names | spare)
    ours = outline.state_dict()
    needed = {name: tuple(tensor.shape) for name, tensor in export_tensors(rows, ours, outline).items()}
    mapped = {row.ours for row in rows}
    needed |= {name: tuple(tensor.shape) for name, tensor in ours.items() if name not in mapped and tensor.numel()}
    there = {name: source.weights.shapes[stored[name]] for name in stored if name in needed}
    there |= {name: source.weights.shapes[name] for name in unknown if strict}
    check_fit(there, needed, f"the tensors of {source.path} do not fit its settings")
    if unused := sorted([*unknown, *(stored[name] for name in stored if name in names - needed.keys())]):
        say(f"not used: {', '.join(unused)}")

    def read(name: str) -> torch.Tensor:
        tensor = source.weights.get(stored[name]).float()
        if not_finite({name: tensor}):
            raise UserError(f"the tensor {stored[name]} holds numbers that are not finite")
        return tensor

    found = import_tensors(rows, read, outline)
    for name, ours in copies.items():
        copied = name in stored and name not in names and ours in found
        if copied and not torch.equal(source.weights.get(stored[name]).float(), found[ours]):
            whole = next(row.theirs for row in rows if row.ours == ours)
            why = "although config.json says that both are one (tie_word_embeddings)"
            if source.config.get("tie_word_embeddings") is False:
                why = f"and a {family.kind} of this library has one tensor for both"
            raise UserError(f"the tensor {stored[name]} is not equal to {whole}, {why}")
    return found


def _current_name(name: str, names: set[str], family: Family) -> str:
    """The name that a tensor has in the table: files have older endings, and a model without its head no prefix."""
    for older, newer in family.older.items():
        if name.endswith(older):
            name = name.removesuffix(older) + newer
    return name if name in names or family.prefix + name not in names else family.prefix + name


def _write(
    out: Path, processor: Processor, tensors: dict[str, torch.Tensor], source: Source, overwrite: bool, say: Say
) -> RunFolder:
    recipe, kind = processor.recipe, source.config["model_type"]
    with ExitStack() as stack:
        if not os.path.exists(out):
            stack.callback(RunFolder(out).drop_if_empty, [path for path in out.parents if not os.path.exists(path)])
        folder = RunFolder.create(out, resume=None, overwrite=overwrite)
        with folder.lock(), folder.replacing():
            about = {
                "task": recipe.task_kind, "options": vars(processor.options), "kind": recipe.model_kind,
                "model": vars(processor.model_config()), "data": {"name": "", "fingerprint": ""},
                "followed": [], "versions": versions(), "imported": str(source.path), "family": kind,
            }  # fmt: skip
            folder.describe(to_toml(recipe.to_dict()), about, processor.parts())
            write_tensors(folder.model, tensors, {"step": "imported", "run": folder.identity()})
    say(f"imported {source.path} into {out}")
    return folder
