"""Pretraining data: where sentences end, which passages are pairs, and which words are hidden."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from allyouneed.batch import IGNORE
from allyouneed.data.batches.masked import MaskedPassages, Passages
from allyouneed.data.sentences import of_document, sentences
from allyouneed.data.store import Ragged
from allyouneed.randomness import make_key
from allyouneed.text.layout import Layout

CLS, SEP, MASK = 1, 2, 3
LAYOUT = Layout((CLS,), (SEP,), (SEP,))
WORDS = np.arange(10, 1000)

RULE = {
    "One. Two!  Three? Four": ["One.", "Two!", "Three?", "Four"],
    "It cost 3.50 dollars. He paid.": ["It cost 3.50 dollars.", "He paid."],
    "Mr. Smith met Dr. J. Brown, e.g. on Monday. Then he left.": [
        "Mr. Smith met Dr. J. Brown, e.g. on Monday.",
        "Then he left.",
    ],
    "He said “Stop.” She did not (why?). Yes... Well… no": [
        "He said “Stop.”",
        "She did not (why?).",
        "Yes...",
        "Well… no",
    ],
    "What? he asked. No one knew.": ["What? he asked.", "No one knew."],
    "one line\nanother line\n\n\n": ["one line", "another line"],
    "これは本です。あれは？はい": ["これは本です。", "あれは？", "はい"],
    " \n . \n": ["."],
    "": [],
}


@pytest.mark.parametrize("text", RULE)
def test_where_a_sentence_ends(text):
    assert list(sentences(text)) == RULE[text]


def test_sentences_are_the_same_however_a_text_is_cut():
    text = "".join(f"{text}\n" for text in RULE)
    whole = list(sentences(text))
    for size in (1, 3, 7, 1000):
        assert list(of_document(text[i : i + size] for i in range(0, len(text), size))) == whole


def corpus(documents: int = 60, seed: int = 1) -> Ragged:
    """Sentences of 3 to 12 tokens, 1 to 20 per document; a row without tokens ends each document."""
    random = np.random.default_rng(seed)
    rows: list[list[int]] = []
    for _ in range(documents):
        rows += [random.integers(10, 1000, random.integers(3, 13)).tolist() for _ in range(random.integers(1, 21))]
        rows.append([])
    return Ragged.of(rows)


def made(rows: Ragged, room: int = 30, **more: object) -> MaskedPassages:
    pairs = bool(more.get("pairs", True))
    return MaskedPassages(Passages.pack(rows, room, pairs), LAYOUT, mask=MASK, words=WORDS, **more)


def test_passages_are_whole_sentences_and_lose_nothing():
    rows = corpus()
    found = Passages.pack(rows, 30, halves=True)
    assert found.rows.offsets[0] == 0
    assert found.rows.offsets[-1] == len(rows.tokens)
    assert 0 < found.rows.lengths.min() <= found.rows.lengths.max() <= 30
    assert set(found.rows.offsets) <= set(rows.offsets)
    assert len(found.documents) == len(found.rows)
    documents = Counter(found.documents.tolist())
    ends = np.flatnonzero(rows.lengths == 0)
    sizes = np.diff([-1, *ends]) - 1
    assert all(documents[i] >= 2 for i, size in enumerate(sizes) if size > 1)
    assert all(documents[i] == 1 for i, size in enumerate(sizes) if size == 1)


def test_a_sentence_that_is_too_long_is_cut_and_not_lost():
    rows = Ragged.of([[*range(10, 110)], [*range(200, 205)], []])
    found = Passages.pack(rows, 30, halves=False)
    assert found.rows.lengths.tolist() == [30, 30, 30, 15]


def test_half_of_the_second_passages_follow_and_the_others_are_of_other_documents():
    examples = made(corpus(400))
    of, lengths = examples.passages.documents, examples.passages.rows.lengths
    last = np.append(of[1:] != of[:-1], True)
    labels = []
    for epoch in range(4):
        numbers = np.concatenate(examples.plan(1, epoch, 1000))
        first = numbers[examples.followed[numbers]]
        second, label = examples._second(first, make_key(1, epoch))
        true, false = second[label == 0], second[label == 1]
        assert (true == first[label == 0] + 1).all()
        assert (of[false] != of[first[label == 1]]).all()
        for fact in (lengths, last):  # neither length nor place tells them apart
            error = fact[true].std() * np.sqrt(2 / len(true))
            assert abs(fact[true].mean() - fact[false].mean()) < 3 * error
        labels.append(label)
    share = np.concatenate(labels).mean()
    assert abs(share - 0.5) < 3 * 0.5 / np.sqrt(sum(map(len, labels)))


def test_in_one_document_the_others_are_far_away():
    examples = made(Ragged.of([[10 + i % 900, 11, 12, 13, 14] for i in range(400)]), room=10)
    followed = np.flatnonzero(examples.followed)
    second, label = examples._second(followed, 5)
    apart = np.abs(second - followed)[label == 1]
    assert apart.min() >= len(examples.seconds) // 4
    assert 0.4 < label.mean() < 0.6


@pytest.mark.parametrize("passages", [3, 4, 5, 9])
def test_in_a_short_document_too_what_follows_is_never_called_another(passages):
    examples = made(Ragged.of([[10 + i, 11, 12, 13, 14] for i in range(passages)]), room=5)
    followed = np.flatnonzero(examples.followed)
    for key in range(50):
        second, label = examples._second(followed, key)
        assert ((second == followed + 1) == (label == 0)).all()
        assert (second != followed).all()


def test_a_document_of_one_sentence_has_no_second_passage():
    examples = made(Ragged.of([[20, 21, 22], [], [30, 31], [40, 41], [], [50, 51, 52], [60, 61], []]))
    numbers = examples.cover(1000)[0]
    batch = examples.collate(numbers)
    alone = batch.tensors["lengths"] == 3 + 3
    assert batch.tensors["follows"][alone].tolist() == [IGNORE]
    assert batch.size.counts["next"] == 2


def hidden(examples: MaskedPassages, epochs: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Targets, what stands in their places, the tokens around them, and how many tokens there are."""
    targets, shown, rest, total = [], [], [], 0
    for epoch in range(epochs):
        key = make_key(7, epoch)
        for numbers in examples.plan(7, epoch, 4000):
            tensors = examples.collate(numbers, key).tensors
            ids = tensors["ids"].flatten()
            chosen = torch.zeros_like(ids, dtype=torch.bool)
            chosen[tensors["chosen"]] = True
            targets.append(tensors["targets"])
            shown.append(ids[tensors["chosen"]])
            rest.append(ids[~chosen])
            total += int(tensors["lengths"].sum()) - 3 * len(numbers)
    return torch.cat(targets).numpy(), torch.cat(shown).numpy(), torch.cat(rest).numpy(), total


def test_how_many_words_are_chosen_and_what_becomes_of_them():
    targets, shown, rest, total = hidden(made(corpus(400)))
    count = len(targets)
    assert abs(count / total - 0.15) < 0.01
    masked, kept = shown == MASK, shown == targets
    error = 3 * 0.5 / np.sqrt(count)
    assert abs(masked.mean() - 0.8) < error
    assert abs(kept.mean() - 0.1) < error
    other = shown[~masked & ~kept]
    assert abs(len(other) / count - 0.1) < error
    assert len(set(other.tolist())) > 0.5 * len(WORDS)
    assert MASK not in rest
    assert not {CLS, SEP} & {*targets.tolist(), *other.tolist()}


def test_a_chosen_word_is_visible_only_where_it_is_kept():
    """Every token of this text is different, so that nothing else can show it."""
    rows, at = [], 10
    for _ in range(40):
        rows += [list(range(at + 9 * i, at + 9 * i + 9)) for i in range(4)] + [[]]
        at += 36
    examples = MaskedPassages(Passages.pack(Ragged.of(rows), 20, True), LAYOUT, mask=MASK, words=np.array([5]))
    seen = total = 0
    for numbers in examples.plan(1, 0, 2000):
        tensors = examples.collate(numbers, make_key(1, 0)).tensors
        row = tensors["chosen"] // tensors["ids"].size(1)
        visible = (tensors["ids"][row] == tensors["targets"][:, None]).any(1)
        kept = tensors["ids"].flatten()[tensors["chosen"]] == tensors["targets"]
        assert torch.equal(visible, kept)
        seen, total = seen + int(visible.sum()), total + len(visible)
    assert 0.04 < seen / total < 0.18


def test_words_are_chosen_whole():
    """Odd tokens continue the word before them."""
    continues = np.arange(1000) % 2 == 1
    examples = made(corpus(100), continues=continues)
    for numbers in examples.cover(4000):
        rows = examples.collate(numbers, 3).tensors
        chosen = torch.zeros(rows["ids"].numel(), dtype=torch.bool)
        chosen[rows["chosen"]] = True
        original = rows["ids"].flatten().clone()
        original[rows["chosen"]] = rows["targets"]
        goes_on = torch.from_numpy(continues[original.numpy()])
        after_text = torch.roll(original, 1) >= 10
        inner = goes_on & after_text & (original >= 10)
        inner[0] = False
        assert torch.equal(chosen[inner], torch.roll(chosen, 1)[inner])


def test_a_batch_is_a_function_of_its_key_and_examples():
    examples = made(corpus())
    numbers = examples.plan(1, 0, 500)[0]
    first, again, other = (examples.collate(numbers, key).tensors for key in (5, 5, 6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["chosen"], other["chosen"])
    single = examples.collate(numbers[:1], 5).tensors
    size = int(single["lengths"][0])
    assert torch.equal(single["ids"][0], first["ids"][0, :size])


def test_an_epoch_has_every_passage():
    examples = made(corpus())
    firsts = np.sort(np.concatenate(examples.plan(1, 0, 500)))
    assert np.array_equal(firsts, examples.firsts)
    assert {*firsts.tolist(), *examples.seconds.tolist()} == set(range(len(examples.passages.rows)))


def test_words_alone():
    examples = made(corpus(), pairs=False)
    batch = examples.collate(examples.cover(500)[0])
    assert "follows" not in batch.tensors
    assert list(batch.size.counts) == ["words"]
    covered = np.sort(np.concatenate(examples.cover(500)))
    assert covered.tolist() == list(range(len(examples.passages.rows)))


def test_there_is_little_padding():
    examples = made(corpus(400))
    plan = examples.plan(1, 0, 2000)
    real = padded = 0
    for numbers in plan:
        tensors = examples.collate(numbers, make_key(1, 0)).tensors
        real, padded = real + int(tensors["lengths"].sum()), padded + tensors["ids"].numel()
        assert tensors["ids"].numel() <= 2000
    assert real / padded > 0.9
