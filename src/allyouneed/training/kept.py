"""The content of train.safetensors in a checkpoint: the state of the optimizer, the moving average, and the recurrent
states between windows. It is checked when it is read: a checkpoint may come from an untrusted source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from allyouneed.tasks.base import Carry
from allyouneed.training.averages import MovingAverage

# The state of each optimizer per parameter.
MEMORY: dict[type, set[str]] = {
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
    torch.optim.SGD: {"momentum_buffer"},
}


def kept_tensors(
    model: nn.Module, optimizer: torch.optim.Optimizer, average: MovingAverage | None, carried: Sequence[Carry]
) -> dict[str, Tensor]:
    """The tensors by name: "optimizer/<parameter>/exp_avg", "ema/<parameter>", "carry/<process>/h", …"""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    found = {f"carry/{rank}/{name}": t for rank, carry in enumerate(carried) for name, t in carry.items()}
    for p, state in optimizer.state.items():
        found |= {f"optimizer/{names[p]}/{key}": t for key, t in state.items() if isinstance(t, Tensor)}
    if average is not None:
        found |= {f"ema/{name}": t for name, t in average.tensors().items()}
    return found


def restore_kept(
    tensors: Mapping[str, Tensor],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    average: MovingAverage | None,
    fresh: Carry,
) -> dict[int, Carry]:
    """Load what `kept_tensors` returned into the optimizer and the average. Returns the carry of each process, which
    must have the shapes of `fresh`. A ValueError or KeyError means that the tensors do not fit the model."""
    _load_optimizer(model, optimizer, _under("optimizer/", tensors))
    if average is not None:
        average.load(_under("ema/", tensors))
    carried: dict[int, Carry] = {}
    for path, t in _under("carry/", tensors).items():
        rank, _, name = path.partition("/")
        _check(path, t, fresh[name].shape, fresh[name].dtype)
        carried.setdefault(int(rank), {})[name] = t
    if any(carry.keys() != fresh.keys() for carry in carried.values()):
        raise ValueError("a part of a state is missing")
    return carried


def _load_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    parameters = dict(model.named_parameters())
    for path, value in tensors.items():
        name, _, key = path.rpartition("/")
        p = parameters[name]
        _check(path, value, torch.Size([]) if key == "step" else p.shape, p.dtype)
        optimizer.state[p][key] = torch.empty_like(value, device=p.device).copy_(value)
    if any(state.keys() != MEMORY[type(optimizer)] for state in optimizer.state.values()):
        raise ValueError("the state of the optimizer is incomplete")


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def _check(name: str, t: Tensor, shape: torch.Size, dtype: torch.dtype) -> None:
    if (t.shape, t.dtype) != (shape, dtype):
        raise ValueError(f"{name} is {t.dtype} {tuple(t.shape)}, not {dtype} {tuple(shape)}")
