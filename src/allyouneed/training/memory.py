"""How many parameters a model has, how much work it does, and the memory that training and decoding need."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from allyouneed.config import DecodeConfig, TrainConfig
from allyouneed.data.batches.base import Batch
from allyouneed.errors import UserError
from allyouneed.format import human_bytes, human_count
from allyouneed.models.base import Model, Writer
from allyouneed.models.word2vec import Word2Vec
from allyouneed.nn.attention import Attention
from allyouneed.runtime import available
from allyouneed.tasks.base import Task


def flops(model: Model, context: int) -> int:
    """FLOPs per token of a forward pass: two for each weight of each matrix, and the attention to `context` tokens."""
    if isinstance(model, Word2Vec):
        return _of_words(model)
    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.RNNBase | nn.Conv1d | nn.Conv2d)]
    matrices = sum(2 * p.numel() for m in layers for p in m.parameters(recurse=False) if p.dim() > 1)
    attentions = [m for m in model.modules() if isinstance(m, Attention)]
    return matrices + sum(2 * a.heads * (a.head_width + a.value_width) * context for a in attentions)


def _of_words(model: Word2Vec) -> int:
    """Of the predictions of one word: window + 1 neighbours on average, against each negative sample."""
    c = model.config
    goals, near = (c.vocab if c.loss == "softmax" else 1 + c.negatives), c.window + 1
    if c.method == "cbow":
        return c.width * near + 2 * c.width * goals
    return 2 * c.width * goals * near


def parameters(model: Model) -> dict[str, int]:
    """By the path of their module, the same for all blocks: "body.decoder.blocks.*.cross"."""
    found: dict[str, int] = {}
    for name, p in model.named_parameters():  # tied ones come once
        pieces = ["*" if piece.isdigit() else piece for piece in name.split(".")[:-1]]
        part = ".".join(pieces[: pieces.index("*") + 2 if "*" in pieces else 2])
        found[part] = found.get(part, 0) + p.numel()
    return found


MEASURED = 512  # tokens of the batch by which the memory of a step is measured


@dataclass(frozen=True)
class Estimate:
    """Bytes that a training step needs, by part, and bytes that are available."""

    weights: int
    optimizer: int
    activations: int
    available: int

    @property
    def total(self) -> int:
        return self.weights + self.optimizer + self.activations

    def __str__(self) -> str:
        return (
            f"about {human_bytes(self.total)} of {human_bytes(self.available)} free "
            f"(weights and gradients {human_bytes(self.weights)}, optimizer {human_bytes(self.optimizer)}, "
            f"activations {human_bytes(self.activations)})"
        )


class PeakMemory(TorchDispatchMode):
    """While it is open: the most bytes that the tensors made inside it take at once."""

    now = most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        given, fresh = _storages((args, kwargs)), _storages(made)
        for storage in (fresh[key] for key in fresh.keys() - given.keys()):
            self.now += storage.nbytes()
            weakref.finalize(storage, self._freed, storage.nbytes())
        self.most = max(self.most, self.now)
        return made

    def _freed(self, size: int) -> None:
        self.now -= size


def _storages(values: Any) -> dict[int, Any]:
    found = (leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    return {id(storage): storage for storage in found}


def measure_activations(model: Model, loss: Callable[[], Tensor]) -> int:
    """Bytes that the forward and the backward pass of a loss take besides weights and gradients. Random numbers and
    gradients are afterwards as before."""
    learning = [p for p in model.parameters() if p.requires_grad]
    for p in learning:
        p.grad = torch.zeros_like(p)
    with torch.random.fork_rng([model.device] if model.device.type == "cuda" else []), PeakMemory() as peak:
        loss().backward()
    for p in learning:
        p.grad = None
    return peak.most


def estimate(train: TrainConfig, task: Task, model: Model, loss: Callable[[Batch], Tensor]) -> Estimate:
    """What a micro-batch takes, measured with a few examples of the first batch."""
    activations = 0
    if not model.in_place:
        examples = task.examples("train")
        first = examples.plan(train.seed, 0, train.batch_tokens)[0]
        some = first[: max(1, len(first) * MEASURED // train.batch_tokens)]
        batch = examples.collate(some).to(model.device)
        activations = measure_activations(model, partial(loss, batch)) * len(first) // len(some)
    weights, optimizer = lasting(model, adam=train.optimizer == "adamw")
    return Estimate(weights, optimizer, activations // train.accumulate, available(model.device))


def micro_batches(train: TrainConfig, need: Estimate) -> tuple[int, list[str]]:
    """The number of micro-batches per step that fits into memory, and the lines to print about it."""
    pieces, notes = train.accumulate, [f"memory: {need}"]
    while need.total > need.available and pieces < train.batch_tokens:
        pieces, need = 2 * pieces, replace(need, activations=need.activations // 2)
    if pieces > train.accumulate:
        notes.append(f"this exceeds the available memory: {pieces} micro-batches per step, {need}")
    return pieces, notes


def lasting(model: Model, *, adam: bool) -> tuple[int, int]:
    """Bytes that training holds between steps: weights and gradients, and the optimizer. A frozen parameter has
    neither gradient nor optimizer state."""
    parameters = sum(p.numel() for p in model.parameters())
    if model.in_place:
        return 4 * parameters, 0
    learning = sum(p.numel() for p in model.parameters() if p.requires_grad)
    return 4 * (parameters + learning), 8 * learning if adam else 4 * learning


def check_weights(build: Callable[[], Model], *, adam: bool, device: torch.device) -> None:
    """Raise a UserError if weights, gradients and optimizer do not fit into the free memory. The model is built on the
    device "meta", so nothing is allocated."""
    with torch.device("meta"):
        model = build()
    (weights, optimizer), free = lasting(model, adam=adam), available(device)
    if weights + optimizer > free:
        parameters = human_count(sum(p.numel() for p in model.parameters()))
        raise UserError(
            f"the model has {parameters} parameters: training needs {human_bytes(weights)} for weights and gradients "
            f"and {human_bytes(optimizer)} for the optimizer, and {human_bytes(free)} are free; make the model smaller"
        )


@torch.inference_mode()
def check_rows(model: Writer, decode: DecodeConfig, vocab: int) -> None:
    """Raise a UserError if the rows of decoding do not fit into the free memory: the first state of each row, its
    logits, and the tokens of beam search."""
    beams = decode.beam if decode.method == "beam" else 1
    rows, tokens = decode.batch * beams, min(decode.max_new, model.limit or decode.max_new)
    each = _bytes(model.empty(1, 64)) + (16 * vocab + 24 * tokens if beams > 1 and model.prompted else 12 * vocab)
    if rows * each > (free := available(model.device)):
        also = f" x decode.beam = {beams:,}" if beams > 1 else ""
        raise UserError(
            f"decode.batch = {decode.batch:,}{also} rows need {human_bytes(rows * each)}, and {human_bytes(free)} are "
            f"free: lower {'decode.beam, ' if beams > 1 else ''}decode.batch or decode.max_new"
        )


def _bytes(value: Any) -> int:
    """Bytes of all tensors in a decoding state."""
    if isinstance(value, Tensor):
        return value.nbytes
    parts = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    return sum(_bytes(part) for part in parts.values())


@contextmanager
def explain_memory() -> Iterator[None]:
    """Turn an out-of-memory error inside the block into a UserError."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise UserError(
            "out of memory: lower decode.batch, decode.beam or decode.max_new, or give a shorter text"
        ) from error


NO_MEMORY = ("can't allocate memory", "not enough memory", "cannot allocate memory", "could not create a memory")


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA has its own error class; on the CPU (allocator, oneDNN, operating system) only the message tells."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error).lower() for words in NO_MEMORY)
