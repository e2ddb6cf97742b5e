"""Score a run: the same code after training, in `ayn test` and in Python."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from allyouneed.config import DecodeConfig
from allyouneed.format import columns
from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.runfolder import RunFolder
from allyouneed.tasks.base import Task
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.terminal import Say
from allyouneed.wholefile import write_json

LONGEST = 120  # bytes of the name of other data in the name of a picture
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
    extent: Extent = WHOLE,
    baselines: bool = False,
) -> list[Score]:
    """Test the model on a split, sign the scores, write them to scores.json, and draw the pictures of the task.
    `other`: the data is not that of the run; its scores and pictures have names of their own. `baselines`: also those
    of simple methods, which learn from the training split."""
    before = folder.read_scores()
    place = _place_other(task, split, folder, before) if other else _place_own(task, split)
    if place.origin != task.origin(split):
        name = task.origin(split)
        say(f"this {name} is not the one that the run knows: its scores are signed data:{place.origin}")
    made = f"data:{place.origin}|{folder.made_at()}" + (f"|precision:{precision}" if precision != "fp32" else "")
    scores, total = task.test(model, split, decode, say, extent), task.items(split)
    scores += task.baselines() if baselines else []
    part = f"{task.item_name}:{task.covered:,} of {total:,}|" if task.covered < total else ""
    scores = [score.signed(part + made) for score in scores]
    write_json(folder.scores, {**before, place.key: [vars(score) for score in scores]})
    pictures = task.draw(folder.path, place.mark)
    folder.record(pictures)
    for picture in pictures:
        say(f"the picture is in {picture}")
    return scores


class Place(NamedTuple):
    """Where the results of a test go."""

    key: str  # in scores.json
    origin: str  # the data in a signature
    mark: str  # at the end of the names of pictures


def _place_own(task: Task, split: str) -> Place:
    return Place(split, task.origin(split), "" if split == "test" else f"-{split}")


def _place_other(task: Task, split: str, folder: RunFolder, before: Mapping[str, list[dict[str, Any]]]) -> Place:
    """Other data is called by the name of its file, without the folder, and by the start of its fingerprint if another
    file of this name was scored before, or is the data of the run."""
    name, data, own = task.origin(split), task.recipe.data, folder.read_recipe().data
    key = f"{task.data.name} "  # the path, and then the split; the key of own data is the split alone
    others = [found for old, found in before.items() if " " in old and not old.startswith(key)]
    files = [own.path, own.valid_path, own.test_path] if data.path != own.path else []
    taken = any(f"|data:{name}|" in score["signature"] for found in others for score in found)
    taken = taken or name in {" ".join(Path(path).name for path in paths) for paths in files}
    origin = f"{name}@{task.data.fingerprint[:8]}" if taken else name
    part = (f"-{split}" if split != "all" else "") + (f"-limit-{data.limit}" if data.limit else "")
    limit = f" limit {data.limit}" if data.limit else ""
    return Place(f"{key}{split}{limit}", origin, f"-{_file_name(origin, task.data.fingerprint)}{part}")


def _file_name(origin: str, fingerprint: str) -> str:
    """A name for pictures: not that of a split, and not longer than a file system allows."""
    clear = origin not in ("train", "valid", "test") and len(origin.encode()) <= LONGEST
    return origin if clear else f"{origin[:40]}@{fingerprint[:8]}"


def score_rows(scores: Sequence[Score]) -> list[tuple[str, str]]:
    """The scores as people read them: (names and values, signature). Those of entities are one row with the signature,
    and a table with one row per type."""
    beside = [score for score in scores if score.name.endswith(" baseline")]
    named = {score.name: score for score in scores if score not in beside}
    kinds = [name.removeprefix("F1") for name in named if name.startswith("F1 ")]
    if kinds and named.keys() == {f"{measure}{kind}" for measure in ENTITIES for kind in ("", *kinds)}:
        table = [("type", f"{'F1':>9}", "", *(f"{name:>9}" for name in (*ENTITIES[1:], "count")))]
        for kind in kinds:
            f1, *others = (named[measure + kind] for measure in ENTITIES)
            count = re.search(r"\|true:(\d+)", f1.signature)
            values = (f"{score.value:9.2f}" for score in others)
            table.append((kind.strip(), f"{f1.value:9.2f}", f1.interval, *values, f"{count[1] if count else '':>9}"))
        beside_it = (f"{measure} {named[measure].value:.2f}" for measure in ENTITIES[1:])
        rows = [("  ".join([named["F1"].short, *beside_it]), f"({named['F1'].signature})")]
        rows += [(line, "") for line in columns(table)]
    else:
        rows = [(score.short, f"({score.signature})") for score in named.values()]
    rows += [(score.short, f"({score.signature})") for score in beside]
    width = max((len(what) for what, _ in rows), default=0)
    return [(what.ljust(width), signature) for what, signature in rows]
