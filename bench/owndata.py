"""python -m bench.owndata [CASE …]: train on files as a user has them, with no settings but these files (in one case
also the minutes), and keep the score, the time and what the rules chose. ALLYOUNEED_MIRROR names the public data."""

from __future__ import annotations

import argparse
import gzip
import json
import lzma
import os
import random
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allyouneed.errors import UserError, nearest
from allyouneed.runtime import versions
from allyouneed.storage.wholefile import write_json, write_text
from bench.harness import commit, machine
from bench.scores import RESULTS

LIBRARY = 10_000_000  # characters of Python source
WIKI = 20_000_000  # bytes of the head of enwik8
FASHION = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")


@dataclass(frozen=True)
class Case:
    """`files` writes the user's files from the mirror into a folder; `words` are the arguments of `ayn train`."""

    files: Callable[[Path, Path], None]
    words: tuple[str, ...]
    score: str


def _copied(*names: str) -> Callable[[Path, Path], None]:
    """Files of the mirror, decompressed if need be, under their names without folders."""

    def write(mirror: Path, folder: Path) -> None:
        for name in names:
            source = mirror / name
            data = lzma.decompress(source.read_bytes()) if name.endswith(".xz") else source.read_bytes()
            (folder / source.name.removesuffix(".xz")).write_bytes(data)

    return write


def _fashion(mirror: Path, folder: Path) -> None:
    """In a folder of their own, beside which the run and its log stand."""
    (folder / "images").mkdir(exist_ok=True)
    _copied(*(f"fashion-mnist/{part}-ubyte.gz" for part in FASHION))(mirror, folder / "images")


def _trec(mirror: Path, folder: Path) -> None:
    """The six coarse classes, as a table: "DESC:manner How did …" -> DESC<TAB>How did …"""
    for split in ("train", "test"):
        lines = (mirror / f"trec/{split}.txt").read_text(encoding="latin-1").splitlines()
        rows = [line.replace(":", " ", 1).split(" ", 2) for line in lines if line.strip()]
        (folder / f"{split}.tsv").write_text("".join(f"{label}\t{text}\n" for label, _, text in rows), encoding="utf-8")


def _reviews(number: int) -> Callable[[Path, Path], None]:
    """So many training texts of IMDB, and 4,000 of its test, drawn at random."""

    def write(mirror: Path, folder: Path) -> None:
        for split, many in (("train", number), ("test", 4_000)):
            rows = lzma.decompress((mirror / f"imdb/{split}.tsv.xz").read_bytes()).decode().splitlines(keepends=True)
            random.Random(1).shuffle(rows)
            (folder / f"{split}.tsv").write_text("".join(rows[:many]), encoding="utf-8")

    return write


def _library(mirror: Path, folder: Path) -> None:
    """Python's standard library, file by file in the order of their names, as long as there is room."""
    top, room = Path(sysconfig.get_path("stdlib")), LIBRARY
    for path in sorted(top.rglob("*.py")):
        inside = path.relative_to(top)
        if {"site-packages", "dist-packages"} & set(inside.parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if len(text) <= room:
            room -= len(text)
            (folder / "library" / inside.parent).mkdir(parents=True, exist_ok=True)
            (folder / "library" / inside).write_text(text, encoding="utf-8")


def _wiki(mirror: Path, folder: Path) -> None:
    with gzip.open(mirror / "enwik8/enwik8.gz") as file:
        text = file.read(WIKI).decode("utf-8", errors="ignore")
    (folder / "wiki.txt").write_text(text, encoding="utf-8")


SST2 = ("--data", "train.tsv", "data.valid_path=dev.tsv", "data.test_path=test.tsv")
SPLIT = ("--data", "train.tsv", "data.test_path=test.tsv")
TEXTS = {  # for classify/rnn and classify/conv
    "sst2": (_copied("sst2/train.tsv", "sst2/dev.tsv", "sst2/test.tsv"), SST2),
    "trec": (_trec, SPLIT),
    "imdb-1000": (_reviews(1_000), SPLIT),
    "imdb-4000": (_reviews(4_000), SPLIT),
}
CASES = {
    **{
        f"{name}{mark}": Case(files, (recipe, *words), "accuracy")
        for name, (files, words) in TEXTS.items()
        for recipe, mark in (("classify/rnn", ""), ("classify/conv", "-conv"))
    },
    "imdb": Case(_copied("imdb/train.tsv.xz", "imdb/test.tsv.xz"), ("classify/rnn", *SPLIT), "accuracy"),
    "fashion-mnist": Case(_fashion, ("recognize/vit", "--data", "images", "train.minutes=4"), "accuracy"),
    "wnut17": Case(
        _copied("wnut17/train.conll", "wnut17/dev.conll", "wnut17/test.conll"),
        ("tag/lstm", "--data", "train.conll", "data.valid_path=dev.conll", "data.test_path=test.conll"),
        "F1",
    ),
    "eng-ita": Case(
        _copied("tatoeba/eng-ita.tsv.xz"),
        ("translate/transformer", "--data", "eng-ita.tsv", "train.minutes=6"),
        "BLEU",
    ),
    "library": Case(_library, ("lm/gpt", "--data", "library"), "bits per byte"),
    "wiki": Case(_wiki, ("wordvectors/skipgram", "--data", "wiki.txt"), "analogies"),
}


def train(name: str, case: Case, folder: Path) -> dict[str, Any]:
    """Write the files, train in a process of its own, and read what the run has kept."""
    mirror = Path(os.environ["ALLYOUNEED_MIRROR"]).resolve()
    folder = folder.resolve() / name
    folder.mkdir(parents=True, exist_ok=True)
    case.files(mirror, folder)
    words = [
        f"{word.partition('=')[0]}={folder / word.partition('=')[2]}" if word.startswith("data.") else word
        for word in case.words
    ]
    load, start = os.getloadavg()[0], time.monotonic()
    with (folder / "log").open("w") as log:
        command = [sys.executable, "-m", "allyouneed", "train", *words, "--out", "run", "--overwrite"]
        done = subprocess.run(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, check=False)
    seconds = time.monotonic() - start
    if done.returncode:
        raise UserError(f"{name}: {''.join((folder / 'log').read_text().strip().splitlines()[-1:])}")
    scores = json.loads((folder / "run/scores.json").read_text())["test"]
    config = json.loads((folder / "run/config.json").read_text())
    rows = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    return {
        "case": name,
        "command": " ".join(["ayn train", *case.words]),
        "score": next(score for score in scores if score["name"].startswith(case.score)),
        "baselines": [score for score in scores if score["name"].endswith(" baseline")],
        "seconds": seconds,
        "training": max(row["seconds"] for row in rows),
        "evaluations": sum(row["kind"] == "valid" for row in rows),
        "load": load,
        "commit": f"{(commit()['id'] or 'unknown')[:12]}{' with changes' if commit()['dirty'] else ''}",
        "followed": config["followed"],
    }


def markdown(runs: list[dict[str, Any]], facts: dict[str, str]) -> str:
    """One row per case, then what was chosen for each."""
    lines = [
        "# own-data",
        "",
        "One command each, with no other settings; scores with 95 % intervals; the time is that of the whole command.",
        "",
    ]
    lines += [
        "| data | command | score | best baseline | time | evaluations | load before | commit |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for run in runs:
        clock = f"{int(run['seconds']) // 60}:{int(run['seconds']) % 60:02d}"
        best = max(run.get("baselines", []), key=lambda score: score["value"], default=None)
        cells = (run["case"], f"`{run['command']}`", _told(run["score"]), _told(best) if best else "", clock)
        lines.append(f"| {' | '.join(cells)} | {run['evaluations']} | {run['load']:.2f} | {run['commit']} |")
    for run in runs:
        lines += ["", f"{run['case']} (`{run['score']['signature']}`):", "", *(f"- {line}" for line in run["followed"])]
    return "\n".join([*lines, "", *(f"- {key}: {value}" for key, value in facts.items())]) + "\n"


def _told(score: dict[str, Any]) -> str:
    """With its interval, if it has one."""
    between = f" [{score['low']:.1f}, {score['high']:.1f}]" if score.get("low") is not None else ""
    return f"{score['name'].removesuffix(' baseline')} {score['value']:.4g}{between}"


def main(arguments: list[str]) -> int:
    """0, or 2 for an error the user can fix."""
    parser = argparse.ArgumentParser(prog="python -m bench.owndata", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(CASES)}; otherwise all of them")
    parser.add_argument("--out", type=Path, default=Path("runs/own-data"), help="folder of the runs (%(default)s)")
    options = parser.parse_args(arguments)
    try:
        if not os.environ.get("ALLYOUNEED_MIRROR"):
            raise UserError("set ALLYOUNEED_MIRROR to a folder with the public data sets")
        for name in options.cases:
            if name not in CASES:
                raise UserError(f"there is no case '{name}'{nearest(name, CASES)}")
        for name in options.cases or CASES:
            print(keep(train(name, CASES[name], options.out)))
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def keep(run: dict[str, Any]) -> str:
    """Write the results, with those that other cases have had before; returns the table."""
    kept = RESULTS / "own-data.json"
    before = json.loads(kept.read_text())["runs"] if kept.exists() else []
    fresh = {old["case"]: old for old in [*before, run]}
    runs = [fresh[name] for name in CASES if name in fresh]
    facts = {
        "machine": f"{machine()['cpu']}, {os.cpu_count()} cores",
        "versions": ", ".join(f"{key} {value}" for key, value in versions().items()),
        "command": "`python -m bench.owndata`",
    }
    RESULTS.mkdir(exist_ok=True)
    write_json(kept, {"runs": runs, **facts})
    text = markdown(runs, facts)
    write_text(RESULTS / "own-data.md", text)
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
