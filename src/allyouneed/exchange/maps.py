"""Rows of (their names, our name, operation): one table for both directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from allyouneed.errors import UserError
from allyouneed.nn.attention import Attention
from allyouneed.nn.layers import FeedForward

Shape = tuple[int, ...]


class Row(NamedTuple):
    """Several of their tensors, joined by " + ", are one of ours, one below the other. In both names {i} is the number
    of a layer. `turned`: their matrix lies the other way round. `shape`: theirs, with the same values in the same
    order; -1 is as much as is left. `skip`: their first rows, which nothing ever reads, are not in ours."""

    theirs: str
    ours: str
    turned: bool = False
    shape: Shape = ()
    skip: int = 0

    @property
    def names(self) -> list[str]:
        return self.theirs.split(" + ")

    def their_shape(self, ours: Shape) -> Shape:
        """The shape of their tensor, or of several together, if ours has this one."""
        if self.shape:
            rest = math.prod(ours) // max(1, math.prod(size for size in self.shape if size > 0))
            return tuple(rest if size < 0 else size for size in self.shape)
        if self.turned:
            return ours[::-1]
        return (ours[0] + self.skip, *ours[1:])

    def to_ours(self, parts: Sequence[Tensor], shape: Shape) -> Tensor:
        whole = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        return (whole.T if self.turned else whole[self.skip :] if self.skip else whole).reshape(shape).contiguous()

    def to_theirs(self, tensor: Tensor) -> Tensor:
        """Ours as theirs, or as several of theirs together."""
        shape = self.their_shape(tuple(tensor.shape))
        if self.skip:
            tensor = torch.cat([tensor.new_zeros(self.skip, *tensor.shape[1:]), tensor])
        return (tensor.T if self.turned else tensor).reshape(shape).contiguous()


def both(theirs: str, ours: str, turned: bool = False) -> list[Row]:
    """The rows of a linear layer or a norm: its weight and its bias."""
    rows = []
    for part in ("weight", "bias"):
        names = " + ".join(f"{name}.{part}" for name in theirs.split(" + "))
        rows.append(Row(names, f"{ours}.{part}", turned and part == "weight"))
    return rows


def for_layers(rows: Iterable[Row], layers: Callable[[str], int]) -> list[Row]:
    """The rows with {i} once for each layer, the others once; `layers` of one of our names with {i}."""
    return [
        row._replace(theirs=row.theirs.replace("{i}", str(i)), ours=row.ours.replace("{i}", str(i)))
        for row in rows
        for i in range(layers(row.ours) if "{i}" in row.ours else 1)
    ]


def import_tensors(
    rows: Sequence[Row], shapes: Mapping[str, Shape], get: Callable[[str], Tensor], model: nn.Module
) -> dict[str, Tensor]:
    """Our tensors from theirs, of which `shapes` are known before any is read. `model` has no memory, only shapes."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    known = {row.ours: row for row in rows}
    for name, shape in wanted.items():
        if name in known:
            _check(known[name], shape, shapes)
        elif math.prod(shape):
            raise UserError(f"the weights have nothing for {name}")
    made: dict[tuple[str, Shape], Tensor] = {}  # two of ours for one of theirs share its memory
    found = {}
    for name, shape in wanted.items():
        if name not in known:
            found[name] = torch.zeros(shape)
            continue
        row = known[name]
        if (key := (row.theirs, shape)) not in made:
            made[key] = row.to_ours([get(theirs) for theirs in row.names], shape)
        found[name] = made[key]
    return found


def _check(row: Row, shape: Shape, shapes: Mapping[str, Shape]) -> None:
    """Raise a UserError unless their tensors are there and together have the shape that ours needs."""
    for theirs in row.names:
        if theirs not in shapes:
            raise UserError(f"the tensor {theirs} is missing in the weights")
    found, needed = _joined([shapes[theirs] for theirs in row.names]), row.their_shape(shape)
    if found != needed:
        raise UserError(
            f"the tensor {row.theirs} has the shape {found}, but config.json describes a model in which it is {needed}"
        )


def export_tensors(rows: Sequence[Row], tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Their tensors from ours."""
    made: dict[str, Tensor] = {}
    for row in {row.ours: row for row in rows}.values():
        if row.ours in tensors:
            whole = row.to_theirs(tensors[row.ours])
            parts = whole.split(_sizes(row, whole.size(0), model))
            made |= {name: part.clone() for name, part in zip(row.names, parts, strict=True)}  # no two share memory
    return made


def _joined(shapes: Sequence[Shape]) -> Shape:
    """What shapes are together, one below the other; () if they do not fit."""
    if len(shapes) == 1:
        return shapes[0]
    if any(len(shape) < 1 or shape[1:] != shapes[0][1:] for shape in shapes):
        return ()
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


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
