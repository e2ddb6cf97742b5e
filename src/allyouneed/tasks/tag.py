"""tag: one tag per word, which mark the entities in a text, or its parts of speech."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from operator import eq
from typing import Any

import numpy as np
from torch import Tensor

from allyouneed.batch import IGNORE
from allyouneed.config import DecodeConfig
from allyouneed.data.examples import TaggedSentence
from allyouneed.data.formats.conll import PER_WORD, Span, TagCounts, spans, tagged
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.metrics import Score, entity_scores, mean_score
from allyouneed.models.labeller import Labeller
from allyouneed.predict.labels import SCHEME, TagProcessor, mark, named
from allyouneed.tasks.base import Answers, Pieces, Sample, once
from allyouneed.tasks.baselines import tag_baselines
from allyouneed.tasks.labels import TextLabels
from allyouneed.text.layout import Tokens, first_pieces
from allyouneed.text.word_boundaries import WordCutter, WordText


class Tag(TagProcessor, TextLabels):
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
        return self.tokenizer.tokenize_words([example.words for example in self.data.splits[split]])

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
        goals = self.truth(split)
        if self.spells:
            return Ragged.of(goals)
        rows = []
        for tokens, tags in zip(self.pieces(split), goals):
            rows.append([IGNORE] * len(tokens.ids))
            for place, tag in zip(first_pieces(tokens.words, len(tags)), tags):
                if place >= 0:  # a word may have no token
                    rows[-1][place] = tag
        return Ragged.of(rows)

    @once
    def truth(self, split: str) -> list[list[int]]:
        """The tags of each sentence, as their place in `labels`."""
        self.unseen(split, self.kinds, "tag" if self.scheme == PER_WORD else "entity type")
        numbers = {label: number for number, label in enumerate(self.labels)}
        tags = [example.tags for example in self.data.splits[split]]
        if self.scheme != PER_WORD:
            tags = [tagged(found, len(words), SCHEME) for found, words in zip(self.entities(split), tags)]
        return [[numbers[tag] for tag in sentence] for sentence in tags]

    def answer(self, model: Labeller, split: str, decode: DecodeConfig, pieces: Pieces) -> Answers:
        """By word."""
        for number, p in super().answer(model, split, decode, pieces):
            tokens = None if self.spells else self.pieces(split)[number]
            yield number, self.by_word(p, tokens, len(self.truth(split)[number]))

    def scores(self, split: str, decode: DecodeConfig, answers: Mapping[int, Tensor]) -> list[Score]:
        scores = super().scores(split, decode, answers)
        if self.scheme != PER_WORD and self.confused is not None:
            kinds = [label.partition("-")[2] for label in self.labels]
            group = np.array([[kind == own for kind in ("", *self.kinds)] for own in kinds])
            title = self.title(split, f"words by the entity they are in; F1 {scores[0].value:.1f} %")
            self.confused = group.T @ self.confused[0] @ group, ["none", *self.kinds], title
        return scores

    def guess_scores(self, split: str, guesses: Mapping[int, Sequence[int]]) -> list[Score]:
        """F1, precision and recall, for all entities and for each type; or the accuracy and macro-F1 of tags that mark
        no entities. The interval of the accuracy is by sentences, whose words are not independent of each other."""
        if self.scheme != PER_WORD:
            found = [spans([self.labels[tag] for tag in tags]) for tags in guesses.values()]
            return entity_scores([self.entities(split)[n] for n in guesses], found, f"|{SCHEME}|split:{split}")
        truth = (self.truth(split)[number] for number in guesses)
        rows = np.array([(sum(map(eq, tags, right)), len(right)) for tags, right in zip(guesses.values(), truth)])
        sign = f"exact|classes:{len(self.labels)}|split:{split}|n:{rows[:, 1].sum()}"
        return [mean_score("accuracy", rows[:, 0], sign, rows[:, 1]), *super().guess_scores(split, guesses)[1:]]

    def record(self, example: TaggedSentence, answer: Tensor) -> dict[str, Any]:
        return {"words": example.words, "prediction": self.tags(answer), "reference": example.tags}

    @once
    def simple(self, split: str) -> dict[str, list[list[int]]]:
        train, test = ([example.words for example in self.data.splits[name]] for name in ("train", split))
        return tag_baselines(train, self.truth("train"), test, len(self.labels))

    def sample(self, example: TaggedSentence, answer: Tensor) -> Sample:
        """The text stands in the answer and in the reference, with its tags."""
        return Sample("", *(self._shown(example.words, tags) for tags in (self.tags(answer), example.tags)))

    def _shown(self, words: Sequence[str], tags: Sequence[str]) -> str:
        if self.scheme == PER_WORD:
            return " ".join(f"{word}/{tag}" for word, tag in zip(words, tags))
        text = WordText.of(words)
        return mark(text, named(text, text.spans, spans(tags)))
