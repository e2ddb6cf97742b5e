"""Trace: values to record. An argument, never a hook: without one nothing is recorded, and it costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from typing import Any

from torch import Tensor, nn

from allyouneed.errors import UserError

# What is recorded, and the axes of each value after the batch. Where two texts meet, a token looks at what is `seen`.
KINDS = {
    "embeddings": ("tokens", "width"),  # what enters the first layer
    "queries": ("heads", "tokens", "width"),
    "keys": ("heads", "seen", "width"),
    "values": ("heads", "seen", "width"),
    "scores": ("heads", "tokens", "seen"),  # before the softmax; -inf where a query may not look
    "weights": ("heads", "tokens", "seen"),
    "heads": ("heads", "tokens", "width"),  # what each head gives: weights · values
    "feed_forward": ("tokens", "width"),
    "inputs": ("tokens", "width"),  # what a recurrent layer reads
    "states": ("tokens", "directions", "parts", "width"),  # before each token: h, of an LSTM h and c
    "gates": ("tokens", "directions", "gates", "width"),  # of recurrent cells and of convolutions, from 0 to 1
    "layers": ("tokens", "width"),  # what each layer gives
    "logits": ("tokens", "classes"),
    "codes": ("rows", "columns"),  # of an image
    "beams": ("beams",),  # of each step of a search: parent, token and log-probability of hypotheses; all "found"
}


class Trace:
    """Records values of the given kinds (default: all) under the path of the module they come from, and their kind.
    Paths begin at the first module that a trace meets, which is the one that it is given to.

    >>> trace = Trace("weights")
    >>> model(ids, trace=trace)
    >>> trace["body.stack.blocks.0.attention.weights"]        # (B, H, Tq, Tk), exactly the weights that were used
    """

    def __init__(self, *kinds: str) -> None:
        unknown = set(kinds) - KINDS.keys()
        if unknown:
            raise UserError(f"a Trace records {', '.join(KINDS)}; not {', '.join(sorted(unknown))}")
        self.kinds = frozenset(kinds or KINDS)
        self.recorded: dict[str, list[Any]] = {}  # by name, one value per call
        self.paths: dict[nn.Module, str] = {}
        self.path = ""
        self.off: dict[str, list[int]] = {}  # heads that give zeros, by the path of their attention
        self.known: dict[str, Tensor] = {}  # what blocks give, by their paths: these are not computed again
        self.change: Callable[[Any], Any] = lambda value: value  # of values before they are recorded

    def at(self, module: nn.Module) -> Trace:
        """The same trace inside a module."""
        if not self.paths:
            self.paths.update({part: path for path, part in module.named_modules()})
        inner = copy(self)
        inner.path = self.paths[module]
        return inner

    def changed(self, change: Callable[[Any], Any]) -> Trace:
        """The same trace, which changes values before it records them."""
        inner = copy(self)
        inner.change = change
        return inner

    def wants(self, *kinds: str) -> bool:
        """Whether one of these is recorded."""
        return not self.kinds.isdisjoint(kinds)

    def record(self, name: str, value: Any) -> None:
        """`name` starts with its kind: "weights", "beams.tokens"."""
        if name.partition(".")[0] in self.kinds:
            self.recorded.setdefault(f"{self.path}.{name}".removeprefix("."), []).append(self.change(value))

    def get(self, module: nn.Module, kind: str) -> Any:
        """The last value of a kind that comes from a module."""
        return self[f"{self.paths[module]}.{kind}".removeprefix(".")]

    def of(self, kind: str) -> list[Any]:
        """All values of a kind, in the order in which they were recorded."""
        return [value for name, values in self.recorded.items() if kind_of(name) == kind for value in values]

    def __getitem__(self, name: str) -> Any:
        """The last value recorded under a name."""
        if name not in self.recorded:
            raise KeyError(f"nothing was recorded under '{name}'; there is {', '.join(self.recorded) or 'nothing'}")
        return self.recorded[name][-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.recorded)


def kind_of(name: str) -> str:
    """ "body.stack.blocks.0.attention.weights" -> "weights" """
    return next(part for part in reversed(name.split(".")) if part in KINDS)


def record(trace: Trace | None, module: nn.Module, kind: str, value: Tensor) -> None:
    """Record a value of a module, if there is a trace."""
    if trace is not None:
        trace.at(module).record(kind, value)
