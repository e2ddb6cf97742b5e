"""Score a run: the same code after training, in `ayn test` and in Python."""

from __future__ import annotations

from allyouneed.config import DecodeConfig
from allyouneed.metrics import Score
from allyouneed.models.base import Model
from allyouneed.runfolder import RunFolder
from allyouneed.tasks.base import Say, Task
from allyouneed.wholefile import write_json


def score_run(
    task: Task,
    model: Model,
    split: str,
    decode: DecodeConfig,
    folder: RunFolder,
    say: Say,
    name: str = "",
    precision: str = "fp32",
) -> list[Score]:
    """Test the model on a split, sign the scores, write them to scores.json under `name` (by default the split), and
    draw the pictures of the task."""
    before = folder.read_scores()
    made = f"{task.origin}|{folder.made_at()}" + (f"|precision:{precision}" if precision != "fp32" else "")
    scores = [score.signed(made) for score in task.test(model, split, decode, say)]
    write_json(folder.scores, {**before, name or split: [vars(score) for score in scores]})
    pictures = task.draw(folder.path, split)
    folder.record(pictures)
    for picture in pictures:
        say(f"the picture is in {picture}")
    return scores
