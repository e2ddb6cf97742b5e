"""Score a run: the same code after training, in `ayn test` and in Python."""

from __future__ import annotations

import re
from collections.abc import Sequence

from allyouneed.config import DecodeConfig
from allyouneed.format import columns
from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.runfolder import RunFolder
from allyouneed.tasks.base import Say, Task
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.wholefile import write_json

ENTITIES = ("F1", "precision", "recall")  # the scores of entities, of all and of each type


def score_run(
    task: Task,
    model: Model,
    split: str,
    decode: DecodeConfig,
    folder: RunFolder,
    say: Say,
    name: str = "",
    precision: str = "fp32",
    extent: Extent = WHOLE,
) -> list[Score]:
    """Test the model on a split, sign the scores, write them to scores.json under `name` (by default the split), and
    draw the pictures of the task."""
    before = folder.read_scores()
    made = f"{task.origin}|{folder.made_at()}" + (f"|precision:{precision}" if precision != "fp32" else "")
    scores, total = task.test(model, split, decode, say, extent), task.items(split)
    part = f"{task.item_name}:{task.covered:,} of {total:,}|" if task.covered < total else ""
    scores = [score.signed(part + made) for score in scores]
    write_json(folder.scores, {**before, name or split: [vars(score) for score in scores]})
    pictures = task.draw(folder.path, split)
    folder.record(pictures)
    for picture in pictures:
        say(f"the picture is in {picture}")
    return scores


def score_rows(scores: Sequence[Score]) -> list[tuple[str, str]]:
    """The scores as people read them: (names and values, signature). Those of entities are one row with the signature,
    and a table with one row per type."""
    named = {score.name: score for score in scores}
    kinds = [name.removeprefix("F1") for name in named if name.startswith("F1 ")]
    if kinds and named.keys() == {f"{measure}{kind}" for measure in ENTITIES for kind in ("", *kinds)}:
        table = [("type", *(f"{name:>9}" for name in (*ENTITIES, "count")))]
        for kind in kinds:
            values = (f"{named[measure + kind].value:9.2f}" for measure in ENTITIES)
            count = re.search(r"\|true:(\d+)", named[f"F1{kind}"].signature)
            table.append((kind.strip(), *values, f"{count[1] if count else '':>9}"))
        rows = [("  ".join(named[measure].short for measure in ENTITIES), f"({named['F1'].signature})")]
        rows += [(line, "") for line in columns(table)]
    else:
        rows = [(score.short, f"({score.signature})") for score in scores]
    width = max((len(what) for what, _ in rows), default=0)
    return [(what.ljust(width), signature) for what, signature in rows]
