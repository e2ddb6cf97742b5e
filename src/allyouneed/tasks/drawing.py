"""How codes are drawn for captions, and how likely they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import torch

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.models.dalle import DALLE
from allyouneed.predict.decoder import Event, Request
from allyouneed.predict.writer import Writer
from allyouneed.tasks.checks import check_numbers
from allyouneed.text import Tokenizer


def read_caption(text: str, tokenizer: Tokenizer) -> list[int]:
    """The ids of a user's caption. A word at the beginning and the same word after a space are two tokens. If training
    has seen only one of them, it stands for both; and an unknown word is tried again in small letters."""
    text = " ".join(text.split())
    if not text:
        raise UserError("the caption is empty: give some text")
    ids, strange = [], []
    for id, unit in tokenizer.units(text):
        if id == tokenizer.unk:
            word = unit.strip()
            others = [tokenizer.encode(space + form) for form in (word, word.lower()) for space in ("", " ")]
            id = next((one[0] for one in others if len(one) == 1 and one[0] != tokenizer.unk), id)
            strange += [repr(word)] * (id == tokenizer.unk)
        ids.append(id)
    if strange:
        told = ", ".join(dict.fromkeys(strange[:8]))
        raise UserError(f"the caption has words that this model does not know: {told}; use others")
    return ids


def check_method(decode: DecodeConfig) -> None:
    if decode.method == "beam":
        raise UserError("decode.method = beam: a drawing is sampled; take sample, or greedy for the likeliest codes")


def draw_codes(writer: Writer, prompts: Sequence[list[int]], codes: int, decode: DecodeConfig) -> np.ndarray:
    """(prompts · decode.n_best, codes): drawn with the seeds decode.seed, decode.seed + 1, …"""
    model = cast(DALLE, writer.stepper)
    request = Request(
        None,
        codes,
        temperature=decode.temperature if decode.method == "sample" else 0.0,
        top_k=decode.top_k,
        top_p=decode.top_p,
        seed=decode.seed,
        answers=decode.n_best,
        guidance=decode.guidance,
        free=model.prompt([]) if decode.guidance != 1 else None,
    )
    with writer.session(decode.batch) as session:
        found: dict[int, list[list[int]]] = {}
        for prompt in prompts:
            found[session.add(replace(request, input=prompt))] = [[] for _ in range(decode.n_best)]
        while events := session.wait():
            for event in events:
                assert isinstance(event, Event)
                if event.error is not None:
                    raise event.error
                found[event.id][event.answer].append(cast(int, event.token))
    return np.array([drawn for several in found.values() for drawn in several])


@torch.inference_mode()
def likelihood(model: DALLE, words: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """(B,): log p(codes | words) of each row."""
    found = []
    for at in range(0, len(codes), 64):
        some = torch.from_numpy(codes[at : at + 64]).to(model.device)
        _, logits = model(torch.from_numpy(words[at : at + 64]).to(model.device), some)
        p = check_numbers(logits.float()).log_softmax(-1)
        found.append(p.gather(-1, some[..., None]).sum((1, 2)).cpu())
    return torch.cat(found).numpy()
