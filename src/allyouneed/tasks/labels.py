"""Tasks that give labels: the labels of a run, and what follows from one label per example."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from allyouneed.config import option
from allyouneed.data.batches.base import Batch, Examples
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.figures import confusion_matrix
from allyouneed.metrics import Score, confusion, exact_score, label_scores
from allyouneed.models.labeller import Labeller
from allyouneed.nn.losses import IGNORE
from allyouneed.predict.labels import LabelsProcessor, probabilities
from allyouneed.tasks.base import WHOLE, Answering, Carry, Moment, TestBudget, once
from allyouneed.tasks.baselines import TOLD


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
    """What classify, tag and recognize share."""

    weights: ClassVar[dict[str, float]] = {"labels": 1.0}
    eval_share = 0.1  # little data is soon overfitted: the best step matters
    confused: tuple[np.ndarray, list[str], str] | None = None  # of the last test: counts, classes, title
    scored: Sequence[int] = ()  # the numbers of the examples of the last test

    def check_model(self) -> None:
        super().check_model()
        drops = (getattr(self.recipe.model, name, 0.0) for name in ("dropout", "attention_dropout", "drop_path"))
        if self.options.agreement and not any(drops):
            raise UserError(
                "task.agreement compares two passes that differ in dropout, and the model has none: set model.dropout "
                "above 0, or task.agreement to 0"
            )

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

    def losses(
        self, model: Labeller, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        only_learning = (self.options.smoothing, self.options.agreement) if model.training else ()
        return {"labels": model.loss(batch.tensors, batch.tensors["targets"], *only_learning)}

    def probabilities(self, model: Labeller, examples: Examples, budget: TestBudget = WHOLE) -> dict[int, Tensor]:
        """The label probabilities of each example, by its number, in order: (C,), or (T, C) for its tokens."""
        room = max(self.recipe.train.batch_tokens, 4096)
        return probabilities(model, examples, room, budget.pieces(len(examples.sizes)))

    @abstractmethod
    def simple(self, split: str) -> Mapping[str, Any]:
        """The labels of a split by simple methods, by their names, learned from the training split."""

    def baselines(self) -> list[Score]:
        numbers = self.scored or list(range(self.items("test")))
        return [self.simply(name, found, numbers) for name, found in self.simple("test").items()]

    @abstractmethod
    def simply(self, name: str, found: Any, numbers: Sequence[int]) -> Score:
        """The score of a simple method on these examples of the test split."""

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
    def kinds_of(self, split: str) -> tuple[list[str], np.ndarray]:
        """The labels of a split, and which of them each example has."""
        return self.data.splits[split].labels()

    def classes(self, split: str) -> Counter[str]:
        names, kinds = self.kinds_of(split)
        return Counter(dict(zip(names, np.bincount(kinds, minlength=len(names)).tolist())))

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
        self.unseen(split, self.classes(split), self.labels, "label")
        numbers = {label: number for number, label in enumerate(self.labels)}
        names, kinds = self.kinds_of(split)
        return np.array([numbers[name] for name in names], dtype=np.int64)[kinds]

    def simply(self, name: str, found: Any, numbers: Sequence[int]) -> Score:
        right = int((found[list(numbers)] == self.goals("test")[list(numbers)]).sum())
        return exact_score(
            f"{name} baseline", right, len(numbers), f"{TOLD[name]}|accuracy|split:test|n:{len(numbers)}"
        )

    def judged(self, truth: np.ndarray, found: Mapping[int, Tensor], split: str, what: str) -> list[Score]:
        """The scores of the probabilities (C,) of each example, against its true label."""
        self.scored = list(found)
        table = confusion(truth, [int(p.argmax()) for p in found.values()], len(self.labels))
        scores = label_scores(table, f"|split:{split}")
        about = f"{self.origin(split)}, {split}: {len(truth):,} {what}, {scores[0].value:.1f} % right"
        self.confused = table, self.labels, about
        return scores
