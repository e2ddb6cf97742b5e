"""Examples -> batches. The plan of an epoch is a function of (seed, epoch), so a run resumes at any batch at once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from allyouneed.data.store import Ragged
from allyouneed.nn.losses import IGNORE

Numbers = np.ndarray  # of examples


@dataclass
class Batch:
    """Tensors for the model; `counts` by the name of each loss, known before the forward pass."""

    tensors: dict[str, Tensor]
    counts: dict[str, int]

    def to(self, device: torch.device) -> Batch:
        """On the device; from pinned memory the copy does not wait."""
        moved = {name: t.to(device, non_blocking=True) for name, t in self.tensors.items()}
        return Batch(moved, self.counts)

    def pin(self) -> Batch:
        return Batch({name: t.pin_memory() for name, t in self.tensors.items()}, self.counts)


class Examples(ABC):
    """One split, ready for the loop."""

    @abstractmethod
    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        """The batches of one epoch, shuffled: a function of its arguments and nothing else."""

    @abstractmethod
    def cover(self, batch_tokens: int) -> list[Numbers]:
        """Batches that show every token exactly once, in a fixed order: for evaluation."""

    @abstractmethod
    def collate(self, numbers: Numbers) -> Batch:
        """The tensors of some examples."""


class Windows(Examples):
    """Language modelling: one long stream of tokens, cut into windows of `context`. An example is its start.

    Every epoch shifts the cuts by a random phase, so that no token always stands first.
    """

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

    def collate(self, numbers: Numbers) -> Batch:
        at = numbers[:, None] + np.arange(self.context + 1)  # (B, T + 1)
        real = at < len(self.stream)
        if real.all():
            tokens = self.stream[at].astype(np.int64)
            ids, targets = tokens[:, :-1], tokens[:, 1:]
        else:
            tokens = np.where(real, self.stream[np.minimum(at, len(self.stream) - 1)], 0).astype(np.int64)
            ids, targets = tokens[:, :-1], np.where(real, tokens, IGNORE)[:, 1:]
        tensors = {"ids": torch.from_numpy(ids), "targets": torch.from_numpy(targets)}
        return Batch(tensors, {"tokens": int(real[:, 1:].sum())})


class Streams(Windows):
    """Language modelling with a state that goes on: the stream is cut into lanes of equal length, and batch t has
    window t of every lane, so that each row continues its row of the batch before. An example is a row (its start, its
    lane, whether it is the first of its lane).

    Every epoch shifts the lanes by a random phase.
    """

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        targets = len(self.stream) - 1
        lanes = self._lanes(batch_tokens, targets // self.context)
        # As many windows a lane as leave room for a phase of any size below one window.
        each = max(1, (targets + 1 - self.context) // (lanes * self.context))
        rest = targets - lanes * each * self.context
        phase = int(np.random.default_rng((seed, epoch)).integers(0, rest + 1))
        return self._walk(phase, lanes, each)

    def cover(self, batch_tokens: int) -> list[Numbers]:
        windows = -(-(len(self.stream) - 1) // self.context)
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

    def collate(self, numbers: Numbers) -> Batch:
        batch = super().collate(numbers[:, 0])
        batch.tensors["lanes"] = torch.from_numpy(numbers[:, 1].copy())
        batch.tensors["fresh"] = torch.from_numpy(numbers[:, 2] == 1)
        return batch


class Buckets(Examples):
    """Examples of about one length together, as many as the token budget allows. `sizes`: tokens of each."""

    def __init__(self, sizes: np.ndarray) -> None:
        self.sizes = sizes

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        draw = np.random.default_rng((seed, epoch))
        noise = draw.uniform(0, 1, len(self.sizes)) * (1 + 0.1 * self.sizes)  # neighbours change every epoch
        batches = self._fill(np.argsort(-(self.sizes + noise), kind="stable"), batch_tokens)
        return [batches[i] for i in draw.permutation(len(batches))]

    def cover(self, batch_tokens: int) -> list[Numbers]:
        return self._fill(np.argsort(-self.sizes, kind="stable"), batch_tokens)

    def _fill(self, order: Numbers, batch_tokens: int) -> list[Numbers]:
        """Longest first, so that the first of the next ones tells how many fit."""
        batches, i, sizes = [], 0, self.sizes[order]
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

    def collate(self, numbers: Numbers) -> Batch:
        source, lengths = self._rows(self.sources, numbers, self.source_eos, 0)
        targets, counts = self._rows(self.targets, numbers, self.target_eos, IGNORE)
        inputs = np.roll(targets, 1, axis=1)  # one later: what is predicted is never in its own input
        inputs[:, 0] = self.target_bos
        inputs[inputs == IGNORE] = 0
        tensors = {
            "source": torch.from_numpy(source),
            "lengths": torch.from_numpy(lengths),
            "target": torch.from_numpy(inputs),
            "targets": torch.from_numpy(targets),
        }
        return Batch(tensors, {"tokens": int(counts.sum())})

    def _rows(self, rows: Ragged, numbers: Numbers, end: int, padding: int) -> tuple[np.ndarray, np.ndarray]:
        """`padded` with the end of each sentence."""
        ids, lengths = padded(rows, numbers, self.max_length - 1, padding, room=1)
        ids[np.arange(len(numbers)), lengths] = end
        return ids, lengths + 1


def padded(
    rows: Ragged, numbers: Numbers, longest: int, padding: int = 0, room: int = 0
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
class Letters:
    """How the words of texts are written, for models that read letters: each different word is spelled once."""

    words: Ragged  # of each word its row of `table`
    table: np.ndarray  # (N, C); row 0 is that of no word


class Labelled(Buckets):
    """Texts of one token at least, with a label each, or with one for each token: `labels` is then as ragged as they
    are."""

    def __init__(
        self, texts: Ragged, labels: np.ndarray | Ragged, longest: int, letters: Letters | None = None
    ) -> None:
        super().__init__(np.minimum(texts.lengths, longest))
        self.texts, self.labels, self.longest, self.letters = texts, labels, longest, letters

    def collate(self, numbers: Numbers) -> Batch:
        ids, lengths = padded(self.texts, numbers, self.longest)
        tensors = {"ids": torch.from_numpy(ids), "lengths": torch.from_numpy(lengths)}
        if self.letters is not None:
            words, _ = padded(self.letters.words, numbers, self.longest)
            tensors["chars"] = torch.from_numpy(self.letters.table[words])  # (B, T, C)
        if isinstance(self.labels, Ragged):
            targets, count = padded(self.labels, numbers, self.longest, IGNORE)[0], int(lengths.sum())
        else:
            targets, count = self.labels[numbers], len(numbers)
        return Batch({**tensors, "targets": torch.from_numpy(targets)}, {"labels": count})
