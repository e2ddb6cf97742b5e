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
    path = Path(run) if run else folder / "run"
    if not run:
        sizes = ("model.width=320", "model.heads=5", "model.layers=8", "model.context=256")  # ten million parameters
        train("lm/gpt", "train.steps=5", "train.test_limit=-1", *sizes, out=path, quiet=True)
    own = load(path, device)
    words, rng = [own.processor.tokenizer.token(id) for id in range(len(own.processor.tokenizer))], random.Random(0)
    words = [word.strip() for word in words if word.strip().isalpha()]
    prompts = [" ".join(rng.choices(words, k=rng.choice([4, 8, 16, 32]))) for _ in range(int(requests))]
    settings: dict[str, Any] = {"temperature": 0, "max_tokens": NEW}
    bodies = [{"model": path.name, "prompt": prompt, **settings} for prompt in prompts]
    threads = str(torch.get_num_threads())
    arguments = ["serve", str(path), "--port", "0", "--rows", str(ROWS), "--waiting", "1000", "--threads", threads]
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

    def predicted() -> list[str]:
        return own.predict(prompts, method="greedy", max_new=NEW, batch=ROWS)

    asked = min(len(bodies), CLIENTS)
    if sorted(one.text for one in served(CLIENTS, asked)[1]) != sorted(predicted()[:asked]):
        raise UserError("the server answers otherwise than Run.predict")
    notes = [f"{asked} answers equal"]
    for load_of in (ROWS, 2 * ROWS, 4 * ROWS):
        found = served(load_of)[1]
        notes.append(f"{load_of} clients: {', '.join(f'{k} {v} ms' for k, v in percentiles(found).items())}")
    one_by_one = served(1, max(4, len(bodies) // 8))[0] * len(bodies) / max(4, len(bodies) // 8)
    notes.append(f"one client after the other: {len(bodies) * NEW / one_by_one:,.0f} tokens/s")
    import atexit

    atexit.register(server.terminate)
    sides = {OURS: lambda: served(CLIENTS), "Run.predict": predicted}
    return Prepared(sides, len(bodies) * NEW, "; ".join(notes))


CASES = [
    Case(
        name="serve",
        work=f"a GPT of ten million parameters: {CLIENTS} clients, {ROWS} rows, {NEW} new tokens each, streamed",
        unit="new tokens/s",
        peers=(),
        prepare=prepare,
        options={"run": "", "requests": "256", "device": "cpu"},
        quick={"requests": "64"},
    )
]
