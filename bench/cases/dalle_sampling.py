"""Drawing images of 256 codes: with the cache, as a run does it, against reading the whole sequence for each code."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import torch

from allyouneed.config import DecodeConfig
from allyouneed.decode.sample import greedy
from allyouneed.models.dalle import DALLE, DALLEConfig
from allyouneed.predict.draw import draw_codes
from allyouneed.predict.writer import Writer
from bench.harness import OURS, Case, Peer, Prepared, same

WITHOUT = "without the cache"
GRID, CODES, CAPTION, VOCAB = 16, 1024, 16, 1000


def make(device: str, layers: int, width: int) -> DALLE:
    """Random weights, of a size at which every choice is clear."""
    torch.manual_seed(1)
    config = DALLEConfig(
        layers=layers, heads=width // 64, width=width, vocab=VOCAB, caption=CAPTION, codes=CODES, grid=GRID, dropout=0.0
    )
    model = DALLE(config).eval()
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.1)
    return model.to(torch.device(device))


@torch.inference_mode()
def draw_again(model: DALLE, prompts: list[list[int]], codes: int) -> np.ndarray:
    """The likeliest codes; each needs a pass over all before it."""
    words = torch.tensor(prompts, device=model.device)
    found = words[:, :0]
    for _ in range(codes):
        best, _ = greedy(model.choices(model.body(words, found)[:, -1]))
        found = torch.cat([found, best[:, None]], dim=1)
    return found.cpu().numpy()


def prepare(layers: int, width: int, peers: set[str], folder: Path, device: str, images: str, codes: str) -> Prepared:
    model, count = make(device, layers, width), int(codes)
    draws = torch.Generator().manual_seed(1)
    ids = torch.randint(0, VOCAB, (int(images), CAPTION - 4), generator=draws).tolist()
    prompts = [model.prompt(some) for some in ids]
    settings, writer = DecodeConfig(batch=len(prompts)), Writer(model)
    first, second = draw_codes(writer, prompts, count, settings), draw_again(model, prompts, count)
    agree = float((first == second).mean())
    checked = same(f"both choose the same codes: {100 * agree:.1f} % of them are equal", agree > 0.98)
    sides = {
        OURS: partial(draw_codes, writer, prompts, count, settings),
        WITHOUT: partial(draw_again, model, prompts, count),
    }
    return Prepared(sides, len(prompts), checked)


def case(name: str, device: str, layers: int, width: int, images: int, codes: int, rounds: int) -> Case:
    work = (
        f"{images} images of {codes} codes each, the likeliest ones, by a DALL-E with {layers} layers, width "
        f"{width}, captions of {CAPTION} tokens and {CODES:,} codes, with random weights, fp32. Ours is the decoder of "
        "`ayn use`, which keeps keys and values; the other side reads the caption and all codes so far again for each "
        "code."
    )
    options = {"device": device, "images": str(images), "codes": str(codes)}
    quick = {"images": "4", "codes": "16"}
    peers = [Peer(WITHOUT, "torch")]
    return Case(name, work, "images", peers, partial(prepare, layers, width), rounds, options, quick)


CASES = (
    case("dalle-sampling", "cpu", 3, 128, 4, 256, 3),
    case("dalle-sampling-cuda", "cuda", 8, 512, 64, 256, 5),
)
