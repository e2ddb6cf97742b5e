"""Writing with GPT-2 (124M) on a GPU: our Decoder against transformers' generate, with the same weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from allyouneed.decode import Request
from allyouneed.predict.decoder import Decoder
from allyouneed.run import Run
from allyouneed.runtime import allow_tf32
from bench.gpt2 import SIZES, Ids, Size, our_answers, our_run, save_gpt2, their_answers, their_model
from bench.harness import OURS, Case, Peer, Prepared, same

HF, COMPILED = "transformers", "transformers, static cache, compiled"
SAMPLED = {"temperature": 0.8, "top_k": 50, "top_p": 0.9}


def check(run: Run, theirs: Any, prompts: Ids, requests: list[Request], how: dict[str, Any], new: int) -> str:
    """What is found equal, with weights in fp32."""
    decoder = Decoder(run.model, len(prompts))
    greedy = our_answers(decoder, [Request(prompt, new) for prompt in prompts])
    others = their_answers(theirs, prompts, new, do_sample=False)
    equal = sum(a == b for mine, other in zip(greedy, others) for a, b in zip(mine, other)) / (len(prompts) * new)
    different = len({token for row in greedy for token in row})
    told = same(f"in fp32, {100 * equal:.2f} % of the likeliest tokens of both are equal", equal > 0.9)
    told += f", {different} different ones"
    if how:
        found = [our_answers(decoder, requests), their_answers(theirs, prompts, new, do_sample=True, **how)]
        rank = max(largest_rank(theirs, prompts, answers) for answers in found)
        told += "; " + same(f"all tokens that both sample are among the {how['top_k']} likeliest", rank < how["top_k"])
    return told


@torch.inference_mode()
def largest_rank(model: Any, prompts: Ids, answers: Ids) -> int:
    """How many tokens, at most, were likelier than the one that was chosen."""
    worst = 0
    for prompt, answer in zip(prompts, answers):
        ids = torch.tensor([prompt + answer], device=model.device)
        logits = model(ids).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, ids[0, len(prompt) :, None])
        worst = max(worst, int((logits > chosen + 1e-3).sum(1).max()))
    return worst


@torch.inference_mode()
def distance(ours: Any, theirs: Any, prompts: Ids) -> float:
    """The mean difference of the logits, as a part of their standard deviation."""
    ids = torch.tensor(prompts, device=theirs.device)
    a, b = ours(ids)[:, -1].float(), theirs(ids).logits[:, -1].float()
    return float((a - b).abs().mean() / b.std())


def prepare(
    rows: int, how: dict[str, Any], peers: set[str], folder: Path, size: str, device: str, precision: str
) -> Prepared:
    torch.compiler.reset()  # code that was compiled for another number of rows would be used again, more slowly
    shape, saved = SIZES[size], save_gpt2(SIZES[size], folder / "gpt2")
    prompts = torch.randint(shape.vocab, (rows, shape.prompt), generator=torch.Generator().manual_seed(1)).tolist()
    requests = [Request(prompt, shape.new, seed=i, **how) for i, prompt in enumerate(prompts)]
    runs = {name: our_run(saved, device, name) for name in ("fp32", precision)}
    models = {name: their_model(saved, device, name) for name in ("fp32", precision)} if HF in peers else {}
    checked = "nothing"
    if HF in peers:
        allow_tf32("fp32")
        checked = check(runs["fp32"], models["fp32"], prompts, requests, how, shape.new)
    allow_tf32(precision)
    decoder = Decoder(runs[precision].model, rows)
    sides: dict[str, Callable[..., Ids]] = {OURS: partial(our_answers, decoder, requests)}
    if HF in peers:
        theirs = partial(their_answers, models[precision], prompts, shape.new, do_sample=bool(how), **how)
        sides[HF] = theirs
        if not how:
            sides[COMPILED] = partial(theirs, cache_implementation="static")
        gap = distance(runs[precision].model, models[precision], prompts)
        told = f"in {precision}, the logits after the prompts differ by {gap:.5f} of their standard deviation"
        checked += "; " + same(told, gap < 0.05)
    for side in sides.values():  # kernels are chosen, steps are recorded or compiled
        side()
    if COMPILED in sides and device == "cuda":
        compiled = getattr(models[precision], "_compiled_call", None) is not None
        checked += "; " + same("the steps of transformers with a static cache are compiled", compiled)

    def scores() -> dict[str, dict[str, list[float]]]:
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(5):
            for name, side in sides.items():
                side(firsts=found[name])
        return {name: {"ms to the first tokens": [1000 * s for s in seconds]} for name, seconds in found.items()}

    return Prepared(sides, rows * shape.new, checked, scores)


def case(rows: int, how: dict[str, Any]) -> Case:
    size = Size()
    settings = ", ".join(f"{key} {value}" for key, value in how.items())
    static = ', and with cache_implementation="static", which it compiles (mode reduce-overhead)'
    work = (
        f"{rows} prompts of {size.prompt} tokens, each continued by {size.new}, "
        f"{f'sampled ({settings})' if how else 'greedy'}, by GPT-2 with {size.layers} layers, width {size.width} and "
        f"{size.vocab:,} tokens, random weights that transformers has saved and `ayn import` has read. Ours is the "
        "Decoder of `ayn use`; the peer is GPT2LMHeadModel.generate with its default cache"
        f"{'' if how else static}. The time to the first tokens is from the call until those of all rows are on the "
        "host."
    )
    options = {"size": "base", "device": "cuda", "precision": "bf16"}
    name = f"gpt2-decode-cuda-{'sampled' if how else 'greedy'}-{rows}"
    return Case(
        name, work, "new tokens", [Peer(HF, "transformers")], partial(prepare, rows, how), 7, options, {"size": "tiny"}
    )


CASES = tuple(case(rows, how) for how in ({}, SAMPLED) for rows in (1, 8, 64))
