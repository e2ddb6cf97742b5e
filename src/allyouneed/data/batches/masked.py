"""What BERT learns from: pairs of passages, of which the second may follow the first, with some words hidden."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from allyouneed.batch import IGNORE, Tensors
from allyouneed.data.batches.base import Batch, Examples, Numbers, Rows, Size, lay_rows, random_bits
from allyouneed.data.store import Ragged
from allyouneed.randomness import draw, make_key, shifted
from allyouneed.text.layout import Layout

FOLLOWS, OTHER, CHOOSE, CHANGE, REPLACE = range(5)  # what a random number is for
MASKED, REPLACED = 0.8, 0.1  # parts of the chosen tokens; the rest stay as they are


class Passages(NamedTuple):
    """Whole sentences in a row, as many as fit, and the document that each passage is of. Those of a document come one
    after the other."""

    rows: Ragged
    documents: np.ndarray

    @staticmethod
    def pack(sentences: Ragged, room: int, halves: bool) -> Passages:
        """Passages of at most `room` tokens. A row without tokens ends a document; a sentence that is longer than
        `room` is cut into several. `halves`: a document that would fit into one passage makes two, if it has two
        sentences."""
        offsets, documents = [0], []
        bounds = [-1, *np.flatnonzero(sentences.lengths == 0).tolist(), len(sentences)]
        for document, (before, end) in enumerate(pairwise(bounds)):
            cuts = sentences.offsets[before + 1 : end + 1].tolist()
            if len(cuts) > 1:
                most = min(room, max(1, -(-(cuts[-1] - cuts[0]) // 2))) if halves and len(cuts) > 2 else room
                ends = list(_packed(cuts, most, room))
                offsets += ends
                documents += [document] * len(ends)
        return Passages(Ragged(sentences.tokens, np.array(offsets)), np.array(documents))


def _packed(cuts: list[int], most: int, room: int) -> Iterator[int]:
    """Where passages of at most `most` tokens, or of one sentence, end; sentences end at `cuts`."""
    start = cuts[0]
    for previous, cut in pairwise(cuts):
        if cut - start > most and previous > start:
            yield previous
            start = previous
        while cut - start > room:
            start += room
            yield start
    if cuts[-1] > start:
        yield cuts[-1]


class MaskedPassages(Examples):
    """[CLS] A [SEP] B [SEP] with words hidden in it. Half of the second passages are those that follow in the text;
    the others are from another document or, if there is only one, from far away in it. An example is the number of its
    first passage. If `pairs` is false, an example is one passage.

    In an epoch every passage that is followed by another comes first once. The second passages that do not follow are
    drawn from those that follow some passage, so that nothing but their words tells them apart. A document of one
    passage is an example whose second one is empty.
    """

    def __init__(
        self,
        passages: Passages,
        layout: Layout,
        *,
        mask: int,
        words: np.ndarray,
        continues: np.ndarray | None = None,
        part: float = 0.15,
        pairs: bool = True,
    ) -> None:
        """`words`: the tokens that may take the place of a chosen one. `continues` (V,) bool: tokens that continue a
        word; if it is given, words are chosen whole."""
        self.passages, self.layout, self.mask, self.words, self.continues = passages, layout, mask, words, continues
        self.part, self.pairs = part, pairs
        of = passages.documents
        self.followed = np.append(of[1:] == of[:-1], False) if pairs else np.zeros(len(of), bool)
        begins = np.append(True, of[1:] != of[:-1])
        self.firsts = np.flatnonzero(self.followed | begins) if pairs else np.arange(len(of))
        after = np.flatnonzero(self.followed) + 1
        self.seconds = after  # passages that follow another, in order
        first = np.searchsorted(of[after], of)
        last = np.searchsorted(of[after], of, side="right")
        if len(after) and of[after[0]] == of[after[-1]]:  # one document: what is near takes the place of its own
            near = max(1, len(after) // 4)
            place = np.searchsorted(after, np.arange(len(of)))
            first, last = np.maximum(place - near, 0), np.minimum(place + near + 1, len(after))
        self.own = first, last  # the range of `seconds` that are no other document

    def __len__(self) -> int:
        return len(self.firsts)

    def numbered(self, key: int, among: Numbers | None = None) -> tuple[Numbers, np.ndarray]:
        """`among`: indices in `firsts`. The size of an example depends on its second passage, and so on the key."""
        numbers = self.firsts if among is None else self.firsts[among]
        lengths = [count for _, _, count in self._sides(numbers, key)]
        return numbers, np.sum(lengths, axis=0) + self.layout.specials(len(lengths))

    def _sides(self, numbers: Numbers, key: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        rows = self.passages.rows
        sides = [(rows.tokens, rows.offsets[numbers], rows.lengths[numbers])]
        if self.pairs:
            second, _ = self._second(numbers, key)
            sides.append((rows.tokens, rows.offsets[second], np.where(second >= 0, rows.lengths[second], 0)))
        return sides

    def _second(self, numbers: Numbers, key: int) -> tuple[np.ndarray, np.ndarray]:
        """The second passage of each example (-1: none), and whether it follows (0), does not (1), or neither."""
        first, last = (bound[numbers] for bound in self.own)
        others = len(self.seconds) - (last - first)
        follows = (_bits(key, FOLLOWS, numbers) & 1 == 0) | (others == 0)
        place = _bits(key, OTHER, numbers) % np.maximum(1, others)
        place = np.where(place < first, place, place + last - first)
        other = self.seconds[np.minimum(place, len(self.seconds) - 1)] if len(self.seconds) else numbers
        there = self.followed[numbers]
        second = np.where(there, np.where(follows, numbers + 1, other), -1)
        return second, np.where(there, np.where(follows, 0, 1), IGNORE)

    def size(self, numbers: Numbers, key: int) -> Size:
        return self.collate(numbers, key).size

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        return self.collate(numbers, key).tensors

    def collate(self, numbers: Numbers, key: int = 0) -> Batch:
        rows = lay_rows(self.layout, self._sides(numbers, key))
        chosen = torch.from_numpy(self._choose(rows, numbers, key))
        ids = torch.from_numpy(rows.ids)
        kind = _part(random_bits(make_key(key, CHANGE), numbers, ids.size(1)))
        words = torch.from_numpy(self.words)
        random = words[shifted(random_bits(make_key(key, REPLACE), numbers, ids.size(1)), 1) % len(words)]
        changed = torch.where(kind < MASKED, self.mask, torch.where(kind < MASKED + REPLACED, random, ids))
        tensors: Tensors = {
            "ids": torch.where(chosen, changed, ids),
            "lengths": torch.from_numpy(rows.lengths),
            "segments": torch.from_numpy(rows.segments),
            "chosen": chosen.flatten().nonzero()[:, 0],
            "targets": ids[chosen],
        }
        counts: dict[str, float] = {"words": len(tensors["targets"])}
        if self.pairs:
            follows = self._second(numbers, key)[1]
            tensors["follows"] = torch.from_numpy(follows)
            counts["next"] = int((follows != IGNORE).sum())
        return Batch(tensors, Size(counts, int(rows.lengths.sum())))

    def _choose(self, rows: Rows, numbers: Numbers, key: int) -> np.ndarray:
        """(B, T) bool: `part` of the tokens of each row, one at least; special tokens never."""
        inside = np.logical_or.reduce(rows.inside)
        chance = _part(random_bits(make_key(key, CHOOSE), numbers, rows.ids.shape[1])).numpy()
        if self.continues is not None:  # a word has the chance of its first token
            begins = ~self.continues[rows.ids] | ~inside
            begins[:, 0] = True
            begin = np.maximum.accumulate(np.where(begins, np.arange(rows.ids.shape[1]), 0), axis=1)
            chance = np.take_along_axis(chance, begin, 1)
        chance = np.where(inside, chance, 2.0)
        wanted = np.maximum(1, np.rint(self.part * inside.sum(1))).astype(np.int64)
        last = np.take_along_axis(np.sort(chance, axis=1), wanted[:, None] - 1, 1)  # the largest that is chosen
        return inside & (chance <= last)


def _bits(key: int, what: int, numbers: Numbers) -> np.ndarray:
    return shifted(draw(make_key(key, what), torch.from_numpy(numbers)), 1).numpy()


def _part(bits: Tensor) -> Tensor:
    """64 bits -> a number from 0 to 1."""
    return shifted(bits, 11).double() / 2**53
