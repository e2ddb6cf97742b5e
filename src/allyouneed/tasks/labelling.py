"""What classify and tag share: texts labelled in batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.labelled import Labelled
from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged, unknown_part
from allyouneed.errors import UserError
from allyouneed.models.labeller import Labeller
from allyouneed.predict.base import answered
from allyouneed.predict.labels import UNCUT, Spelling, TextLabelsProcessor
from allyouneed.tasks.base import (
    Sample,
    once,
)
from allyouneed.tasks.labels import LabelOptions, Labels
from allyouneed.text import Tokenizer
from allyouneed.text.layout import Tokens


@dataclass(frozen=True)
class LabellingOptions(LabelOptions):
    unknown: float = option(
        0.05,
        "fraction of the tokens replaced by <unk> in training (no effect on a body that reads letters)",
        low=0.0,
        high=1.0,
    )


class Labelling(TextLabelsProcessor, Labels):
    """loss = -Σ log p(label | text)"""

    Options: ClassVar[type] = LabellingOptions

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.spelling = Spelling()

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        return {} if self.spells else super().make_tokenizers()

    def training_texts(self) -> Iterator[str]:
        return (f" {part}" for parts in self.data.splits["train"].inputs() for part in parts)

    def check(self) -> None:
        if self.spells:
            self.check_model()
        else:
            super().check()

    @abstractmethod
    def tokens(self, split: str) -> list[Ragged]:
        """The tokens of each example: one Ragged per side, which is the first or second text."""

    @once
    def rows(self, split: str) -> list[Ragged]:
        """`tokens`, cached; a UserError if the split or a text in it is empty."""
        found = self.tokens(split)
        if not len(found[0]):
            raise UserError(f"the {split} split has no examples; give more data or another data.{split}_part")
        if any(not side.lengths.all() for side in found):
            raise UserError(f"the {split} split has texts that the tokenizer gives no tokens: use another text.path")
        return found

    def examples(self, split: str) -> Labelled:
        hidden = self.options.unknown if split == "train" else 0.0
        weights = self.label_weights()
        return self.batches(self.rows(split), self.goals(split), self.longest, self.spelling, hidden, weights)

    def whole(self, split: str, model: Labeller) -> Labelled:
        """A split for scoring: no token is replaced by <unk>, and texts are cut only at the limit of the model."""
        return self.batches(self.rows(split), self.goals(split), model.limit or UNCUT, self.spelling)

    def report(self) -> Report:
        if not self.labels:
            self.labels = self.find_labels()
        lengths = {}
        for split in self.data.splits:
            sides = [side.lengths for side in self.rows(split)]
            lengths[split] = np.sum(sides, axis=0) + self.layout.specials(len(sides))
        for split in self.data.splits:
            self.goals(split)  # a UserError for labels that are not in the training data
        unit = "words" if self.spells else "tokens"
        classes = {split: self.classes(split) for split in lengths}
        unknown = {} if self.spells else {split: [unknown_part(self.tokenizer, self.rows(split))] for split in lengths}
        return describe(self.data, lengths, self.longest, unit, classes, unknown, self.unknown_advice)

    def samples(self, model: Labeller, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        asked, predictor = [self.question(example) for example in self.sampled(split)[:most]], self.predictor(model)
        answers = answered(predictor.answers([predictor.read(text, decode) for text, _ in asked], decode))
        return [Sample(text, one.shown or one.text, right) for (text, right), one in zip(asked, answers)]

    @abstractmethod
    def question(self, example: Any) -> tuple[str, str]:
        """An example as the user would ask it, and the right answer."""


def labels_on_first_pieces(words: Tokens, labels: Sequence[int], nothing: int) -> list[int]:
    """One label per token: that of a word on its first token, `nothing` on the others."""
    before = -1
    found = []
    for word in words.words:
        found.append(labels[word] if word > before else nothing)
        before = max(word, before)
    return found
