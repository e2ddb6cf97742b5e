"""Images of shapes with captions, drawn by rules: up to three of one kind, or one each of two kinds.

What goes together in valid and test never does so in train: a kind and its number, or two kinds. The split `novel` has
kinds that are in no other: train has each of their colours, forms and sizes, and any two of these together, but not all
three. `check` reads an image by rules, so it checks whether a drawing shows what its caption says.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise, permutations
from random import Random
from typing import NamedTuple

import numpy as np

from allyouneed.data.builtin.shapes import COLOURS, FORMS, NUMBERS, SIDE, SIZES, Shape, caption, draw, spread

COUNTS = {"train": 50_000, "valid": 500, "test": 1000, "novel": 1000}
GAP = 2  # pixels between two shapes
STEP = 2  # pixels between two possible places: so the codes of an image are easier to learn
CLEAR = 1.5  # times farther in one direction than in the other: then a caption says where two shapes are
RELATIONS = ("above", "below", "left of", "right of")  # where the first shape is, seen from the second
FAINT = 0.15  # how far from white a pixel is at least that may belong to a shape, in parts of black
LEAST = 4  # pixels of a shape; fewer are noise
UNLIKE = 0.2  # of the area of a form: a shape that differs from it by more has another form
LARGE = 8.5  # pixels of the longer side from which on a shape is large


class Kind(NamedTuple):
    """What a caption says of a shape."""

    form: str
    colour: str
    size: str


def mark(kind: Kind) -> int:
    """From 0 to 3, evenly: what is in which split follows from it."""
    form, colour, size = list(FORMS), list(COLOURS), list(SIZES)
    return (1 + form.index(kind.form) + colour.index(kind.colour) + 2 * size.index(kind.size)) % 4


def belongs(first: Kind, other: Kind | int) -> str:
    """Where a kind and another kind, or a kind and a number, go together: train, held (valid and test) or novel."""
    marks = mark(first), other if isinstance(other, int) else mark(other)
    return "novel" if 0 in marks else "train" if sum(marks) % 4 else "held"


@cache
def kinds(novel: bool) -> list[Kind]:
    """Those of the split `novel`, a quarter of all, or of the others."""
    every = [Kind(form, colour, size) for colour in COLOURS for form in FORMS for size in SIZES]
    return [kind for kind in every if (mark(kind) == 0) == novel]


def scene(rng: Random, part: str) -> tuple[list[Shape], str]:
    """Shapes that belong to this part, and their caption. Their middles are multiples of STEP pixels."""
    known = kinds(part == "novel")
    while True:
        first, second, number = rng.choice(known), rng.choice(known), rng.choice((0, 0, 0, 1, 2, 3))
        if belongs(first, number or second) != part:
            continue
        named = [first] * number or [first, second]
        points = spread(
            [reach(kind.size) for kind in named], GAP, lambda far: [STEP * rng.choice(_steps(far)) for _ in range(2)]
        )
        shapes = [Shape(*kind, *point) for kind, point in zip(named, points)]
        if number:
            return shapes, caption(shapes)
        if how := direction(shapes[0], shapes[1], CLEAR):
            return shapes, f"{caption(shapes[:1])} {how} {caption(shapes[1:])}"


@cache
def _steps(far: int) -> range:
    return range(-(-far // STEP), (SIDE - far) // STEP + 1)


def reach(size: str) -> int:
    """Whole pixels from the middle of a shape to its edge."""
    return int(SIZES[size] + 0.5)


def direction(first: Shape, second: Shape, clear: float = 1.0) -> str:
    """Where the first is, seen from the second: one of RELATIONS, or "" if it is not `clear` times farther in one
    direction than in the other."""
    across, down = first.x - second.x, first.y - second.y
    if max(abs(across), abs(down)) < clear * min(abs(across), abs(down)):
        return ""
    if abs(down) > abs(across):
        return "above" if down < 0 else "below"
    return "left of" if across < 0 else "right of"


def scenes() -> dict[str, tuple[np.ndarray, list[str]]]:
    """For each split the images (N, 32, 32, 3), and their captions."""
    made = {}
    for number, (split, count) in enumerate(COUNTS.items()):
        rng = Random(1066 + number)
        part = "held" if split in ("valid", "test") else split
        examples = [scene(rng, part) for _ in range(count)]
        made[split] = np.stack([draw(shapes) for shapes, _ in examples]), [text for _, text in examples]
    return made


def read_caption(text: str) -> tuple[list[Kind], str]:
    """The kind of each shape that a caption names, and how two kinds lie; a ValueError for other texts."""
    kinds, how = [], ""
    for relation in RELATIONS:
        if f" {relation} " in text:
            how, text = relation, text.replace(f" {relation} ", "|")
    numbers = {word: number for number, word in NUMBERS.items()}
    for part in text.split("|"):
        number, size, colour, form = part.split()
        if number not in numbers:
            raise ValueError(f"no number of shapes: {number}")
        one = Kind(re.sub("(?<=cross)es$|s$", "", form) if form not in FORMS else form, colour, size)
        if one.form not in FORMS or colour not in COLOURS or size not in SIZES:
            raise ValueError(f"no caption of a scene: {text}")
        kinds += [one] * numbers[number]
    return kinds, how


def _square(pixels: np.ndarray) -> np.ndarray:
    """(H, W, C) bytes -> (32, 32, 3): drawings may have another size, or be grey."""
    from PIL import Image

    if pixels.shape == (SIDE, SIDE, 3):
        return pixels
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] < 3 else pixels).convert("RGB")
    return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BOX))


def read_image(pixels: np.ndarray) -> list[Shape]:
    """The shapes that an image (H, W, C) shows, the largest first: connected patches of ink, and what each is most
    like."""
    pixels = _square(pixels)
    colours = np.array(list(COLOURS.values()), float)
    ink = (255 - pixels.astype(float)) / 255  # (H, W, 3)
    found = []
    for patch in sorted(_patches(ink.max(-1) > FAINT), key=lambda patch: -patch.sum()):
        dark = ink[patch].max(-1)
        full = ink[patch][dark >= np.median(dark)].mean(0)  # without the pale edges
        covered = patch * np.clip(ink @ full / (full @ full), 0, 1)  # (H, W), from 0 to 1
        inside = covered > 0.5
        if inside.sum() < LEAST:
            continue
        colour = list(COLOURS)[int(np.argmin(((255 * (1 - full) - colours) ** 2).sum(1)))]
        rows, columns = np.nonzero(inside)
        middle = (columns.min() + columns.max() + 1) / 2, (rows.min() + rows.max() + 1) / 2
        size = "large" if max(np.ptp(rows), np.ptp(columns)) + 1 > LARGE else "small"
        found.append(Shape(_form(covered, size, middle), colour, size, *middle))
    return found


@cache
def _stamps(size: str) -> np.ndarray:
    """(forms, places near the middle, 32 * 32), from 0 to 1: how much of each pixel a shape covers there."""
    near = [SIDE / 2 + shift for shift in (-1.0, -0.5, 0.0, 0.5, 1.0)]
    drawings = [
        [draw([Shape(form, "black", size, x, y)])[..., 0].ravel() for x in near for y in near] for form in FORMS
    ]
    return (255 - np.array(drawings, float)) / (255 - COLOURS["black"][0])


def _form(covered: np.ndarray, size: str, middle: tuple[float, float]) -> str:
    """The form that covers most nearly the same (32, 32), somewhere around the middle; "" if none is near."""
    x, y = (int(at) for at in middle)
    centred = np.roll(covered, (SIDE // 2 - y, SIDE // 2 - x), (0, 1)).ravel()
    wrong = ((_stamps(size) - centred) ** 2).sum(-1).min(-1) / _stamps(size)[:, 0].sum(-1)
    return list(FORMS)[int(wrong.argmin())] if wrong.min() < UNLIKE else ""


def _patches(ink: np.ndarray) -> list[np.ndarray]:
    """(H, W) bool -> one such table per patch of neighbours, also across corners."""
    left, found = {(int(y), int(x)) for y, x in zip(*np.nonzero(ink))}, []
    while left:
        near, inside = [left.pop()], np.zeros_like(ink)
        while near:
            y, x = near.pop()
            inside[y, x] = True
            around = {(y + down, x + across) for down in (-1, 0, 1) for across in (-1, 0, 1)} & left
            left -= around
            near += around
        found.append(inside)
    return found


def check(text: str, pixels: np.ndarray) -> dict[str, bool]:
    """Whether an image shows what its caption says: number, form, colour, size and, of two kinds, place. A form is
    right if it is that of every shape, and so on. Missing and additional shapes are wrong in number alone, but where
    there is no shape, nothing is right."""
    kinds, how = read_caption(text)
    found = read_image(pixels)
    # Which shape is meant by which part of the caption is what makes most of them right; of many, one of the largest.
    chosen = permutations(found[: len(kinds) + 3], min(len(found), len(kinds)))
    tables = [_compared(kinds, how, list(some)) for some in chosen]
    return {"number": len(found) == len(kinds)} | max(tables, key=lambda table: sum(table.values()))


def _compared(kinds: list[Kind], how: str, shapes: list[Shape]) -> dict[str, bool]:
    pairs = list(zip(kinds, shapes))
    table = {
        name: bool(pairs) and all(getattr(kind, name) == getattr(shape, name) for kind, shape in pairs)
        for name in Kind._fields
    }
    if how:
        table["place"] = [direction(*pair) for pair in pairwise(shapes)] == [how]
    return table
