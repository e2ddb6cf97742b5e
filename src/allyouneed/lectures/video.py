"""Video: the frames of a clip are the tokens of a Transformer, and their order matters.

A square moves to the left or to the right, grows or shrinks. A clip that runs backwards has the same frames and another
label, so that no frame alone, and no heap of frames, can tell. Side by side the frames are a film strip, which a ViT
reads as an image whose patches are frames: Stack([CLS; W · frame + b] + P), and a linear layer on [CLS].
"""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

from allyouneed.batch import Tensors
from allyouneed.config import TrainConfig
from allyouneed.figures.bars import plot_bars
from allyouneed.figures.sheet import contact_sheet
from allyouneed.lectures.base import Lecture
from allyouneed.models.labeller import Labeller
from allyouneed.models.vit import ViTBody, ViTConfig
from allyouneed.nn.heads import ClassifyHead
from allyouneed.training.optim import learning_rate, make_optimizer

SIDE, FRAMES = 12, 6  # pixels, of a square frame; frames of a clip
LABELS = ("left", "right", "grows", "shrinks")
TRAIN, TEST, ROWS, STEPS, SEEDS = 1000, 500, 32, 120, (1, 2, 3)
MODELS = {"frames and positions": "sinusoidal", "no positions": "none", "mean over the frames": "none"}


def clips(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Film strips (count, 1, SIDE, FRAMES · SIDE) of values from 0 to 1, and their labels."""
    rng = random.Random(seed)
    labels = [rng.randrange(len(LABELS)) for _ in range(count)]
    frames = torch.stack([_clip(rng, label) for label in labels])  # (count, FRAMES, SIDE, SIDE)
    noise = 0.1 * torch.randn(frames.shape, generator=torch.Generator().manual_seed(seed))
    return (frames + noise).clamp(0, 1).transpose(1, 2).reshape(count, 1, SIDE, -1), torch.tensor(labels)


def _clip(rng: random.Random, label: int) -> Tensor:
    frames = torch.zeros(FRAMES, SIDE, SIDE)
    size, top, shade = rng.randint(2, 4), rng.randint(0, SIDE - 7), rng.uniform(0.6, 1.0)
    left = rng.randint(0, SIDE - size - FRAMES + 1)
    for i, frame in enumerate(frames):
        if label < 2:  # to the right
            frame[top : top + size, left + i : left + i + size] = shade
        else:  # grows
            frame[top : top + 2 + i, left : left + 2 + i] = shade
    return frames.flip(0) if LABELS[label] in ("left", "shrinks") else frames


def read(strips: Tensor, alone: bool) -> Tensors:
    """What the model takes: whole clips, or each frame alone."""
    if alone:
        strips = strips.view(-1, 1, SIDE, FRAMES, SIDE).permute(0, 3, 1, 2, 4).flatten(0, 1)
    tokens = 1 + strips.size(-1) // SIDE
    return {"pixels": strips - 0.1, "lengths": torch.full((len(strips),), tokens, device=strips.device)}


def learn(name: str, seed: int, device: str) -> float:
    """The accuracy (%) on new clips, after training."""
    torch.manual_seed(seed)
    alone = name == "mean over the frames"
    config = ViTConfig(
        image=SIDE, patch=SIDE, channels=1, width=32, layers=2, heads=4, dropout=0.0, positions=MODELS[name]
    )
    model = Labeller(ViTBody(config), ClassifyHead(config.width, len(LABELS), "first")).to(device)
    plan = TrainConfig(steps=STEPS, lr=3e-3, warmup=STEPS // 10)
    optimizer, chosen = make_optimizer(model, plan), torch.Generator().manual_seed(seed)
    strips, labels = clips(TRAIN, 1)
    for step in range(STEPS):
        at = torch.randint(TRAIN, (ROWS,), generator=chosen)
        targets = labels[at].repeat_interleave(FRAMES if alone else 1).to(device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, STEPS, plan)
        optimizer.zero_grad()
        (model.loss(read(strips[at].to(device), alone), targets) / len(targets)).backward()
        optimizer.step()
    strips, labels = clips(TEST, 2)
    with torch.inference_mode():
        p = model.eval()(read(strips.to(device), alone)).softmax(-1).view(TEST, -1, len(LABELS)).mean(1)
    return 100 * (p.argmax(-1).cpu() == labels).double().mean().item()


def show(lecture: Lecture) -> dict[str, Any]:
    """Train the three models, three seeds each."""
    lecture.tell(
        f"""Clips of {FRAMES} frames show a square that moves to the left or to the right, grows or shrinks. A clip that
        runs backwards has the same frames and another label. In a Transformer for video each frame is a token: it
        becomes a vector, its position is added, and a linear layer reads the label from [CLS]."""
    )
    strips, labels = clips(40, 3)
    first = [strips[labels.tolist().index(number)] for number in range(len(LABELS))]
    images = [(255 * (1 - one)).byte().view(SIDE, FRAMES, SIDE)[:, i].numpy() for one in first for i in range(FRAMES)]
    texts = [label if not i else f"\n{i + 1}" for label in LABELS for i in range(FRAMES)]
    title = "A clip of each label, frame by frame"
    lecture.draw(lambda out: contact_sheet(images, texts, out, title, columns=FRAMES), title, "clips")
    found = {name: [learn(name, seed, lecture.device) for seed in SEEDS] for name in MODELS}
    mean = {name: sum(values) / len(values) for name, values in found.items()}
    rows = [[name, *(f"{value:.1f}" for value in values), f"{mean[name]:.1f}"] for name, values in found.items()]
    lecture.table(["accuracy (%)", *(f"seed {seed}" for seed in SEEDS), "mean"], rows)
    whole, heap, frames = mean.values()
    lecture.tell(
        f"""With positions the model reaches {whole:.0f} % in the mean. The same model without positions sees a heap of
        frames and has {heap:.0f} %: it may tell a motion from a growth, but not which way it runs, so 50 % is the most
        that it can hope for. A model that sees one frame at a time, whose answers are averaged, has {frames:.0f} %."""
    )
    title = "Frames as tokens: what their order is worth"
    lecture.draw(
        lambda out: plot_bars(found, out, title, "accuracy on new clips (%)", 50.0, "the most without an order"), title
    )
    return found
