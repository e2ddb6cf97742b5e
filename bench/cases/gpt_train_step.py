"""Training a small GPT: our loop as a run uses it, against a plain eager PyTorch loop written by hand."""

from __future__ import annotations

import random
import string
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from allyouneed.models.gpt import GPT
from allyouneed.recipe import Recipe
from allyouneed.runtime import probe
from allyouneed.storage.runfolder import RunFolder
from allyouneed.tasks.lm import LM
from allyouneed.training.distributed import Ranks
from allyouneed.training.feed import Step
from allyouneed.training.trainer import Trainer
from bench.harness import OURS, Case, Peer, Prepared, same

LAYERS, HEADS, WIDTH, CONTEXT, ROWS, VOCAB = 4, 4, 128, 64, 12, 65
STEPS = 10  # per call
LETTERS = 500_000
LEARNING_RATE = 1e-3
PLAIN = "a plain PyTorch loop"


class OurLoop(Trainer):
    """The loop of a run with batches, losses and metrics, without evaluations and checkpoints."""

    def _evaluate(self) -> None:
        pass

    def save(self, last: bool) -> None:
        pass

    def some_steps(self, steps: int = STEPS) -> None:
        self.pacer.plan = replace(self.pacer.plan, total=self.at.step + steps)
        self.fit()


def our_loop(positions: str, folder: Path) -> OurLoop:
    """The loop that `ayn train` builds from such a recipe."""
    letters = (string.ascii_letters + string.digits)[: VOCAB - 4]  # and the tokenizer's four special tokens
    (folder / "text.txt").write_text("".join(random.Random(0).choices(letters, k=LETTERS)), encoding="utf-8")
    recipe = Recipe.parse(
        {
            "task": {"kind": "lm"},
            "model": {
                "kind": "gpt", "layers": LAYERS, "heads": HEADS, "width": WIDTH, "context": CONTEXT,
                "positions": positions, "dropout": 0.0,
            },
            "text": {"kind": "char"},
            "data": {"path": [str(folder / "text.txt")]},
            "train": {
                "steps": 1, "batch_tokens": ROWS * CONTEXT, "lr": LEARNING_RATE, "schedule": "constant", "warmup": 0,
                "beta2": 0.999, "weight_decay": 0.01, "clip": 1.0, "threads": torch.get_num_threads(),
                "device": "cpu", "precision": "fp32", "compile": "off",
            },
        }
    )  # fmt: skip
    task = LM(recipe)
    task.prepare(lambda line: None)
    runtime = probe(recipe.train)
    torch.manual_seed(recipe.train.seed)
    run = RunFolder.create(folder / "run", resume=False, overwrite=False)
    return OurLoop(task.build_model(), task, recipe.train, run, runtime, Ranks(), quiet=True)


class PlainBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc, self.fc_proj = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor] | None) -> Tensor:
        B, T, D = x.shape
        q, k, v = self.qkv(self.ln_1(x)).split(D, dim=2)
        q, k, v = (t.view(B, T, HEADS, D // HEADS).transpose(1, 2) for t in (q, k, v))
        if rotary is not None:
            q, k = turned(q, *rotary), turned(k, *rotary)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).contiguous().view(B, T, D))
        return x + self.fc_proj(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions as they are usually written: x cos + rotate_half(x) sin, with full-width tables."""
    half = x.size(-1) // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin


class PlainGPT(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, positions: str) -> None:
        super().__init__()
        self.wte = nn.Embedding(VOCAB, WIDTH)
        self.wpe = nn.Embedding(CONTEXT, WIDTH) if positions == "learned" else None
        self.blocks = nn.ModuleList(PlainBlock() for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.lm_head.weight = self.wte.weight
        width = WIDTH // HEADS
        angles = torch.arange(CONTEXT)[:, None] / 10000.0 ** (torch.arange(0, width, 2) / width)
        self.register_buffer("cos", torch.cat([angles, angles], dim=-1).cos(), persistent=False)
        self.register_buffer("sin", torch.cat([angles, angles], dim=-1).sin(), persistent=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(ids)
        rotary = None
        if self.wpe is not None:
            x = x + self.wpe(torch.arange(ids.size(1), device=ids.device))
        else:
            rotary = self.cos[: ids.size(1)], self.sin[: ids.size(1)]
        for block in self.blocks:
            x = block(x, rotary)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))


def plain_names(ours: GPT) -> dict[str, Tensor]:
    """Our weights under the names of the plain model."""
    rows = {"wte": "body.embedding.tokens", "lm_head": "head.out", "wpe": "body.embedding.positions.table"}
    rows["ln_f"] = "body.stack.norm"
    inside = {
        "ln_1": "attention_norm", "qkv": "attention.qkv", "proj": "attention.out", "ln_2": "feed_forward_norm",
        "fc": "feed_forward.into", "fc_proj": "feed_forward.out",
    }  # fmt: skip
    for i in range(LAYERS):
        rows |= {f"blocks.{i}.{theirs}": f"body.stack.blocks.{i}.{own}" for theirs, own in inside.items()}
    weights = ours.state_dict()
    return {
        f"{theirs}.{part}": weights[f"{own}.{part}"]
        for theirs, own in rows.items()
        for part in ("weight", "bias")
        if f"{own}.{part}" in weights
    }


class PlainLoop:
    """The loop that people write by hand."""

    def __init__(self, positions: str, ours: GPT, tokens: Tensor) -> None:
        self.model = PlainGPT(positions)
        self.model.load_state_dict(plain_names(ours))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.tokens = tokens

    def batch(self) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(self.tokens) - CONTEXT, (ROWS, 1))
        windows = self.tokens[starts + torch.arange(CONTEXT + 1)]
        return windows[:, :-1], windows[:, 1:]

    def step(self, ids: Tensor, targets: Tensor) -> float:
        loss = self.model(ids, targets)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.item())

    def some_steps(self) -> None:
        for _ in range(STEPS):
            self.step(*self.batch())


def prepare(positions: str, peers: set[str], folder: Path) -> Prepared:
    ours = our_loop(positions, folder)
    model = ours.model
    assert isinstance(model, GPT)
    assert model.config.vocab == VOCAB
    examples = ours.task.examples("train")
    plain = PlainLoop(positions, model, torch.from_numpy(examples.stream.astype("int64")))  # type: ignore[attr-defined]
    pairs = [first_losses(ours, plain) for _ in range(3)]
    gap = max(abs(a - b) for a, b in pairs)
    checked = same("from the same weights, the losses of three steps on the same batches agree to 1e-4", gap < 1e-4)
    sides: dict[str, Callable[[], None]] = {OURS: ours.some_steps, PLAIN: plain.some_steps}
    return Prepared(sides, STEPS * ROWS * CONTEXT, checked)


def first_work(ours: OurLoop, epoch: int = 0, batch: int = 0) -> Step:
    """The step of our loop at this epoch and batch."""
    steps = ours.feed.steps(epoch, batch, 1)
    work = next(steps)
    steps.close()
    return work


def first_losses(ours: OurLoop, plain: PlainLoop) -> tuple[float, float]:
    """One step of both on our next batch."""
    work = first_work(ours, ours.at.epoch, ours.at.batch)
    ours._step(work)
    mine = float(ours.pending.pop().losses.sum())
    tensors = work.pieces[0].tensors
    return mine, plain.step(tensors["ids"], tensors["targets"])


def case(name: str, positions: str) -> Case:
    work = (
        f"{STEPS} training steps of a GPT with {LAYERS} layers, {HEADS} heads, width {WIDTH}, {positions} positions, "
        f"a tied output matrix and a vocabulary of {VOCAB}, on {ROWS} windows of {CONTEXT} tokens per step; fp32, CPU, "
        "no dropout, no torch.compile; AdamW, gradient norm clipped at 1, every loss read. Ours is the loop of "
        "`ayn train` with its batches, its metrics file and its checks, without evaluations and checkpoints. The peer "
        "is a model and a loop as written by hand: nn.Linear, scaled_dot_product_attention(is_causal=True), LayerNorm, "
        "tanh GELU, cross_entropy, torch.optim.AdamW with its defaults, random windows gathered from a tensor."
    )
    return Case(name, work, "tokens", [Peer(PLAIN, "torch")], partial(prepare, positions))


CASES = (case("gpt-train-step", "learned"), case("gpt-train-step-rotary", "rotary"))
