"""Rows of (their names, our name, operation): one table for both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from allyouneed.nn.attention import Attention
from allyouneed.nn.layers import FeedForward

Shape = tuple[int, ...]


class Row(NamedTuple):
    """Several of their tensors, joined by " + ", are one of ours, one below the other; without a name there, ours is
    zero. In both names {i} is the number of a layer. `transposed`: their matrix is. `shape`: theirs, with the same
    values in the same order; -1 is as much as is left. `skip`: their first rows, which nothing ever reads, are not in
    ours."""

    theirs: str
    ours: str
    transposed: bool = False
    shape: Shape = ()
    skip: int = 0

    @property
    def names(self) -> list[str]:
        return self.theirs.split(" + ") if self.theirs else []

    def layer(self, i: int) -> Row:
        """The row of one layer."""
        return self._replace(theirs=self.theirs.replace("{i}", str(i)), ours=self.ours.replace("{i}", str(i)))

    def to_ours(self, parts: Sequence[Tensor], shape: Shape) -> Tensor:
        whole = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        return (whole.T if self.transposed else whole[self.skip :] if self.skip else whole).reshape(shape).contiguous()

    def to_theirs(self, tensor: Tensor) -> Tensor:
        """Ours as theirs, or as several of theirs together."""
        if self.skip:
            tensor = torch.cat([tensor.new_zeros(self.skip, *tensor.shape[1:]), tensor])
        return tensor.reshape(self.shape) if self.shape else tensor.T if self.transposed else tensor


def both(theirs: str, ours: str, transposed: bool = False) -> list[Row]:
    """The rows of a linear layer or a norm: its weight and its bias."""
    rows = []
    for part in ("weight", "bias"):
        names = " + ".join(f"{name}.{part}" for name in theirs.split(" + "))
        rows.append(Row(names, f"{ours}.{part}", transposed and part == "weight"))
    return rows


def without_biases(rows: Iterable[Row]) -> list[Row]:
    """The rows of layers that have no biases there, and here biases of zero."""
    return [row._replace(theirs="") if row.ours.endswith(".bias") else row for row in rows]


def import_tensors(rows: Sequence[Row], get: Callable[[str], Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Our tensors from theirs, which have been checked."""
    known = {row.ours: row for row in rows}
    made: dict[tuple[str, Shape], Tensor] = {}  # two of ours for one of theirs share its memory
    found = {}
    for name, tensor in model.state_dict().items():
        row, shape = known.get(name, Row("", name)), tuple(tensor.shape)
        if not row.names:
            found[name] = torch.zeros(shape)
            continue
        if (key := (row.theirs, shape)) not in made:
            made[key] = row.to_ours([get(theirs) for theirs in row.names], shape)
        found[name] = made[key]
    return found


def export_tensors(rows: Sequence[Row], tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Their tensors from ours. Of a model without memory it gives the shapes that an import needs."""
    known = {row.ours: row for row in rows}
    made: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        row = known.get(name, Row("", name))
        if row.names:
            whole = row.to_theirs(tensor)
            parts = whole.split(_sizes(row, whole.size(0), model))
            copies = [part.clone(memory_format=torch.contiguous_format) for part in parts]  # no two share memory
            made |= dict(zip(row.names, copies, strict=True))
    return made


def _sizes(row: Row, rows: int, model: nn.Module) -> list[int]:
    """How many rows of our tensor each of theirs has."""
    parts = len(row.names)
    if parts == 1:
        return [rows]
    layer = model.get_submodule(row.ours.rsplit(".", 2)[0])
    if isinstance(layer, Attention):
        return list(layer.sizes[-parts:])
    assert isinstance(layer, FeedForward)
    return [rows // parts] * parts
