"""tag: one tag per word, which mark the entities in a text, or its parts of speech."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from operator import eq
from typing import Any

import numpy as np
import torch

from allyouneed.config import DecodeConfig
from allyouneed.data.examples import TaggedSentence
from allyouneed.data.formats.conll import PER_WORD, Span, TagCounts, spans, tagged
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.metrics import Score, bootstrap_scores, confusion, entity_scores, label_scores
from allyouneed.models.labeller import Labeller
from allyouneed.nn.losses import IGNORE
from allyouneed.predict.tag import SCHEME, TagProcessor, mark, named
from allyouneed.tasks.base import WHOLE, Sample, TestBudget, once
from allyouneed.tasks.baselines import TOLD, tag_baselines
from allyouneed.tasks.labelling import Labelling, labels_on_first_pieces
from allyouneed.terminal import Say
from allyouneed.text.layout import Tokens
from allyouneed.text.word_boundaries import WordCutter, WordText


class Tag(TagProcessor, Labelling):
    """loss = -Σ_t log p(tag_t | words)"""

    shape = "tags"
    unit = "word"

    @property
    def chooses_by(self) -> str:  # type: ignore[override]
        return "accuracy" if self.scheme == PER_WORD else "F1"  # it improves long after the loss has stopped falling

    def tokens(self, split: str) -> list[Ragged]:
        if self.spells:
            return [Ragged.of(self.spelling.read(example.words) for example in self.data.splits[split])]
        return [Ragged.of(tokens.ids for tokens in self.pieces(split))]

    @once
    def pieces(self, split: str) -> list[Tokens]:
        """The tokens of each sentence, each with the word that it belongs to."""
        return self.tokenizer.tokenize_words_batch([example.words for example in self.data.splits[split]])

    @once
    def entities(self, split: str) -> list[list[Span]]:
        """The entities of each sentence."""
        return [spans(example.tags) for example in self.data.splits[split]]

    def classes(self, split: str) -> Counter[str]:
        if self.scheme == PER_WORD:
            return Counter(tag for example in self.data.splits[split] for tag in example.tags)
        sentences = zip(self.entities(split), self.data.splits[split])
        return Counter(span.kind or example.tags[span.start] for found, example in sentences for span in found)

    @property
    def kinds(self) -> list[str]:
        """The types of entities, or the tags that mark none."""
        if self.scheme == PER_WORD:
            return self.labels
        return list(dict.fromkeys(label.partition("-")[2] for label in self.labels if label != "O"))

    def find_labels(self) -> list[str]:
        counts = TagCounts()
        for example in self.data.splits["train"]:
            counts.add(example.tags)
        self.scheme = counts.scheme
        self.cutter = WordCutter.learn(example.words for example in self.data.splits["train"])
        found = sorted(self.classes("train"))
        if self.scheme == PER_WORD:
            if len(found) < 2:
                raise UserError(f"all words have the tag '{found[0]}': choose the column of the tags with data.target")
            return found
        if not found:
            raise UserError("all tags of the training data are O: there are no entities to learn from")
        return ["O", *(f"{letter}-{kind}" for kind in found for letter in "BI")]

    def goals(self, split: str) -> Ragged:
        goals = self.numbers(split)
        if self.spells:
            return Ragged.of(goals)
        pieces = zip(self.pieces(split), goals)
        return Ragged.of(labels_on_first_pieces(tokens, labels, IGNORE) for tokens, labels in pieces)

    @once
    def numbers(self, split: str) -> list[list[int]]:
        """The tags of each sentence, as their place in `labels`."""
        self.unseen(split, self.classes(split), self.kinds, "tag" if self.scheme == PER_WORD else "entity type")
        numbers = {label: number for number, label in enumerate(self.labels)}
        if self.scheme == PER_WORD:
            return [[numbers[tag] for tag in example.tags] for example in self.data.splits[split]]
        return [
            [numbers[tag] for tag in tagged(entities, words, SCHEME)]
            for entities, words in zip(self.entities(split), self.lengths(split))
        ]

    @once
    def lengths(self, split: str) -> list[int]:
        """Words per sentence."""
        return [len(example.words) for example in self.data.splits[split]]

    def test(
        self, model: Labeller, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE
    ) -> list[Score]:
        """Precision, recall and F1, for all entities and for each type; or the accuracy and macro-F1 of tags that mark
        no entities."""
        every = self.lengths(split)
        pieces = self.pieces(split) if not self.spells else [None] * len(every)
        read = self.probabilities(model, self.whole(split, model), budget)
        found = {number: self.by_word(p, pieces[number], every[number]) for number, p in read.items()}
        self.covered, self.scored = len(found), list(found)
        self.tested = lambda: (
            {"words": example.words, "prediction": self.tags(found[number]), "reference": example.tags}
            for number, example in enumerate(self.data.splits[split])
            if number in found
        )
        if self.scheme == PER_WORD:
            numbers = self.numbers(split)
            right = [tag for number in found for tag in numbers[number]]
            table = confusion(right, torch.cat(list(found.values())).argmax(-1).numpy(), len(self.labels))
            read_tags = [(p.argmax(-1).tolist(), numbers[number]) for number, p in found.items()]
            scores = [self._accuracy(read_tags, split), *label_scores(table, f"|split:{split}")[1:]]
            about = f"{self.origin(split)}, {split}: {len(right):,} words, {scores[0].value:.1f} % right"
            self.confused = table, self.labels, about
            return scores
        entities, lengths = self.entities(split), [every[number] for number in found]
        truth, guesses = [entities[number] for number in found], [self.found(p) for p in found.values()]
        scores = entity_scores(truth, guesses, f"|{SCHEME}|split:{split}")
        names = ["none", *self.kinds]
        table = confusion(_by_word(truth, lengths, names), _by_word(guesses, lengths, names), len(names))
        about = f"{self.origin(split)}, {split}: words by the entity they are in; F1 {scores[0].value:.1f} %"
        self.confused = table, names, about
        return scores

    @once
    def simple(self, split: str) -> dict[str, list[list[int]]]:
        words = ([example.words for example in self.data.splits[name]] for name in ("train", split))
        return tag_baselines(next(words), self.numbers("train"), next(words), len(self.labels))

    def simply(self, name: str, found: Any, numbers: Sequence[int]) -> Score:
        if self.scheme == PER_WORD:
            score = self._accuracy([(found[number], self.numbers("test")[number]) for number in numbers], "test")
        else:
            truth = [self.entities("test")[number] for number in numbers]
            guesses = [spans([self.labels[tag] for tag in found[number]]) for number in numbers]
            score = entity_scores(truth, guesses, f"|{SCHEME}|split:test")[0]
        return replace(score, name=f"{name} baseline", signature=f"{TOLD[name]}|{score.signature}")

    def _accuracy(self, read: Sequence[tuple[Sequence[int], Sequence[int]]], split: str) -> Score:
        """Of the words, from the tags of each sentence that were guessed and that are right; its interval is by
        sentences, whose words are not independent of each other."""
        rows = np.array([(sum(map(eq, guesses, right)), len(right)) for guesses, right in read])
        sign = f"exact|classes:{len(self.labels)}|split:{split}|n:{rows[:, 1].sum()}"
        return bootstrap_scores(["accuracy"], rows, lambda sums: 100 * sums[:, :1] / sums[:, 1:], [sign])[0]

    def samples(self, model: Labeller, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        return [replace(sample, text="") for sample in super().samples(model, split, decode, most)]  # it is marked

    def question(self, example: TaggedSentence) -> tuple[str, str]:
        text = WordText.of(example.words)
        if self.scheme == PER_WORD:
            return text, " ".join(f"{word}/{tag}" for word, tag in zip(example.words, example.tags))
        return text, mark(text, named(text, text.spans, spans(example.tags)))


def _by_word(sentences: Sequence[Sequence[Span]], lengths: Sequence[int], names: Sequence[str]) -> list[int]:
    """The entity type of each word of all sentences, as its index in `names`; 0 outside of entities."""
    numbers = {name: number for number, name in enumerate(names)}
    found = []
    for entities, words in zip(sentences, lengths):
        row = [0] * words
        for span in entities:
            row[span.start : span.end] = [numbers[span.kind]] * (span.end - span.start)
        found += row
    return found
