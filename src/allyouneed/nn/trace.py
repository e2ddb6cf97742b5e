"""Trace: what an onlooker asked to keep. An argument, never a hook: without one nothing is kept and nothing is paid."""

from __future__ import annotations

from typing import Any

KINDS = ("weights", "queries", "keys", "values", "outputs", "beam")


class Trace:
    """Keeps values of the kinds asked for, under names such as "decoder.2.cross.weights".

    >>> trace = Trace("weights")
    >>> model(ids, trace=trace)
    >>> trace["0.self.weights"]        # (B, H, Tq, Tk), exactly the weights that were used
    """

    def __init__(self, *kinds: str) -> None:
        unknown = set(kinds) - set(KINDS)
        if unknown:
            raise ValueError(f"a Trace keeps {', '.join(KINDS)}; not {', '.join(sorted(unknown))}")
        self.kinds = frozenset(kinds or KINDS)
        self.kept: dict[str, list[Any]] = {}
        self.prefix = ""

    def at(self, place: str | int) -> Trace:
        """The same trace, seen from inside a part of the model."""
        inner = Trace.__new__(Trace)
        inner.kinds, inner.kept, inner.prefix = self.kinds, self.kept, f"{self.prefix}{place}."
        return inner

    def wants(self, kind: str) -> bool:
        return kind in self.kinds

    def keep(self, name: str, value: Any) -> None:
        """`name` starts with its kind: "weights", "beam.tokens"."""
        if self.wants(name.partition(".")[0]):
            self.kept.setdefault(self.prefix + name, []).append(value)

    def __getitem__(self, name: str) -> Any:
        """The last value kept under a name."""
        if name not in self.kept:
            raise KeyError(f"nothing was kept under '{name}'; there is {', '.join(self.kept) or 'nothing'}")
        return self.kept[name][-1]

    def all(self, name: str) -> list[Any]:
        """Every value kept under a name, in order: one a call."""
        return self.kept.get(name, [])

    def __iter__(self) -> Any:
        return iter(self.kept)
