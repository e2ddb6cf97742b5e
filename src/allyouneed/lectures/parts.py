"""What each part of a Transformer is worth: it is taken out, and the rest is trained in the same way, three seeds each.

The texts are made by rules. Each letter follows from two letters before it, by a table that was drawn once; one letter
in ten is random. So a model has to look at two places, keep them apart, and know the table. In the text for the parts
the two are 1 and 4 places away, in the text for other kinds of models 1 and 12.
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.config import TrainConfig
from allyouneed.figures.bars import plot_bars
from allyouneed.figures.curves import Panel, plot_curves
from allyouneed.lectures.base import Lecture
from allyouneed.models.base import Model
from allyouneed.models.convnet import ConvNet, ConvNetConfig
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.rnn import RNN, RNNConfig
from allyouneed.nn.trace import Trace
from allyouneed.training.optim import learning_rate, make_optimizer

LETTERS, RANDOM = 5, 0.1
TRAIN, VALID, ROWS, STEPS, RATE, SEEDS = 1000, 300, 32, 160, 2e-2, (1, 2, 3)
WINDOW = 8  # letters that the MLP sees
GPT_BASE: dict[str, Any] = {
    "vocab": LETTERS, "context": 32, "width": 32, "layers": 2, "heads": 4, "dropout": 0.1, "positions": "rotary",
}  # fmt: skip
PARTS: dict[str, tuple[str, dict[str, Any]]] = {
    "the whole model": ("4 heads", {}),
    "no norm": ("model.norm=none", {"norm": "none"}),
    "no residual": ("model.residual=false", {"residual": False}),
    "no feed-forward": ("model.feed_forward=false", {"feed_forward": False}),
    "1 head": ("model.heads=1", {"heads": 1}),
    "2 heads": ("model.heads=2", {"heads": 2}),
    "8 heads": ("model.heads=8", {"heads": 8}),
    "cosine as score": ("model.score=cosine", {"score": "cosine"}),
    "no dropout": ("model.dropout=0", {"dropout": 0.0}),
    "no weight decay": ("train.weight_decay=0", {}),
}


class Window(Model):
    """An MLP over the last letters: p(x_t) = softmax(W relu(V [E[x_(t-8)]; …; E[x_(t-1)]]))."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(LETTERS + 1, width)  # the last row is for what is before the text
        self.layers = nn.Sequential(nn.Linear(WINDOW * width, hidden), nn.ReLU(), nn.Linear(hidden, LETTERS))

    def loss(self, ids: Tensor, targets: Tensor) -> Tensor:
        windows = F.pad(ids, (WINDOW - 1, 0), value=LETTERS).unfold(1, WINDOW, 1)  # (B, T, WINDOW)
        logits = self.layers(self.embedding(windows).flatten(2))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


@dataclass
class Trained:
    """A trained model: its losses per letter, and what was measured on the way."""

    model: Model
    valid: float = 0.0
    train: float = 0.0
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)  # norms, before they are clipped


@dataclass(frozen=True)
class Rules:
    """Lines of `length` letters, each of which follows from the letters `lags` places before it."""

    lags: tuple[int, int]
    length: int

    def lines(self, count: int, seed: int) -> Tensor:
        """Lines of the text, (count, length)."""
        table, rng = random.Random(7), random.Random(seed)
        follows = [[table.randrange(LETTERS) for _ in range(LETTERS)] for _ in range(LETTERS)]
        lines = []
        for _ in range(count):
            line = [rng.randrange(LETTERS) for _ in range(max(self.lags))]
            while len(line) < self.length:
                near, far = (line[-lag] for lag in self.lags)
                line.append(rng.randrange(LETTERS) if rng.random() < RANDOM else follows[near][far])
            lines.append(line)
        return torch.tensor(lines)

    @property
    def best_loss(self) -> float:
        """Of a model that knows the rules: the first letters and one in ten of the others cannot be known."""
        wrong = RANDOM / LETTERS
        right = 1 - RANDOM + wrong
        known = -right * math.log(right) - (LETTERS - 1) * wrong * math.log(wrong)
        first = max(self.lags)
        return ((first - 1) * math.log(LETTERS) + (self.length - first) * known) / (self.length - 1)


NEAR, FAR = Rules((1, 4), 16), Rules((1, 12), 30)


def learn(
    model: Model, rules: Rules, seed: int, device: str, decay: float = 0.1, rate: float = RATE, seconds: float = 0
) -> Trained:
    """Train on random lines, with the optimizer and the schedule of `ayn train`, for STEPS steps or for `seconds`."""
    train, valid = rules.lines(TRAIN, 1).to(device), rules.lines(VALID, 2).to(device)
    config = TrainConfig(steps=STEPS, lr=rate, warmup=STEPS // 10, weight_decay=decay)
    model, found = model.to(device), Trained(model)
    optimizer, chosen, begin = make_optimizer(model, config), torch.Generator().manual_seed(seed), time.perf_counter()
    while (done := found.seconds / seconds if seconds else len(found.losses) / STEPS) < 1:
        rows = train[torch.randint(TRAIN, (ROWS,), generator=chosen).to(device)]
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(int(done * STEPS), STEPS, config)
        loss = _per_letter(model, rows)
        optimizer.zero_grad()
        loss.backward()
        found.gradients.append(nn.utils.clip_grad_norm_(model.parameters(), config.clip).item())
        found.losses.append(loss.item())
        optimizer.step()
        found.seconds = time.perf_counter() - begin
    with torch.inference_mode():
        model.eval()
        found.valid, found.train = (_per_letter(model, rows).item() for rows in (valid, train))
    return found


def _per_letter(model: Model, rows: Tensor) -> Tensor:
    return model.loss(rows[:, :-1], rows[:, 1:]) / rows[:, 1:].numel()


def gpt(seed: int, **change: Any) -> GPT:
    torch.manual_seed(seed)
    return GPT(GPTConfig(**{**GPT_BASE, **change}))


def others(name: str, seed: int) -> Model:
    """The models beside the GPT; the first three have about as many parameters as it has."""
    torch.manual_seed(seed)
    if name == "MLP over 8 letters":
        return Window(32, 96)
    if name == "CNN":
        return ConvNet(ConvNetConfig(vocab=LETTERS, width=38, layers=2, kernel=4, dropout=0.1))
    if name == "RNN":
        return RNN(RNNConfig(vocab=LETTERS, width=111, cell="rnn", dropout=0.1))
    return gpt(seed, width=64, layers=3)


OTHERS = {"MLP over 8 letters": RATE, "CNN": RATE, "RNN": RATE, "a larger GPT": RATE / 2}  # and their learning rates


def attention(model: GPT) -> tuple[float, float]:
    """The weight that a letter gives itself, and the entropy of its weights as a part of the largest, in the mean of
    all layers, heads and letters but the first, which sees only itself."""
    with torch.inference_mode():
        model.eval()(NEAR.lines(VALID, 2).to(model.device), trace=(trace := Trace("weights")))
    w = torch.stack(trace.of("weights")).float()[..., 1:, :]  # (L, B, H, T - 1, T)
    entropy = -(w * w.clamp_min(1e-12).log()).sum(-1) / torch.arange(2, NEAR.length + 1, device=w.device).log()
    return w.diagonal(1, -2, -1).mean().item(), entropy.mean().item()


def show(lecture: Lecture) -> dict[str, Any]:
    """Train every variant with every seed, and then the other kinds of models for as long as a GPT."""
    before = [attention(gpt(seed)) for seed in SEEDS]
    found = {
        name: [learn(gpt(s, **change), NEAR, s, lecture.device, 0.1 * (name != "no weight decay")) for s in SEEDS]
        for name, (_, change) in PARTS.items()
    }
    after = [attention(one.model) for one in found["the whole model"]]  # type: ignore[arg-type]
    kinds = {"GPT": [learn(gpt(s), FAR, s, lecture.device) for s in SEEDS]}
    seconds = _mean([one.seconds for one in kinds["GPT"]])
    for name, rate in OTHERS.items():
        kinds[name] = [learn(others(name, s), FAR, s, lecture.device, rate=rate, seconds=seconds) for s in SEEDS]
    _tell_parts(lecture, found)
    _tell_norm(lecture, found)
    _tell_attention(lecture, before, after)
    _tell_kinds(lecture, kinds)
    return {
        "best": {"parts": NEAR.best_loss, "kinds": FAR.best_loss},
        "parts": {name: [one.valid for one in several] for name, several in found.items()},
        "train": {name: [one.train for one in several] for name, several in found.items()},
        "kinds": {name: [one.valid for one in several] for name, several in kinds.items()},
        "parameters": {name: _parameters(several) for name, several in kinds.items()},
        "attention": {"before": before, "after": after},
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _spread(values: list[float]) -> list[str]:
    return [f"{value:.3f}" for value in (_mean(values), min(values), max(values))]


def _parameters(runs: list[Trained]) -> int:
    return sum(p.numel() for p in runs[0].model.parameters())


def _tell_parts(lecture: Lecture, found: dict[str, list[Trained]]) -> None:
    lecture.tell(
        f"""A small GPT (2 blocks, 4 heads, 32 wide) learns a text made by rules: each letter follows from those 1
        and 4 places before it. One part at a time is taken out. Every model is trained for {STEPS} steps, with
        {len(SEEDS)} seeds. A model that knows the rules has a loss of {NEAR.best_loss:.3f}, one that only guesses
        {math.log(LETTERS):.3f}. Two rows differ only if their ranges do not overlap."""
    )
    values = {name: [one.valid for one in several] for name, several in found.items()}
    rows = [
        [name, PARTS[name][0], *_spread(values[name]), f"{_mean([one.train for one in several]):.3f}"]
        for name, several in found.items()
    ]
    lecture.table(["model", "setting", "validation loss", "lowest", "highest", "training loss"], rows)
    whole = values.pop("the whole model")
    worse = [name for name, several in values.items() if min(several) > max(whole)]
    better = [name for name, several in values.items() if max(several) < min(whole)]
    lecture.tell(
        f"""Worse than the whole model with every seed: {", ".join(worse) or "none"}. Better with every seed:
        {", ".join(better) or "none"}. The others make no clear difference on this text."""
    )
    title = "What each part of a Transformer is worth"
    lecture.draw(
        lambda out: plot_bars(
            {"the whole model": whole, **values}, out, title, "validation loss (nats per letter), lower is better",
            NEAR.best_loss, "a model that knows the rules",
        ),
        title,
    )  # fmt: skip


def _tell_norm(lecture: Lecture, found: dict[str, list[Trained]]) -> None:
    rows, curves = [], []
    names = ("the whole model", "no norm", "no residual", "no feed-forward")
    goal = (math.log(LETTERS) + _mean([one.valid for one in found[names[0]]])) / 2
    for name in names:
        jumps = [max(one.gradients[STEPS // 10 :]) / sorted(one.gradients)[STEPS // 2] for one in found[name]]
        mean = [_mean(list(at)) for at in zip(*(one.losses for one in found[name]))]
        smooth = [_mean(mean[max(0, i - 9) : i + 1]) for i in range(STEPS)]
        reached = next((str(i) for i, loss in enumerate(smooth) if loss <= goal), "never")
        rows.append([name, reached, f"{_mean(jumps):.1f}"])
        curves.append((name, list(range(9, STEPS)), smooth[9:]))
    lecture.tell(
        f"""The lectures say that a norm gives smoother gradients and faster training, and that residuals are an
        insurance. Here are the steps until the training loss falls to {goal:.2f}, which is half of the way of the whole
        model, and how much larger the largest gradient is than the usual one."""
    )
    lecture.table(["model", f"steps to {goal:.2f}", "largest gradient / median"], rows)
    panel = Panel("Mean of 3 seeds and 10 steps", "steps", "training loss", curves)
    title = "Learning with and without norm, residual, feed-forward"
    lecture.draw(lambda out: plot_curves([panel], out, title), title, "training")


def _tell_attention(lecture: Lecture, before: list[tuple[float, float]], after: list[tuple[float, float]]) -> None:
    even = _mean([1 / n for n in range(2, NEAR.length + 1)])
    lecture.tell(
        f"""At the start W_Q, W_K and W_V are random, and a letter attends to all before it almost evenly; even weights
        would give itself {even:.2f} and have an entropy of 1. Training makes the weights choose."""
    )
    rows = [
        [when, *(f"{_mean(list(values)):.2f}" for values in zip(*several))]
        for when, several in (("before training", before), ("after training", after))
    ]
    lecture.table(["", "weight of a letter for itself", "entropy / largest entropy"], rows)


def _tell_kinds(lecture: Lecture, found: dict[str, list[Trained]]) -> None:
    lecture.tell(
        f"""A large MLP or CNN could do the same, says one lecture. Here they are on another text, in which each letter
        follows from those 1 and 12 places before it. They have about as many parameters as the GPT and are trained for
        as long as its {STEPS} steps take, here {_mean([one.seconds for one in found["GPT"]]):.1f} seconds. The MLP sees
        {WINDOW} letters and the CNN 7: what is further away does not exist for them, however long they learn. A GPT
        looks anywhere. The last row is a GPT that is larger, in the same time."""
    )
    rows = [
        [name, f"{_parameters(several):,}", f"{_mean([len(one.losses) for one in several]):.0f}",
         *_spread([one.valid for one in several])]
        for name, several in found.items()
    ]  # fmt: skip
    lecture.table(["model", "parameters", "steps", "validation loss", "lowest", "highest"], rows)
    best = min(found, key=lambda name: _mean([one.valid for one in found[name]]))
    lecture.tell(
        f"""The lowest mean loss has: {best}. A model that knows the rules has {FAR.best_loss:.3f}. How many steps fit
        in the time depends on the machine, and so do these losses, all but those of the GPT in the first row."""
    )
    title = "An MLP, a CNN, an RNN and a GPT on the same text, in the same time"
    values = {name: [one.valid for one in several] for name, several in found.items()}
    lecture.draw(
        lambda out: plot_bars(
            values, out, title, "validation loss (nats per letter), lower is better",
            FAR.best_loss, "a model that knows the rules",
        ),
        title, "models",
    )  # fmt: skip
