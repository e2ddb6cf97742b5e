"""Whether a ViT must know where its patches are: no positions, 1-D, learned and 2-D ones, three seeds each.

The images show a red circle and a blue square, and the label is the quarter of the image that the circle is in.
Without positions an image is a heap of patches, in which that cannot be seen. Sinusoids in one dimension count the
patches row by row, those in two dimensions count rows and columns, and learned positions start from noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from allyouneed.data.builtin.shapes import SIDE, SIZES, Shape, centres, draw
from allyouneed.figures.curves import Panel, plot_curves, read_metrics
from allyouneed.lectures.base import Lecture
from allyouneed.lectures.patches import write_images

KINDS = {"none": "none", "1-D": "sinusoidal", "learned": "learned", "2-D": "sinusoidal_2d"}
SEEDS = (1, 2, 3)
SETTINGS = ("task.shift=0", "model.layers=2", "train.lr=5e-3", "train.steps=200", "train.eval_every=40")
SEED = 31  # of the images
PATCH = 4  # pixels, as in the recipe; a patch of the circle is as likely in every quarter


def draw_image(rng: np.random.Generator) -> tuple[np.ndarray, str]:
    """A red circle and a blue square; the label is the quarter in which the circle is."""
    sizes = ["small", str(rng.choice(list(SIZES)))]
    while True:
        middles = centres(rng, [SIZES[size] for size in sizes])
        across, down = (at - SIDE / 2 for at in middles[0])
        if min(abs(across), abs(down)) > PATCH:  # not between two quarters
            break
    quarter = f"{('top', 'bottom')[down > 0]} {('left', 'right')[across > 0]}"
    shapes = zip(("circle", "square"), ("red", "blue"), sizes, middles)
    return draw([Shape(form, colour, size, *middle) for form, colour, size, middle in shapes]), quarter


def show(lecture: Lecture, settings: Sequence[str] = SETTINGS) -> dict[str, Any]:
    """Train a small ViT with each."""
    curves, rows, numbers, data = [], [], {}, lecture.out / "quarters.npz"
    write_images(data, SEED, draw_image)
    for name, kind in KINDS.items():
        runs = []
        for seed in SEEDS:
            more = (f"model.positions={kind}", f"train.seed={seed}")
            runs.append(lecture.trained("recognize/vit", *settings, *more, data=data, name=f"positions-{name}-{seed}"))
        tests = [next(score.value for score in run.scores()["test"] if score.name == "accuracy") for run in runs]
        valid = [[row for row in read_metrics(run.folder.metrics) if "accuracy" in row] for run in runs]
        steps = [row["step"] for row in valid[0]]
        mean = [sum(row["accuracy"] for row in at) / len(SEEDS) for at in zip(*valid)]
        curves.append((name, steps, mean))
        rows.append([name, *(f"{value:.2f}" for value in tests), f"{sum(tests) / len(tests):.2f}"])
        numbers[name] = {"test": tests, "steps": steps, "valid": mean}
    lecture.table(["positions", *(f"seed {seed}" for seed in SEEDS), "mean"], rows)
    panel = Panel(f"Mean of {len(SEEDS)} seeds, held-out images", "steps", "accuracy (%)", curves)
    title = "What a ViT sees without knowing where"
    lecture.draw(lambda out: plot_curves([panel], out, title), title)
    return numbers
