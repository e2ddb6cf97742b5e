"""Trace: values to record. An argument, never a hook: without one nothing is recorded, and it costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

KINDS = ("weights", "queries", "keys", "values", "outputs", "layers", "beam")


class Trace:
    """Records values of the given kinds (default: all) under names such as "decoder.2.cross.weights".

    >>> trace = Trace("weights")
    >>> model(ids, trace=trace)
    >>> trace["0.self.weights"]        # (B, H, Tq, Tk), exactly the weights that were used

    `Trace("layers")` records what each layer of a body gives: recorded["layers"] are the embeddings, the output of each
    layer, and last that of the body, (B, T, D) each.
    """

    def __init__(self, *kinds: str) -> None:
        unknown = set(kinds) - set(KINDS)
        if unknown:
            raise ValueError(f"a Trace records {', '.join(KINDS)}; not {', '.join(sorted(unknown))}")
        self.kinds = frozenset(kinds or KINDS)
        self.recorded: dict[str, list[Any]] = {}  # by name, one value per call
        self.prefix = ""

    def at(self, place: str | int) -> Trace:
        """The same trace for a part of the model: its names start with `place`."""
        inner = Trace(*self.kinds)
        inner.recorded, inner.prefix = self.recorded, f"{self.prefix}{place}."
        return inner

    def wants(self, kind: str) -> bool:
        return kind in self.kinds

    def record(self, name: str, value: Any) -> None:
        """`name` starts with its kind: "weights", "beam.tokens"."""
        if self.wants(name.partition(".")[0]):
            self.recorded.setdefault(self.prefix + name, []).append(value)

    def __getitem__(self, name: str) -> Any:
        """The last value recorded under a name."""
        if name not in self.recorded:
            raise KeyError(f"nothing was recorded under '{name}'; there is {', '.join(self.recorded) or 'nothing'}")
        return self.recorded[name][-1]

    def __iter__(self) -> Iterator[str]:
        return iter(self.recorded)
