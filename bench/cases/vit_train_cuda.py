"""Training ViT-B/16 on a GPU: the loop of `ayn train` against timm, both compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.data.batches.base import Batch
from allyouneed.recipe import Recipe
from allyouneed.tasks.images import Recognize
from bench.training import Contest, training_case


@dataclass(frozen=True)
class Size:
    layers: int = 12
    heads: int = 12
    width: int = 768
    image: int = 224
    patch: int = 16
    rows: int = 256
    classes: int = 1000
    images: int = 2048


SIZES = {
    "base": Size(),
    "tiny": Size(layers=2, heads=2, width=16, image=16, patch=4, rows=3, classes=10, images=24),
}


class Images(Recognize):
    """Drawn images: noise, and a colour that tells the class."""

    def __init__(self, recipe: Recipe, size: Size) -> None:
        super().__init__(recipe)
        self.labels = [str(i) for i in range(size.classes)]
        self.mean, self.std = [0.5] * 3, [0.5] * 3
        draw = np.random.default_rng(0)
        self.classes_of = draw.integers(size.classes, size=size.images)
        colours = draw.integers(128, size=(size.classes, 1, 1, 3), dtype=np.uint8)
        noise = draw.integers(128, size=(size.images, size.image, size.image, 3), dtype=np.uint8)
        self.drawn = noise + colours[self.classes_of]

    def has(self, split: str) -> bool:
        return split == "train"

    def pixels(self, split: str) -> np.ndarray:
        return self.drawn

    def goals(self, split: str) -> np.ndarray:
        return self.classes_of


def make_task(size: str, train: dict[str, Any]) -> Images:
    s = SIZES[size]
    recipe = Recipe.parse(
        {
            "task": {"kind": "recognize"},
            "model": {
                "kind": "vit", "layers": s.layers, "heads": s.heads, "width": s.width, "image": s.image,
                "patch": s.patch, "channels": 3, "dropout": 0.0,
            },
            "data": {},
            "train": {**train, "batch_tokens": s.rows * (1 + (s.image // s.patch) ** 2)},
        }
    )  # fmt: skip
    return Images(recipe, s)


def their_names(ours: nn.Module, layers: int) -> dict[str, Tensor]:
    """Our weights under the names of timm."""
    weights = {name.removeprefix("body."): tensor.detach() for name, tensor in ours.state_dict().items()}
    rows = {"norm": "stack.norm", "head": "head.out"}
    inside = {
        "norm1": "attention_norm", "attn.qkv": "attention.qkv", "attn.proj": "attention.out",
        "norm2": "feed_forward_norm", "mlp.fc1": "feed_forward.into", "mlp.fc2": "feed_forward.out",
    }  # fmt: skip
    for i in range(layers):
        rows |= {f"blocks.{i}.{theirs}": f"stack.blocks.{i}.{own}" for theirs, own in inside.items()}
    found = {
        f"{theirs}.{part}": weights[f"{own}.{part}"] for theirs, own in rows.items() for part in ("weight", "bias")
    }
    into = weights["patches.into.weight"]
    side = round((into.shape[1] / 3) ** 0.5)
    found["patch_embed.proj.weight"] = into.view(-1, 3, side, side)
    found["patch_embed.proj.bias"] = weights["patches.into.bias"]
    found["cls_token"] = weights["patches.cls"].view(1, 1, -1)
    found["pos_embed"] = weights["patches.positions.table.weight"][None]
    return found


def their_model(ours: Any) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    c = ours.body.patches.config
    model: nn.Module = VisionTransformer(
        img_size=c.image, patch_size=c.patch, num_classes=ours.head.out.out_features, embed_dim=c.width,
        depth=c.layers, num_heads=c.heads,
    )  # fmt: skip
    model.load_state_dict(their_names(ours, c.layers))
    return model


def their_loss(model: Any, tensors: Any) -> Tensor:
    return F.cross_entropy(model((tensors["pixels"].float() / 255 - 0.5) / 0.5), tensors["targets"])


def images(batch: Batch) -> float:
    return float(batch.rows)


CONTEST = Contest(make_task, their_model, their_loss, "images", images, "timm, compiled", "timm")
SIZE = SIZES["base"]
WORK = (
    f"ViT-B/{SIZE.patch} ({SIZE.layers} layers, {SIZE.heads} heads, width {SIZE.width}, {SIZE.classes:,} classes) on "
    f"{SIZE.rows} images of {SIZE.image} x {SIZE.image} pixels per step, bytes that are normalised on the GPU, not "
    "augmented, beside timm's VisionTransformer"
)
CASES = (training_case("vit-train-cuda", WORK, CONTEST, losses=30),)
