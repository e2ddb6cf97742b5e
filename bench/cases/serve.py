"""Serving a GPT: 64 clients against `Run.predict` with all prompts at once, and against one client after the other."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from allyouneed.errors import UserError
from allyouneed.run import load, train
from bench.harness import OURS, Case, Prepared
from bench.load import ask_all, percentiles

ROWS, CLIENTS, NEW = 32, 64, 32


def prepare(peers: set[str], folder: Path, run: str, requests: str, device: str) -> Prepared:
    path, gpu, threads = Path(run) if run else folder / "run", device == "cuda", torch.get_num_threads()
    if not run:
        sizes = ("model.width=320", "model.heads=5", "model.layers=8", "model.context=256")  # ten million parameters
        sizes = ("model.size=gpt2", "model.vocab=50257") if gpu else sizes  # 124 million
        train("lm/gpt", "train.steps=5", "train.test_limit=-1", *sizes, out=path, quiet=True)
        torch.set_num_threads(threads)  # which a training chooses
    own = load(path, device)
    words, rng = [own.processor.tokenizer.token(id) for id in range(len(own.processor.tokenizer))], random.Random(0)
    words = [word.strip() for word in words if word.startswith(" ") and word.strip().isalpha()]
    prompts = ["The " + " ".join(rng.choices(words, k=rng.choice([4, 8, 16, 32]))) for _ in range(int(requests))]
    settings: dict[str, Any] = {"temperature": 0, "max_tokens": NEW}
    bodies = [{"model": path.name, "prompt": prompt, **settings} for prompt in prompts]
    arguments = ["serve", str(path), "--port", "0", "--rows", str(ROWS), "--waiting", "1000", "--threads", str(threads)]
    command = [sys.executable, "-m", "allyouneed", *arguments, "--device", device]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
    assert server.stdout is not None
    port = next((int(m[1]) for line in server.stdout if (m := re.search(r"http://localhost:(\d+)/", line))), 0)
    if not port:
        raise UserError("the server did not start")

    def served(clients: int, number: int = len(bodies)) -> Any:
        seconds, found = ask_all("127.0.0.1", port, bodies[:number], clients)
        if any(one.status != 200 for one in found):
            raise UserError("a request was refused")
        return seconds, found

    def texts(number: int) -> list[str]:
        return [one.text for one in served(CLIENTS, number)[1]]

    def predicted() -> list[str]:
        return own.predict(prompts, method="greedy", max_new=NEW, batch=ROWS)

    asked = min(len(bodies), CLIENTS)
    equal = sum(one == other for one, other in zip(*(sorted(some) for some in (texts(asked), predicted()[:asked]))))
    if equal < asked and not gpu:  # in bf16, tokens that are nearly equally likely may change places
        raise UserError(f"of {asked} answers, {asked - equal} are not those of Run.predict")
    notes = [f"{equal} of {asked} answers equal"]
    for load_of in (ROWS, 2 * ROWS, 4 * ROWS):
        found = served(load_of)[1]
        notes.append(f"{load_of} clients: {', '.join(f'{k} {v} ms' for k, v in percentiles(found).items())}")
    one_by_one = served(1, max(4, len(bodies) // 8))[0] * len(bodies) / max(4, len(bodies) // 8)
    notes.append(f"one client after the other: {len(bodies) * NEW / one_by_one:,.0f} tokens/s")
    import atexit

    atexit.register(server.terminate)
    sides = {OURS: lambda: served(CLIENTS), "Run.predict": predicted}
    return Prepared(sides, len(bodies) * NEW, "; ".join(notes))


def case(name: str, model: str, device: str, requests: str) -> Case:
    return Case(
        name=name,
        work=f"{model}: {CLIENTS} clients, {ROWS} rows, {NEW} new tokens each, streamed",
        unit="new tokens/s",
        peers=(),
        prepare=prepare,
        options={"run": "", "requests": requests, "device": device},
        quick={"requests": "64"},
    )


CASES = [
    case("serve", "a GPT of ten million parameters", "cpu", "256"),
    case("serve-cuda", "GPT-2 (124M)", "cuda", "512"),
]
