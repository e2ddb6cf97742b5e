"""Images of shapes, drawn by rules: one, two or three of a kind.

What can be learned from them: to name the form whatever its colour, size, place and number, and to draw what a caption
says. A colour and a form that go together in valid and test never do so in train.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import NamedTuple

import numpy as np

SIDE = 32  # pixels
FINE = 4  # points per pixel and direction: edges are smooth
COUNTS = {"train": 6000, "valid": 500, "test": 1000}
COLOURS = {
    "red": (220, 40, 40),
    "green": (40, 160, 60),
    "blue": (50, 80, 220),
    "yellow": (240, 200, 40),
    "purple": (150, 60, 190),
    "orange": (245, 130, 30),
    "black": (30, 30, 30),
    "grey": (150, 150, 150),
}
SIZES = {"small": 3.0, "large": 5.5}  # pixels from the middle to the edge
NUMBERS = {1: "a", 2: "two", 3: "three"}
# Whether a point is inside, from its place relative to the middle, in parts of the size.
Inside = Callable[[np.ndarray, np.ndarray], np.ndarray]
FORMS: dict[str, Inside] = {
    "circle": lambda x, y: x**2 + y**2 <= 1,
    "square": lambda x, y: np.maximum(abs(x), abs(y)) <= 0.88,
    "triangle": lambda x, y: (y <= 0.85) & (y >= 2 * abs(x) - 1),
    "cross": lambda x, y: (np.minimum(abs(x), abs(y)) <= 0.3) & (np.maximum(abs(x), abs(y)) <= 1),
    "ring": lambda x, y: (x**2 + y**2 <= 1) & (x**2 + y**2 >= 0.3),
    "diamond": lambda x, y: abs(x) * 1.3 + abs(y) <= 1.05,
}


class Shape(NamedTuple):
    """One shape; the middle is counted in pixels from the upper left corner."""

    form: str
    colour: str
    size: str
    x: float
    y: float


def draw(shapes: list[Shape]) -> np.ndarray:
    """(32, 32, 3) bytes: the shapes on white."""
    image = np.full((SIDE, SIDE, 3), 255.0)
    for shape in shapes:
        left, top = int(shape.x - SIZES[shape.size]), int(shape.y - SIZES[shape.size])
        part = coverage(shape.form, shape.size, left - shape.x, top - shape.y)
        box = image[top : top + len(part), left : left + len(part)]
        box += part[: box.shape[0], : box.shape[1]] * (np.array(COLOURS[shape.colour]) - box)
    return np.rint(image).astype(np.uint8)


@lru_cache
def coverage(form: str, size: str, left: float, top: float) -> np.ndarray:
    """(H, W, 1), from 0 to 1: how much of each pixel around a shape is inside it; the first pixel is so far from the
    middle of the shape."""
    span = int(2 * SIZES[size] + 2)
    points = (np.arange(span * FINE) + 0.5) / FINE
    inside = FORMS[form]((points[None] + left) / SIZES[size], (points[:, None] + top) / SIZES[size])
    return np.asarray(inside.reshape(span, FINE, span, FINE).mean((1, 3))[..., None])


def held_out(colour: str, form: str) -> bool:
    """Whether they go together in valid and test only: a quarter of all combinations."""
    return (list(COLOURS).index(colour) + list(FORMS).index(form)) % 4 == 0


def scene(rng: np.random.Generator, unseen: bool) -> list[Shape]:
    """One, two or three shapes of one kind that do not touch. `unseen`: of a kind that is held out of train."""
    pairs = [(colour, form) for colour in COLOURS for form in FORMS if held_out(colour, form) == unseen]
    colour, form = pairs[rng.integers(len(pairs))]
    size, number = list(SIZES)[rng.integers(2)], int(rng.integers(1, 4))
    return [Shape(form, colour, size, x, y) for x, y in centres(rng, [SIZES[size]] * number)]


def centres(rng: np.random.Generator, sizes: Sequence[float]) -> list[tuple[float, float]]:
    """The middles of shapes of these sizes, a pixel apart from each other and from the edge."""
    return spread(sizes, 1, lambda size: rng.uniform(size + 1, SIDE - size - 1, 2).tolist())


def spread(sizes: Sequence[float], gap: float, choose: Callable[[float], Sequence[float]]) -> list[tuple[float, float]]:
    """Points (x, y), one for each size, chosen again until squares of these sizes around them are `gap` apart."""
    while True:
        points = [(x, y) for x, y in map(choose, sizes)]
        pairs = combinations(zip(points, sizes), 2)
        if all(max(abs(x - v), abs(y - w)) >= a + b + gap for ((x, y), a), ((v, w), b) in pairs):
            return points


def caption(shapes: list[Shape]) -> str:
    """What the image shows: "two small red circles"."""
    kind, number = shapes[0], len(shapes)
    many = "" if number == 1 else "es" if kind.form == "cross" else "s"
    return f"{NUMBERS[number]} {kind.size} {kind.colour} {kind.form}{many}"


def shapes() -> dict[str, tuple[np.ndarray, list[str], list[str]]]:
    """For train, valid and test: the images (N, 32, 32, 3), their forms, and their captions."""
    made = {}
    for number, (split, count) in enumerate(COUNTS.items()):
        rng = np.random.default_rng((2021, number))
        scenes = [scene(rng, unseen=split != "train") for _ in range(count)]
        pixels = np.stack([draw(shapes) for shapes in scenes])
        made[split] = pixels, [shapes[0].form for shapes in scenes], [caption(shapes) for shapes in scenes]
    return made
