"""Data-parallel training: processes started by torchrun, gloo on CPUs, nccl on GPUs. The model is not wrapped."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from allyouneed.errors import UserError, shortened

T = TypeVar("T")
JOIN = timedelta(minutes=5)  # to wait until all processes have joined
WORK = timedelta(days=1)  # to wait for another process after that: the first one may prepare large data
UNSET = "outside torchrun, unset RANK, WORLD_SIZE and LOCAL_RANK"


class Ranks:
    """This process among all of them. With a single process, every call returns at once."""

    def __init__(self) -> None:
        self.world = _number("WORLD_SIZE", default=1, low=1)
        self.rank = _number("RANK", default=0)
        self.local = _number("LOCAL_RANK", default=0)
        if self.rank >= self.world:
            raise UserError(f"RANK = {self.rank} is not below WORLD_SIZE = {self.world} in the environment; {UNSET}")
        self.first = self.rank == 0

    def join(self, device: str) -> None:
        if self.world > 1 and not dist.is_initialized():
            import torch.distributed.nn.functional  # noqa: F401  # later, its default arguments would hold the group

            backend = "nccl" if device.startswith("cuda") else "gloo"
            try:
                store, rank, world = next(dist.rendezvous("env://", timeout=JOIN))
                dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=WORK)
            except (RuntimeError, ValueError) as error:  # torch has a dozen errors for it, all RuntimeErrors
                where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
                raise UserError(
                    f"process {self.rank} of {self.world} could not join the others at {where} "
                    f"({shortened(str(error).splitlines()[0], 120)}): start with torchrun; {UNSET}"
                ) from error

    def leave(self) -> None:
        """Ends the threads of gloo too: a process that exits with them may abort."""
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def leading(self) -> Iterator[None]:
        """For the first process: the others wait in `follow` until the block ends, and end too if it fails."""
        try:
            yield
        except BaseException:
            self.broadcast("failed")
            raise
        self.broadcast("done")

    def follow(self) -> None:
        """Wait for the `leading` block of the first process; end if it failed (the first process prints the reason)."""
        if self.broadcast("") == "failed":
            raise SystemExit(2)

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()

    def total(self, values: list[float], device: torch.device) -> list[float]:
        """The sum of each number over all processes."""
        if self.world == 1:
            return values
        # Counts above 2^24 are not exact in fp32. Only CUDA sums on the device; the others may have no float64.
        numbers = torch.tensor(values, dtype=torch.float64, device=device if device.type == "cuda" else "cpu")
        dist.all_reduce(numbers)
        return numbers.tolist()

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum the gradients over all processes: each loss is already divided by the count over all processes."""
        if self.world == 1:
            return
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)
        for p, g, piece in zip(parameters, grads, flat.split([g.numel() for g in grads])):
            p.grad = piece.view_as(g)

    def gather(self, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """The tensors of every process, by rank."""
        if self.world == 1:
            return [tensors]
        mine = {name: t.cpu() for name, t in tensors.items()}
        found: list[dict[str, Tensor]] = [{} for _ in range(self.world)]
        dist.all_gather_object(found, mine)
        return found

    def broadcast(self, value: T) -> T:
        """The value of the first process, in all of them."""
        if self.world == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]


def _number(name: str, *, default: int, low: int = 0) -> int:
    """A whole number from the environment."""
    text = os.environ.get(name) or str(default)
    if not (text.isascii() and text.isdigit() and low <= int(text[:9]) <= 10**6):
        raise UserError(f"{name} = '{shortened(text)}' in the environment is not a whole number from {low}; {UNSET}")
    return int(text)
