"""What a ViT has learned of its patches: the similarity of their positions, and the filters that look at them.

And what patches save: attention compares every token with every other, and an image has many pixels.
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.errors import UserError
from allyouneed.figures.heatmaps import patch_figure
from allyouneed.lectures.base import Lecture

FILTERS = 36  # that are drawn
SIDES = (32, 256)  # of images whose pairs are counted


def show(lecture: Lecture) -> dict[str, Any]:
    """Train the recipe recognize/vit, or take a run of the task recognize; minutes on two CPU cores."""
    run = lecture.trained("recognize/vit")
    patches, config = run.model.body.patches, run.recipe.model
    if patches.positions is None:
        raise UserError(f"{lecture.run} has no learned positions (model.positions = {config.positions}) to compare")
    alike = similar(patches.positions.table.weight.detach()[1:])  # without [CLS]
    maps = alike.view(*[config.grid] * 4)
    near = neighbours(maps)
    shown = filters(patches.into.weight.detach(), config.channels, config.patch)
    title = "What a ViT learns of its patches"
    lecture.draw(lambda out: patch_figure(maps, shown, out, title), title)
    lecture.table(["cosine of two positions", ""], [[name, f"{value:.3f}"] for name, value in near.items()])
    rows = []
    for side, (what, patch) in product(SIDES, (("pixels", 1), ("patches of 4 x 4", 4), ("patches of 16 x 16", 16))):
        tokens = (side // patch) ** 2
        rows.append([f"{side} x {side}", what, f"{tokens:,}", f"{tokens**2:,}"])
    lecture.table(["image", "tokens", "how many", "pairs"], rows)
    return {"cosines": alike.tolist(), **near}


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
