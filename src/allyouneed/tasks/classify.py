"""classify: one label for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch
from allyouneed.data.examples import LabelledText, inputs
from allyouneed.data.store import Ragged, tokenize_rows
from allyouneed.errors import UserError
from allyouneed.metrics import Score
from allyouneed.models.labeller import Labeller
from allyouneed.nn.heads import POOLS
from allyouneed.predict.inputs import BETWEEN
from allyouneed.predict.labels import ClassifyProcessor, classify_tokens
from allyouneed.predict.linear import Bags, Linear, WordPairs, best_shares, fit_linear, words_of
from allyouneed.tasks.base import WHOLE, TestBudget, once
from allyouneed.tasks.baselines import classify_baselines
from allyouneed.tasks.labelling import Labelling, LabellingOptions
from allyouneed.tasks.labels import OneLabel
from allyouneed.terminal import Say

WITH_LINEAR = ("rnn", "convnet")  # models that no export has to express


@dataclass(frozen=True)
class ClassifyOptions(LabellingOptions):
    pool: str = option(
        "max", "one vector per text: maximum or mean over its tokens, the last, or the first", choices=POOLS
    )
    linear: bool = option(False, "rnn, convnet: a linear model over words and pairs of words beside the network")


class Classify(ClassifyProcessor, OneLabel, Labelling):
    """loss = -log p(label | text); the text of a pair is both texts, joined by the layout."""

    Options = ClassifyOptions
    shape = "labels"
    unit = "text"

    @property
    def chooses_by(self) -> str:  # type: ignore[override]
        """With a linear model, much is right from the start: a loss tells more of small differences."""
        return "loss" if self.options.linear else "accuracy"

    @property
    def sides(self) -> int:  # type: ignore[override]
        if self.pair is None and not self.either:
            self.pair = next(iter(next(iter(self.data.splits.values())))).second is not None
        return super().sides

    def check_model(self) -> None:
        super().check_model()
        if self.options.linear and self.recipe.model_kind not in WITH_LINEAR:
            raise UserError(
                f"task.linear = true is for the models {' and '.join(WITH_LINEAR)}, not for {self.recipe.model_kind}: "
                "leave it out"
            )

    @once
    def _fitted(self, split: str) -> Linear:
        return fit_linear(self._bags(split), self.goals(split), len(self.labels), even=True)

    def _bags(self, split: str) -> Bags:
        return Bags.of(self.rows(split), words_of(self.tokenizer))

    def base(self) -> WordPairs | None:
        """The linear model, fitted to the training data unless that was done before."""
        if self.options.linear and not self.features:
            self.features = len(self._fitted("train").keys)
        made = super().base()
        if made is not None and ("_fitted", "train") in self._found:
            made.take(self._fitted("train"), words_of(self.tokenizer))
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
        found = []
        for side in range(self.sides):
            texts = self.data.splits[split].texts("second" if side else "text")
            if self.spells:
                found.append(Ragged.of(self.spelling.read(classify_tokens(self, text)) for text in texts))
                continue
            key = self.token_key(split, f"text{side}", self.layout.prefix)
            found.append(tokenize_rows(texts, self.tokenizer, key))
        return found

    @once
    def simple(self, split: str) -> dict[str, np.ndarray]:
        texts = (list(self.data.splits[name].inputs()) for name in ("train", split))
        return classify_baselines(next(texts), self.goals("train"), next(texts), len(self.labels))

    def test(
        self, model: Labeller, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE
    ) -> list[Score]:
        """Accuracy and macro-F1."""
        found = self.probabilities(model, self.whole(split, model), budget)
        truth, self.covered = self.goals(split)[list(found)], len(found)
        self.tested = lambda: (
            self._record(example, found[number])
            for number, example in enumerate(self.data.splits[split])
            if number in found
        )
        return self.judged(truth, found, split, "texts")

    def _record(self, example: LabelledText, p: Tensor) -> dict[str, Any]:
        """An example beside its prediction; p (C,)."""
        texts = {"text": example.text, **({"second": example.second} if example.second is not None else {})}
        label, sure = self.labels[int(p.argmax())], round(float(p.max()), 6)
        return {**texts, "prediction": label, "reference": example.label, "probability": sure}

    def question(self, example: LabelledText) -> tuple[str, str]:
        return f" {BETWEEN} ".join(inputs(example)), example.label
