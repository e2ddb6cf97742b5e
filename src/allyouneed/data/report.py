"""What a data set holds, for the user and as JSON: sizes, lengths, duplicates, and examples that train has too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from allyouneed.data.examples import digest
from allyouneed.data.sources import IMAGES, Dataset, caption_key
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
        return "images" if self.shape in IMAGES else named.get(self.shape, "documents")

    def to_lines(self) -> list[str]:
        """For the user: how the data was read, then a table of the splits, of the lengths, and of the classes."""
        counts = [["split", self.things, "bytes", "empty, dropped", "duplicates", "also in train"]]
        for part in self.parts:
            numbers = (part.examples, part.bytes, part.empty, part.duplicates, part.in_train)
            counts.append([part.name, *("" if number is None else f"{number:,}" for number in numbers)])
        blocks = [_aligned(counts, 1), self._lengths(), self._classes(), self.notes]
        licence = [f"licence: {self.licence}"] if self.licence else []
        return [*self.understood, *licence, *(line for block in blocks if block for line in ("", *block))]

    def _lengths(self) -> list[str]:
        """The lengths of each side of each split, and one sentence if many tokens of valid or test are unknown."""
        sides = [(part.name, side) for part in self.parts for side in part.sides]
        if not sides:
            return []
        cut = [] if self.limit is None else [f"over {self.limit:,}"]
        unknown = ["unknown"] if any(side.unknown is not None for _, side in sides) else []
        rows = [[self.unit, "", "total", *(f"{q} %" for q in QUANTILES), "longest", *cut, *unknown]]
        for name, side in sides:
            numbers = (side.total, *side.quantiles.values(), side.longest, *([] if side.cut is None else [side.cut]))
            share = [_percent(side.unknown)] if unknown else []
            rows.append([name, side.name, *(f"{number:,}" for number in numbers), *share])
        many = [
            f"{name} {side.name} {_percent(side.unknown)}".replace(" text", "")
            for name, side in sides
            if name != "train" and (side.unknown or 0) > MANY_UNKNOWN
        ]
        message = f"many {self.unit} are not in the vocabulary ({', '.join(many)}), so the model cannot tell them apart"
        return [*_aligned(rows, 2), *([f"{message}: {self.advice}"] if many and self.advice else [])]

    def _classes(self) -> list[str]:
        """One row per class, the most frequent first; the rest of very many is one row."""
        train = self.classes.get("train", {})
        names = sorted({name for of in self.classes.values() for name in of})
        if not names:
            return []
        often = sorted(names, key=lambda name: -train.get(name, 0))
        labelled = self.shape in ("labels", "images")
        rows = [["label" if labelled else "type", *self.classes]]
        for title, some in [*((name, [name]) for name in often[:MOST_CLASSES]), ("", often[MOST_CLASSES:])]:
            totals = (f"{sum(of.get(name, 0) for name in some):,}" for of in self.classes.values())
            rows += [[title or f"{len(some):,} more", *totals]] if some else []
        return [*_aligned(rows, 1), *_twins(names), *(self._single() if labelled else [])]

    def _single(self) -> list[str]:
        """One sentence about classes with one training example."""
        few = sorted(name for name, count in self.classes.get("train", {}).items() if count == 1)
        names, more = ", ".join(f"'{name}'" for name in few[:5]), f" and {len(few) - 5:,} more" if len(few) > 5 else ""
        message = f"a single training example has the label {names}{more}: that is too few to learn from; add some"
        return [message] if few else []


def _twins(names: Sequence[str]) -> list[str]:
    """Sentences about classes that probably are the same: pos and POS, 1 and 1.0."""
    same: dict[str, list[str]] = {}
    for name in names:
        key = name.casefold()
        with suppress(ValueError):
            key = str(float(key))
        same.setdefault(key, []).append(f"'{name}'")
    return [
        f"{' and '.join(some)} count as {len(some)} classes: spell them alike if they are one"
        for some in same.values()
        if len(some) > 1
    ]


def describe(
    dataset: Dataset,
    lengths: Mapping[str, Lengths | tuple[Lengths, ...]],
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
        inputs, examples = split.hashes()
        if dataset.shape == "captions":  # the input of a captioned image is its caption
            inputs = np.fromiter((digest(caption_key(image.label)) for image in split), np.uint64)
        in_train = None
        if train is not None:  # several times as fast as np.isin
            in_train = int((np.searchsorted(train, inputs, "right") > np.searchsorted(train, inputs, "left")).sum())
        train = np.sort(inputs) if name == "train" else train
        duplicates = int((np.diff(np.sort(examples)) == 0).sum())
        given = lengths.get(name, ())
        both = given if isinstance(given, tuple) else (given,)
        sides = [_side(*side, limit) for side in zip(("source", "target") if len(both) == 2 else ("text",), both)]
        for side, share in zip(sides, (unknown or {}).get(name, ())):
            side.unknown = share
        parts.append(Part(name, split.examples, split.empty, split.bytes, duplicates, in_train, sides))
    counts = {name: dict(of) for name, of in (classes or {}).items()}
    return Report(dataset.name, dataset.shape, unit, limit, dataset.understood, dataset.licence, parts, counts, advice)


def _side(name: str, lengths: Lengths, limit: int | None) -> Side:
    values = np.asarray(lengths, dtype=np.int64)
    # "higher" gives a length that occurs and that at least q per cent do not exceed
    quantiles = {str(q): int(np.percentile(values, q, method="higher")) if len(values) else 0 for q in QUANTILES}
    cut = None if limit is None else int((values > limit).sum())
    return Side(name, int(values.sum()), quantiles, int(values.max(initial=0)), cut)


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.1f} %"


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
