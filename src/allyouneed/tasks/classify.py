"""classify: one label for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

from allyouneed.config import option
from allyouneed.data.batches.base import Batch
from allyouneed.data.examples import LabelledText
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.models.labeller import Labeller
from allyouneed.nn.heads import POOLS
from allyouneed.predict.labels import ClassifyProcessor, classify_tokens
from allyouneed.predict.linear import Bags, Linear, WordPairs, best_shares, fit_linear, words_of
from allyouneed.tasks.base import once
from allyouneed.tasks.baselines import classify_baselines
from allyouneed.tasks.labels import OneLabel, TextLabelOptions, TextLabels

WITH_LINEAR = ("rnn", "convnet")  # models that no export has to express


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
