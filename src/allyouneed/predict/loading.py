"""The processor and the weights of a run on disk. Every file is checked before it is used, and every size before
memory is allocated for it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registry

from allyouneed import catalog
from allyouneed.errors import UserError
from allyouneed.predict.processor import Processor
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import Header, check_fit, not_finite, read_header, read_tensors

TABLES = 1 << 28  # bytes that the computed tables of a model, such as sinusoidal positions, may always take
P = TypeVar("P", bound=Processor)


def load_processor(folder: RunFolder) -> Any:
    """The processor of a run, with its parts."""
    recipe = folder.read_recipe()
    return fill(catalog.predictor(recipe.task_kind).Processor(recipe), folder)


def fill(processor: P, folder: RunFolder) -> P:
    """A processor with the parts of a run, if it fits the run."""
    config, recipe, parts = folder.read_config(), processor.recipe, folder.read_parts()
    try:
        processor.read_parts(parts)
        task, model = vars(folder.read_recipe().task), vars(processor.model_config())
        own = _settings(recipe.task_kind, recipe.model_kind, task, model)
        listed = _settings(config["task"], config["kind"], config["options"], config["model"])
    except UserError as error:
        raise UserError(f"{folder.path} cannot be used: {error}; train it again") from None
    except KeyError as error:
        raise UserError(
            f"{folder.path} cannot be used: its config.json does not list {error}; train it again"
        ) from None
    # A setting that is newer than the run had its default value there.
    usual = _settings("", "", *({f.name: f.default for f in fields(some)} for some in (recipe.task, recipe.model)))
    for name in {**listed, **own}:
        mine, other = own.get(name), {**usual, **listed}.get(name)
        if mine != other:
            raise UserError(
                f"recipe.toml and config.json in {folder.path} are from different runs: {name} is {mine!r:.40} in the "
                f"first and {other!r:.40} in the second; put back the right file, or train again"
            )
    return processor


def _settings(task: str, kind: str, options: dict[str, Any], model: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run by name, as config.json has them."""
    named = {f"task.{key}": value for key, value in options.items()}
    named |= {f"model.{key}": value for key, value in model.items()}
    found: dict[str, Any] = json.loads(json.dumps({"task": task, "kind": kind, **named}))
    return found


def load_weights(folder: RunFolder, processor: Processor) -> dict[str, Tensor]:
    """The weights in model.safetensors, checked: they belong to this run, fit the task's model and are finite."""
    if not folder.model.is_file():
        raise UserError(f"{folder.path} has no model yet: its training has not reached its first evaluation")
    if read_header(folder.model).notes.get("run") != folder.identity():
        raise UserError(
            f"{folder.model} belongs to another run than config.json: put back the right file, or train again"
        )
    check_shapes(processor, folder.model)
    weights = read_tensors(folder.model)
    if broken := not_finite(weights):
        raise UserError(
            f"{folder.model} cannot be used: {broken} holds numbers that are not finite; train again, for example with "
            "a smaller train.lr"
        )
    return weights


def check_shapes(processor: Processor, path: Path) -> None:
    """Raise a UserError if the weights in a file do not fit the task's model. Only the header is read, and the model
    is built without memory: the sizes in an untrusted file must not decide how much is allocated."""
    compare_shapes(
        processor.build_model, read_header(path), path, "the model that recipe.toml and the tokenizer describe"
    )


def compare_shapes(build: Callable[[], nn.Module], header: Header, path: Path, where: str) -> None:
    """Raise a UserError if the tensors of a file are not those of the model that `build` makes."""
    try:
        model = _outline(build, header)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path} does not fit {where}: {error}") from None
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    check_fit(header.shapes, shapes, f"{path} does not fit {where}")
    # Computed tables, such as sinusoidal positions, are not in the header: they get a limit.
    tables = sum(b.numel() * b.element_size() for name, b in model.named_buffers() if name not in shapes)
    if tables > TABLES + sum(4 * math.prod(shape) for shape in header.shapes.values()):
        raise UserError(f"{path} does not fit {where}: its tables would take {tables:,} bytes")


def _outline(build: Callable[[], nn.Module], header: Header) -> nn.Module:
    """The model on the device "meta", which has shapes but no values. Building stops as soon as the model has
    far more layers than the file."""
    most, seen = 1000 + 20 * len(header.shapes), 0

    def count(*_: object) -> None:
        nonlocal seen
        seen += 1
        if seen > most:
            raise ValueError("it has far more layers than the file")

    hooks = [
        registry.register_module_parameter_registration_hook(count),
        registry.register_module_module_registration_hook(count),
    ]
    try:
        with torch.device("meta"):
            return build()
    finally:
        for hook in hooks:
            hook.remove()


def store_by_columns(model: nn.Module) -> None:
    """Store the matrices of the linear layers column by column; their shapes and values stay the same. On a CPU a
    product with few rows, which is what decoding does, is then up to twice as fast. A matrix that is also an embedding
    is read row by row, so it stays as it is."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    for m in model.modules():
        if isinstance(m, nn.Linear) and id(m.weight) not in embeddings:
            m.weight.data = m.weight.data.t().contiguous().t()
