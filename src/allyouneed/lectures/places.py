"""Whether a ViT must be told where its patches are: no positions, 1-D, learned and 2-D ones, three seeds each.

Without positions a picture is a heap of patches. Sinusoids in one dimension count the patches row by row, those in two
dimensions count rows and columns, and learned positions start from noise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from allyouneed.figures.lines import Panel, lines
from allyouneed.lectures.base import Classroom

KINDS = {"none": "none", "1-D": "sinusoidal", "learned": "learned", "2-D": "sinusoidal_2d"}
SEEDS = (1, 2, 3)
SETTINGS = ("train.steps=600", "train.eval_every=100")


def show(room: Classroom, settings: Sequence[str] = SETTINGS) -> dict[str, Any]:
    """Train the recipe recognize/vit with each; ten minutes on two CPU cores."""
    curves, rows, numbers = [], [], {}
    for name, kind in KINDS.items():
        runs = [
            room.trained(
                "recognize/vit", *settings, f"model.positions={kind}", f"train.seed={seed}", name=f"{name}-{seed}"
            )
            for seed in SEEDS
        ]
        tests = [next(score.value for score in run.scores()["test"] if score.name == "accuracy") for run in runs]
        logs = [[json.loads(line) for line in run.folder.metrics.read_text().splitlines()] for run in runs]
        valid = [[row for row in log if "accuracy" in row] for log in logs]
        steps = [row["step"] for row in valid[0]]
        mean = [sum(row["accuracy"] for row in at) / len(SEEDS) for at in zip(*valid)]
        curves.append((name, steps, mean))
        rows.append([name, *(f"{value:.2f}" for value in tests), f"{sum(tests) / len(tests):.2f}"])
        numbers[name] = {"test": tests, "steps": steps, "valid": mean}
    room.table(["positions", *(f"seed {seed}" for seed in SEEDS), "mean"], rows)
    panel = Panel(f"Mean of {len(SEEDS)} seeds, held-out pictures", "steps", "accuracy (%)", curves)
    lines([panel], room.picture("places"), "What a ViT sees without knowing where")
    return numbers
