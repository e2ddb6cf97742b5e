"""How much memory a computation takes at most."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Peak(TorchDispatchMode):
    """While it is open: the most values that the tensors made since held at once."""

    now = most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        given, fresh = ({id(s): s for s in map(self.storage, tree_leaves(ts)) if s} for ts in ((args, kwargs), made))
        for storage in (s for key, s in fresh.items() if key not in given):
            values = storage.nbytes() // 4
            self.now += values
            weakref.finalize(storage, self.freed, values)
        self.most = max(self.most, self.now)
        return made

    @staticmethod
    def storage(t):
        return t.untyped_storage() if isinstance(t, torch.Tensor) else None

    def freed(self, values: int) -> None:
        self.now -= values


def check_remembered(model, tokens: int, *batch) -> None:
    """The model's estimate of what a step of so many tokens holds, besides weights and gradients, is right to a factor
    of two."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.requires_grad else None
    with Peak() as peak:
        model.loss(*batch).backward()
    assert peak.most / 2 < model.remembered(tokens) < 2 * peak.most
