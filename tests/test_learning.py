"""Learning tests: what a working Transformer learns in seconds, through the same commands as everything else."""

from __future__ import annotations

import random

import pytest

from allyouneed.run import train
from conftest import TINY


@pytest.mark.parametrize("order", [1, -1], ids=["copy", "reverse"])
def test_sequences_are_copied_and_reversed(order, tmp_path):
    chance = random.Random(0)
    rows = {tuple(chance.choices("abcdefgh", k=chance.randint(3, 7))) for _ in range(3000)}
    lines = [" ".join(row) + "\t" + " ".join(row[::order]) for row in sorted(rows)]
    data = tmp_path / "pairs.tsv"
    data.write_text("\n".join(lines) + "\n")
    settings = [
        *TINY, "model.width=64", "model.heads=4", "model.hidden=128", "model.layers=2", "train.epochs=0",
        "train.steps=500", "train.batch_tokens=1024", "train.lr=4e-3", "train.warmup=50", "train.eval_every=500",
        "train.threads=2",
    ]  # fmt: skip
    run = train("translate/transformer", *settings, data=str(data), out=tmp_path / "run", quiet=True)
    exact = {score.name: score.value for score in run.test()}["exact match"]
    assert exact >= 99.0
    assert run.predict("a b c d") == " ".join("abcd"[::order])
