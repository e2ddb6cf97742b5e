"""Pairs of texts that belong together, in groups: the other texts of a group are the wrong answers."""

from __future__ import annotations

import numpy as np
import torch

from allyouneed.data.batches import Examples, Numbers, Size, fill, lay_rows
from allyouneed.data.store import Ragged
from allyouneed.nn.batch import Tensors
from allyouneed.text.layout import Layout


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
        draw = np.random.default_rng((seed, epoch))
        noise = draw.uniform(0, 1, len(self)) * (1 + 0.1 * self.sizes)  # the pairs of a group change every epoch
        batches = self._batches(np.argsort(-(self.sizes + noise), kind="stable"), batch_tokens)
        return [batches[i] for i in draw.permutation(len(batches))]

    def cover(self, batch_tokens: int) -> list[Numbers]:
        return self._batches(np.argsort(-self.sizes, kind="stable"), batch_tokens)

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
