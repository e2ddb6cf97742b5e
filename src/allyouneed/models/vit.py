"""ViT: an image is a text whose words are its patches (Dosovitskiy et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.batch import Tensors
from allyouneed.config import BodyConfig, option
from allyouneed.errors import UserError
from allyouneed.models.base import FREE, SIZES, Body, Model
from allyouneed.nn.block import BlockConfig, Stack
from allyouneed.nn.init import ZERO, Init, as_made, init_weights, normal, published
from allyouneed.nn.layers import ACTIVATIONS
from allyouneed.nn.positions import Learned, sinusoid
from allyouneed.nn.trace import Trace, record

POSITIONS = ("learned", "sinusoidal", "sinusoidal_2d", "none")


@dataclass(frozen=True)
class PatchConfig(BodyConfig):
    """The settings of every model that cuts an image into patches."""

    image: int = option(32, "height and width of the images, in pixels", low=1, high=4096)
    patch: int = option(4, "height and width of a patch, in pixels", low=1, high=4096)
    channels: int = option(3, "values per pixel: 1 grey, 2 grey and alpha, 3 RGB, 4 RGBA", low=1, high=4)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.image % self.patch:
            raise UserError(
                f"model.patch = {self.patch} does not divide model.image = {self.image}: choose one that does, such as "
                f"{max(p for p in range(1, self.patch) if self.image % p == 0)}"
            )

    @property
    def grid(self) -> int:
        """Patches in a row, and in a column."""
        return self.image // self.patch


@dataclass(frozen=True)
class ViTConfig(PatchConfig, BlockConfig):
    """ViT's choices, unless told otherwise."""

    activation: str = option("gelu", "activation in the feed-forward layer", choices=ACTIVATIONS)
    norm_eps: float = option(1e-6, "added to the variance in each norm", low=0.0, high=1.0)
    positions: str = option("learned", "how the place of a patch is encoded", choices=POSITIONS)
    head_hidden: int = option(0, "width of a hidden layer in the head on [CLS] (0: none)", low=0, high=10**6)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.positions == "sinusoidal_2d" and self.width % 4:
            raise UserError(f"positions in two dimensions need a model.width that 4 divides, not {self.width}")

    @property
    def tokens(self) -> int:
        """[CLS] and the patches."""
        return 1 + self.grid**2


def cut_patches(pixels: Tensor, patch: int) -> Tensor:
    """(B, C, H, W) -> (B, N, C · P · P): the patches row by row."""
    b, c, h, w = pixels.shape
    x = pixels.view(b, c, h // patch, patch, w // patch, patch)
    return x.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def resize_positions(table: Tensor, height: int, width: int) -> Tensor:
    """(1 + N, D), [CLS] and a square of patches -> (1 + height · width, D): what lies between two patches has a vector
    between theirs."""
    side = round((len(table) - 1) ** 0.5)
    if (side, side) == (height, width):
        return table
    square = table[1:].view(1, side, side, -1).permute(0, 3, 1, 2)  # (1, D, side, side)
    square = F.interpolate(square, (height, width), mode="bicubic", align_corners=False)
    return torch.cat([table[:1], square.flatten(2)[0].T])


def positions_2d(height: int, width: int, size: int, device: torch.device) -> Tensor:
    """(height · width, size): half of the values tell the row, the others the column."""
    rows, columns = (torch.arange(n, device=device) for n in (height, width))
    down = sinusoid(rows, size // 2)[:, None].expand(-1, width, -1)
    across = sinusoid(columns, size // 2)[None].expand(height, -1, -1)
    return torch.cat([down, across], dim=-1).flatten(0, 1)


class Patches(nn.Module):
    """[CLS], then W · patch + b for each patch; plus the positions."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        self.into = nn.Linear(config.channels * config.patch**2, config.width)
        self.cls = nn.Parameter(torch.zeros(config.width))
        self.positions = Learned(config.width, config.tokens) if config.positions == "learned" else None

    def forward(self, pixels: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 1 + N, D)"""
        c, (height, width) = self.config, (side // self.config.patch for side in pixels.shape[-2:])
        x = self.into(cut_patches(pixels, c.patch).to(self.into.weight.dtype))
        x = torch.cat([self.cls.to(x.dtype).expand(x.size(0), 1, -1), x], dim=1)
        if self.positions is not None:
            return x + resize_positions(self.positions.table.weight, height, width)
        if c.positions == "sinusoidal":
            x = x + sinusoid(torch.arange(x.size(1), device=x.device), c.width).to(x.dtype)
        elif c.positions == "sinusoidal_2d":
            positions = positions_2d(height, width, c.width, x.device)
            x = x + F.pad(positions, (0, 0, 1, 0)).to(x.dtype)  # [CLS] has no place
        return x


WEIGHTS: dict[str, Init] = {
    "*norm*": as_made,
    "patches.positions.*": normal(0.02),
    "*.weight": published,
    "*.bias": ZERO,
}


class ViTBody(Body):
    """Stack(patches + P): each vector knows the whole image."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.width = config.width
        self.patches, self.dropout = Patches(config), nn.Dropout(config.dropout)
        self.stack = Stack(config, config.layers)
        init_weights(self, WEIGHTS)

    def forward(self, pixels: Tensor, *, trace: Trace | None = None) -> Tensor:
        """(B, C, H, W), normalised -> (B, 1 + N, D)"""
        x = self.dropout(self.patches(pixels))
        record(trace, self, "embeddings", x)
        return self.stack(x, trace=trace)

    def read(self, tensors: Tensors, trace: Trace | None = None) -> Tensor:
        return self(tensors["pixels"], trace=trace)

    def stages(self) -> list[list[nn.Module]]:
        return [[self.patches], *([block] for block in self.stack.blocks)]

    def fitted(self, name: str, tensor: Tensor) -> Tensor:
        """Learned positions are for images of one size; those of another size lie between them."""
        if name != "patches.positions.table.weight" or self.patches.positions is None:
            return tensor
        return resize_positions(tensor, self.patches.config.grid, self.patches.config.grid)


class ViT(Model):
    """p(label | image), from [CLS] or the mean of the patches."""

    Config = ViTConfig
    BodyClass = ViTBody
    tasks = ("recognize",)
    free = (*FREE, "image", "head_hidden")
    fits = ("image",)
    sizes = SIZES["vit"]
