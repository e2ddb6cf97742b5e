"""Learning tests: what a working model learns in seconds, through the same commands as everything else."""

from __future__ import annotations

import random

import pytest

from allyouneed.run import train
from conftest import RUNTIME, TINY


@pytest.mark.slow
def test_sequences_are_reversed(tmp_path):
    chance = random.Random(0)
    rows = {tuple(chance.choices("abcdefgh", k=chance.randint(3, 6))) for _ in range(2000)}
    lines = [" ".join(row) + "\t" + " ".join(row[::-1]) for row in sorted(rows)]
    data = tmp_path / "pairs.tsv"
    data.write_text("\n".join(lines) + "\n")
    settings = [
        *TINY, "model.width=64", "model.heads=4", "model.hidden=128", "model.layers=2", "train.epochs=0",
        "train.steps=300", "train.batch_tokens=512", "train.lr=6e-3", "train.warmup=30", "train.eval_every=300",
    ]  # fmt: skip
    run = train(
        "translate/transformer", "data.follow=false", *settings, data=str(data), out=tmp_path / "run", quiet=True
    )
    exact = {score.name: score.value for score in run.test()}["exact match"]
    assert exact >= 98.0
    assert run.predict("a b c d") == "d c b a"


@pytest.mark.slow
def test_attention_reverses_what_one_context_vector_cannot_hold(tmp_path):
    chance = random.Random(0)
    rows = [chance.choices("abcdefghijklmnop", k=20) for _ in range(4000)]
    data = tmp_path / "pairs.tsv"
    data.write_text("\n".join(" ".join(row) + "\t" + " ".join(row[::-1]) for row in rows) + "\n")
    settings = [
        *RUNTIME, "model.width=64", "model.embedding=32", "train.steps=320", "train.batch_tokens=504", "train.lr=6e-3",
        "train.warmup=30", "train.eval_every=320", "train.seed=2", "data.follow=false",
    ]  # fmt: skip
    exact = {}
    for score in ("additive", "none"):
        out = tmp_path / score
        run = train("translate/attention", *settings, f"model.score={score}", data=str(data), out=out, quiet=True)
        exact[score] = {found.name: found.value for found in run.scores()["test"]}["exact match"]
    assert exact["additive"] >= 99.0
    assert exact["none"] < 20.0
