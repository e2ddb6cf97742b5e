"""GPT-2 with the same random weights in transformers and in this library, and how each writes with it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import tokenizers
import torch
from torch import Tensor

from allyouneed.decode import Request
from allyouneed.exchange.importing import import_run
from allyouneed.predict.decoder import Decoder
from allyouneed.run import Run, load
from allyouneed.runtime import allow_tf32, attend_by_cudnn

Ids = list[list[int]]


@dataclass(frozen=True)
class Size:
    layers: int = 12
    heads: int = 12
    width: int = 768
    context: int = 1024
    vocab: int = 50_257
    prompt: int = 32
    new: int = 256


SIZES = {"base": Size(), "tiny": Size(layers=2, heads=2, width=32, context=64, vocab=300, prompt=4, new=12)}


class FirstTokens:
    """For generate: when the first new tokens of all rows are on the host."""

    def __init__(self) -> None:
        self.times: list[float] = []  # of the prompt, and of each token of all rows

    def put(self, ids: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


def save_gpt2(size: Size, folder: Path) -> Path:
    """A GPT-2 of transformers with random weights, and a tokenizer with one made-up word per row of its vocabulary.
    The weights are larger than usual, so that the likeliest token is clear and changes."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size.vocab, n_positions=size.context, n_embd=size.width, n_layer=size.layers,
            n_head=size.heads, initializer_range=0.04, bos_token_id=None, eos_token_id=None,
        )
    )  # fmt: skip
    folder.mkdir(parents=True)
    model.save_pretrained(folder)
    words = {byte: i for i, byte in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}
    words |= {f"w{i}": i for i in range(len(words), size.vocab)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[]))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(folder / "tokenizer.json"))
    return folder


def our_run(saved: Path, device: str, precision: str) -> Run:
    """The same model, as `ayn import` and `load` make it."""
    if not (out := saved.parent / "run").exists():
        with redirect_stdout(StringIO()):
            import_run(saved, out)
    allow_tf32(precision)
    return load(out, device, precision)


def their_model(saved: Path, device: str, precision: str) -> Any:
    from transformers import GPT2LMHeadModel

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    return GPT2LMHeadModel.from_pretrained(saved, dtype=dtype).to(device).eval()


def our_answers(decoder: Decoder, requests: Sequence[Request], firsts: list[float] | None = None) -> Ids:
    """The answers to all requests. `firsts` gets the seconds until each has its first token."""
    attend_by_cudnn(False)  # as a run does
    start = time.perf_counter()
    answers: dict[int, list[int]] = {decoder.add(request): [] for request in requests}
    without = len(answers)
    while decoder.busy:
        for event in decoder.tick():
            assert event.token is not None, event.error
            answers[event.id].append(event.token)
            without -= len(answers[event.id]) == 1
        if firsts is not None and not without:
            firsts.append(time.perf_counter() - start)
            firsts = None
    return list(answers.values())


def their_answers(model: Any, prompts: Ids, new: int, firsts: list[float] | None = None, **options: Any) -> Ids:
    """The same from generate, for prompts of one length."""
    attend_by_cudnn(True)  # the default of torch
    start, first = time.perf_counter(), FirstTokens()
    ids = torch.tensor(prompts, device=model.device)
    if firsts is not None:
        options["streamer"] = first
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, pad_token_id=0, **options)
    found: Ids = out[:, ids.shape[1] :].tolist()
    if firsts is not None:
        firsts.append(first.times[1] - start)
    return found
