"""How long commands take to start: each call is a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench.gpt2 import SIZES, our_run, save_gpt2
from bench.harness import OURS, Case, Peer, Prepared, same

ALONE, TORCH, HF = "python alone", "import torch", "transformers"
TEXT, NEW = "abc", 8
GENERATE = """
import os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast
folder, text, new = sys.argv[1:]
tokenizer = PreTrainedTokenizerFast(tokenizer_file=folder + "/tokenizer.json")
model = GPT2LMHeadModel.from_pretrained(folder)
ids = tokenizer(text, return_tensors="pt")
out = model.generate(**ids, max_new_tokens=int(new), do_sample=False, pad_token_id=0)
print(tokenizer.decode(out[0]))
"""


def run(command: Sequence[str]) -> str:
    """What Python prints, started with these arguments."""
    return subprocess.run([sys.executable, *command], check=True, capture_output=True, text=True).stdout


def prepare_import(ours: list[str], peer: str, theirs: list[str], says: str, peers: set[str], folder: Path) -> Prepared:
    checked = same(f"ours prints {says!r}" if says else "ours imports without an error", says in run(ours))
    return Prepared({OURS: partial(run, ours), peer: partial(run, theirs)}, 1, checked)


def prepare_use(peers: set[str], folder: Path) -> Prepared:
    saved = save_gpt2(SIZES["tiny"], folder / "gpt2")
    out = our_run(saved, "cpu", "fp32").folder.path
    ours = ["-m", "allyouneed", "use", str(out), TEXT, "--set", f"max_new={NEW}", "--device", "cpu"]
    sides: dict[str, Callable[[], str]] = {OURS: partial(run, ours)}
    if HF in peers:
        sides[HF] = partial(run, ["-c", GENERATE, str(saved), TEXT, str(NEW)])
    answers = [side() for side in sides.values()]
    checked = same("both print the same text", all(answer.strip() == answers[0].strip() for answer in answers))
    return Prepared(sides, 1, checked)


def case(what: str, ours: list[str], peer: str, theirs: list[str], says: str = "") -> Case:
    shown = "ayn --help" if "-m" in ours else ours[-1]
    work = f"One process that runs `{shown}`, beside {peer} (`{theirs[-1]}`), each from the start of Python to its end."
    prepare = partial(prepare_import, ours, peer, theirs, says)
    return Case(f"start-up-{what}", work, "starts", [Peer(peer, "torch")], prepare)


USE = (
    f"`ayn use RUN {TEXT} --set max_new={NEW}` of a tiny imported GPT-2 on the CPU, from the start of Python to its "
    "end, beside a script that does the same with GPT2LMHeadModel.from_pretrained and generate."
)
CASES = (
    case("help", ["-m", "allyouneed", "--help"], ALONE, ["-c", "pass"], "train"),
    case("import", ["-c", "import allyouneed"], ALONE, ["-c", "pass"]),
    case("attention", ["-c", "from allyouneed import attention"], TORCH, ["-c", "import torch"]),
    Case("start-up-use", USE, "starts", [Peer(HF, "transformers")], prepare_use),
)
