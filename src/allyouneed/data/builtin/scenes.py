"""Pictures of shapes with captions, drawn by rules: up to three of one kind, or two kinds and how they lie.

What goes together in valid and test never does so in train: a kind and its number, or two kinds. The split `novel` has
kinds that are in no other: train has each of their colours, forms and sizes, and any two of these together, but not all
three. `check` reads a picture by rules, so it can tell whether a drawing shows what its caption says.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations, pairwise, permutations
from random import Random
from typing import NamedTuple

import numpy as np

from allyouneed.data.builtin.shapes import COLOURS, FORMS, NUMBERS, SIDE, SIZES, Shape, caption, draw

COUNTS = {"train": 50_000, "valid": 500, "test": 1000, "novel": 1000}
GAP = 2  # pixels between two shapes
STEP = 2  # pixels between two possible places: so the codes of a picture are easier to learn
BESIDES = ("above", "below", "left of", "right of")  # how the first shape lies from the second
FAINT = 0.15  # how far from white a pixel is at least that may belong to a shape, in parts of black
LEAST = 4  # pixels of a shape; fewer are dirt
UNLIKE = 0.2  # of the area of a form: a shape that differs from it by more has another form
LARGE = 8.5  # pixels of the longer side from which on a shape is large


class Kind(NamedTuple):
    """What a caption says of a shape."""

    form: str
    colour: str
    size: str


def mark(kind: Kind) -> int:
    """From 0 to 3, evenly: what is in which split follows from it."""
    places = list(FORMS).index(kind.form), list(COLOURS).index(kind.colour), 2 * list(SIZES).index(kind.size)
    return (1 + sum(places)) % 4


def belongs(first: Kind, other: Kind | int) -> str:
    """Where a kind and another kind, or a kind and a number, go together: train, held (valid and test) or novel."""
    marks = mark(first), other if isinstance(other, int) else mark(other)
    return "novel" if 0 in marks else "train" if sum(marks) % 4 else "held"


@cache
def kinds(novel: bool) -> list[Kind]:
    """Those of the split `novel`, a quarter of all, or of the others."""
    every = [Kind(form, colour, size) for colour in COLOURS for form in FORMS for size in SIZES]
    return [kind for kind in every if (mark(kind) == 0) == novel]


def scene(draws: Random, part: str) -> tuple[list[Shape], str]:
    """Shapes that belong to this part, and their caption."""
    known = kinds(part == "novel")
    while True:
        first, second, number = draws.choice(known), draws.choice(known), draws.choice((0, 0, 0, 1, 2, 3))
        if belongs(first, number or second) != part:
            continue
        if number:
            shapes = [_at(first, x, y) for x, y in places(draws, [first] * number)]
            return shapes, caption(shapes)
        shapes = [_at(one, x, y) for one, (x, y) in zip((first, second), places(draws, [first, second]))]
        if how := besides(*shapes):
            return shapes, f"{caption(shapes[:1])} {how} {caption(shapes[1:])}"


def _at(kind: Kind, x: float, y: float) -> Shape:
    return Shape(kind.form, kind.colour, kind.size, x, y)


def places(draws: Random, kinds: list[Kind]) -> list[tuple[int, int]]:
    """Middles at multiples of STEP pixels, such that the shapes are at least GAP pixels apart."""
    reaches = [reach(kind.size) for kind in kinds]
    while True:
        tries = [tuple(STEP * draws.choice(_steps(far)) for _ in range(2)) for far in reaches]
        pairs = combinations(zip(tries, reaches), 2)
        if all(max(abs(x - v), abs(y - w)) >= a + b + GAP for ((x, y), a), ((v, w), b) in pairs):
            return [(x, y) for x, y in tries]


@cache
def _steps(far: int) -> range:
    return range(-(-far // STEP), (SIDE - far) // STEP + 1)


def besides(first: Shape, second: Shape) -> str:
    """How the first lies from the second; "" if that is not clear, because it lies between two directions."""
    across, down = first.x - second.x, first.y - second.y
    if max(abs(across), abs(down)) < 1.5 * min(abs(across), abs(down)):
        return ""
    return _direction(across, down)


def _direction(across: float, down: float) -> str:
    if abs(down) > abs(across):
        return "above" if down < 0 else "below"
    return "left of" if across < 0 else "right of"


@cache
def stamp(form: str, size: str, across: float = 0.0, down: float = 0.0) -> np.ndarray:
    """(32, 32), from 0 to 1: how much of each pixel a shape covers that lies so far from the middle of the picture."""
    black = draw([Shape(form, "black", size, SIDE / 2 + across, SIDE / 2 + down)])[..., 0]
    return (255.0 - black) / (255 - COLOURS["black"][0])


def reach(size: str) -> int:
    """Whole pixels from the middle of a shape to its edge."""
    return int(SIZES[size] + 0.5)


@cache
def box(form: str, colour: str, size: str) -> np.ndarray:
    """(2 · reach, 2 · reach, 3) bytes: one shape."""
    low, high = SIDE // 2 - reach(size), SIDE // 2 + reach(size)
    return draw([Shape(form, colour, size, SIDE / 2, SIDE / 2)])[low:high, low:high]


def paint(shapes: list[Shape]) -> np.ndarray:
    """(32, 32, 3) bytes: what `draw` gives for shapes on whole pixels whose boxes do not meet, and faster."""
    picture = np.full((SIDE, SIDE, 3), 255, np.uint8)
    for shape in shapes:
        top, left, span = int(shape.y) - reach(shape.size), int(shape.x) - reach(shape.size), 2 * reach(shape.size)
        picture[top : top + span, left : left + span] = box(*shape[:3])
    return picture


def scenes() -> dict[str, tuple[np.ndarray, list[str]]]:
    """For each split the pictures (N, 32, 32, 3), and their captions."""
    made = {}
    for number, (split, count) in enumerate(COUNTS.items()):
        draws = Random(1066 + number)
        part = "held" if split in ("valid", "test") else split
        found = [scene(draws, part) for _ in range(count)]
        made[split] = np.stack([paint(shapes) for shapes, _ in found]), [told for _, told in found]
    return made


def read_caption(text: str) -> tuple[list[Kind], str]:
    """The kind of each shape that a caption names, and how two kinds lie; a ValueError for other texts."""
    kinds, how = [], ""
    for relation in BESIDES:
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


def read_picture(pixels: np.ndarray) -> list[Shape]:
    """The shapes that a picture (H, W, C) shows, the largest first: patches of ink that hang together, and what each is
    most like."""
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
    """(forms, places near the middle, 32 * 32)"""
    near = (-1.0, -0.5, 0.0, 0.5, 1.0)
    return np.stack([[stamp(form, size, x, y).ravel() for x in near for y in near] for form in FORMS])


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
    """Whether a picture shows what its caption says: number, form, colour, size and, of two kinds, place. A form is
    right if it is that of every shape, and so on. Missing and additional shapes are wrong in number alone, but where
    there is no shape, nothing is right."""
    kinds, how = read_caption(text)
    found = read_picture(pixels)
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
        lies = [_direction(a.x - b.x, a.y - b.y) for a, b in pairwise(shapes)]
        table["place"] = lies == [how]
    return table
