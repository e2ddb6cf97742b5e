"""Processor: what a run knows besides its settings and its weights, and how it is loaded. Every file is checked before
it is used, and every size before memory is allocated for it."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registry
from torch.overrides import TorchFunctionMode

from allyouneed import catalog
from allyouneed.errors import UserError
from allyouneed.models.base import Body, Model, Writer
from allyouneed.nn.block import Block, Stack
from allyouneed.recipe import Recipe
from allyouneed.runtime import can_compile
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.tensorfile import Header, check_fit, not_finite, read_header, read_tensors
from allyouneed.text import Tokenizer
from allyouneed.text.layout import Layout

DAMAGED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


class Processor:
    """The tokenizers of a run, and what a kind of run adds, such as labels. They are files of the run: its parts."""

    file: ClassVar[str] = ""  # the JSON file that holds the `extras`
    sides: int = 1  # texts per example

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.options = recipe.task
        self.tokenizers: dict[str, Tokenizer] = {}  # by the name of their file in the run

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the answers."""
        return self.tokenizers.get("tokenizer.target.json") or self.tokenizers["tokenizer.json"]

    @property
    def layout(self) -> Layout:
        """How the texts of an example stand in a row."""
        return self.tokenizer.layout(self.sides)

    @property
    def kind(self) -> Any:
        """The class of the model, a `models.base.Model`."""
        return catalog.model(self.recipe.model_kind)

    @property
    def longest(self) -> int:
        """The most tokens per example, with the special ones."""
        limit = self.recipe.model.limit
        return self.recipe.data.max_length if limit is None else min(self.recipe.data.max_length, limit)

    def model_config(self) -> Any:
        """The model settings of the recipe, with the sizes that the tokenizer decides."""
        return replace(self.recipe.model, vocab=rows_for(self.tokenizer, self.recipe.model.vocab, "vocab"))

    def build_body(self) -> Any:
        """The body of the model, of which model.freeze says what is frozen."""
        config = self.model_config()
        body = self.kind.BodyClass(config)
        freeze_body(body, config.freeze)
        return body

    def build_model(self) -> Any:
        model = self.kind(self.model_config())
        if self.kind.BodyClass is not None:
            freeze_body(model.body, self.recipe.model.freeze)
        return model

    def parts(self) -> dict[str, bytes]:
        """The files that a run needs besides its weights, by name."""
        found = {name: tokenizer.to_json().encode("utf-8") for name, tokenizer in self.tokenizers.items()}
        if extras := self.extras():
            found[self.file] = json.dumps(extras, indent=2, ensure_ascii=False).encode("utf-8")
        return found

    def read_parts(self, parts: Mapping[str, bytes]) -> None:
        """Load the files that `parts` has written."""
        for name, data in parts.items():
            if name.startswith("tokenizer") and name.endswith(".json"):
                self.tokenizers[name] = Tokenizer.parse(data, name)
        if self.file in parts or self.extras():
            try:
                self.take(json.loads(parts[self.file]))
            except DAMAGED:
                raise UserError(f"{self.file} is damaged, or config.json does not list it") from None

    def extras(self) -> dict[str, Any]:
        """The content of the JSON file; empty if there is none."""
        return {}

    def take(self, extras: dict[str, Any]) -> None:
        """Load the content of the JSON file; any error means that it is damaged."""

    def take_tokenizers(self, donor: Processor) -> None:
        """Use the tokenizers of the run that this one starts from: its body reads their tokens."""
        self.tokenizers = dict(donor.tokenizers)

    def same_outputs(self, other: Processor) -> bool:
        """Whether another run of this task has the same outputs: the same tokens or labels in the same order."""
        return other.tokenizer.fingerprint == self.tokenizer.fingerprint


def rows_for(tokenizer: Tokenizer, wanted: int, key: str) -> int:
    """Rows of an embedding or output matrix: `wanted`, or one per token of the tokenizer if that is 0."""
    if wanted and wanted < len(tokenizer):
        raise UserError(f"model.{key} = {wanted} is less than the {len(tokenizer)} tokens of the tokenizer: raise it")
    return wanted or len(tokenizer)


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


def load_weights(folder: RunFolder, processor: Processor, at: Path | None = None) -> dict[str, Tensor]:
    """The weights in model.safetensors, or in the file `at`, checked: they belong to this run, fit
    the task's model and are finite."""
    path = at or folder.model
    if not path.is_file():
        raise UserError(f"{folder.path} has no model yet: its training has not reached its first evaluation")
    if read_header(path).notes.get("run") != folder.identity():
        raise UserError(f"{path} belongs to another run than config.json: put back the right file, or train again")
    check_shapes(processor, path)
    weights = read_tensors(path)
    if broken := not_finite(weights):
        raise UserError(
            f"{path} cannot be used: {broken} holds numbers that are not finite; train again, for example with "
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
        with torch.device("meta"), NoValues():
            return build()
    finally:
        for hook in hooks:
            hook.remove()


def freeze_body(body: Body, what: str) -> None:
    """model.freeze: nothing (""), the whole body, or its lowest layers."""
    stages = body.stages()
    if what.isdecimal() and int(what) >= len(stages):
        raise UserError(f"model.freeze = {what}: the body has {len(stages) - 1} layers; freeze fewer, or body")
    if what:
        body.frozen = (body,) if what == "body" else tuple(m for some in stages[: int(what) + 1] for m in some)
    for module in body.frozen:
        module.requires_grad_(False)


class NoValues(TorchFunctionMode):
    """Parameters get no values from `torch.nn.init`. On the device "meta" there is nothing to fill, and torch would
    import its compiler to do it, which takes longer than everything else that reads a run."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init" and func.__name__.endswith("_"):
            return None
        return func(*args, **(kwargs or {}))


def store_by_columns(model: nn.Module, all: bool = False) -> None:
    """Store the matrices of the linear layers column by column; their shapes and values stay the same. On a CPU a
    product with few rows, which is what decoding does, is then up to twice as fast, and from two rows on a row has the
    same bits whatever the number of rows. A matrix that is also an embedding is read row by row, so it stays as it is;
    with `all`, the linear layer gets a copy, and other matrices, as of recurrent cells, are stored by columns, too."""
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    for m in model.modules():
        if isinstance(m, nn.Linear) and id(m.weight) not in embeddings:
            m.weight.data = m.weight.data.t().contiguous().t()
        elif isinstance(m, nn.Linear) and all:
            m.weight = nn.Parameter(m.weight.data.t().contiguous().t(), requires_grad=False)
    for matrix in model.parameters() if all else ():
        if matrix.dim() == 2 and id(matrix) not in embeddings:
            matrix.data = matrix.data.t().contiguous().t()


def compile_step(model: Model, device: str) -> None:
    """Compile the step of a model that writes: decoding becomes faster, after some seconds in which it is compiled."""
    if not isinstance(model, Writer):
        raise UserError("engine = compiled is for decoding, and this run does not write: leave it out")
    if obstacle := can_compile(device):
        raise UserError(f"the step cannot be compiled here: {obstacle}; leave out engine = compiled")
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    if not stacks:
        raise UserError("engine = compiled is for models made of blocks, such as gpt and transformer: leave it out")
    for stack in stacks:  # all blocks have the same code, so it is compiled once, when the first of them runs
        stack.step = torch.compile(Block.forward, dynamic=True)
    model.compiled = True
    warnings.filterwarnings("ignore", r"\s*Online softmax is disabled")  # a note to the authors of the compiler
