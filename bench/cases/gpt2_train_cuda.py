"""Training GPT-2 (124M) on a GPU: the loop of `ayn train` against transformers' GPT2LMHeadModel, both compiled."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.data.batches.windows import Windows
from allyouneed.errors import UserError
from allyouneed.models.base import Model
from allyouneed.models.gpt import GPT
from allyouneed.recipe import Recipe
from allyouneed.runtime import probe
from allyouneed.storage.runfolder import RunFolder
from allyouneed.tasks.lm import LM
from allyouneed.training.distributed import Ranks
from allyouneed.training.fit import _choose_compile
from bench.cases.gpt_train_step import OurLoop, first_work
from bench.harness import OURS, Case, Peer, Prepared, same

STEPS = 20  # per call
TOKENS = 5_000_000
LEARNING_RATE = 3e-4
THEIRS = "transformers, compiled"
GIB = 1 << 30


@dataclass(frozen=True)
class Size:
    layers: int = 12
    heads: int = 12
    width: int = 768
    context: int = 1024
    rows: int = 32
    vocab: int = 50_257


class Tokens(LM):
    """Language modelling on given token ids, with a vocabulary of the size of GPT-2's."""

    def __init__(self, recipe: Recipe, tokens: np.ndarray, vocab: int) -> None:
        super().__init__(recipe)
        self.tokens, self.vocab = tokens, vocab

    def has(self, split: str) -> bool:
        return split == "train"

    def build_model(self) -> Model:
        return GPT(replace(self.recipe.model, vocab=self.vocab))

    def model_config(self) -> Any:
        return replace(self.recipe.model, vocab=self.vocab)

    def examples(self, split: str) -> Windows:
        return Windows(self.tokens, self.recipe.model.context)


def draw_tokens(vocab: int, count: int) -> np.ndarray:
    """Tokens with the frequencies of words (the n-th with probability ~ 1/n); half of them repeat the token 8 places
    before, so that a model has something to learn."""
    draw = np.random.default_rng(0)
    weights = 1 / np.arange(1, vocab + 1)
    tokens = draw.choice(vocab, size=count, p=weights / weights.sum()).astype(np.uint16)
    for i in np.flatnonzero(draw.random(count) < 0.5):
        tokens[i] = tokens[max(0, i - 8)]
    return tokens


def our_loop(size: Size, tokens: np.ndarray, folder: Path, *, device: str, compile: str) -> OurLoop:
    """The loop that `ayn train` builds from such a recipe."""
    precision = "bf16" if device == "cuda" else "fp32"
    recipe = Recipe.parse(
        {
            "task": {"kind": "lm"},
            "model": {
                "kind": "gpt", "layers": size.layers, "heads": size.heads, "width": size.width,
                "context": size.context, "dropout": 0.0,
            },
            "text": {"kind": "char"},
            "data": {},
            "train": {
                "steps": 1, "batch_tokens": size.rows * size.context, "lr": LEARNING_RATE, "schedule": "constant",
                "warmup": 0, "beta2": 0.95, "weight_decay": 0.1, "clip": 1.0, "device": device,
                "precision": precision, "compile": compile, "threads": torch.get_num_threads(),
            },
        }
    )  # fmt: skip
    task = Tokens(recipe, tokens, size.vocab)
    runtime = probe(recipe.train)
    torch.manual_seed(recipe.train.seed)
    model = task.build_model().to(runtime.torch_device)
    runtime = _choose_compile(task, model, runtime, Ranks(), None, 1, print)
    if compile == "on" and not runtime.compile:
        raise UserError(f"ours was not compiled: {runtime.why}")
    run = RunFolder.create(folder / f"run-{compile}", resume=False, overwrite=False)
    return OurLoop(model, task, recipe.train, run, runtime, Ranks(), quiet=True)


def their_names(ours: GPT, layers: int) -> dict[str, Tensor]:
    """Our weights under the names of transformers, whose matrices are transposed."""
    weights = {name.removeprefix("body."): tensor.detach() for name, tensor in ours.state_dict().items()}
    rows = {"wte": "embedding.tokens", "wpe": "embedding.positions.table", "ln_f": "stack.norm"}
    inside = {
        "ln_1": "attention_norm", "attn.c_attn": "attention.qkv", "attn.c_proj": "attention.out",
        "ln_2": "feed_forward_norm", "mlp.c_fc": "feed_forward.into", "mlp.c_proj": "feed_forward.out",
    }  # fmt: skip
    for i in range(layers):
        rows |= {f"h.{i}.{theirs}": f"stack.blocks.{i}.{own}" for theirs, own in inside.items()}
    found = {}
    for theirs, own in rows.items():
        turned = theirs.startswith("h.") and "ln_" not in theirs
        found[f"transformer.{theirs}.weight"] = weights[f"{own}.weight"].T if turned else weights[f"{own}.weight"]
        if f"{own}.bias" in weights:
            found[f"transformer.{theirs}.bias"] = weights[f"{own}.bias"]
    return found


class TheirLoop:
    """transformers' GPT-2 in a training loop written by hand: sdpa attention, bf16 autocast, fused AdamW, all tokens on
    the device from the start."""

    def __init__(self, size: Size, ours: GPT, tokens: np.ndarray, device: torch.device, *, compile: bool) -> None:
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=size.vocab, n_positions=size.context, n_embd=size.width, n_layer=size.layers,
            n_head=size.heads, attn_pdrop=0.0, resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False,
            attn_implementation="sdpa",
        )  # fmt: skip
        self.model = GPT2LMHeadModel(config).to(device)
        missing, unexpected = self.model.load_state_dict(their_names(ours, size.layers), strict=False)
        assert not unexpected, unexpected
        assert set(missing) <= {"lm_head.weight"}, missing
        self.call: Any = torch.compile(self.model) if compile else self.model
        matrices = [p for p in self.model.parameters() if p.dim() >= 2]
        others = [p for p in self.model.parameters() if p.dim() < 2]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95), fused=True)
        self.tokens = torch.from_numpy(tokens.astype(np.int64)).to(device)
        self.size, self.device = size, device

    def step(self, ids: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            # `shift_labels`: the targets are the next tokens already, as ours are.
            targets = targets.contiguous()
            loss: Tensor = self.call(input_ids=ids, labels=targets, shift_labels=targets).loss
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def some_steps(self) -> None:
        offsets = torch.arange(self.size.context + 1, device=self.device)
        for _ in range(STEPS):
            starts = torch.randint(len(self.tokens) - self.size.context, (self.size.rows, 1), device=self.device)
            windows = self.tokens[starts + offsets]
            loss = self.step(windows[:, :-1], windows[:, 1:])
        loss.item()


class Memory:
    """The memory of a side: what it holds between steps, and the peak of a call."""

    def __init__(self) -> None:
        self.peaks: list[float] = []
        self.standing = 0

    def building(self, build: Callable[[], Any], warm: Callable[[Any], object]) -> Any:
        """Build a side and run it once, so that its optimizer has its state too."""
        before = _allocated()
        side = build()
        warm(side)
        self.standing = _allocated() - before
        return side

    def watching(self, call: Callable[[], None]) -> Callable[[], None]:
        def watched() -> None:
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            call()
            torch.cuda.synchronize()
            self.peaks.append((torch.cuda.max_memory_allocated() - before) / GIB)

        return watched

    def scores(self) -> dict[str, list[float]]:
        above = max(self.peaks)
        return {"peak GiB above what stands": [above], "peak GiB in total": [above + self.standing / GIB]}


def _allocated() -> int:
    gc.collect()
    torch.cuda.synchronize()
    return torch.cuda.memory_allocated()


def our_losses(loop: OurLoop, steps: int) -> list[float]:
    """The losses of our loop in its first `steps` steps."""
    feed = loop.feed.steps(0, 0, 1)
    for _ in range(steps):
        loop._step(next(feed))
    feed.close()
    found = torch.cat([p.losses for p in loop.pending]).tolist()
    loop.pending.clear()
    return found


def prepare(peers: set[str], folder: Path, losses: str, device: str) -> Prepared:
    size, steps = Size(), int(losses)
    tokens = draw_tokens(size.vocab, TOKENS)
    eager = our_loop(size, tokens, folder, device="cuda", compile="off")
    eager_losses = our_losses(eager, steps)
    del eager
    ours_memory, their_memory = Memory(), Memory()
    start: dict[str, Tensor] = {}

    def build() -> OurLoop:
        loop = our_loop(size, tokens, folder, device="cuda", compile="on")
        start.update({name: tensor.cpu() for name, tensor in loop.model.state_dict().items()})
        return loop

    compiled_losses: list[float] = []
    ours = ours_memory.building(build, lambda loop: compiled_losses.extend(our_losses(loop, steps)))
    gaps = [abs(a - b) for a, b in zip(eager_losses, compiled_losses)]
    told = f"mean difference {np.mean(gaps):.4f}, largest {max(gaps):.4f}, last losses {eager_losses[-1]:.4f} eager, "
    told += f"{compiled_losses[-1]:.4f} compiled"
    checked = same(f"ours compiled has the first {steps} losses of ours eager to 0.02 ({told})", np.mean(gaps) < 0.02)
    sides: dict[str, Callable[[], object]] = {OURS: ours_memory.watching(lambda: ours.some_steps(STEPS))}
    scores = {OURS: ours_memory.scores}
    if THEIRS in peers:
        first = GPT(ours.model.config)
        first.load_state_dict(start)
        work = first_work(ours).pieces[0].to(ours.device).tensors
        theirs: TheirLoop = their_memory.building(
            lambda: TheirLoop(size, first, tokens, ours.device, compile=True),
            lambda loop: compiled_losses.append(float(loop.step(work["ids"], work["targets"]))),
        )
        gap = abs(compiled_losses[-1] - compiled_losses[0])
        checked += "; " + same(
            f"from the same weights, the first loss of both agrees to 0.01 (difference {gap:.4f})", gap < 0.01
        )
        sides[THEIRS] = their_memory.watching(theirs.some_steps)
        scores[THEIRS] = their_memory.scores
    amount = STEPS * size.rows * size.context
    return Prepared(sides, amount, checked, lambda: {name: found() for name, found in scores.items()})


def case() -> Case:
    size = Size()
    work = (
        f"{STEPS} training steps of GPT-2 with {size.layers} layers, {size.heads} heads, width {size.width}, learned "
        f"positions, a tied output matrix and {size.vocab:,} tokens, on {size.rows} windows of {size.context} tokens "
        "per step; CUDA, bf16 autocast, no dropout; fused AdamW, gradient norm clipped at 1. Ours is the loop of "
        "`ayn train train.compile=on` with its batches, metrics and checks, without evaluations and checkpoints. The "
        "peer is transformers' GPT2LMHeadModel with sdpa attention under torch.compile, in a loop written by hand, its "
        "tokens on the GPU from the beginning. The peak is torch.cuda.max_memory_allocated of a call: above what "
        "stands (weights and optimizer) and with it."
    )
    peers = [Peer(THEIRS, "transformers")]
    options = {"losses": "200", "device": "cuda"}
    return Case("gpt2-train-cuda", work, "tokens", peers, prepare, options=options, quick={"losses": "20"})


CASES = (case(),)
