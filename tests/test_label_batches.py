"""Batches of labelled texts: special tokens, segments, targets, and tokens hidden in training."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from allyouneed.batch import IGNORE
from allyouneed.data.batches.base import Size
from allyouneed.data.batches.labelled import Labelled
from allyouneed.data.store import Ragged
from allyouneed.nn.losses import cross_entropy
from allyouneed.text.layout import Layout


def test_batches_of_labels_and_of_tags():
    texts = Ragged.of([[5, 6, 7], [8], [9, 10]])
    batch = Labelled([texts], np.array([2, 0, 1]), Layout(), 9).collate(np.array([0, 2]))
    assert batch.tensors["ids"].tolist() == [[5, 6, 7], [9, 10, 0]]
    assert batch.tensors["lengths"].tolist() == [3, 2]
    assert batch.tensors["targets"].tolist() == [2, 1]
    assert batch.size == Size({"labels": 2}, 2)
    tags = Labelled([texts], Ragged.of([[1, 2, 3], [4], [1, 1]]), Layout(), 2)
    batch = tags.collate(np.array([0, 1]))
    assert batch.tensors["ids"].tolist() == [[5, 6], [8, 0]]
    assert batch.tensors["targets"].tolist() == [[1, 2], [4, IGNORE]]
    assert batch.size == Size({"labels": 3}, 3)
    for plan in (tags.plan(1, 0, 4), tags.cover(4)):
        assert sorted(number for numbers in plan for number in numbers) == [0, 1, 2]
        assert all(len(numbers) * max(tags.sizes[numbers]) <= 4 for numbers in plan)


BERT = Layout(start=(1,), between=(2,), end=(3,))


def test_batches_of_pairs_have_their_special_tokens_and_segments():
    first, second = Ragged.of([[11, 12, 13], [14], [15]]), Ragged.of([[21], [22, 23], [24, 25, 26, 27, 28]])
    pairs = Labelled([first, second], np.array([1, 0, 1]), BERT, 8)
    batch = pairs.collate(np.array([1, 0])).tensors
    assert batch["ids"].tolist() == [[1, 14, 2, 22, 23, 3, 0], [1, 11, 12, 13, 2, 21, 3]]
    assert batch["segments"].tolist() == [[0, 0, 0, 1, 1, 1, 0], [0, 0, 0, 0, 0, 1, 1]]
    assert batch["lengths"].tolist() == [6, 7]
    assert batch["targets"].tolist() == [0, 1]
    assert pairs.sizes.tolist() == [7, 6, 8]  # the longer text of the last is cut
    for number in range(3):
        alone = pairs.collate(np.array([number])).tensors
        laid = BERT.lay(first[number].tolist(), second[number].tolist(), most=8)
        assert alone["ids"].tolist() == [laid.ids]
        assert alone["segments"].tolist() == [laid.segments]


def test_tags_stand_on_the_tokens_of_their_text_and_on_no_special_one():
    texts, tags = Ragged.of([[11, 12, 13, 14], [15, 16]]), Ragged.of([[5, IGNORE, 6, 7], [IGNORE, 8]])
    batch = Labelled([texts], tags, BERT, 5).collate(np.array([0, 1]))
    assert batch.tensors["ids"].tolist() == [[1, 11, 12, 13, 3], [1, 15, 16, 3, 0]]
    assert batch.tensors["targets"].tolist() == [[IGNORE, 5, IGNORE, 6, IGNORE], [IGNORE, IGNORE, 8, IGNORE, IGNORE]]
    assert batch.tensors["segments"].tolist() == [[0] * 5, [0] * 5]
    assert batch.size == Size({"labels": 3}, 3)  # what is cut off is not learned


def hiding(hidden: float) -> Labelled:
    sides = [Ragged.of([[10 + i] * (20 + i) for i in range(12)]), Ragged.of([[50 + i] * 15 for i in range(12)])]
    return Labelled(sides, np.zeros(12, dtype=np.int64), BERT, 99, unknown=4, hidden=hidden)


def test_what_is_hidden_depends_on_the_key_and_the_example_alone():
    examples, every = hiding(0.5), np.arange(12)

    def masks(numbers: np.ndarray, key: int) -> dict[int, list[bool]]:
        found = examples.collate(numbers, key).tensors
        rows = zip(numbers.tolist(), found["ids"], found["lengths"])
        return {number: (row[:length] == 4).tolist() for number, row, length in rows}

    together = masks(every, 7)
    assert masks(every, 7) == together
    other = masks(every, 8)
    assert all(other[number] != together[number] for number in together)
    assert len({tuple(mask[:36]) for mask in together.values()}) == 12  # no two examples have one mask
    for numbers in (every[::-1].copy(), every[3:5], every[[11, 0, 6]]):
        assert masks(numbers, 7) == {number: together[number] for number in numbers.tolist()}
    assert 0.4 < np.mean([value for mask in together.values() for value in mask]) < 0.6


def test_special_tokens_and_padding_are_never_hidden_and_targets_never_change():
    every = np.arange(12)
    seen, hidden, half = (hiding(part).collate(every, 3).tensors for part in (0.0, 1.0, 0.5))
    texts = seen["ids"] >= 10
    assert (hidden["ids"] == seen["ids"].masked_fill(texts, 4)).all()
    assert ((half["ids"] == seen["ids"]) | (texts & (half["ids"] == 4))).all()
    for name in ("lengths", "segments", "targets"):
        assert (seen[name] == hidden[name]).all()


@pytest.mark.parametrize("tags", [False, True])
def test_weights_of_labels_count_in_the_loss_and_in_its_count(tags):
    texts, weights = Ragged.of([[5, 6], [7], [8]]), np.array([0.5, 3.0])
    labels = Ragged.of([[0, IGNORE], [1], [0]]) if tags else np.array([0, 1, 0])
    batch = Labelled([texts], labels, BERT, 9, weights=weights).collate(np.arange(3))
    assert batch.size == Size({"labels": 4.0}, 3)
    targets = batch.tensors["targets"].flatten()
    given = batch.tensors["weights"].flatten()
    assert given[targets != IGNORE].tolist() == [0.5, 3.0, 0.5]
    logits = torch.randn(len(targets), 2)
    wanted = torch.nn.functional.cross_entropy(
        logits, targets, weight=torch.tensor(weights).float(), ignore_index=IGNORE, reduction="sum"
    )
    assert torch.allclose(cross_entropy(logits, targets, weights=given), wanted)
