"""classify: one label for a text, or for a pair of texts; and what all tasks share that give labels."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from allyouneed.batch import IGNORE
from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch, Examples
from allyouneed.data.batches.labelled import Labelled
from allyouneed.data.examples import LabelledText
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.figures import confusion_matrix
from allyouneed.metrics import Score, confusion, label_scores
from allyouneed.models.labeller import Labeller
from allyouneed.nn.heads import POOLS
from allyouneed.predict.labels import (
    UNCUT,
    ClassifyProcessor,
    LabelsProcessor,
    Spelling,
    TextLabelsProcessor,
    classify_tokens,
    probabilities,
)
from allyouneed.predict.linear import Bags, Linear, WordPairs, best_shares, fit_linear, words_of
from allyouneed.tasks.base import Answering, Answers, Carry, Losses, Moment, Pieces, once
from allyouneed.tasks.baselines import METHODS, classify_baselines
from allyouneed.text import Tokenizer

WITH_LINEAR = ("rnn", "convnet")  # models that no export has to express


@dataclass(frozen=True)
class LabelOptions:
    smoothing: float = option(0.0, "label smoothing", low=0.0, high=1.0)
    agreement: float = option(
        0.0, "R-Drop: weight of the divergence of two passes with different dropout; 0: off", low=0.0, high=100.0
    )
    balance: float = option(
        0.0, "weights of the labels: 0 none, 1 each label counts as much as any other, however rare", low=0.0, high=1.0
    )


class Labels(LabelsProcessor, Answering[Labeller]):
    """What classify, tag and recognize share. The answer to an example is the probabilities of its labels."""

    weights: ClassVar[dict[str, float]] = {"labels": 1.0}
    eval_share = 0.1  # little data is soon overfitted: the best step matters
    confused: tuple[np.ndarray, list[str], str] | None = None  # of the last test: counts, classes, title

    def check(self) -> None:
        super().check()
        drops = (getattr(self.recipe.model, name, 0.0) for name in ("dropout", "attention_dropout", "drop_path"))
        if self.options.agreement and not any(drops):
            raise UserError(
                "task.agreement compares two passes that differ in dropout, and the model has none: set model.dropout "
                "above 0, or task.agreement to 0"
            )

    def study(self) -> None:
        if not self.labels:
            self.labels = self.find_labels()
        for split in self.data.splits:
            self.goals(split)  # a UserError for labels that are not in the training data

    @abstractmethod
    def goals(self, split: str) -> np.ndarray | Ragged:
        """The labels of a split as numbers: one per example, or one per token, where IGNORE means no label."""

    def label_weights(self) -> np.ndarray | None:
        """(C,) how much each label counts: n^-balance if it occurs n times, and 1 in the mean of all examples. None if
        all count the same."""
        if not self.options.balance:
            return None
        goals = self.goals("train")
        goals = goals.tokens[goals.tokens != IGNORE] if isinstance(goals, Ragged) else goals
        counts = np.maximum(1, np.bincount(goals, minlength=len(self.labels)))
        weights = counts**-self.options.balance
        return np.asarray(weights * counts.sum() / (weights * counts).sum())

    @abstractmethod
    def find_labels(self) -> list[str]:
        """The labels of the training data, in a fixed order."""

    @abstractmethod
    def classes(self, split: str) -> Counter[str]: ...

    def unseen(self, split: str, known: Iterable[str], what: str) -> None:
        """Raise a UserError for classes of a split that are not among those of the training data."""
        strange = {name: count for name, count in self.classes(split).items() if name not in set(known)}
        if strange:
            some = ", ".join(f"'{name}' ({count:,})" for name, count in sorted(strange.items())[:10])
            more = f" and {len(strange) - 10:,} more" if len(strange) > 10 else ""
            raise UserError(
                f"the {split} split has {len(strange):,} {what}{'s' if len(strange) > 1 else ''} that the training "
                f"data does not have, in {sum(strange.values()):,} places: {some}{more}; correct or remove them, "
                f"or add training examples of them"
            )

    def losses(self, model: Labeller, batch: Batch, at: Moment | None = None, carry: Carry | None = None) -> Losses:
        only_learning = (self.options.smoothing, self.options.agreement) if model.training else ()
        return {"labels": model.loss(batch.tensors, batch.tensors["targets"], *only_learning)}

    @abstractmethod
    def whole(self, split: str, model: Labeller) -> Examples:
        """A split for scoring."""

    def answer(self, model: Labeller, split: str, decode: DecodeConfig, pieces: Pieces) -> Answers:
        return probabilities(model, self.whole(split, model), self.test_tokens, pieces).items()

    @abstractmethod
    def simple(self, split: str) -> Mapping[str, Any]:
        """The labels of a split by simple methods, by their names, learned from the training split."""

    def truth(self, split: str) -> Sequence[Any]:
        """The number of the label of each example, or those of the labels of its words."""
        return cast(Sequence[Any], self.goals(split))

    def confusion(self, split: str, guesses: Mapping[int, Any]) -> np.ndarray:
        """The confusion matrix of labels that were guessed for some examples, by their numbers."""
        truth = self.truth(split)
        right = np.hstack([truth[number] for number in guesses])
        return confusion(right, np.hstack(list(guesses.values())), len(self.labels))

    def guess_scores(self, split: str, guesses: Mapping[int, Any]) -> list[Score]:
        """The scores of such labels, the most important one first: accuracy and macro-F1."""
        return label_scores(self.confusion(split, guesses), f"|split:{split}")

    def scores(self, split: str, decode: DecodeConfig, answers: Mapping[int, Tensor]) -> list[Score]:
        guesses = {number: p.argmax(-1).tolist() for number, p in answers.items()}
        scores, table = self.guess_scores(split, guesses), self.confusion(split, guesses)
        shown = f"{table.sum():,} {self.unit}s, {scores[0].value:.1f} % right"
        self.confused = table, self.labels, self.title(split, shown)
        return scores

    def baselines(self) -> list[Score]:
        scored = list(self.answers) or range(self.items("test"))
        found = {
            name: self.guess_scores("test", {number: guesses[number] for number in scored})[0]
            for name, guesses in self.simple("test").items()
        }
        return [
            replace(score, name=f"{name} baseline", signature=f"{METHODS[name]}|{score.signature}")
            for name, score in found.items()
        ]

    def title(self, split: str, shown: str) -> str:
        """Of a confusion matrix."""
        return f"{self.origin(split)}, {split}: {shown}"

    def write_figures(self, folder: Path, mark: str) -> list[Path]:
        """The confusion matrix of the last test."""
        if self.confused is None:
            return []
        table, names, title = self.confused
        out = folder / f"confusion{mark}.png"
        confusion_matrix(table, names, out, title)
        return [out]


class OneLabel(Labels):
    """One label per example: classify and recognize."""

    chooses_by = "accuracy"

    @once
    def label_numbers(self, split: str) -> tuple[list[str], np.ndarray]:
        """The labels of a split, and which of them each example has."""
        return self.data.splits[split].labels()

    def classes(self, split: str) -> Counter[str]:
        names, numbers = self.label_numbers(split)
        return Counter(dict(zip(names, np.bincount(numbers, minlength=len(names)).tolist())))

    def find_labels(self) -> list[str]:
        found = self.classes("train")
        if len(found) < 2:
            raise UserError(
                f"all training {self.unit}s have the label '{next(iter(found))}': at least two labels are needed"
            )
        if self.shape == "labels" and len(found) > 20 and 2 * len(found) > found.total():
            first = ", ".join(f"'{label}'" for label in list(found)[:3])
            raise UserError(
                f"{found.total():,} training {self.unit}s have {len(found):,} different labels ({first}, …): is this "
                f"the label column? choose it with data.target, and the column of the {self.unit}s with data.source"
            )
        # Numbers first, in numeric order; compared by length and digits, because `int` refuses very long ones.
        digits = {label: len(label.lstrip("0")) if label.isdecimal() else 0 for label in found}
        return sorted(found, key=lambda label: (not label.isdecimal(), digits[label], label))

    @once
    def goals(self, split: str) -> np.ndarray:
        self.unseen(split, self.labels, "label")
        numbers = {label: number for number, label in enumerate(self.labels)}
        names, kinds = self.label_numbers(split)
        return np.array([numbers[name] for name in names], dtype=np.int64)[kinds]

    def record(self, example: Any, answer: Tensor) -> dict[str, Any]:
        best, sure = int(answer.argmax()), round(float(answer.max()), 6)
        judged = {"prediction": self.labels[best], "reference": example.label, "probability": sure}
        return {**self.input_of(example), **judged}

    @abstractmethod
    def input_of(self, example: Any) -> dict[str, str]:
        """What the model reads of an example, for `record`."""


@dataclass(frozen=True)
class TextLabelOptions(LabelOptions):
    unknown: float = option(
        0.05,
        "fraction of the tokens replaced by <unk> in training (no effect on a body that reads letters)",
        low=0.0,
        high=1.0,
    )


class TextLabels(TextLabelsProcessor, Labels):
    """What classify and tag share: loss = -Σ log p(label | text)"""

    Options: ClassVar[type] = TextLabelOptions

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.spelling = Spelling()

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        return {} if self.spells else super().make_tokenizers()

    def training_texts(self) -> Iterator[str]:
        return (f" {part}" for parts in self.data.splits["train"].inputs() for part in parts)

    @abstractmethod
    def tokens(self, split: str) -> list[Ragged]:
        """The tokens of each example: one Ragged per side, which is the first or second text."""

    @once
    def rows(self, split: str) -> Sequence[Ragged]:
        found = self.tokens(split)
        self.check_rows(split, found)
        return found

    def examples(self, split: str) -> Labelled:
        hidden = self.options.unknown if split == "train" else 0.0
        weights = self.label_weights()
        return self.batches(self.rows(split), self.goals(split), self.longest, self.spelling, hidden, weights)

    def whole(self, split: str, model: Labeller) -> Labelled:
        """A split for scoring: no token is replaced by <unk>, and texts are cut only at the limit of the model."""
        return self.batches(self.rows(split), self.goals(split), model.limit or UNCUT, self.spelling)

    def lengths(self, split: str) -> np.ndarray:
        sides = self.rows(split)
        return np.asarray(np.sum([side.lengths for side in sides], axis=0) + self.layout.specials(len(sides)))

    def unknown_parts(self, split: str) -> list[float | None]:
        return [] if self.spells else super().unknown_parts(split)

    @property
    def cut(self) -> int:
        return self.longest

    @property
    def length_unit(self) -> str:  # type: ignore[override]
        return "words" if self.spells else "tokens"


@dataclass(frozen=True)
class ClassifyOptions(TextLabelOptions):
    pool: str = option(
        "max", "one vector per text: maximum or mean over its tokens, the last, or the first", choices=POOLS
    )
    linear: bool = option(False, "rnn, convnet: a linear model over words and pairs of words beside the network")


class Classify(ClassifyProcessor, OneLabel, TextLabels):
    """loss = -log p(label | text); the text of a pair is both texts, joined by the layout."""

    Options = ClassifyOptions
    shape = "labels"
    unit = "text"
    fitted: Linear | None = None  # the linear model, if it was fitted here

    @property
    def chooses_by(self) -> str:  # type: ignore[override]
        """With a linear model, much is right from the start: a loss tells more of small differences."""
        return "loss" if self.options.linear else "accuracy"

    @property
    def sides(self) -> int:  # type: ignore[override]
        if self.pair is None and not self.either:
            self.pair = next(iter(next(iter(self.data.splits.values())))).second is not None
        return super().sides

    def check(self) -> None:
        super().check()
        if self.options.linear and self.recipe.model_kind not in WITH_LINEAR:
            raise UserError(
                f"task.linear = true is for the models {' and '.join(WITH_LINEAR)}, not for {self.recipe.model_kind}: "
                "leave it out"
            )

    def base(self) -> WordPairs | None:
        """The linear model, fitted to the training data unless that was done before."""
        words = words_of(self.tokenizer) if self.options.linear else None
        if words is not None and not self.features:
            bags = Bags.of(self.rows("train"), words)
            self.fitted = fit_linear(bags, self.goals("train"), len(self.labels), even=True)
            self.features = len(self.fitted.keys)
        made = super().base()
        if made is not None and words is not None and self.fitted is not None:
            made.take(self.fitted, words)
        return made

    @torch.no_grad()
    def tune(self, model: Labeller, batches: Iterable[Batch]) -> None:
        """How much the scores of the linear model and those of the network count."""
        if model.base is None:
            return
        model.shares.copy_(torch.tensor([0.0, 1.0]))
        found = [(model.base(batch.tensors), model(batch.tensors), batch.tensors["targets"]) for batch in batches]
        base, own, goals = (torch.cat(parts).double().cpu().numpy() for parts in zip(*found))
        model.shares.copy_(torch.tensor(best_shares(base, own, goals.astype(np.int64))))

    def tokens(self, split: str) -> list[Ragged]:
        sides = ("text", "second")[: self.sides]
        if not self.spells:
            return [self.tokenize(split, side, self.layout.prefix) for side in sides]
        texts = (self.data.splits[split].texts(side) for side in sides)
        return [Ragged.of(self.spelling.read(classify_tokens(self, text)) for text in side) for side in texts]

    @once
    def simple(self, split: str) -> dict[str, np.ndarray]:
        train, test = (list(self.data.splits[name].inputs()) for name in ("train", split))
        return classify_baselines(train, self.goals("train"), test, len(self.labels))

    def input_of(self, example: LabelledText) -> dict[str, str]:
        return {"text": example.text, **({} if example.second is None else {"second": example.second})}
