"""Kinds of sequence models, and what makes sequences hard: they may be trimmed, have gaps, or be in another order.

The texts are 12 letters long, with one A and one B among others; the label says which of the two comes first. So all
that matters is the order. Models learn from whole texts, and are asked about texts that are not whole.
"""

from __future__ import annotations

import random
from typing import Any

import torch

from allyouneed.batch import Tensors
from allyouneed.config import TrainConfig
from allyouneed.figures.bars import plot_bars
from allyouneed.figures.kinds import Kind, draw_kinds
from allyouneed.lectures.base import Lecture
from allyouneed.models.base import Body
from allyouneed.models.convnet import ConvBody, ConvNetConfig
from allyouneed.models.gpt import GPTBody, GPTConfig
from allyouneed.models.labeller import Labeller
from allyouneed.models.rnn import RNNBody, RNNConfig
from allyouneed.nn.heads import ClassifyHead
from allyouneed.nn.layers import pad
from allyouneed.training.optim import learning_rate, make_optimizer

A, B, LETTERS, LENGTH = 1, 2, 11, 12  # 0 is the padding
KEPT, GAPS = 8, 0.3  # letters of a trimmed text; how often a letter is left out
TRAIN, TEST, ROWS, STEPS, SEEDS, WIDTH = 3000, 500, 64, 150, (1, 2, 3), 32
MODELS = ("RNN", "convolution", "Transformer")
KINDS = {
    "recognize/vit": Kind("one to one", 1, [0], [0], "image → class\nayn train recognize/vit"),
    "lm/gpt": Kind("one to many", 3, [0], [0, 1, 2], "first word → text\nayn train lm/gpt"),
    "classify/rnn": Kind("many to one", 3, [0, 1, 2], [2], "text → class\nayn train classify/rnn"),
    "translate/rnn": Kind(
        "many to many, at the end", 5, [0, 1, 2], [2, 3, 4], "sentence → translation\nayn train translate/rnn"
    ),
    "tag/lstm": Kind("many to many, at each step", 3, [0, 1, 2], [0, 1, 2], "words → tags\nayn train tag/lstm"),
}


def original(rng: random.Random) -> list[int]:
    """A text with one A and one B."""
    text = [rng.randrange(3, LETTERS) for _ in range(LENGTH)]
    text[0], text[1] = A, B
    rng.shuffle(text)
    return text


def damaged(text: list[int], how: str, rng: random.Random) -> list[int]:
    """The text as it is, without its end, with gaps, or in another order."""
    if how == "trimmed":
        return text[:KEPT]
    if how == "omitted":
        return [letter for letter in text if rng.random() >= GAPS] or text[:1]
    return rng.sample(text, len(text)) if how == "permuted" else text


WAYS = ("original", "trimmed", "omitted", "permuted")


def body(name: str) -> Body:
    """Of the models of ayn train lm/rnn (a GRU), lm/conv and lm/gpt."""
    if name == "RNN":
        return RNNBody(RNNConfig(vocab=LETTERS, width=WIDTH, cell="gru", dropout=0.0))
    if name == "convolution":
        return ConvBody(ConvNetConfig(vocab=LETTERS, width=WIDTH, layers=4, kernel=4, dropout=0.0))
    return GPTBody(GPTConfig(vocab=LETTERS, width=WIDTH, layers=2, heads=4, dropout=0.0, positions="rotary"))


def learn(name: str, seed: int, device: str) -> dict[str, float]:
    """Train on original texts; the accuracy (%) on new ones, by what was done to them."""
    torch.manual_seed(seed)
    reader = body(name)
    model = Labeller(reader, ClassifyHead(reader.width, 2, "max")).to(device)
    plan = TrainConfig(steps=STEPS, lr=5e-3, warmup=STEPS // 10)
    optimizer, rng = make_optimizer(model, plan), random.Random(1)
    texts = [original(rng) for _ in range(TRAIN)]
    labels = torch.tensor([text.index(A) < text.index(B) for text in texts]).long().to(device)
    rows = batch(texts, device)["ids"]
    for step in range(STEPS):
        at = torch.randint(TRAIN, (ROWS,)).to(device)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, STEPS, plan)
        optimizer.zero_grad()
        given: Tensors = {"ids": rows[at], "lengths": torch.full((ROWS,), LENGTH, device=device)}
        (model.loss(given, labels[at]) / ROWS).backward()
        optimizer.step()
    model.eval()
    rng = random.Random(2)
    tests = [original(rng) for _ in range(TEST)]
    right = torch.tensor([text.index(A) < text.index(B) for text in tests])
    with torch.inference_mode():
        said = {how: model(batch([damaged(text, how, rng) for text in tests], device)).argmax(-1) for how in WAYS}
    return {how: 100 * (one.cpu().bool() == right).double().mean().item() for how, one in said.items()}


def batch(texts: list[list[int]], device: str) -> Tensors:
    ids, lengths = pad(texts, torch.device(device))
    return {"ids": ids, "lengths": lengths}


def show(lecture: Lecture) -> dict[str, Any]:
    """Draw the kinds; train the three models, three seeds each."""
    lecture.tell(
        """Sequence models differ in what goes in and what comes out: one thing or many, and many at the end or at each
        step. Each kind has a recipe that trains one."""
    )
    rows = [[kind.name, kind.example.partition("\n")[0], f"ayn train {recipe}"] for recipe, kind in KINDS.items()]
    lecture.table(["kind", "for example", "recipe"], rows)
    title = "Kinds of sequence models"
    lecture.draw(lambda out: draw_kinds(list(KINDS.values()), out, title), title, "kinds")
    found = {name: [learn(name, seed, lecture.device) for seed in SEEDS] for name in MODELS}
    lecture.tell(
        f"""What makes sequences hard? Here are texts of {LENGTH} letters, with one A and one B; the label says which of
        the two comes first. Three classifiers learn from whole texts. Then they read new texts: as they are; only the
        first {KEPT} letters; with {GAPS:.0%} of the letters left out; with all letters in a random order."""
    )
    means: dict[str, list[float]] = {}
    rows = []
    for name, several in found.items():
        values = {how: [one[how] for one in several] for how in WAYS}
        means[name] = [sum(values[how]) / len(SEEDS) for how in WAYS]
        rows.append([name, *(f"{mean:.0f} ({min(values[how]):.0f}-{max(values[how]):.0f})"
                             for how, mean in zip(WAYS, means[name]))])  # fmt: skip
    lecture.table(["accuracy (%), lowest-highest", *WAYS], rows)
    columns = dict(zip(WAYS, zip(*means.values())))
    shown = {how: f"{min(values):.1f} to {max(values):.1f} %" for how, values in columns.items()}
    lecture.tell(
        f"""The three models have, in the mean, {shown["original"]} of the whole texts right, {shown["trimmed"]} of the
        trimmed ones, and {shown["omitted"]} of those with gaps: a letter that decides may be missing. In a random order
        all letters are there, but the answer is not: {shown["permuted"]}, where guessing has 50 %."""
    )
    bars = {f"{how}: {name}": [one[how] for one in several] for how in WAYS for name, several in found.items()}
    title = "Which letter comes first, in texts that are damaged"
    lecture.draw(
        lambda out: plot_bars(bars, out, title, "accuracy on new texts (%)", 50.0, "guessing", len(MODELS)), title
    )
    return {name: {how: [one[how] for one in several] for how in WAYS} for name, several in found.items()}
