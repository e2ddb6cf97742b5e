"""Several processes as one: started by torchrun, gloo on CPUs, nccl on GPUs. Outside the model, wrapping nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor


class Ranks:
    """This process among all of them; alone, every call is free."""

    def __init__(self) -> None:
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self.first = self.rank == 0

    def join(self, device: str) -> None:
        if self.world > 1 and not dist.is_initialized():
            dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")

    def leave(self) -> None:
        if self.world > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @contextmanager
    def leading(self) -> Iterator[None]:
        """What the first process does before the others; where it fails, they end too."""
        try:
            yield
        except BaseException:
            self.say("failed")
            raise
        self.say("done")

    def follow(self) -> None:
        """Wait for the first process; it has said why if it failed."""
        if self.say("") == "failed":
            raise SystemExit(2)

    def wait(self) -> None:
        if self.world > 1:
            dist.barrier()

    def total(self, values: list[float], device: torch.device) -> list[float]:
        """The sum of each number over all processes."""
        if self.world == 1:
            return values
        # Whole counts above 2^24 are not exact in fp32.
        numbers = torch.tensor(values, dtype=torch.float64, device=device)
        dist.all_reduce(numbers)
        return numbers.tolist()

    def add_gradients(self, parameters: Iterable[Tensor]) -> None:
        """Sum the gradients over all processes: each loss is already divided by the count of all of them."""
        if self.world == 1:
            return
        grads = [p.grad if p.grad is not None else torch.zeros_like(p) for p in parameters]
        flat = torch.cat([g.flatten() for g in grads])
        dist.all_reduce(flat)
        for p, g, piece in zip(parameters, grads, flat.split([g.numel() for g in grads])):
            p.grad = piece.view_as(g)

    def gather(self, tensors: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        """The tensors of every process, one after another, for the first."""
        if self.world == 1:
            return [tensors]
        mine = {name: t.cpu() for name, t in tensors.items()}
        found: list[dict[str, Tensor]] = [{} for _ in range(self.world)]
        dist.all_gather_object(found, mine)
        return found

    def say(self, value: str) -> str:
        """What the first process says, heard by all."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]
