"""What a ViT has learned of its patches: the similarity of their positions, and the filters that look at them.

The model is asked where a circle is: in which row, if it is red, and in which column, if it is blue. So it has to learn
of each patch in which row and column it is. And what patches save: attention compares every token with every other, and
an image has many pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.data.builtin.shapes import SIDE, SIZES, Shape, draw
from allyouneed.errors import UserError
from allyouneed.figures.heatmaps import patch_figure
from allyouneed.lectures.base import Lecture

FILTERS = 36  # that are drawn
SIDES = (32, 256)  # of images whose pairs are counted
COUNTS = {"train": 6000, "valid": 500, "test": 1000}
BANDS = 8  # rows and columns
SETTINGS = (
    "task.shift=0", "task.pool=mean", "model.layers=2", "train.lr=5e-3", "train.steps=800", "train.eval_every=400",
)  # fmt: skip


def show(lecture: Lecture) -> dict[str, Any]:
    """A small ViT learns in which row or column a circle is, or a given run is looked into."""
    data = None if lecture.run else write_images(lecture.out / "rows-and-columns.npz", 29, _image)
    run = lecture.trained("recognize/vit", *SETTINGS, data=data, name="rows-and-columns")
    patches, config = run.model.body.patches, run.recipe.model
    if patches.positions is None:
        raise UserError(f"{lecture.run} has no learned positions (model.positions = {config.positions}) to compare")
    alike = similar(patches.positions.table.weight.detach()[1:])  # without [CLS]
    maps = alike.view(*[config.grid] * 4)
    near = neighbours(maps)
    shown = filters(patches.into.weight.detach(), config.channels, config.patch)
    lecture.tell(
        """Each patch has a learned position. The more alike two positions are, the more alike the model treats the two
        patches. On the left of the figure there is a small map for each patch: red are the patches whose position is
        like its own."""
    )
    title = "What a ViT learns of its patches"
    lecture.draw(lambda out: patch_figure(maps, shown, out, title), title)
    lecture.table(["cosine of two positions", ""], [[name, f"{value:.3f}"] for name, value in near.items()])
    rows = []
    for side, (what, patch) in product(SIDES, (("pixels", 1), ("patches of 4 x 4", 4), ("patches of 16 x 16", 16))):
        tokens = (side // patch) ** 2
        rows.append([f"{side} x {side}", what, f"{tokens:,}", f"{tokens**2:,}"])
    lecture.table(["image", "tokens", "how many", "pairs"], rows)
    return {"cosines": alike.tolist(), **near}


def write_images(path: Path, seed: int, image: Callable[[np.random.Generator], tuple[np.ndarray, str]]) -> Path:
    """An array file of images with their labels, drawn by `image`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, np.ndarray] = {}
    for number, (split, count) in enumerate(COUNTS.items()):
        rng = np.random.default_rng((2021, seed, number))
        images, labels = zip(*(image(rng) for _ in range(count)))
        arrays |= {f"x_{split}": np.stack(images), f"y_{split}": np.array(labels)}
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    return path


def _image(rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """One circle; the label is the row of a red one, or the column of a blue one."""
    x, y = rng.uniform(SIZES["small"] + 1, SIDE - SIZES["small"] - 1, 2)
    name, colour, at = (("row", "red", y), ("column", "blue", x))[rng.integers(2)]
    return draw([Shape("circle", colour, "small", x, y)]), f"{name} {int(at * BANDS / SIDE) + 1}"


def similar(positions: Tensor) -> Tensor:
    """(N, D) -> (N, N): the cosines of all pairs, from the mean of all positions."""
    x = F.normalize(positions.float() - positions.float().mean(0), dim=1)
    return x @ x.T


def neighbours(alike: Tensor) -> dict[str, float]:
    """The mean cosine (G, G, G, G) of patches beside each other, in one row or column, and of all others."""
    at = torch.cartesian_prod(torch.arange(len(alike)), torch.arange(len(alike)))
    apart = (at[:, None] - at[None]).abs()  # (N, N, 2): rows and columns
    steps, neither = apart.sum(-1), (apart > 0).all(-1)
    groups = {
        "side by side": steps == 1,
        "same row or column, further away": ~neither & (steps > 1),
        "neither": neither,
    }
    alike = alike.reshape(len(at), len(at))
    return {name: round(float(alike[chosen].mean()), 4) for name, chosen in groups.items()}


def filters(weight: Tensor, channels: int, patch: int) -> Tensor:
    """(D, C · P · P) -> (K, P, P, C): the directions in which patches differ most for the model."""
    _, _, directions = torch.linalg.svd(weight.float() - weight.float().mean(0), full_matrices=False)
    return directions[:FILTERS].view(-1, channels, patch, patch).permute(0, 2, 3, 1)
