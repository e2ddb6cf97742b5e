"""Pairs of texts: to translate, or that belong together."""

from __future__ import annotations

import numpy as np
import torch

from allyouneed.batch import IGNORE, Tensors
from allyouneed.data.batches.base import Examples, Numbers, Size, fill, lay_rows
from allyouneed.data.store import Ragged
from allyouneed.text.layout import Layout


class SentencePairs(Examples):
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
        self.sides, self.target_bos = (sources, targets), target_bos
        self.layouts = [Layout(end=(eos,)) for eos in (source_eos, target_eos)]
        self.lengths = [np.minimum(side.lengths, max_length - 1) for side in self.sides]
        super().__init__(np.maximum(*self.lengths) + 1)  # with the end of the sentence

    def size(self, numbers: Numbers, key: int) -> Size:
        tokens = int((self.lengths[1][numbers] + 1).sum())
        return Size({"tokens": tokens}, tokens)

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        source, target = (
            lay_rows(layout, [(side.tokens, side.offsets[numbers], lengths[numbers])], padding)
            for layout, side, lengths, padding in zip(self.layouts, self.sides, self.lengths, (0, IGNORE))
        )
        inputs = np.roll(target.ids, 1, axis=1)  # one later: what is predicted is never in its own input
        inputs[:, 0] = self.target_bos
        inputs[inputs == IGNORE] = 0
        return {
            "source": torch.from_numpy(source.ids),
            "lengths": torch.from_numpy(source.lengths),
            "target": torch.from_numpy(inputs),
            "targets": torch.from_numpy(target.ids),
        }


class GroupedPairs(Examples):
    """An example is a row of the numbers of up to `group` pairs. A batch has whole groups, so that its loss is the same
    however it is divided into micro-batches and over processes.

    The pairs of a group have about one length: this saves padding, and the length alone does not tell which texts
    belong together. All groups have the same size, or one pair less.
    """

    def __init__(self, sources: Ragged, targets: Ragged, layout: Layout, longest: int, group: int) -> None:
        self.sides, self.layout, self.group = (sources, targets), layout, group
        self.lengths = [layout.cut([side.lengths], longest)[0] for side in self.sides]
        self.kinds = [_kinds(side) for side in self.sides]
        super().__init__(np.sum(self.lengths, axis=0) + 2 * layout.specials(1))

    def fill(self, numbers: Numbers, sizes: np.ndarray, batch_tokens: int) -> list[Numbers]:
        """Batches (B, G) of these pairs, whose lengths fall."""
        groups = np.array_split(numbers, max(1, -(-len(numbers) // self.group)))
        found = []
        for size in dict.fromkeys(len(group) for group in groups):
            alike = np.stack([group for group in groups if len(group) == size])  # (N, G)
            found += fill(alike, size * self.sizes[alike].max(1), batch_tokens)
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
        rows = lay_rows(self.layout, [(texts.tokens, texts.offsets[flat], self.lengths[side][flat])])
        return torch.from_numpy(rows.ids).view(*numbers.shape, -1), torch.from_numpy(rows.lengths).view(numbers.shape)


def _kinds(rows: Ragged) -> np.ndarray:
    """A number per row; rows with the same tokens have the same."""
    numbers: dict[bytes, int] = {}
    return np.array([numbers.setdefault(rows[i].tobytes(), len(numbers)) for i in range(len(rows))], dtype=np.int64)
