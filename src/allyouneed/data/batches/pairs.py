"""Pairs of texts: to translate, or that belong together."""

from __future__ import annotations

import numpy as np
import torch

from allyouneed.data.batches.base import Buckets, Examples, Numbers, Size, by_length, fill, lay_rows, padded
from allyouneed.data.store import Ragged
from allyouneed.nn.batch import Tensors
from allyouneed.nn.losses import IGNORE
from allyouneed.text.layout import Layout


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


class GroupedPairs(Examples):
    """An example is a row of the numbers of up to `group` pairs. A batch has whole groups, so that its loss is the same
    however it is divided into micro-batches and over processes.

    The pairs of a group have about one length: this saves padding, and the length alone does not tell which texts
    belong together. All groups have the same size, or one pair less.
    """

    def __init__(self, sources: Ragged, targets: Ragged, layout: Layout, longest: int, group: int) -> None:
        self.sides, self.layout, self.group = (sources, targets), layout, group
        self.kept = [layout.cut([side.lengths], longest)[0] for side in self.sides]  # tokens of each text
        self.sizes = np.sum(self.kept, axis=0) + 2 * layout.specials(1)
        self.kinds = [_kinds(side) for side in self.sides]

    def __len__(self) -> int:
        return len(self.sizes)

    def plan(self, seed: int, epoch: int, batch_tokens: int) -> list[Numbers]:
        random = np.random.default_rng((seed, epoch))
        batches = self._batches(by_length(self.sizes, random), batch_tokens)
        return [batches[i] for i in random.permutation(len(batches))]

    def cover(self, batch_tokens: int) -> list[Numbers]:
        return self._batches(by_length(self.sizes), batch_tokens)

    def _batches(self, order: Numbers, batch_tokens: int) -> list[Numbers]:
        """Batches (B, G) of these pairs, whose lengths fall."""
        groups = np.array_split(order, max(1, -(-len(order) // self.group)))
        found = []
        for size in dict.fromkeys(len(group) for group in groups):
            alike = np.stack([group for group in groups if len(group) == size])  # (N, G)
            sizes = size * self.sizes[alike].max(1)
            found += [alike[rows] for rows in fill(np.arange(len(alike)), sizes, batch_tokens)]
        return found

    def size(self, numbers: Numbers, key: int) -> Size:
        return Size({"pairs": numbers.size}, numbers.size)

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        (source, lengths), (target, target_lengths) = (self._rows(side, numbers) for side in range(2))
        equal = [kinds[numbers][:, :, None] == kinds[numbers][:, None] for kinds in self.kinds]  # (B, G, G)
        same = (equal[0] | equal[1]) & ~np.eye(numbers.shape[1], dtype=bool)
        return {
            "source": source,
            "lengths": lengths,
            "target": target,
            "target_lengths": target_lengths,
            "same": torch.from_numpy(same),
        }

    def _rows(self, side: int, numbers: Numbers) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens (B, G, T) of one side, with the special ones, and their lengths (B, G)."""
        texts, flat = self.sides[side], numbers.reshape(-1)
        rows = lay_rows(self.layout, [(texts.tokens, texts.offsets[flat], self.kept[side][flat])])
        return torch.from_numpy(rows.ids).view(*numbers.shape, -1), torch.from_numpy(rows.lengths).view(numbers.shape)


def _kinds(rows: Ragged) -> np.ndarray:
    """A number per row; rows with the same tokens have the same."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(rows[i].tobytes(), len(numbers)) for i in range(len(rows))], dtype=np.int64)
