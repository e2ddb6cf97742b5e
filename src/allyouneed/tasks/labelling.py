"""What classify and tag share: the labels of a run, and texts labelled in batches."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches import Batch, Labelled
from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.figures import confusion_matrix
from allyouneed.models.labeller import Labeller
from allyouneed.nn.losses import IGNORE
from allyouneed.nn.spelling import spell
from allyouneed.nn.trace import Trace
from allyouneed.tasks.answers import Answer, Prompt
from allyouneed.tasks.base import (
    Alignment,
    Carry,
    Guess,
    Moment,
    Task,
    check_numbers,
    once,
    traced,
    unknown_part,
)
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.samples import Sample
from allyouneed.text import Tokenizer
from allyouneed.text.layout import Layout, Tokens

FILE = "labels.json"
UNCUT = 1 << 30
PADDING, SEPARATOR = "", "</s>"  # the first two rows of the table of letters


@dataclass(frozen=True)
class LabellingOptions:
    smoothing: float = option(0.0, "label smoothing", low=0.0, high=1.0)
    balance: float = option(
        0.0, "weights of the labels: 0 none, 1 each label counts as much as any other, however rare", low=0.0, high=1.0
    )
    unknown: float = option(
        0.05,
        "fraction of the tokens replaced by <unk> in training (no effect on a body that reads letters)",
        low=0.0,
        high=1.0,
    )


class Labelling(Task[Labeller]):
    """loss = -Σ log p(label | text)"""

    Options: ClassVar[type] = LabellingOptions
    weights: ClassVar[dict[str, float]] = {"labels": 1.0}
    sides = 1  # texts per example
    looking = 0.1  # little data is soon overfitted: the best step matters
    labels: list[str]  # in the order of the model's outputs
    confused: tuple[np.ndarray, list[str], str] | None = None  # of the last test: counts, classes, title

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.labels = []
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
        return Labeller(body, self.head((reader or body).width, config.dropout), reader)

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

    @abstractmethod
    def goals(self, split: str) -> np.ndarray | Ragged:
        """The labels of a split as numbers: one per example, or one per token, where IGNORE means no label."""

    def examples(self, split: str) -> Labelled:
        hidden = self.options.unknown if split == "train" else 0.0
        weights = self._weights() if self.options.balance else None
        return self._labelled(self.rows(split), self.goals(split), self.longest, hidden, weights)

    def _weights(self) -> np.ndarray:
        """(C,) how much each label counts: n^-balance if it occurs n times, and 1 in the mean of all examples."""
        goals = self.goals("train")
        goals = goals.tokens[goals.tokens != IGNORE] if isinstance(goals, Ragged) else goals
        counts = np.maximum(1, np.bincount(goals, minlength=len(self.labels)))
        weights = counts**-self.options.balance
        return np.asarray(weights * counts.sum() / (weights * counts).sum())

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

    @abstractmethod
    def find_labels(self) -> list[str]:
        """The labels of the training data, in a fixed order."""

    @abstractmethod
    def classes(self, split: str) -> Counter[str]:
        """How often each class occurs in a split."""

    def unseen(self, split: str, found: Counter[str], known: Iterable[str], what: str) -> None:
        """Raise a UserError for classes that are not in the training data."""
        strange = {name: count for name, count in found.items() if name not in set(known)}
        if strange:
            told = ", ".join(f"'{name}' ({count:,})" for name, count in sorted(strange.items())[:10])
            more = f" and {len(strange) - 10:,} more" if len(strange) > 10 else ""
            data = self.recipe.data
            split_off = {"valid": not data.valid_path, "test": not data.test_path}.get(split) and data.path
            cure = f", or hold out less (data.{split}_part)" if split_off else ", or remove them"
            raise UserError(
                f"the {split} split has {len(strange):,} {what}{'s' if len(strange) > 1 else ''} that the training "
                f"data does not have, in {sum(strange.values()):,} places: {told}{more}; correct them, add training "
                f"examples of them{cure}"
            )

    def parts(self) -> dict[str, bytes]:
        return {**super().parts(), FILE: json.dumps(self.extras(), indent=2, ensure_ascii=False).encode("utf-8")}

    def extras(self) -> dict[str, Any]:
        """The content of labels.json."""
        return {"labels": self.labels}

    def read_parts(self, parts: Mapping[str, bytes]) -> None:
        super().read_parts(parts)
        try:
            self.take(json.loads(parts[FILE]))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise UserError(f"{FILE} is damaged, or config.json does not list it") from None

    def same_outputs(self, other: Task) -> bool:
        return isinstance(other, Labelling) and other.labels == self.labels

    def take(self, extras: dict[str, Any]) -> None:
        """Load the content of labels.json."""
        self.labels = [str(label) for label in extras["labels"]]

    def losses(
        self, model: Labeller, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        smoothing = self.options.smoothing if model.training else 0.0
        return {"labels": model.loss(batch.tensors, batch.tensors["targets"], smoothing)}

    @torch.inference_mode()
    def probabilities(self, model: Labeller, examples: Labelled, extent: Extent = WHOLE) -> dict[int, Tensor]:
        """The label probabilities of each example, by its number, in order: (C,), or (T, C) for its tokens."""
        found: dict[int, Tensor] = {}
        for piece in extent.pieces(len(examples.sizes)):
            for numbers in examples.cover(max(self.recipe.train.batch_tokens, 4096), piece):
                batch = examples.collate(numbers).to(model.device)
                p = check_numbers(model(batch.tensors).float()).softmax(-1).cpu()
                for row, number, length in zip(p, numbers.tolist(), batch.tensors["lengths"].tolist()):
                    found[number] = row[:length] if row.dim() > 1 else row
        return dict(sorted(found.items()))

    def judge(self, model: Labeller, texts: Sequence[Sequence[list[int]]]) -> list[Tensor]:
        """The label probabilities of user input: `texts` are the tokens of each side of each example."""
        return list(self.probabilities(model, self._unlabelled(texts, model.limit or UNCUT)).values())

    def _unlabelled(self, texts: Sequence[Sequence[list[int]]], longest: int) -> Labelled:
        sides = [Ragged.of(example[side] for example in texts) for side in range(self.sides)]
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

    def guess(self, token: str, p: Tensor, most: int) -> Guess:
        """The likely labels of a token, up to `most` of them; p (C,)."""
        top = p.topk(min(most, len(p)))
        return Guess(token, [(self.labels[i], value) for i, value in zip(top.indices.tolist(), top.values.tolist())])

    def draw(self, folder: Path, mark: str) -> list[Path]:
        """The confusion matrix of the last test."""
        if self.confused is None:
            return []
        table, names, title = self.confused
        out = folder / f"confusion{mark}.png"
        confusion_matrix(table, names, out, title)
        return [out]

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
