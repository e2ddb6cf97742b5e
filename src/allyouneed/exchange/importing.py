"""A folder of another library -> a run folder."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from allyouneed import catalog
from allyouneed.config import DecodeConfig, build
from allyouneed.errors import UserError
from allyouneed.exchange.families import Family, find_family
from allyouneed.exchange.maps import for_layers, import_tensors
from allyouneed.exchange.options import Options
from allyouneed.exchange.weights import Weights
from allyouneed.recipe import Recipe, to_toml
from allyouneed.runfolder import RunFolder
from allyouneed.runjson import parse_object
from allyouneed.runtime import versions
from allyouneed.tasks.base import Say, Task
from allyouneed.tensorfile import not_finite
from allyouneed.text import Tokenizer
from allyouneed.wholefile import read_bytes, write_tensors, write_text

LARGEST = 1 << 28  # bytes of a JSON file


def import_run(
    path: str | os.PathLike[str], out: str | os.PathLike[str], *, overwrite: bool = False, say: Say = print
) -> RunFolder:
    """Write a run folder from a folder as the transformers library saves it. Nothing in it is executed, every size is
    checked before memory is taken for it, and `out` is complete or as before."""
    source = Path(path)
    if not os.path.isdir(source):
        raise UserError(f"there is no folder {source}")
    config = _object(source, "config.json", "a folder as the transformers library saves it has one")
    family, task_kind = find_family(config)
    given = Options(config, family.neutral)
    model = family.read(given)
    given.finish()
    values = {"task": {"kind": task_kind}, "model": {"kind": family.kind, **model}, "decode": _decode(source, config)}
    recipe = Recipe.parse(values)
    task: Task = catalog.task(task_kind)(recipe)
    task.read_parts({"tokenizer.json": _tokenizer(source).to_json().encode()})
    if (tokens := len(task.tokenizer)) > model["vocab"]:
        raise UserError(f"the tokenizer has {tokens:,} ids, but the model only {model['vocab']:,} rows")
    tensors = _tensors(source, family, task, model)
    if broken := not_finite(tensors):
        raise UserError(f"the tensor {broken} holds numbers that are not finite")
    return _write(Path(out), task, tensors, source, overwrite, say)


def _object(folder: Path, name: str, why: str = "") -> dict[str, Any]:
    """A JSON file of the folder; {} if there is none and it is not needed."""
    if not os.path.isfile(folder / name):
        if why:
            raise UserError(f"{folder} has no {name}: {why}")
        return {}
    try:
        return parse_object(read_bytes(folder / name, LARGEST).decode("utf-8"))
    except (ValueError, OSError) as error:
        raise UserError(f"{folder / name} is damaged ({error})") from None


def _decode(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """[decode] from generation_config.json."""
    given = _object(folder, "generation_config.json")
    drawn = given.get("do_sample") is True
    found: dict[str, Any] = {"method": "sample" if drawn else "greedy"}
    if drawn:
        found |= {name: given[name] for name in ("temperature", "top_k", "top_p") if given.get(name) is not None}
    if given.get("max_new_tokens"):
        found["max_new"] = given["max_new_tokens"]
    build(DecodeConfig, found, "generation_config.json")
    return found


def _tokenizer(folder: Path) -> Tokenizer:
    if os.path.isfile(folder / "tokenizer.json"):
        return Tokenizer.load(folder / "tokenizer.json")
    raise UserError(f"{folder} has no tokenizer.json")


def _tensors(folder: Path, family: Family, task: Task, model: dict[str, Any]) -> dict[str, torch.Tensor]:
    weights = Weights(folder)
    with torch.device("meta"):
        outline = task.build_model()
    rows = for_layers(family.rows(model), model["layers"])
    names = {name: name for row in rows for name in row.names}
    if not any(name in weights.shapes for name in names):  # files of a model without its head have no prefix
        names = {name: name.removeprefix(family.prefix) for name in names}
    shapes = {name: weights.shapes[theirs] for name, theirs in names.items() if theirs in weights.shapes}
    used = {*names.values(), "lm_head.weight"} if model.get("tie", True) else set(names.values())
    extra = sorted(name for name in weights.shapes if name not in used and not name.endswith(family.ignored))
    if extra:
        raise UserError(f"the weights have a tensor that this model has no place for: {extra[0]}")
    return import_tensors(rows, shapes, lambda name: weights.get(names[name]).float(), outline)


def _write(
    out: Path, task: Task, tensors: dict[str, torch.Tensor], source: Path, overwrite: bool, say: Say
) -> RunFolder:
    recipe = task.recipe
    with ExitStack() as held:
        if not os.path.exists(out):
            held.callback(RunFolder(out).drop_if_empty, [path for path in out.parents if not os.path.exists(path)])
        folder = RunFolder.create(out, overwrite=overwrite)
        with folder.lock(), folder.replacing():
            write_text(folder.recipe, to_toml(recipe.to_dict()))
            about = {
                "task": recipe.task_kind, "options": vars(task.options), "kind": recipe.model_kind,
                "model": vars(task.model_config()), "data": {"name": "", "fingerprint": ""},
                "followed": [], "versions": versions(), "imported": str(source),
            }  # fmt: skip
            folder.describe(about, task.parts())
            write_tensors(folder.model, tensors, {"step": "imported", "run": folder.identity()})
    say(f"imported {source} into {out}")
    return folder
