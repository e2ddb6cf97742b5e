"""Requests of many lengths through the rows of one Decoder, against its own pace when all rows are always full."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch

from allyouneed.decode import Request
from allyouneed.predict.decoder import Decoder
from allyouneed.runtime import allow_tf32
from bench.gpt2 import SIZES, Ids, our_answers, our_run, save_gpt2
from bench.harness import OURS, Case, Peer, Prepared, same

STEADY = "allyouneed, all rows full"
REQUESTS, ROWS = 256, 64
LENGTHS = {"base": ((8, 128), (16, 256)), "tiny": ((2, 8), (4, 16))}  # of prompts, and of new tokens


def lengths(least: int, most: int, count: int, seed: int) -> list[int]:
    """So many lengths, evenly spread and shuffled."""
    found = np.linspace(least, most, count).round().astype(int)
    return [int(n) for n in np.random.default_rng(seed).permutation(found)]


def draw_requests(vocab: int, prompts: list[int], new: list[int]) -> list[Request]:
    draw = np.random.default_rng(0)
    return [Request(draw.integers(vocab, size=size).tolist(), most) for size, most in zip(prompts, new)]


def prepare(
    peers: set[str], folder: Path, size: str, device: str, precision: str, requests: str, rows: str
) -> Prepared:
    shape, count, most = SIZES[size], int(requests), int(rows)
    saved = save_gpt2(shape, folder / "gpt2")
    reads, writes = (lengths(*between, count, seed) for seed, between in enumerate(LENGTHS[size]))
    mixed = draw_requests(shape.vocab, reads, writes)
    # As many requests of one length: they join and leave together, and read and write about as many tokens.
    steady = draw_requests(shape.vocab, [round(np.mean(reads))] * count, [round(np.mean(writes))] * count)
    amounts = {OURS: sum(writes), STEADY: sum(one.max_new for one in steady)}
    model = our_run(saved, device, precision).model
    decoders = {OURS: Decoder(model, most), STEADY: Decoder(model, most)}
    sides: dict[str, Callable[[], Ids]] = {
        OURS: partial(our_answers, decoders[OURS], mixed),
        STEADY: partial(our_answers, decoders[STEADY], steady),
    }
    firsts = {}
    for name, side in sides.items():
        start = time.perf_counter()
        found = side()
        firsts[name] = {"tokens/s in the first call": [amounts[name] / (time.perf_counter() - start)]}
        wanted = writes if name == OURS else [one.max_new for one in steady]
        told = same("every request gets all its tokens", [len(ids) for ids in found] == wanted)
    part = amounts[STEADY] / amounts[OURS]
    told += "; " + same(f"the tokens of the two sides are {part:.3f} to 1", abs(part - 1) < 0.005)
    told += "; " + check(folder, device, mixed, most)
    allow_tf32(precision)
    return Prepared(sides, amounts[OURS], told, lambda: firsts)


def check(folder: Path, device: str, mixed: list[Request], most: int) -> str:
    """Answers do not depend on who else is there: in fp32, some requests alone have the answers that they have among
    all."""
    model = our_run(folder / "gpt2", device, "fp32").model
    every, some = our_answers(Decoder(model, most), mixed), range(0, len(mixed), max(1, len(mixed) // 16))
    alone = [our_answers(Decoder(model, 1), [mixed[i]])[0] for i in some]
    equal = np.mean([a == b for i, ids in zip(some, alone) for a, b in zip(ids, every[i])])
    torch.cuda.empty_cache()
    told = f"in fp32, {len(some)} requests alone get {100 * equal:.2f} % of the tokens that they get among all"
    return same(told, bool(equal > 0.9))


def case() -> Case:
    (shortest, longest), (least, most) = LENGTHS["base"]
    work = (
        f"{REQUESTS} requests with prompts of {shortest} to {longest} tokens, each continued greedily by {least} to "
        f"{most}, evenly spread and shuffled, through the {ROWS} rows of one Decoder, GPT-2 (124M) with random "
        "weights: as soon as an answer ends, the next request joins. The other side is the same Decoder at its steady "
        "pace: as many requests of the mean lengths, which join and leave together, so that all rows are always full. "
        "Both keep their recorded steps from call to call; the first call of each, in which kernels are chosen and "
        "steps recorded, is told apart."
    )
    options = {"size": "base", "device": "cuda", "precision": "bf16", "requests": str(REQUESTS), "rows": str(ROWS)}
    quick = {"size": "tiny", "requests": "32", "rows": "8"}
    return Case("gpt2-mixed-cuda", work, "new tokens", [Peer(STEADY, "transformers")], prepare, 3, options, quick)


CASES = (case(),)
