"""What attention knows of the order of words: without positions, with sinusoids, and beyond the trained length."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from allyouneed.data.builtin.corpus import corpus
from allyouneed.figures.curves import Panel, plot_curves
from allyouneed.figures.grids import Grid, number_text, plot_grids
from allyouneed.figures.heatmaps import position_tables
from allyouneed.lectures.base import Lecture
from allyouneed.nn.block import BlockConfig, Stack
from allyouneed.nn.layers import Embedding
from allyouneed.nn.masks import Mask
from allyouneed.nn.positions import angles, sinusoid
from allyouneed.run import Run
from allyouneed.tasks.lm import LM

KINDS, SEEDS = ("sinusoidal", "learned", "rotary", "none"), (1, 2, 3)
WINDOW, BIN = 32, 4  # tokens: of a training example, and of a point of the curve
SETTINGS = (
    f"model.context={WINDOW}", "model.layers=2", "model.heads=2", "model.width=32", "train.steps=250",
    "train.batch_tokens=1024", "train.eval_every=250", "train.lr=1e-2", "train.warmup=20",
)  # fmt: skip


def show(lecture: Lecture, settings: Sequence[str] = SETTINGS) -> dict[str, Any]:
    """Untrained layers and formulas first; then small language models that read twice as far as they learned."""
    order, place = show_order(lecture), show_places(lecture)
    return {**order, **place, **show_sinusoids(lecture), "beyond": show_beyond(lecture, settings)}


# Without positions


def order_seen(layers: int, causal: bool, seed: int) -> float:
    """How much the output of the last word changes, relative to its size, when the words before it are reversed; the
    layers are untrained and have no positions."""
    torch.manual_seed(seed)
    config = BlockConfig(width=32, layers=layers, heads=4, dropout=0.0, positions="none")
    stack, x = Stack(config, layers), torch.randn(1, 8, 32)
    reversed_past = torch.cat([x[:, :-1].flip(1), x[:, -1:]], dim=1)
    with torch.no_grad():
        before, after = (stack(given, Mask(causal=causal))[0, -1] for given in (x, reversed_past))
    return float((after - before).norm() / before.norm())


def show_order(lecture: Lecture) -> dict[str, Any]:
    """What changes when words change places."""
    names = {(1, False): "one block, sees all", (2, False): "two blocks, see all"}
    names |= {(1, True): "one block, causal", (2, True): "two blocks, causal"}
    found = {name: [order_seen(*how, seed) for seed in range(5)] for how, name in names.items()}
    lecture.tell(
        """Eight words go through untrained blocks that have no positions. Then the first seven are turned around. How
        much does the output of the last word change, relative to its size? Five random starts:"""
    )
    lecture.table(
        ["blocks", "mean change", "smallest", "largest"],
        [[name, f"{sum(c) / len(c):.1g}", f"{min(c):.1g}", f"{max(c):.1g}"] for name, c in found.items()],
    )
    seen = [name for name, changes in found.items() if min(changes) > 1e-4]
    lecture.tell(
        f"""Order is seen by: {" and ".join(seen) or "none of them"}. Where every word sees all others, a sentence is a
        heap of words. A causal mask is different: the second block reads words that have each seen another part of the
        past, and that part depends on the order."""
    )
    return {"order": found}


def show_places(lecture: Lecture) -> dict[str, Any]:
    """One word at two places; and one role at many places."""
    torch.manual_seed(1)
    ids, cosines = torch.tensor([[0, 1, 2, 0, 3]]), {}  # the dog sees the cat
    for kind in ("none", "sinusoidal"):
        with torch.no_grad():
            x = Embedding(4, 64, positions=kind, size=8, scale=True)(ids)[0]
        cosines[kind] = float(cosine_similarity(x[0], x[3], dim=0))
    lecture.tell(
        f""""the dog sees the cat": the cosine of the first "the" with the second is {cosines["none"]:.2f} without
        positions and {cosines["sinusoidal"]:.2f} with sinusoids added: one word at two places is two vectors."""
    )
    counts = Counter(line.split().index("is") + 1 for line in corpus()["train"].splitlines() if "is" in line.split())
    shares = {place: count / counts.total() for place, count in sorted(counts.items())}
    lecture.tell(
        f"""But a place is not a role. In the built-in corpus the verb "is" stands at {len(shares)} places, from word
        {min(shares)} to word {max(shares)}: a longer subject pushes it back ("Anna is", "The dog is", "The old dog
        is"), and so does a clause before it."""
    )
    rows = [[place, f"{100 * share:.1f} %"] for place, share in shares.items() if share > 0.001]
    lecture.table(['place of "is"', "of its sentences"], rows)
    return {"the at two places": cosines, "places of is": shares}


# Sinusoids


def rotation(width: int, by: int) -> Tensor:
    """The matrix R for which PE(p + by) = R PE(p) at every p: a turn in each plane of a sine and its cosine."""
    matrix = torch.zeros(width, width)
    for i, angle in enumerate(angles(torch.tensor(by), width)):
        sin, cos = angle.sin(), angle.cos()
        matrix[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = torch.tensor([[cos, sin], [-sin, cos]])
    return matrix


def show_sinusoids(lecture: Lecture) -> dict[str, Any]:
    """Both layouts, widths 4 and 512; near places, different places, and a step as a rotation."""
    table = sinusoid(torch.arange(5), 4)
    lecture.tell("The table for a width of 4: sin p, cos p, sin p/100, cos p/100. At 512 it looks like the figure.")
    lecture.table(["position", *"1234"], [[p, *map(number_text, row)] for p, row in enumerate(table.tolist())])
    panels = [
        (f"{width} wide, {name}", sinusoid(torch.arange(rows), width, layout).numpy())
        for width, rows in ((4, 20), (512, 100))
        for layout, name in (("interleaved", "sin, cos, sin, cos …"), ("half", "all sines, all cosines"))
    ]
    title = "Position encodings, 4 and 512 wide, in both layouts"
    lecture.draw(lambda out: position_tables(panels, out, title), title, "tables")
    factors, apart, near = {}, {}, {}
    for width in (4, 64, 512):
        rows = sinusoid(torch.arange(1000), width)
        factors[width] = float(angles(torch.tensor(1), width)[-1])
        apart[width] = float((torch.cdist(rows, rows) + 1e9 * torch.eye(1000)).min())
        near[width] = cosine_similarity(rows[:1], rows[:101]).tolist()
    lecture.table(
        ["width", "1/10000^(2i/d): first", "last", "smallest distance of 1,000 positions", "cosine at 1", "10", "100"],
        [[w, "1", f"{factors[w]:.2e}", f"{apart[w]:.3f}", *(f"{near[w][k]:.2f}" for k in (1, 10, 100))] for w in near],
    )
    lecture.tell(
        f"""The factors fall from 1, but not to 0: at 512 the slowest wave turns by {factors[512]:.2e} per position. No
        two of 1,000 positions are equal, and neighbours are alike: the cosine of two positions depends only on their
        distance, and falls with it at first."""
    )
    curves = [(f"{width} wide", list(range(101)), values) for width, values in near.items() if width > 4]
    title = "Near positions have similar encodings"
    panel = Panel("cosine of PE(p) and PE(p + k)", "distance k (positions)", "cosine", curves)
    lecture.draw(lambda out: plot_curves([panel], out, title), title, "near")
    return {"factors": factors, "apart": apart, "near": near, **_show_rotation(lecture)}


def _show_rotation(lecture: Lecture) -> dict[str, Any]:
    steps, at = (1, 5, 50), torch.arange(100)
    errors = {k: float((sinusoid(at, 64) @ rotation(64, k).T - sinusoid(at + k, 64)).abs().max()) for k in steps}
    lecture.tell(
        f"""PE(p + k) is a rotation of PE(p), with the same matrix at every p: so a layer can find "k words before" with
        one matrix product. The largest error over 100 positions, 64 wide, is {max(errors.values()):.0e} for k =
        {", ".join(map(str, steps))}. The figure shows the matrix for k = 5 and a width of 8."""
    )
    matrix, from_, to = rotation(8, 5), *(sinusoid(torch.tensor([[3], [8]]), 8)[:, 0])
    names = [f"{part} {i + 1}" for i in range(4) for part in ("sin", "cos")]
    grids = [Grid("R, k = 5", matrix.numpy(), names), Grid("PE(3)", from_[:, None].numpy())]
    grids.append(Grid("PE(8)", to[:, None].numpy()))
    grids.append(Grid("R PE(3)", (matrix @ from_)[:, None].numpy()))
    title = "A step of 5 positions is a rotation: R PE(3) = PE(8)"
    lecture.draw(lambda out: plot_grids([grids], names, out, title), title, "rotation")
    return {"rotation error": errors}


# Beyond the trained length


@torch.inference_mode()
def losses_by_place(run: Run) -> np.ndarray:
    """The mean loss of the held-out text at each place of twice the window, in bins; NaN where positions end."""
    task = cast(LM, run.task)
    tokens = np.concatenate([task.stream(split).tokens for split in ("valid", "test")]).astype(np.int64)
    reach = WINDOW if run.model.limit is not None else 2 * WINDOW
    rows = torch.from_numpy(tokens).to(run.model.device).unfold(0, reach + 1, WINDOW // 2)
    found = torch.stack([cross_entropy(run.model(part[:, :-1]).mT, part[:, 1:], reduction="none").sum(0)
                         for part in rows.split(256)]).sum(0) / len(rows)  # fmt: skip
    losses = np.full(2 * WINDOW, np.nan)
    losses[:reach] = found.cpu().numpy()
    return losses.reshape(-1, BIN).mean(1)


def show_beyond(lecture: Lecture, settings: Sequence[str]) -> dict[str, Any]:
    """Language models trained on windows of 32 tokens, read at 64."""
    losses: dict[str, np.ndarray] = {}
    for kind in KINDS:
        runs = [
            lecture.trained("lm/gpt", *settings, f"model.positions={kind}", f"train.seed={seed}",
                            name=f"positions-{kind}-{seed}")
            for seed in SEEDS
        ]  # fmt: skip
        losses[kind] = np.stack([losses_by_place(run) for run in runs])
    guess = math.log(len(runs[0].predictor.tokenizer))
    lecture.tell(
        f"""Small language models learned on windows of {WINDOW} tokens, with {len(SEEDS)} seeds each, and now read
        {2 * WINDOW} tokens of text that they have not seen. The loss in nats per token (guessing among all words:
        {guess:.2f}), the mean over the seeds with the smallest and the largest:"""
    )
    half = WINDOW // BIN
    begin = half // 4  # the first tokens of a window have little to look at
    rows, worse = [], []
    for kind, found in losses.items():
        first, second = found[:, begin:half].mean(1), found[:, half:].mean(1)
        ends = bool(np.isnan(second).any())
        cells = [f"{v.mean():.2f} ({v.min():.2f} to {v.max():.2f})" for v in (first, second)]
        rows.append([kind, cells[0], "the table ends" if ends else cells[1]])
        worse += [f"{kind} {second.mean() - first.mean():+.2f}"] * (not ends)
    head = ["positions", f"tokens {begin * BIN + 1} to {WINDOW}", f"tokens {WINDOW + 1} to {2 * WINDOW}"]
    lecture.table(head, rows)
    lecture.tell(
        f"""What the second half costs: {", ".join(worse)}. The table of sinusoids has no end, but the model has never
        seen these rows of it; learned positions stop at the last one."""
    )
    hardest = max(losses, key=lambda kind: losses[kind][:, begin:half].mean())
    if hardest == "sinusoidal":
        lecture.tell(
            """Inside the window sinusoids are also the slowest to learn here: their numbers are about 0.7 large, and
            the word vectors of a GPT start near 0.02, so that at first the words can hardly be seen."""
        )
    middles = [BIN * i + (BIN + 1) / 2 for i in range(2 * half)]
    curves = [(kind, middles, found.mean(0).tolist()) for kind, found in losses.items()]
    curves = [(name, x[: half if name == "learned" else None], y[: half if name == "learned" else None])
              for name, x, y in curves]  # fmt: skip
    guessing = ("guessing", [1, 2 * WINDOW], [guess, guess])
    title = f"Trained on {WINDOW} tokens, read at {2 * WINDOW}"
    panel = Panel(
        f"mean of {len(SEEDS)} seeds, held-out text", "place in the text (tokens)", "loss (nats per token)",
        [*curves, guessing], low=0.0,
    )  # fmt: skip
    lecture.draw(lambda out: plot_curves([panel], out, title), title, "beyond")
    return {**{kind: _plain(found) for kind, found in losses.items()}, "places": middles, "guessing": guess}


def _plain(found: np.ndarray) -> list[list[float | None]]:
    return [[None if math.isnan(value) else value for value in row] for row in found.tolist()]
