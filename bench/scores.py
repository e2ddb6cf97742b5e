"""python -m bench.scores TABLE: train several recipes under one protocol and seeds, print one table of their scores."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from allyouneed.errors import UserError, nearest
from allyouneed.runtime import versions
from allyouneed.wholefile import write_json, write_text
from bench.harness import commit, machine

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One model of a table. `init` names the row whose run of the same seed it starts from."""

    name: str
    recipe: str
    settings: tuple[str, ...] = ()
    init: str = ""


@dataclass(frozen=True)
class Table:
    """Models under one protocol of data, vocabulary, batches and scoring; what was tuned for a model is in its row.
    `first` are trained before the rows, with the same seeds, and are not scored."""

    what: str
    protocol: tuple[str, ...]  # settings of every row
    rows: tuple[Row, ...]
    first: tuple[Row, ...] = ()


TABLES = {
    "multi30k-de-en": Table(
        "Multi30k German to English, lower-cased, test_2016_flickr, beam 5",
        (
            "data.name=multi30k-de-en", "data.follow=false", "data.max_length=100", "text.kind=bpe", "text.vocab=8000",
            "text.joint=true", "text.lowercase=true", "task.smoothing=0.1", "train.batch_tokens=4096",
            "train.min_lr=0.01", "train.beta2=0.98", "train.average=5", "train.eval_every=200",
            "decode.method=beam", "decode.beam=5", "decode.alpha=1.0", "decode.max_new=100", "decode.batch=128",
        ),
        (
            Row(
                "attention over an RNN", "translate/attention",
                ("model.size=small", "model.dropout=0.4", "train.epochs=16", "train.lr=2e-3", "train.warmup=200"),
            ),
            Row(
                "convolutions", "translate/conv",
                ("model.size=small", "model.dropout=0.3", "train.epochs=36", "train.lr=2e-3", "train.warmup=400"),
            ),
            Row("Transformer", "translate/multi30k"),
        ),
    ),
    "wnut17": Table(
        "WNUT 2017 emerging entities, test, entity F1",
        (
            "data.name=wnut17", "data.follow=false", "model.dropout=0.5", "train.epochs=15", "train.batch_tokens=512",
            "train.eval_every=132", "train.warmup=50",
        ),
        (
            Row("LSTM", "tag/lstm", ("model.width=128", "train.lr=5e-3")),
            Row(
                "ELMo", "tag/elmo", ("model.reader=128", "model.freeze=body", "train.lr=2e-3"),
                init="ELMo of unlabelled reviews",
            ),
        ),
        (
            Row(
                "ELMo of unlabelled reviews", "lm/elmo",
                (
                    "data.name=imdb-unlabelled", "data.follow=false", "model.size=small", "model.context=64",
                    "model.dropout=0.1", "text.vocab=50000", "train.steps=2000", "train.batch_tokens=16384",
                    "train.lr=2e-3", "train.warmup=200", "train.eval_every=1000",
                ),
            ),
        ),
    ),
}  # fmt: skip


def train(row: Row, seed: int, protocol: Sequence[str], folder: Path, init: Path | None) -> dict[str, Any]:
    """Train and score one row in its own process, unless the same command has already trained it."""
    name = "".join(letter if letter.isalnum() else "-" for letter in f"{row.name} {seed}")
    out, kept = folder / name, folder / f"{name}.json"
    words = [row.recipe, *protocol, *row.settings, f"train.seed={seed}", *(["--init", str(init)] if init else [])]
    before = json.loads(kept.read_text()) if kept.exists() and (out / "scores.json").exists() else {}
    if before.get("words") != words:
        kept.unlink(missing_ok=True)
        start = time.monotonic()
        with (folder / f"{name}.log").open("w") as log:
            command = [sys.executable, "-m", "allyouneed", "train", *words, "--out", str(out), "--overwrite"]
            done = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            last = (folder / f"{name}.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise UserError(f"{row.name}, seed {seed}: {''.join(last)} (see {folder / name}.log)")
        before = {"words": words, "seconds": time.monotonic() - start}
        write_json(kept, before)
    scores = json.loads((out / "scores.json").read_text())["test"]
    return {"row": row.name, "seed": seed, "out": out.name, "seconds": before["seconds"], "scores": scores}


def markdown(name: str, table: Table, runs: Sequence[dict[str, Any]], facts: dict[str, str]) -> str:
    """The first score of each row by seed, their mean, the longest training time, and the part of the signature that
    all runs share (each has its own best step)."""
    seeds = sorted({run["seed"] for run in runs})
    metric = runs[0]["scores"][0]
    signatures = [run["scores"][0]["signature"].split("|") for run in runs]
    signature = "|".join(part for part in signatures[0] if all(part in other for other in signatures))
    lines = [f"# {name}", "", f"{table.what}. {metric['name']}, signature `{signature}`.", ""]
    lines += [f"| model | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | minutes |"]
    lines += ["| --- |" + " ---: |" * (len(seeds) + 2)]
    for row in table.rows:
        mine = sorted((run for run in runs if run["row"] == row.name), key=lambda run: run["seed"])
        values = [run["scores"][0]["value"] for run in mine]
        minutes = max(run["seconds"] for run in mine) / 60
        cells = [*(f"{value:.2f}" for value in values), f"{mean(values):.2f}", f"{minutes:.1f}"]
        lines.append(f"| {row.name} (`{' '.join([row.recipe, *row.settings])}`) | {' | '.join(cells)} |")
    lines += ["", f"Every row: `{' '.join(table.protocol)}`.", ""]
    return "\n".join([*lines, *(f"- {key}: {value}" for key, value in facts.items())]) + "\n"


def main(arguments: list[str]) -> int:
    """0, or 2 for an error the user can fix."""
    parser = argparse.ArgumentParser(prog="python -m bench.scores", description=__doc__)
    parser.add_argument("table", help=", ".join(TABLES))
    parser.add_argument("--seeds", type=int, default=3, help="runs per row (%(default)s)")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time (%(default)s)")
    parser.add_argument("--out", type=Path, help="folder of the runs (runs/scores-TABLE)")
    options = parser.parse_args(arguments)
    try:
        if options.table not in TABLES:
            raise UserError(f"there is no table '{options.table}'{nearest(options.table, TABLES)}")
        table = TABLES[options.table]
        folder = options.out or Path("runs") / f"scores-{options.table}"
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(max(1, options.parallel)) as pool:
            seeds = range(1, options.seeds + 1)
            first = [
                (row, seed, pool.submit(train, row, seed, (), folder, None)) for row in table.first for seed in seeds
            ]
            there = {(row.name, seed): folder / made.result()["out"] for row, seed, made in first}
            jobs = [
                pool.submit(train, row, seed, table.protocol, folder, there.get((row.init, seed)))
                for row in table.rows
                for seed in seeds
            ]
            runs = [job.result() for job in jobs]
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    m, c = machine(), commit()
    facts = {
        "machine": f"{m['gpu'] or m['cpu']}, {os.cpu_count()} cores; {options.parallel} runs at a time",
        "versions": ", ".join(f"{key} {value}" for key, value in versions().items()),
        "commit": f"{c['id'] or 'unknown'}{' with changes' if c['dirty'] else ''}",
        "command": f"`{' '.join(['python -m bench.scores', *arguments])}`",
    }
    text = markdown(options.table, table, runs, facts)
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{options.table}.md", text)
    write_json(RESULTS / f"{options.table}.json", {"runs": runs, **facts})
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
