"""Translating on a GPU with a Transformer of the base size: our search against transformers' generate."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import torch

from allyouneed.decode import Request
from allyouneed.predict.processor import compile_step
from allyouneed.predict.writer import Writer
from allyouneed.runtime import allow_tf32, attend_by_cudnn
from bench.cases.translate_marian import (
    BOS,
    EOS,
    HF,
    NEVER,
    STOPPING,
    Size,
    generate,
    our_model,
    sentences,
    their_model,
)
from bench.harness import OURS, Case, Peer, Prepared, same

BASE = Size(layers=6, heads=8, width=512, hidden=2048, vocab=32_000)
SIZES = {"base": (BASE, 64), "tiny": (Size(layers=2, heads=2, width=32, hidden=64, vocab=200), 8)}  # and new tokens
Ids = list[list[int]]
FAST = "allyouneed, compiled"


def our_answers(writer: Writer, beam: int, new: int, sources: Ids) -> Ids:
    """As `Run.predict` decodes: requests of one session of the writer."""
    attend_by_cudnn(False)
    answers: dict[int, list[int]] = {}
    with writer.session(len(sources)) as session:
        for source in sources:
            if beam > 1:
                request = Request(source, new, stop=[EOS], beam=beam, alpha=1.0, length_penalty="power")
            else:
                request = Request(source, new, stop={EOS})
            answers[session.add(request)] = []
        while events := session.wait():
            for event in events:
                if event.error is not None:
                    raise event.error
                answers[event.id] += event.hypotheses[0].tokens if beam > 1 else [event.token or 0]
    return list(answers.values())


def their_answers(model: Any, beam: int, new: int, sources: Ids) -> Ids:
    attend_by_cudnn(True)  # the default of torch
    return generate(model, beam, new, sources)


@torch.inference_mode()
def distance(ours: Any, theirs: Any, sources: Ids) -> float:
    """The mean difference of the first logits, as a part of their standard deviation."""
    gaps = []
    for source in sources:
        mine, _ = ours.start([source], 64)
        begin = torch.tensor([[BOS]], device=theirs.device)
        others = theirs(input_ids=torch.tensor([source], device=theirs.device), decoder_input_ids=begin).logits[:, -1]
        a, b = mine[:, EOS + 1 :].float(), others[:, EOS + 1 :].float()  # without those that are forbidden
        gaps.append(float((a - b).abs().mean() / b.std()))
    return max(gaps)


def check_logits(models: dict[str, Any], sources: Ids, precision: str, most: float) -> str:
    if HF not in models:
        return ""
    gap = distance(models[OURS], models[HF], sources)
    return "; " + same(f"in {precision}, the first logits differ by {gap:.1e} of their standard deviation", gap < most)


def prepare(beam: int, rows: int, peers: set[str], folder: Path, size: str, device: str, precision: str) -> Prepared:
    shape, new = SIZES[size]
    sources, dtype = sentences(rows, shape.vocab), torch.bfloat16 if precision == "bf16" else torch.float32
    models: dict[str, Any] = {OURS: our_model(shape, NEVER)}
    models[FAST] = models[OURS]
    if HF in peers:
        models[HF] = their_model(models[OURS])

    def search(name: str, model: Any) -> Callable[..., Ids]:
        if name == FAST:
            compile_step(model, device)
        return partial(their_answers, model) if name == HF else partial(our_answers, Writer(model))

    def made(numbers: torch.dtype) -> tuple[dict[str, Any], dict[str, Callable[[], Ids]]]:
        """The models with such weights, and the sides."""
        moved = {name: deepcopy(model).to(device, numbers) for name, model in models.items()}
        return moved, {name: partial(search(name, model), beam, new, sources) for name, model in moved.items()}

    allow_tf32("fp32")
    ready, sides = made(torch.float32)
    answers = [side() for side in sides.values()]
    checked = same(f"all answers have {new} tokens", all(len(row) == new for found in answers for row in found))
    equal = sum(a == b for mine, other in zip(answers[0], answers[-1]) for a, b in zip(mine, other)) / (rows * new)
    different = len({token for row in answers[0] for token in row})
    told = f"in fp32, {100 * equal:.2f} % of the ids of both are equal, {different} different ones"
    checked += "; " + same(told, equal > 0.9) + check_logits(ready, sources[:8], "fp32", 1e-4)
    allow_tf32(precision)
    ready, sides = made(dtype)
    checked += check_logits(ready, sources[:8], precision, 0.05)
    for side in sides.values():  # kernels are chosen, steps are recorded
        side()
    return Prepared(sides, rows, checked)


def case(beam: int, rows: int) -> Case:
    search = f"beam search with {beam} hypotheses" if beam > 1 else "greedy search"
    size, new = SIZES["base"]
    work = (
        f"{rows} {'sentences' if rows > 1 else 'sentence'} of 4 to 32 random words, at once, through a Transformer of "
        f"Marian's architecture ({size.layers} + {size.layers} layers, width {size.width}, {size.heads} heads, "
        f"feed-forward {size.hidden}, vocabulary {size.vocab:,}, random weights) by {search}; no sentence may end, so "
        f"every answer has {new} tokens. Ours is the writer of `ayn use`, as it is and with engine=compiled, the peer "
        f"`MarianMTModel.generate` with the same weights, on one padded batch{STOPPING if beam > 1 else ''}."
    )
    name = f"beam-cuda-{f'beam{beam}' if beam > 1 else 'greedy'}-{rows}"
    options = {"size": "base", "device": "cuda", "precision": "bf16"}
    peers = [Peer(HF, "transformers")]
    return Case(name, work, "sentences", peers, partial(prepare, beam, rows), 7, options, {"size": "tiny"})


CASES = tuple(case(beam, rows) for beam in (1, 5) for rows in (1, 8, 64))
