"""How images are changed in training. All that is random is a function of (key, example)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.batch import Tensors
from allyouneed.config import option
from allyouneed.randomness import draw, shifted

GREY = (0.299, 0.587, 0.114)  # how bright red, green and blue are
# The numbers of an image's random numbers: more than any image needs. They are data, because what is compiled for a
# GPU multiplies a torch.arange in 32 bits.
NUMBERS = torch.arange(1, 65)


class Chance:
    """Random numbers of images with these keys (B,): each call gives new ones."""

    def __init__(self, keys: Tensor) -> None:
        bits = draw(keys, NUMBERS.to(keys.device)[:, None])  # all at once: a GPU takes as long for one
        self.numbers = iter(shifted(bits, 40).float() / 2**24)

    def __call__(self, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(B,), uniform between the bounds."""
        return low + (high - low) * next(self.numbers)


@dataclass(frozen=True)
class Augment:
    """What may happen to an image in training. Images are (B, C, H, W), from 0 to 1."""

    flip: float = option(0.0, "augmentation: how often left and right are swapped", low=0.0, high=1.0)
    shift: float = option(0.0, "augmentation: moved by at most this part of the side", low=0.0, high=1.0)
    changes: int = option(0, "augmentation: random changes per image (rotate, contrast, …)", low=0, high=10)
    strength: float = option(0.5, "augmentation: how strong these changes are", low=0.0, high=1.0)
    erase: float = option(0.0, "augmentation: how often a rectangle is blanked", low=0.0, high=1.0)
    mix: float = option(0.0, "augmentation: how often another image is mixed in (mixup, cutmix)", low=0.0, high=1.0)

    def __call__(self, tensors: Tensors, mean: Tensor, std: Tensor) -> Tensors:
        """The tensors of a batch, with images changed and normalised."""
        keys, found = tensors["keys"], cast(Tensors, {**tensors})
        chance = Chance(keys)
        if "other" in tensors:
            both = torch.cat([draw(keys, torch.full_like(keys, number)) for number in (1, 2)])
            x, other = self._changed(torch.cat([tensors["pixels"], tensors["other"]]), Chance(both)).chunk(2)
            pixels, part = self._mixed(x, other, chance)
            found["weights"] = tensors.get("weights", torch.ones_like(part)) * part
            found["other_weights"] = tensors["other_weights"] * (1 - part)
        else:
            pixels = self._changed(tensors["pixels"], Chance(draw(keys, torch.ones_like(keys))))
        pixels = normalise(pixels, mean, std)
        return {**found, "pixels": self._erased(pixels, chance) if self.erase else pixels}

    def _changed(self, pixels: Tensor, chance: Chance) -> Tensor:
        x = pixels.float() / 255
        if self.flip:
            x = torch.where(_wide(chance() < self.flip), x.flip(-1), x)
        if self.shift:
            x = _shifted(x, chance, self.shift)
        for _ in range(self.changes):
            chosen = (chance() * len(CHANGES)).long()
            x = change(x, chosen, chance(0, self.strength) * torch.where(chance() < 0.5, -1.0, 1.0))
        return x

    def _mixed(self, x: Tensor, other: Tensor, chance: Chance) -> tuple[Tensor, Tensor]:
        """mixup, a weighted mean, or cutmix, a rectangle of the other image; and the part (B,) that stays x."""
        height, width = x.shape[-2:]
        part, blend, often = chance(), chance() < 0.5, chance() < self.mix
        inside = rectangle(height, width, chance(), chance(), (1 - part).sqrt(), (1 - part).sqrt())  # (B, 1, H, W)
        blended = x * _wide(part) + other * _wide(1 - part)
        part = torch.where(blend, part, 1 - inside.float().mean((1, 2, 3)))
        mixed = torch.where(_wide(blend), blended, torch.where(inside, other, x))
        return torch.where(_wide(often), mixed, x), torch.where(often, part, 1.0)

    def _erased(self, x: Tensor, chance: Chance) -> Tensor:
        """A rectangle of up to 33 % of a normalised image becomes the mean."""
        area, shape = chance(0.02, 0.33), chance(-1.0, 1.0).exp()
        inside = rectangle(x.size(2), x.size(3), chance(), chance(), (area * shape).sqrt(), (area / shape).sqrt())
        return x.masked_fill(inside & _wide(chance() < self.erase), 0.0)


class ImagePreprocessor(nn.Module):
    """The tensors of a batch -> the same with its images normalised and, in training, changed."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], augment: Augment) -> None:
        super().__init__()
        self.augment = augment
        self.register_buffer("mean", torch.tensor(mean), persistent=False)
        self.register_buffer("std", torch.tensor(std), persistent=False)

    def forward(self, tensors: Tensors) -> Tensors:
        if self.training and "keys" in tensors:
            return self.augment(tensors, self.mean, self.std)
        return {**tensors, "pixels": normalise(tensors["pixels"].float() / 255, self.mean, self.std)}


def normalise(x: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """(B, C, H, W), from 0 to 1 -> mean 0 and standard deviation 1 in each channel."""
    return (x - mean[:, None, None]) / std[:, None, None]


def rectangle(height: int, width: int, y: Tensor, x: Tensor, tall: Tensor, wide: Tensor) -> Tensor:
    """(B, 1, H, W) bool: inside the rectangle around (y, x); all are parts of the sides, (B,)."""
    rows = (torch.arange(height, device=y.device) + 0.5) / height
    columns = (torch.arange(width, device=y.device) + 0.5) / width
    down, across = (rows - y[:, None]).abs() < tall[:, None] / 2, (columns - x[:, None]).abs() < wide[:, None] / 2
    return (down[:, :, None] & across[:, None])[:, None]


def _wide(values: Tensor) -> Tensor:
    """(B,) -> (B, 1, 1, 1)"""
    return values[:, None, None, None]


def _shifted(x: Tensor, chance: Chance, most: float) -> Tensor:
    """Moved by whole pixels; what comes in is the edge, repeated."""
    height, width = x.shape[-2:]
    down, across = (torch.round(chance(-most, most) * size).long() for size in (height, width))
    rows = (torch.arange(height, device=x.device) - down[:, None]).clamp(0, height - 1)  # (B, H)
    columns = (torch.arange(width, device=x.device) - across[:, None]).clamp(0, width - 1)
    x = x.gather(2, rows[:, None, :, None].expand_as(x))
    return x.gather(3, columns[:, None, None].expand_as(x))


def _moved(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
    """Each point comes from the matrix (a b; c d) times its place, counted from the middle; a … d are (B,)."""
    height, width = x.shape[-2:]
    down, across = ((torch.arange(size, device=x.device) + 0.5) * 2 / size - 1 for size in (height, width))
    a, b, c, d = (values[:, None, None] for values in (a, b, c, d))
    grid = torch.stack([a * across + b * down[:, None], c * across + d * down[:, None]], -1)  # (B, H, W, 2)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _grey(x: Tensor) -> Tensor:
    """(B, 1, H, W): how bright each point is."""
    if x.size(1) < 3:
        return x[:, :1]
    return sum(part * x[:, i : i + 1] for i, part in enumerate(GREY))  # type: ignore[return-value]


def change(x: Tensor, chosen: Tensor, amount: Tensor) -> Tensor:
    """Each image by the one of CHANGES that is chosen for it, (B,), with an amount (B,) from -1 to 1; 0 leaves most
    as they are. Every image goes through all of them, because a GPU would wait longer to sort them. What is
    transparent stays so: only a move moves it."""
    every = torch.arange(len(CHANGES), device=x.device)
    is_now = dict(zip(CHANGES, (chosen == every[:, None]).view(-1, len(x), 1, 1, 1).unbind()))
    turn, across, down, zoom = (torch.where(is_now[name].flatten(), amount, 0.0) for name in MOVES)
    angle, size = turn * math.pi / 6, 0.4 * zoom
    moved = _moved(x, angle.cos() + size, 0.6 * across - angle.sin(), 0.6 * down + angle.sin(), angle.cos() + size)
    x = torch.where(_wide((turn + across + down + zoom) != 0), moved, x)
    x, clear = (x, x[:, :0]) if x.size(1) % 2 else (x[:, :-1], x[:, -1:])
    grey, strength = _grey(x), _wide(amount.abs())
    blurred = F.avg_pool2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    other = torch.where(is_now["sharpness"], blurred, torch.zeros_like(x))
    other = torch.where(is_now["colour"], grey, torch.where(is_now["contrast"], grey.mean((2, 3), keepdim=True), other))
    further = (other + (x - other) * (1 + 0.9 * _wide(amount))).clamp(0, 1)  # nearer if the amount is negative
    x = torch.where(is_now["brightness"] | is_now["contrast"] | is_now["colour"] | is_now["sharpness"], further, x)
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)  # of each channel; they become 0 and 1
    x = torch.where(is_now["stretch"], (x - low) / (high - low).clamp(min=1 / 255), x)
    step = 2 ** (4 * strength).round()  # 8 to 4 of the 8 bits of a value remain
    x = torch.where(is_now["posterize"], (x * 255 / step).floor() * step / 255, x)
    x = torch.where(is_now["solarize"] & (x >= 1 - 0.5 * strength), 1 - x, x)
    return torch.cat([x, clear], 1)


MOVES = ("rotate", "shear across", "shear down", "zoom")
CHANGES = (
    *("nothing", *MOVES, "brightness", "contrast", "colour", "sharpness"),
    *("stretch", "posterize", "solarize"),
)
