"""Score a run, with the same code after training, in `ayn test` and in Python; and write its predictions."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from allyouneed.config import DataConfig, DecodeConfig
from allyouneed.errors import UserError, option_name, shortened
from allyouneed.format import columns
from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.storage.runfolder import RunFolder
from allyouneed.storage.wholefile import write_json, write_pieces
from allyouneed.tasks.base import WHOLE, Task, TestBudget
from allyouneed.terminal import Say


def check_out(out: str | os.PathLike[str], task: Task, folder: RunFolder, data: Iterable[DataConfig]) -> Path:
    """Where predictions are to be written; a UserError if that is impossible, or would destroy a file of the run or
    the data. Another file is replaced."""
    if not task.predicts:
        raise UserError(
            f"a test of the task '{task.recipe.task_kind}' has no answer to each example that "
            f"{option_name('--out')} could hold: it scores running text; leave it out"
        )
    path = Path(os.path.expanduser(os.fspath(out)))
    real, run, parent = Path(os.path.realpath(path)), Path(os.path.realpath(folder.path)), shortened(path.parent)
    beside = real.parent == run and path.suffix == ".jsonl" and real.name != folder.metrics.name
    own, example = real.is_relative_to(run) and not beside, folder.path / "predictions.jsonl"
    given = (file for config in data for file in (*config.path, *config.valid_path, *config.test_path))
    over = next((file for file in given if real.is_relative_to(os.path.realpath(file))), "")
    refused = [
        (os.path.isdir(path), " is a folder: give the name of a file, for example predictions.jsonl"),
        (os.path.lexists(path) and not os.path.isfile(path), " is not a plain file: give another name"),
        (not os.path.isdir(path.parent), f": there is no folder {parent}; make it, or give another name"),
        (over, f" is in the place of the data {shortened(over)}: give another name"),
        (own, f" is inside the run, which has its own files there: give another name, for example {example}"),
        (not os.access(path.parent, os.W_OK | os.X_OK), f": you may not write into {parent}; give another folder"),
    ]
    for wrong, why in refused:
        if wrong:
            raise UserError(f"{option_name('--out')} {shortened(path)}{why}")
    return path


def write_predictions(path: Path, records: Iterable[Mapping[str, Any]]) -> None:
    """One JSON object per line; the file is written whole or not at all. What is not UTF-8 in the name of an image is
    written as JSON spells it, \\udce9, and read back as it was."""
    rows = (f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)
    write_pieces(path, (row.encode("utf-8", "backslashreplace") for row in rows))


ENTITIES = ("F1", "precision", "recall")  # the scores of entities, of all and of each type


def score_run(
    task: Task,
    model: Model,
    split: str,
    decode: DecodeConfig,
    folder: RunFolder,
    say: Say,
    other: bool = False,
    precision: str = "fp32",
    budget: TestBudget = WHOLE,
    baselines: bool = False,
) -> list[Score]:
    """Test the model on a split, sign the scores, write them to scores.json, and draw the images of the task.
    `other`: the data is not that of the run; its scores and images are named after it and its content.
    `baselines`: also those of simple methods, which learn from the training split."""
    before, origin, key = folder.read_scores(), task.origin(split), split
    mark = "" if split == "test" else f"-{split}"
    if other:
        data = task.recipe.data
        stamp = f"@{task.data.fingerprint[:8]}" if data.path or data.limit else ""
        key = f"{task.data.name} {split}" + (f" limit {data.limit}" if data.limit else "")
        mark = f"-{origin[:40]}{stamp}" + (mark if split != "all" else "")
        origin += stamp
    made = f"data:{origin}|{folder.made_at()}" + (f"|precision:{precision}" if precision != "fp32" else "")
    scores, total = task.test(model, split, decode, say, budget), task.items(split)
    scores += task.baselines() if baselines else []
    part = f"{task.item_name}:{task.covered:,} of {total:,}|" if task.covered < total else ""
    scores = [score.signed(part + made) for score in scores]
    write_json(folder.scores, {**before, key: [vars(score) for score in scores]})
    images = task.write_figures(folder.path, mark)
    folder.record(images)
    for image in images:
        say(f"the figure is in {image}")
    return scores


def score_rows(scores: Sequence[Score]) -> list[tuple[str, str]]:
    """The scores as people read them: (names and values, signature). Those of entities are one row with the signature,
    and a table with one row per type."""
    beside = [score for score in scores if score.name.endswith(" baseline")]
    named = {score.name: score for score in scores if score not in beside}
    kinds = [name.removeprefix("F1") for name in named if name.startswith("F1 ")]
    if kinds and named.keys() == {f"{measure}{kind}" for measure in ENTITIES for kind in ("", *kinds)}:
        table = [("type", f"{'F1':>9}", "", *(f"{name:>9}" for name in (*ENTITIES[1:], "count")))]
        for kind in kinds:
            f1, *more = (named[measure + kind] for measure in ENTITIES)
            count = re.search(r"\|true:(\d+)", f1.signature)
            values = (f"{score.value:9.2f}" for score in more)
            table.append((kind.strip(), f"{f1.value:9.2f}", f1.interval, *values, f"{count[1] if count else '':>9}"))
        others = (f"{measure} {named[measure].value:.2f}" for measure in ENTITIES[1:])
        rows = [("  ".join([named["F1"].short, *others]), f"({named['F1'].signature})")]
        rows += [(row, "") for row in columns(table)]
    else:
        rows = [(score.short, f"({score.signature})") for score in named.values()]
    rows += [(score.short, f"({score.signature})") for score in beside]
    width = max((len(what) for what, _ in rows), default=0)
    return [(what.ljust(width), signature) for what, signature in rows]
