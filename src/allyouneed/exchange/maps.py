"""Rows of (their names, our name, operation): one table for both directions."""

from __future__ import annotations

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
    of a layer. `turned`: their matrix lies the other way round."""

    theirs: str
    ours: str
    turned: bool = False

    @property
    def names(self) -> list[str]:
        return self.theirs.split(" + ")


def both(theirs: str, ours: str, turned: bool = False) -> list[Row]:
    """The rows of a linear layer or a norm: its weight and its bias."""
    rows = []
    for part in ("weight", "bias"):
        names = " + ".join(f"{name}.{part}" for name in theirs.split(" + "))
        rows.append(Row(names, f"{ours}.{part}", turned and part == "weight"))
    return rows


def for_layers(rows: Iterable[Row], layers: int) -> list[Row]:
    """The rows with {i} once for each layer, the others once."""
    return [
        Row(row.theirs.replace("{i}", str(i)), row.ours.replace("{i}", str(i)), row.turned)
        for row in rows
        for i in range(layers if "{i}" in row.ours else 1)
    ]


def import_tensors(
    rows: Sequence[Row], shapes: Mapping[str, Shape], get: Callable[[str], Tensor], model: nn.Module
) -> dict[str, Tensor]:
    """Our tensors from theirs, of which `shapes` are known before any is read. `model` has no memory, only shapes."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    known = {row.ours: row for row in rows}
    for name, shape in wanted.items():
        if name not in known:
            continue
        row = known[name]
        for theirs in row.names:
            if theirs not in shapes:
                raise UserError(f"the tensor {theirs} is missing in the weights")
        found = _joined([shapes[theirs] for theirs in row.names], row.turned)
        if found != shape:
            raise UserError(
                f"the tensor {row.theirs} has the shape {found if not row.turned else found[::-1]}, but config.json "
                f"describes a model in which it is {shape if not row.turned else shape[::-1]}"
            )
    made: dict[str, Tensor] = {}  # by their name: two of ours for one of theirs share its memory
    for row in known.values():
        if row.ours in wanted and row.theirs not in made:
            parts = [get(theirs).T if row.turned else get(theirs) for theirs in row.names]
            made[row.theirs] = (torch.cat(parts) if len(parts) > 1 else parts[0]).contiguous()
    return {name: made[known[name].theirs] for name in wanted if name in known}


def export_tensors(rows: Sequence[Row], tensors: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """Their tensors from ours."""
    made = {}
    for row in rows:
        if row.ours in tensors:
            parts = tensors[row.ours].split(_sizes(row, tensors[row.ours].size(0), model))
            for name, part in zip(row.names, parts, strict=True):
                made[name] = (part.T if row.turned else part).contiguous()
    return made


def _joined(shapes: Sequence[Shape], turned: bool) -> Shape:
    """What shapes are together, one below the other; () if they do not fit."""
    if turned:
        shapes = [shape[::-1] for shape in shapes]
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
