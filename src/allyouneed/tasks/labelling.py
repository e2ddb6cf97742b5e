"""What classify and tag share: texts labelled in batches."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches import Labelled
from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged, unknown_part
from allyouneed.errors import UserError
from allyouneed.models.labeller import Labeller
from allyouneed.nn.spelling import spell
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer, Prompt
from allyouneed.tasks.base import (
    Alignment,
    Task,
    once,
    traced,
)
from allyouneed.tasks.labels import LabelOptions, Labels
from allyouneed.tasks.samples import Sample
from allyouneed.text import Tokenizer
from allyouneed.text.layout import Layout, Tokens

UNCUT = 1 << 30
PADDING, SEPARATOR = "", "</s>"  # the first two rows of the table of letters


@dataclass(frozen=True)
class LabellingOptions(LabelOptions):
    unknown: float = option(
        0.05,
        "fraction of the tokens replaced by <unk> in training (no effect on a body that reads letters)",
        low=0.0,
        high=1.0,
    )


class Labelling(Labels):
    """loss = -Σ log p(label | text)"""

    Options: ClassVar[type] = LabellingOptions
    sides = 1  # texts per example

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._spelled: dict[str, int] = {PADDING: 0, SEPARATOR: 1}  # row of each word in the table of letters

    @property
    def spells(self) -> bool:
        """Whether the body reads words by their letters; then no tokenizer is needed, and a token is a word."""
        return bool(self.kind.BodyClass.spelled)

    def check(self) -> None:
        if self.spells:
            self.check_model()
        else:
            super().check()

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        text = self.recipe.text
        if self.spells:
            return {}
        if text.path:
            return {"tokenizer.json": Tokenizer.load(text.path)}
        texts = (f" {part}" for example in self.data.splits["train"] for part in example.inputs)
        return {"tokenizer.json": Tokenizer.train(texts, text)}

    def take_tokenizers(self, donor: Task) -> None:
        if not self.spells:
            super().take_tokenizers(donor)

    @property
    def layout(self) -> Layout:
        return Layout(between=(1,)) if self.spells else Layout.of(self.tokenizer, self.sides)

    def model_config(self) -> Any:
        return self.recipe.model if self.spells else super().model_config()

    def build_model(self) -> Labeller:
        config = self.model_config()
        body, reader = self.kind.BodyClass(config), self.kind.make_reader(config)
        body.freeze(config.freeze)
        return Labeller(body, self.head((reader or body).width, config.dropout), reader, base=self.base())

    @abstractmethod
    def head(self, width: int, dropout: float) -> nn.Module:
        """The head: vectors (…, width) -> label scores."""

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

    def spelled(self, words: Iterable[str]) -> list[int]:
        """The row of each word in the table of letters; new words are added."""
        return [self._spelled.setdefault(word, len(self._spelled)) for word in words]

    def examples(self, split: str) -> Labelled:
        hidden = self.options.unknown if split == "train" else 0.0
        weights = self.label_weights()
        return self._labelled(self.rows(split), self.goals(split), self.longest, hidden, weights)

    def base(self) -> nn.Module | None:
        """What gives scores that those of the model are added to, if anything does."""
        return None

    def whole(self, split: str, model: Labeller) -> Labelled:
        """A split for scoring: no token is replaced by <unk>, and texts are cut only at the limit of the model."""
        return self._labelled(self.rows(split), self.goals(split), model.limit or UNCUT)

    def _labelled(
        self,
        sides: list[Ragged],
        goals: np.ndarray | Ragged,
        longest: int,
        hidden: float = 0.0,
        weights: np.ndarray | None = None,
    ) -> Labelled:
        if not self.spells:
            unknown = self.tokenizer.unk
            return Labelled(sides, goals, self.layout, longest, unknown=unknown, hidden=hidden, weights=weights)
        letters = spell(list(self._spelled), self.recipe.model.letters)
        letters[0] = 0
        return Labelled(sides, goals, self.layout, longest, letters=letters, weights=weights)

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

    def judge(self, model: Labeller, texts: Sequence[Sequence[list[int]]]) -> list[Tensor]:
        """The label probabilities of user input: `texts` are the tokens of each side of each example."""
        found: dict[int, Tensor] = {}
        for sides in {len(text) for text in texts}:
            numbers = [number for number, text in enumerate(texts) if len(text) == sides]
            some = self._unlabelled([texts[number] for number in numbers], model.limit or UNCUT)
            found |= dict(zip(numbers, self.probabilities(model, some).values()))
        return [found[number] for number in range(len(texts))]

    def _unlabelled(self, texts: Sequence[Sequence[list[int]]], longest: int) -> Labelled:
        sides = [Ragged.of(example[side] for example in texts) for side in range(len(texts[0]))]
        return self._labelled(sides, np.zeros(len(texts), dtype=np.int64), longest)

    @abstractmethod
    def ids(self, text: str) -> list[list[int]]:
        """The tokens of a text, or of both texts of a pair."""

    def token(self, id: int) -> str:
        return list(self._spelled)[id] if self.spells else self.tokenizer.token(id)

    @torch.inference_mode()
    def attention(self, model: Labeller, text: str, decode: DecodeConfig) -> dict[str, Alignment]:
        sides, trace = self.ids(text), Trace("weights")
        tokens = [self.token(id) for id in self._prompt(model, self._texts(text), sides).ids]
        batch = self._unlabelled([sides], model.limit or UNCUT).collate(np.arange(1)).to(model.device)
        model(batch.tensors, trace=trace)
        return traced(trace, lambda place: (tokens, tokens))

    def predict(
        self, model: Labeller, inputs: Iterable[str], decode: DecodeConfig, show: Callable[[str], None] | None = None
    ) -> Iterator[Answer]:
        source = iter(inputs)
        while several := list(islice(source, 8 * decode.batch)):
            for text in several:
                self.prompt(model, text, decode)
            yield from self.answer(model, several)

    def samples(self, model: Labeller, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        asked = [self.question(example) for example in self.sampled(split)[:most]]
        answers = zip(asked, self.answer(model, [text for text, _ in asked]))
        return [Sample(text, answer.shown or answer.text, right) for (text, right), answer in answers]

    @abstractmethod
    def question(self, example: Any) -> tuple[str, str]:
        """An example as the user would ask it, and the right answer."""

    @abstractmethod
    def answer(self, model: Labeller, texts: list[str]) -> Iterator[Answer]:
        """The answers to texts that `prompt` has accepted, or that are cut at the limit of the model."""

    def _texts(self, text: str) -> list[str]:
        """The input of the user as one text or two."""
        return [text]

    def _prompt(self, model: Labeller, texts: Sequence[str], sides: Sequence[list[int]]) -> Prompt:
        """One or two texts and their tokens. They may all be unknown, as they may in the test."""
        if not all(text.strip() for text in texts) or not all(sides):
            raise UserError("the text is empty: give some words")
        return Prompt(self.layout.lay(sides[0], sides[1] if len(sides) > 1 else None, most=model.limit).ids, 0)

    def unread(self, model: Labeller, sides: Sequence[list[int]]) -> tuple[dict[str, int], str]:
        """How many tokens of a text are beyond the limit of the model, for --json and for the terminal."""
        tokens = sum(map(len, sides)) + self.layout.specials(len(sides))
        beyond = max(0, tokens - model.limit) if model.limit is not None else 0
        return ({"unread": beyond}, f"  ({beyond:,} of {tokens:,} tokens were not read)") if beyond else ({}, "")


def labels_on_first_pieces(words: Tokens, labels: Sequence[int], nothing: int) -> list[int]:
    """One label per token: that of a word on its first token, `nothing` on the others."""
    before = -1
    found = []
    for word in words.words:
        found.append(labels[word] if word > before else nothing)
        before = max(word, before)
    return found
