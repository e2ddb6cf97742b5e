"""What a data set holds, for the user and as JSON: sizes, lengths, duplicates, and examples that train has too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from allyouneed.data.examples import digest
from allyouneed.data.sources import PICTURES, Dataset, Split, caption_key
from allyouneed.errors import shortened

QUANTILES = (50, 90, 99)
MOST_CLASSES = 30
MANY_UNKNOWN = 0.05  # of the tokens of valid or test; more is worth a sentence
Lengths = Sequence[int] | np.ndarray


@dataclass
class Side:
    """The lengths of one side of a split."""

    name: str  # source, target or text
    total: int
    quantiles: dict[str, int]
    longest: int
    cut: int | None  # how many examples are longer than the limit
    unknown: float | None = None  # the fraction of its tokens that are unknown; None if the tokenizer knows every text


@dataclass
class Part:
    """One split. `duplicates`: examples that came before in it; `in_train`: examples whose input train has too."""

    name: str
    examples: int
    empty: int
    bytes: int
    duplicates: int
    in_train: int | None
    sides: list[Side] = field(default_factory=list)


@dataclass
class Report:
    """Made by `describe`. `classes`: how many examples, or entities, of each split have each label."""

    name: str
    shape: str
    unit: str
    limit: int | None
    understood: list[str]
    licence: str
    parts: list[Part]
    classes: dict[str, dict[str, int]] = field(default_factory=dict)
    advice: str = ""  # what to try if many tokens are unknown
    notes: list[str] = field(default_factory=list)  # what a task adds

    @property
    def things(self) -> str:
        """What the examples are."""
        named = {"pairs": "pairs", "labels": "texts", "tags": "sentences", "questions": "questions"}
        return "pictures" if self.shape in PICTURES else named.get(self.shape, "documents")

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For the user: how the data was read, then a table of the splits, of the lengths, and of the classes."""
        told = [*self.understood, *([f"licence: {self.licence}"] if self.licence else [])]
        first = [["split", self.things, "bytes", "empty, dropped", "duplicates", "also in train"]]
        for part in self.parts:
            shared = "" if part.in_train is None else f"{part.in_train:,}"
            counts = (part.examples, part.bytes, part.empty, part.duplicates)
            first.append([part.name, *(f"{count:,}" for count in counts), shared])
        cut = [] if self.limit is None else [f"over {self.limit:,}"]
        unknown = ["unknown"] if any(side.unknown is not None for part in self.parts for side in part.sides) else []
        second = [[self.unit, "", "total", *(f"{q} %" for q in QUANTILES), "longest", *cut, *unknown]]
        for part in self.parts:
            for side in part.sides:
                numbers = (side.total, *side.quantiles.values(), side.longest)
                over = [] if side.cut is None else [f"{side.cut:,}"]
                share = ["" if side.unknown is None else _percent(side.unknown)] if unknown else []
                second.append([part.name, side.name, *(f"{number:,}" for number in numbers), *over, *share])
        third = self._classes()
        return [
            *(*told, "", *_aligned(first, 1)),
            *(["", *_aligned(second, 2), *self._unknown()] if len(second) > 1 else []),
            *(["", *_aligned(third, 1), *self._twins(), *self._single()] if third else []),
            *(["", *self.notes] if self.notes else []),
        ]

    def _unknown(self) -> list[str]:
        """One sentence if many tokens of valid or test are unknown."""
        many = [
            f"{part.name} {side.name} {_percent(side.unknown)}".replace(" text", "")
            for part in self.parts
            for side in part.sides
            if part.name != "train" and side.unknown is not None and side.unknown > MANY_UNKNOWN
        ]
        if not many or not self.advice:
            return []
        told = f"many {self.unit} are not in the vocabulary ({', '.join(many)})"
        return [f"{told}, so the model cannot tell them apart: {self.advice}"]

    def _classes(self) -> list[list[str]]:
        """One row per class, the most frequent first; the rest of very many is one row."""
        train = self.classes.get("train", {})
        names = sorted({*train, *(name for of in self.classes.values() for name in of)})
        names.sort(key=lambda name: -train.get(name, 0))
        rows = [[name, *(f"{of.get(name, 0):,}" for of in self.classes.values())] for name in names[:MOST_CLASSES]]
        if len(names) > MOST_CLASSES:
            rest = names[MOST_CLASSES:]
            total = (f"{sum(of.get(name, 0) for name in rest):,}" for of in self.classes.values())
            rows.append([f"{len(rest):,} more", *total])
        return [["label" if self.shape in ("labels", "pictures") else "type", *self.classes], *rows] if rows else []

    def _twins(self) -> list[str]:
        """Classes that probably are the same: pos and POS, 1 and 1.0."""
        same: dict[str, list[str]] = {}
        for name in sorted({name for of in self.classes.values() for name in of}):
            key = name.casefold()
            with suppress(ValueError):
                key = str(float(key))
            same.setdefault(key, []).append(name)
        told = [(" and ".join(f"'{name}'" for name in names), len(names)) for names in same.values() if len(names) > 1]
        return [f"{names} count as {many} classes: spell them alike if they are one" for names, many in told]

    def _single(self) -> list[str]:
        """One sentence about classes with one training example."""
        few = sorted(name for name, count in self.classes.get("train", {}).items() if count == 1)
        if not few or self.shape not in ("labels", "pictures"):
            return []
        names, more = ", ".join(f"'{name}'" for name in few[:5]), f" and {len(few) - 5:,} more" if len(few) > 5 else ""
        return [f"a single training example has the label {names}{more}: that is too few to learn from; add some"]


def describe(
    dataset: Dataset,
    lengths: Mapping[str, Lengths | tuple[Lengths, Lengths]],
    limit: int | None = None,
    unit: str = "tokens",
    classes: Mapping[str, Mapping[str, int]] | None = None,
    unknown: Mapping[str, Sequence[float | None]] | None = None,
    advice: str = "",
) -> Report:
    """`lengths`: one per example; for pairs, those of the sources and of the targets.
    `unknown`: the fraction of unknown tokens of each side."""
    parts: list[Part] = []
    train: np.ndarray | None = None
    for name, split in dataset.splits.items():
        inputs, examples = _hashes(split, dataset.shape)
        in_train = None if train is None else int(_are_in(train, inputs).sum())
        train = np.sort(inputs) if name == "train" else train
        duplicates = int((np.diff(np.sort(examples)) == 0).sum())
        sides = _sides(lengths[name], limit) if name in lengths else []
        for side, share in zip(sides, (unknown or {}).get(name, ())):
            side.unknown = share
        parts.append(Part(name, split.examples, split.empty, split.bytes, duplicates, in_train, sides))
    counts = {name: dict(of) for name, of in (classes or {}).items()}
    return Report(dataset.name, dataset.shape, unit, limit, dataset.understood, dataset.licence, parts, counts, advice)


def _hashes(split: Split, shape: str) -> tuple[np.ndarray, np.ndarray]:
    """One number for the input of each example and one for the whole example. The input of a captioned picture is its
    caption."""
    inputs, examples = split.hashes()
    if shape == "captions":
        inputs = np.fromiter((digest(caption_key(picture.label)) for picture in split), np.uint64)
    return inputs, examples


def _are_in(known: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Which of the values are among those known, which are sorted; several times as fast as np.isin."""
    return np.searchsorted(known, values, "right") > np.searchsorted(known, values, "left")


def _sides(lengths: Lengths | tuple[Lengths, Lengths], limit: int | None) -> list[Side]:
    if isinstance(lengths, tuple):
        return [_side("source", lengths[0], limit), _side("target", lengths[1], limit)]
    return [_side("text", lengths, limit)]


def _side(name: str, lengths: Lengths, limit: int | None) -> Side:
    values = np.asarray(lengths, dtype=np.int64)
    if not len(values):
        return Side(name, 0, {str(q): 0 for q in QUANTILES}, 0, None if limit is None else 0)
    # "higher" gives a length that occurs and that at least q per cent do not exceed
    quantiles = {str(q): int(np.percentile(values, q, method="higher")) for q in QUANTILES}
    cut = None if limit is None else int((values > limit).sum())
    return Side(name, int(values.sum()), quantiles, int(values.max()), cut)


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def _aligned(rows: Sequence[Sequence[str]], left: int) -> list[str]:
    """Columns of equal width: the first `left` are aligned on the left, the others on the right."""
    rows = [[shortened(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in rows
    ]
