"""Examples -> batches. The plan of an epoch is a function of (seed, epoch), so a run resumes at any batch at once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, cast

import numpy as np
import torch
from torch import Tensor

from allyouneed.data.store import Ragged
from allyouneed.nn.batch import Tensors
from allyouneed.nn.losses import IGNORE
from allyouneed.randomness import draw, shifted
from allyouneed.text.layout import Layout

Numbers = np.ndarray  # of examples
EXAMPLE = 1 << 24  # places of a draw that one example has: positions in its text


@dataclass(frozen=True)
class Size:
    """What is known of a batch before it is made."""

    counts: dict[str, float]  # by the name of each loss: what its sum is divided by; whole numbers or weights
    units: int  # tokens, words or texts, as the progress line shows them


@dataclass
class Batch:
    """Tensors for the model, and the batch's size."""

    tensors: Tensors
    size: Size

    @property
    def rows(self) -> int:
        return self.shapes[0][0]

    @property
    def shapes(self) -> tuple[torch.Size, ...]:
        """Of each tensor."""
        return tuple(cast(Tensor, t).shape for t in self.tensors.values())

    def to(self, device: torch.device) -> Batch:
        """On the device; from pinned memory the copy does not wait."""
        return self._map(lambda t: t.to(device, non_blocking=True))

    def pin(self) -> Batch:
        return self._map(lambda t: t.pin_memory())

    def _map(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed = {name: change(cast(Tensor, t)) for name, t in self.tensors.items()}
        return Batch(cast(Tensors, changed), self.size)


class Examples(ABC):
    """One split, ready for the loop. Everything random in a batch is a function of its key and its examples."""

    varies: ClassVar[bool] = True  # batches differ in their shapes
    in_order: ClassVar[bool] = False  # each batch goes on where the one before has ended

    @abstractmethod
    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        """The batches of one epoch, shuffled: a function of its arguments and nothing else."""

    @abstractmethod
    def cover(self, batch_tokens: int) -> list[Numbers]:
        """Batches that show every token exactly once, in a fixed order: for evaluation."""

    def sample(self, batch_tokens: int, part: float) -> list[Numbers]:
        """A part of the batches of `cover`, always the same one: spread evenly, or the first if they are in order."""
        batches = self.cover(batch_tokens)
        some = min(len(batches), max(1, math.ceil(part * len(batches))))
        return batches[:some] if self.in_order else [batches[i * len(batches) // some] for i in range(some)]

    @abstractmethod
    def size(self, numbers: Numbers, key: int) -> Size:
        """The size of a batch, without making it: each process knows it for the examples of all processes."""

    @abstractmethod
    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        """The tensors of some examples."""

    def collate(self, numbers: Numbers, key: int = 0) -> Batch:
        """The batch of some examples. `key` is that of the epoch, and always the same in evaluation."""
        return Batch(self.tensors(numbers, key), self.size(numbers, key))


class Windows(Examples):
    """Language modelling: one long stream of tokens, cut into windows of `context`. An example is its start.

    Every epoch shifts the cuts by a random phase, so that no token always stands first.
    """

    varies = False

    def __init__(self, stream: np.ndarray, context: int) -> None:
        self.stream, self.context = stream, context

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        draw = np.random.default_rng((seed, epoch))
        most = len(self.stream) - 1 - self.context
        phase = int(draw.integers(0, min(self.context, most + 1)))
        starts = draw.permutation(np.arange(phase, most + 1, self.context))
        rows = max(1, batch_tokens // self.context)
        whole = len(starts) // rows
        return np.split(starts[: whole * rows], whole) if whole else [starts]

    def cover(self, batch_tokens: int) -> list[Numbers]:
        starts = np.arange(0, len(self.stream) - 1, self.context)
        rows = max(1, batch_tokens // self.context)
        return [starts[i : i + rows] for i in range(0, len(starts), rows)]

    def __len__(self) -> int:
        return -(-(len(self.stream) - 1) // self.context)

    def first(self, windows: int) -> Self:
        """The first windows of the stream."""
        return type(self)(self.stream[: windows * self.context + 1], self.context)

    def size(self, numbers: Numbers, key: int) -> Size:
        tokens = int(np.clip(len(self.stream) - 1 - self._starts(numbers), 0, self.context).sum())
        return Size({"tokens": tokens}, tokens)

    def _starts(self, numbers: Numbers) -> np.ndarray:
        return numbers

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        at = self._starts(numbers)[:, None] + np.arange(self.context + 1)  # (B, T + 1)
        real = at < len(self.stream)
        if real.all():
            tokens = self.stream[at].astype(np.int64)
            ids, targets = tokens[:, :-1], tokens[:, 1:]
        else:
            tokens = np.where(real, self.stream[np.minimum(at, len(self.stream) - 1)], 0).astype(np.int64)
            ids, targets = tokens[:, :-1], np.where(real, tokens, IGNORE)[:, 1:]
        return {"ids": torch.from_numpy(ids), "targets": torch.from_numpy(targets)}


class Streams(Windows):
    """Language modelling with a state that goes on: the stream is cut into lanes of equal length, and batch t has
    window t of every lane, so that each row continues its row of the batch before. An example is a row (its start, its
    lane, whether it is the first of its lane).

    Every epoch shifts the lanes by a random phase.
    """

    in_order = True

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        targets = len(self.stream) - 1
        lanes = self._lanes(batch_tokens, targets // self.context)
        # As many windows a lane as leave room for a phase of any size below one window.
        each = max(1, (targets + 1 - self.context) // (lanes * self.context))
        rest = targets - lanes * each * self.context
        phase = int(np.random.default_rng((seed, epoch)).integers(0, rest + 1))
        return self._walk(phase, lanes, each)

    def cover(self, batch_tokens: int) -> list[Numbers]:
        windows = len(self)
        # Rather few long lanes than many short ones: at its beginning a lane knows nothing of the text before it.
        each = -(-windows // self._lanes(batch_tokens, max(1, windows // 16)))
        return self._walk(0, -(-windows // each), each)  # the last lane may end with padding

    def _lanes(self, batch_tokens: int, windows: int) -> int:
        """As many as the budget allows, and each has a window."""
        return max(1, min(batch_tokens // self.context, windows))

    def _walk(self, phase: int, lanes: int, each: int) -> list[Numbers]:
        lane = np.arange(lanes)
        return [
            np.stack([phase + (lane * each + t) * self.context, lane, np.full(lanes, t == 0)], axis=1)
            for t in range(each)
        ]

    def _starts(self, numbers: Numbers) -> np.ndarray:
        return numbers[:, 0]

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        lanes, fresh = torch.from_numpy(numbers[:, 1].copy()), torch.from_numpy(numbers[:, 2] == 1)
        return {**super().tensors(numbers, key), "lanes": lanes, "fresh": fresh}


class Buckets(Examples):
    """Examples of about one length together, as many as the token budget allows. `sizes`: tokens per example."""

    def __init__(self, sizes: np.ndarray) -> None:
        self.sizes = sizes

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        draw = np.random.default_rng((seed, epoch))
        noise = draw.uniform(0, 1, len(self.sizes)) * (1 + 0.1 * self.sizes)  # neighbours change every epoch
        order = np.argsort(-(self.sizes + noise), kind="stable")
        batches = fill(order, self.sizes[order], batch_tokens)
        return [batches[i] for i in draw.permutation(len(batches))]

    def cover(self, batch_tokens: int, among: Numbers | None = None) -> list[Numbers]:
        """All examples, or some of them."""
        among = np.arange(len(self.sizes)) if among is None else among
        order = among[np.argsort(-self.sizes[among], kind="stable")]
        return fill(order, self.sizes[order], batch_tokens)


class EvenBatches(Buckets):
    """Examples of one length, in batches of equal size: a rest that does not fill one waits for the next epoch."""

    varies = False

    def __init__(self, examples: int, tokens: int) -> None:
        super().__init__(np.full(examples, tokens))

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        batches = super().plan(seed, epoch, batch_tokens)
        most = max(map(len, batches), default=0)
        return [numbers for numbers in batches if len(numbers) == most]


def fill(order: Numbers, sizes: np.ndarray, batch_tokens: int) -> list[Numbers]:
    """Batches of these examples, of so many tokens each (N,): longest first, so that the first of the next ones tells
    how many fit."""
    batches, i = [], 0
    while i < len(order):
        rows = max(1, batch_tokens // int(sizes[i]))
        rows = max(1, batch_tokens // int(sizes[i : i + rows].max()))
        batches.append(order[i : i + rows])
        i += rows
    return batches


class SentencePairs(Buckets):
    """Translation."""

    def __init__(
        self,
        sources: Ragged,
        targets: Ragged,
        *,
        source_eos: int,
        target_bos: int,
        target_eos: int,
        max_length: int,
    ) -> None:
        self.sources, self.targets, self.max_length = sources, targets, max_length
        self.source_eos, self.target_bos, self.target_eos = source_eos, target_bos, target_eos
        lengths = (sources.lengths, targets.lengths)
        super().__init__(np.minimum(np.maximum(*lengths), max_length - 1) + 1)  # with the end of the sentence

    def size(self, numbers: Numbers, key: int) -> Size:
        tokens = int((np.minimum(self.targets.lengths[numbers], self.max_length - 1) + 1).sum())
        return Size({"tokens": tokens}, tokens)

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        source, lengths = self._rows(self.sources, numbers, self.source_eos, 0)
        targets, _ = self._rows(self.targets, numbers, self.target_eos, IGNORE)
        inputs = np.roll(targets, 1, axis=1)  # one later: what is predicted is never in its own input
        inputs[:, 0] = self.target_bos
        inputs[inputs == IGNORE] = 0
        return {
            "source": torch.from_numpy(source),
            "lengths": torch.from_numpy(lengths),
            "target": torch.from_numpy(inputs),
            "targets": torch.from_numpy(targets),
        }

    def _rows(self, rows: Ragged, numbers: Numbers, end: int, padding: int) -> tuple[np.ndarray, np.ndarray]:
        """`padded` with the end of each sentence."""
        ids, lengths = padded(rows, numbers, self.max_length - 1, padding, room=1)
        ids[np.arange(len(numbers)), lengths] = end
        return ids, lengths + 1


def padded(
    rows: Ragged, numbers: Numbers, longest: int | np.ndarray, padding: int = 0, room: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """(B, T) tokens of some rows, each cut to the longest allowed, padded on the right, with `room` more columns; and
    the lengths (B,).

    Without a loop over the rows: on a GPU this runs beside the thread that launches kernels.
    """
    lengths = np.minimum(rows.offsets[numbers + 1] - rows.offsets[numbers], longest)
    at = np.arange(lengths.max() + room)
    inside = at < lengths[:, None]
    ids = np.full(inside.shape, padding, dtype=np.int64)
    ids[inside] = rows.tokens[(rows.offsets[numbers][:, None] + at)[inside]]
    return ids, lengths.astype(np.int64)


@dataclass(frozen=True)
class Rows:
    """Texts in rows, padded on the right."""

    ids: np.ndarray  # (B, T)
    lengths: np.ndarray  # (B,)
    segments: np.ndarray  # (B, T)
    texts: np.ndarray  # (B, T) the text that a token is of; -1: a special token, or padding
    places: np.ndarray  # (B, T) of a token of a text: its place in the array it comes from


def lay_rows(layout: Layout, sides: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]]) -> Rows:
    """One row per example. Each of the one or two sides is an array of tokens, and for each example where its text
    begins there, and how many tokens it has, (B,) each. Like `padded`, without a loop over the rows."""
    lengths = np.sum([kept for _, _, kept in sides], axis=0) + layout.specials(len(sides))
    ids = np.zeros((len(lengths), int(lengths.max())), dtype=np.int64)
    segments, texts, places = np.zeros_like(ids), np.full_like(ids, -1), np.zeros_like(ids)
    at = np.zeros(len(lengths), dtype=np.int64)  # where the next part begins in each row

    def put(special: int) -> None:
        ids[np.arange(len(at)), at] = special
        at[:] += 1

    for special in layout.start:
        put(special)
    for number, (tokens, starts, kept) in enumerate(sides):
        place = np.arange(ids.shape[1]) - at[:, None]
        inside = (place >= 0) & (place < kept[:, None])
        places[inside] = (starts[:, None] + place)[inside]
        ids[inside] = tokens[places[inside]]
        texts[inside] = number
        segments[place >= 0] = number
        at += kept
        for special in layout.between if number + 1 < len(sides) else layout.end:
            put(special)
    segments[np.arange(ids.shape[1]) >= lengths[:, None]] = 0
    return Rows(ids, lengths.astype(np.int64), segments, texts, places)


class Labelled(Buckets):
    """Texts, or pairs of texts (`sides`), as their layout puts them. Each has one label, or one per token: `labels` is
    then as ragged as the first side, with IGNORE where a token has none.

    `letters` (N, C): the tokens are rows of this table, and the model reads letters; row 0 is padding. `unknown` is the
    share `hidden` of the tokens in training, so that the model learns to read around unknown words. `weights` (C,): how
    much each label counts.
    """

    def __init__(
        self,
        sides: Sequence[Ragged],
        labels: np.ndarray | Ragged,
        layout: Layout,
        longest: int,
        *,
        letters: np.ndarray | None = None,
        unknown: int | None = None,
        hidden: float = 0.0,
        weights: np.ndarray | None = None,
    ) -> None:
        self.sides, self.labels, self.layout, self.letters = sides, labels, layout, letters
        self.weights = weights
        self.unknown, self.hidden = unknown, hidden if unknown is not None else 0.0
        self.kept = layout.cut([side.lengths for side in sides], longest)  # tokens of each side
        super().__init__(np.sum(self.kept, axis=0) + layout.specials(len(sides)))

    def size(self, numbers: Numbers, key: int) -> Size:
        if isinstance(self.labels, Ragged):
            labels, _ = padded(self.labels, numbers, self.kept[0][numbers], IGNORE)
            labels = labels[labels != IGNORE]
        else:
            labels = self.labels[numbers]
        return Size({"labels": len(labels) if self.weights is None else self.weights[labels].sum()}, len(labels))

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        sides = [(side.tokens, side.offsets[numbers], kept[numbers]) for side, kept in zip(self.sides, self.kept)]
        rows = lay_rows(self.layout, sides)
        found: Tensors = {"lengths": torch.from_numpy(rows.lengths), "segments": torch.from_numpy(rows.segments)}
        if self.letters is not None:
            found["chars"] = torch.from_numpy(self.letters[rows.ids])  # (B, T, C)
        else:
            found["ids"] = self._hide(torch.from_numpy(rows.ids), torch.from_numpy(rows.texts >= 0), numbers, key)
        if isinstance(self.labels, Ragged):
            labels, first = np.full_like(rows.ids, IGNORE), rows.texts == 0
            labels[first] = self.labels.tokens[rows.places[first]]
        else:
            labels = self.labels[numbers]
        if self.weights is not None:
            found["weights"] = torch.from_numpy(self.weights[np.maximum(labels, 0)]).float()
        return {**found, "targets": torch.from_numpy(labels)}

    def _hide(self, ids: Tensor, texts: Tensor, numbers: Numbers, key: int) -> Tensor:
        if not self.hidden:
            return ids
        places = torch.from_numpy(numbers)[:, None] * EXAMPLE + torch.arange(ids.size(1))
        hidden = shifted(draw(key, places), 33) < self.hidden * 2**31
        return ids.masked_fill(hidden & texts, cast(int, self.unknown))
