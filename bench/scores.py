"""python -m bench.scores TABLE…: train several recipes under one protocol and seeds, print a table of their scores."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from allyouneed.errors import UserError, nearest
from allyouneed.runtime import versions
from allyouneed.storage.wholefile import write_json, write_text
from bench.harness import commit, machine

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Row:
    """One model of a table. `init` names the row whose run of the same seed it starts from. `once`: it is trained with
    seed 1 only, and all seeds start from that run."""

    name: str
    recipe: str
    settings: tuple[str, ...] = ()
    init: str = ""
    once: bool = False


@dataclass(frozen=True)
class Table:
    """Models under one protocol of data, vocabulary, batches and scoring; what was tuned for a model is in its row.
    `first` are trained before the rows, with the same seeds, and are not scored."""

    what: str
    protocol: tuple[str, ...]  # settings of every row
    rows: tuple[Row, ...]
    first: tuple[Row, ...] = ()
    seeds: int = 3


# What the BERT of the tables has read: the reviews of IMDB that are not in its test, first in rows of 128 tokens, which
# learn faster, then in rows of 512.
READ = (
    "data.name=imdb-text", "data.follow=false", "text.vocab=16000", "text.lowercase=true", "model.dropout=0",
    "train.batch_tokens=32768", "train.beta2=0.98", "train.weight_decay=0.01",
)  # fmt: skip
BERT = (
    "task.chosen=0.15", "model.size=small", "model.width=512", "model.context=512", "model.positions=learned",
    "model.attention_dropout=0",
)  # fmt: skip
SHORT = ("data.max_length=128", "train.steps=24000", "train.lr=1e-3", "train.warmup=500", "train.eval_every=4000")
LONG = ("data.max_length=512", "train.steps=3000", "train.lr=5e-4", "train.warmup=200", "train.eval_every=1500")
PRETRAINED = (
    Row("BERT, rows of 128", "pretrain/bert", (*READ, *BERT, *SHORT), once=True),
    Row(
        "BERT without next sentences, rows of 128", "pretrain/bert", (*READ, *BERT, *SHORT, "task.next=false"),
        once=True,
    ),
    Row(
        "GPT", "lm/gpt",
        (
            *READ, "text.kind=bpe", "model.layers=4", "model.heads=8", "model.width=512", "model.context=128",
            "model.positions=rotary", "train.steps=5000", "train.lr=1e-3", "train.warmup=500", "train.eval_every=2500",
        ),
        once=True,
    ),
    Row("BERT", "pretrain/bert", (*READ, *BERT, *LONG), init="BERT, rows of 128", once=True),
    Row(
        "BERT without next sentences", "pretrain/bert", (*READ, *BERT, *LONG, "task.next=false"),
        init="BERT without next sentences, rows of 128", once=True,
    ),
)  # fmt: skip
FINE = ("data.follow=false", "task.unknown=0", "model.dropout=0.1", "train.weight_decay=0.01", "train.eval_every=0")
FINE_BERT = ("model.attention_dropout=0.1",)
SCRATCH = (
    *FINE_BERT, "model.size=small", "model.width=512", "model.context=512", "text.vocab=8000", "text.lowercase=true",
    "train.lr=3e-4",
)  # fmt: skip
PLAIN = ("model.prenorm=false", "model.positions=learned")  # as BERT is; the recipes for small data choose otherwise

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
    "bert-sst2": Table(
        "SST-2, 6,920 training sentences, test of 1,821: accuracy, pretrained on film reviews beside from scratch",
        (*FINE, "train.ema=0.99", "data.name=sst2", "train.batch_tokens=1024", "train.warmup=70"),
        (
            Row("BERT from scratch", "classify/bert", (*SCRATCH, *PLAIN, "train.epochs=8")),
            Row(
                "BERT pretrained", "classify/bert",
                (*FINE_BERT, "train.lr=1.5e-4", "train.epochs=4"), init="BERT",
            ),
            Row(
                "BERT pretrained without next sentences", "classify/bert",
                (*FINE_BERT, "train.lr=1.5e-4", "train.epochs=4"), init="BERT without next sentences",
            ),
            Row(
                "GPT from scratch", "classify/gpt",
                (
                    "model.layers=4", "model.heads=8", "model.width=512", "model.context=128", "text.kind=bpe",
                    "text.vocab=8000", "train.lr=3e-4", "train.epochs=8",
                ),
            ),
            Row("GPT pretrained", "classify/gpt", ("train.lr=1.5e-4", "train.epochs=4"), init="GPT"),
        ),
        PRETRAINED,
        seeds=5,
    ),
    "bert-trec": Table(
        "TREC, six types of questions, test of 500: accuracy",
        (*FINE, "train.ema=0.99", "data.name=trec", "train.batch_tokens=512", "train.warmup=70"),
        (
            Row("BERT from scratch", "classify/bert", (*SCRATCH, *PLAIN, "train.epochs=12")),
            Row(
                "BERT pretrained", "classify/bert",
                (*FINE_BERT, "train.lr=1.5e-4", "train.epochs=8"), init="BERT",
            ),
        ),
        PRETRAINED,
    ),
    "bert-imdb": Table(
        "IMDB, test of 25,000 reviews, each up to 512 tokens: accuracy",
        (
            *FINE, "train.ema=0.99", "data.name=imdb", "data.max_length=512", "train.batch_tokens=8192",
            "train.warmup=150",
        ),
        (
            Row(
                "BERT pretrained", "classify/bert",
                (*FINE_BERT, "train.lr=1e-4", "train.epochs=3"), init="BERT",
            ),
        ),
        PRETRAINED,
    ),
    "bert-wnut17": Table(
        "WNUT 2017 emerging entities, test, entity F1",
        (*FINE, "data.name=wnut17", "train.batch_tokens=512", "train.warmup=70"),
        (
            Row("BERT from scratch", "tag/bert", (*SCRATCH, "train.epochs=12")),
            Row(
                "BERT pretrained", "tag/bert",
                (*FINE_BERT, "train.lr=2e-4", "train.epochs=8"), init="BERT",
            ),
        ),
        PRETRAINED,
    ),
    "bert-squad": Table(
        "A part of SQuAD 1.1, 8,378 questions for training, test of 923: exact match, and F1 in the JSON file",
        (
            "data.follow=false", "model.dropout=0.1", "train.weight_decay=0.01", "train.eval_every=0",
            "data.name=squad", "data.max_length=384", "task.stride=128", "task.longest=30", "train.batch_tokens=8192",
            "train.warmup=70",
        ),
        (
            Row("BERT from scratch", "answer/bert", (*SCRATCH, "train.epochs=8")),
            Row(
                "BERT pretrained", "answer/bert",
                (*FINE_BERT, "train.lr=1.5e-4", "train.epochs=5"), init="BERT",
            ),
        ),
        PRETRAINED,
    ),
}  # fmt: skip


def train(row: Row, name: str, seed: int, protocol: Sequence[str], folder: Path, init: Path | None) -> dict[str, Any]:
    """Train and score one row in its own process, unless the same command has already trained it."""
    name = "-".join("".join(letter if letter.isalnum() else " " for letter in f"{name} {seed}").split())
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


def markdown(
    name: str, table: Table, runs: Sequence[dict[str, Any]], first: dict[str, dict[str, Any]], facts: dict[str, str]
) -> str:
    """The first score of each row by seed, their mean and standard deviation, the longest training time, and the part
    of the signature that all runs share (each has its own best step). `first`: runs that others start from."""
    seeds = sorted({run["seed"] for run in runs})
    metric = runs[0]["scores"][0]
    signatures = [run["scores"][0]["signature"].split("|") for run in runs]
    signature = "|".join(part for part in signatures[0] if all(part in other for other in signatures))
    lines = [f"# {name}", "", f"{table.what}. {metric['name']}, signature `{signature}`.", ""]
    lines += [f"| model | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | std | minutes |"]
    lines += ["| --- |" + " ---: |" * (len(seeds) + 3)]
    for row in table.rows:
        mine = sorted((run for run in runs if run["row"] == row.name), key=lambda run: run["seed"])
        values = [run["scores"][0]["value"] for run in mine]
        minutes = max(run["seconds"] for run in mine) / 60
        spread = f"{stdev(values):.2f}" if len(values) > 1 else ""
        cells = [*(f"{value:.2f}" for value in values), f"{mean(values):.2f}", spread, f"{minutes:.1f}"]
        lines.append(f"| {row.name} (`{' '.join([row.recipe, *row.settings])}`) | {' | '.join(cells)} |")
    lines += ["", f"Every row: `{' '.join(table.protocol)}`.", ""]
    for row in needed(table):
        run = first[row.name]
        scores = ", ".join(f"{score['name']} {score['value']:.2f}" for score in run["scores"])
        start = f" from “{row.init}”" if row.init else ""
        command = " ".join([row.recipe, *row.settings])
        lines += [f"“{row.name}”{start}: `{command}`; {scores}; {run['seconds'] / 60:.1f} minutes.", ""]
    return "\n".join([*lines, *(f"- {key}: {value}" for key, value in facts.items())]) + "\n"


def needed(table: Table) -> list[Row]:
    """Those of its first rows that its rows start from, directly or by way of another one."""
    wanted = {row.init for row in table.rows}
    for row in reversed(table.first):
        if row.name in wanted:
            wanted.add(row.init)
    return [row for row in table.first if row.name in wanted]


class Jobs:
    """The trainings of some tables, several at a time; each run is trained once, whoever needs it."""

    def __init__(self, pool: ThreadPoolExecutor, folder: Path) -> None:
        self.pool, self.folder = pool, folder
        self.first: dict[tuple[str, int], Future[dict[str, Any]]] = {}

    def prepare(self, rows: Sequence[Row], seeds: int) -> None:
        """Train the rows that others start from; a row comes after the one that it starts from itself."""
        for row in rows:
            for seed in range(1, 2 if row.once else seeds + 1):
                if (row.name, seed) not in self.first:
                    self.first[row.name, seed] = self.train(row, row.name, seed, ())

    def train(self, row: Row, name: str, seed: int, protocol: Sequence[str]) -> Future[dict[str, Any]]:
        begun = self.first.get((row.init, seed)) or self.first.get((row.init, 1)) if row.init else None

        def work() -> dict[str, Any]:
            init = None if begun is None else self.folder / begun.result()["out"]
            return train(row, name, seed, protocol, self.folder, init)

        return self.pool.submit(work)

    def table(self, name: str, seeds: int) -> list[Future[dict[str, Any]]]:
        protocol, rows = TABLES[name].protocol, TABLES[name].rows
        return [self.train(row, f"{name} {row.name}", seed, protocol) for row in rows for seed in range(1, seeds + 1)]

    def before(self, name: str) -> dict[str, dict[str, Any]]:
        """What the rows of a table start from, by its name; of several seeds, the first."""
        return {row.name: self.first[row.name, 1].result() for row in needed(TABLES[name])}


def main(arguments: list[str]) -> int:
    """0, or 2 for an error the user can fix."""
    parser = argparse.ArgumentParser(prog="python -m bench.scores", description=__doc__)
    parser.add_argument("tables", nargs="+", metavar="TABLE", help=", ".join(TABLES))
    parser.add_argument("--seeds", type=int, default=0, help="runs per row (as many as the table says)")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("runs") / "scores", help="folder of the runs (%(default)s)")
    options = parser.parse_args(arguments)
    folder, failed = options.out, False
    for name in options.tables:
        if name not in TABLES:
            print(f"there is no table '{name}'{nearest(name, TABLES)}", file=sys.stderr)
            return 2
    folder.mkdir(parents=True, exist_ok=True)
    m, c = machine(), commit()
    facts = {
        "machine": f"{m['gpu'] or m['cpu']}, {os.cpu_count()} cores; {options.parallel} runs at a time",
        "versions": ", ".join(f"{key} {value}" for key, value in versions().items()),
        "commit": f"{c['id'] or 'unknown'}{' with changes' if c['dirty'] else ''}",
        "command": f"`python -m bench.scores {' '.join(options.tables)} --parallel {options.parallel}`",
    }
    with ThreadPoolExecutor(max(1, options.parallel)) as pool:
        jobs = Jobs(pool, folder)
        for name in options.tables:  # before all others: a job that waits for another one keeps its place
            jobs.prepare(needed(TABLES[name]), options.seeds or TABLES[name].seeds)
        begun = {name: jobs.table(name, options.seeds or TABLES[name].seeds) for name in options.tables}
        for name, runs in begun.items():
            try:
                write(name, [job.result() for job in runs], jobs.before(name), facts)
            except UserError as error:
                print(f"{name}: {error}", file=sys.stderr)
                failed = True
    return 2 if failed else 0


def write(name: str, runs: Sequence[dict[str, Any]], first: dict[str, dict[str, Any]], facts: dict[str, str]) -> None:
    text = markdown(name, TABLES[name], runs, first, facts)
    RESULTS.mkdir(exist_ok=True)
    write_text(RESULTS / f"{name}.md", text)
    write_json(RESULTS / f"{name}.json", {"runs": runs, "first": list(first.values()), **facts})
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
