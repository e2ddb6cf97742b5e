"""From a large CSV to the first batch of classify/rnn, when its tokens are known: what is done beyond tokenising."""

from __future__ import annotations

import csv
import random
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from allyouneed import catalog
from allyouneed.data.facts import gather
from allyouneed.data.fetch import cache_folder
from allyouneed.data.opening import read_data
from allyouneed.text import Tokenizer
from allyouneed.training.starting import choose
from bench.harness import OURS, Case, Prepared, same

ALONE = "csv alone"
WORDS, LONGEST = 30_000, 22


def write_table(path: Path, rows: int) -> None:
    """Texts of 7 to 22 words, the frequencies of which fall as in real text, and one of two labels."""
    chance = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 9))) for _ in range(WORDS)]
    drawn = chance.choices(words, [1 / (rank + 5) for rank in range(WORDS)], k=1_000_000)
    with path.open("w", encoding="utf-8") as file:
        file.write("text,label\n")
        for _ in range(rows):
            at, size = chance.randrange(len(drawn) - LONGEST), chance.randint(7, LONGEST)
            file.write(f'"{" ".join(drawn[at : at + size])}, he said",{chance.choice(("good", "bad"))}\n')


def prepare_ours(path: Path, tokenizers: dict[str, Tokenizer]) -> Any:
    """Read, split, look at, label, report; up to the first batch."""
    shutil.rmtree(cache_folder() / "examples", ignore_errors=True)
    recipe = choose("classify/rnn", [], str(path))
    task: Any = catalog.task("classify")(recipe)
    task.source = read_data(recipe.data, task.shape)
    gather(task.data)
    task.tokenizers = dict(tokenizers)
    task.prepare(lambda line: None)
    examples = task.examples("train")
    examples.collate(examples.plan(1, 0, recipe.train.batch_tokens)[0])
    return task


def read_alone(path: Path) -> int:
    with path.open(encoding="utf-8", newline="") as file:
        return sum(1 for _ in csv.reader(file)) - 1


def prepare(peers: set[str], folder: Path, rows: str) -> Prepared:
    path = folder / "texts.csv"
    write_table(path, int(rows))
    task = prepare_ours(path, {})
    examples = sum(split.examples for split in task.data.splits.values())
    checked = same(f"{examples:,} rows on both sides", examples == read_alone(path) == int(rows))
    sides = {OURS: partial(prepare_ours, path, task.tokenizers), ALONE: partial(read_alone, path)}
    return Prepared(sides, path.stat().st_size / 1e6, checked)


CASES = (
    Case(
        name="csv-prepare",
        work="a CSV of texts and labels, prepared for classify/rnn beyond tokenising; or only cut into cells by Python",
        unit="MB",
        peers=(),
        prepare=prepare,
        rounds=3,
        options={"rows": "2000000"},
        quick={"rows": "20000"},
    ),
)
