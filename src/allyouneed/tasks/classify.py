"""classify: one label for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches import Batch
from allyouneed.data.examples import LabelledText
from allyouneed.data.store import Ragged, tokenize_rows
from allyouneed.errors import UserError
from allyouneed.metrics import Score
from allyouneed.models.labeller import Labeller
from allyouneed.nn.heads import POOLS, ClassifyHead
from allyouneed.predict.answers import Answer, Prompt
from allyouneed.tasks.base import Guess, Say, once
from allyouneed.tasks.baselines import classify_baselines
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.labelling import Labelling, LabellingOptions
from allyouneed.tasks.labels import OneLabel
from allyouneed.tasks.linear import Bags, Linear, WordPairs, best_shares, fit_linear, words_of
from allyouneed.tasks.two_texts import BETWEEN, two_texts
from allyouneed.text.words import find_words

WITH_LINEAR = ("rnn", "convnet")  # models that no export has to express


@dataclass(frozen=True)
class ClassifyOptions(LabellingOptions):
    pool: str = option(
        "max", "one vector per text: maximum or mean over its tokens, the last, or the first", choices=POOLS
    )
    linear: bool = option(False, "rnn, convnet: a linear model over words and pairs of words beside the network")


class Classify(OneLabel, Labelling):
    """loss = -log p(label | text); the text of a pair is both texts, joined by the layout."""

    Options = ClassifyOptions
    shape = "labels"
    unit = "text"
    expects = "likely labels of the text up to here (· is a space)"
    pair: bool | None = None  # None: not known before the data is read
    features = 0  # words and pairs of the linear model; 0: not known before it is fitted

    @property
    def chooses_by(self) -> str:  # type: ignore[override]
        """With a linear model, much is right from the start: a loss tells more of small differences."""
        return "loss" if self.options.linear else "accuracy"

    @property
    def asks(self) -> str:  # type: ignore[override]
        either = f"a text, or two with {BETWEEN} between them"
        return either if self.either else f"two texts with {BETWEEN} between them" if self.sides == 2 else "a text"

    @property
    def either(self) -> bool:
        """Whether a text or a pair may be given: a run that was not trained here does not know which it is for."""
        return self.pair is None and not (self.recipe.data.name or self.recipe.data.path)

    @property
    def sides(self) -> int:  # type: ignore[override]
        if self.pair is None and not self.either:
            self.pair = next(iter(next(iter(self.data.splits.values())))).second is not None
        return 2 if self.pair else 1

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
        if not self.options.linear:
            return None
        fitted = None if self.features else self._fitted("train")
        self.features = self.features if fitted is None else len(fitted.keys)
        made = WordPairs(self.features, len(self.tokenizer), len(self.labels))
        if ("_fitted", "train") in self._found:
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
            texts = (example.inputs[side] for example in self.data.splits[split])
            if self.spells:
                found.append(Ragged.of(self._ids(text) for text in texts))
                continue
            key = self.token_key(split, f"text{side}", self.layout.prefix)
            found.append(tokenize_rows(texts, self.tokenizer, key))
        return found

    def ids(self, text: str) -> list[list[int]]:
        return [self._ids(part) for part in self._texts(text)]

    def _ids(self, text: str) -> list[int]:
        if self.spells:
            return self.spelled(text[start:end] for start, end in find_words(text))
        return self.tokenizer.encode(self.layout.prefix + text)

    def head(self, width: int, dropout: float) -> nn.Module:
        return ClassifyHead(width, len(self.labels), self.options.pool, dropout)

    def extras(self) -> dict[str, Any]:
        linear = {"features": self.features} if self.options.linear else {}
        return {**super().extras(), "texts": 0 if self.either else self.sides, **linear}

    def take(self, extras: dict[str, Any]) -> None:
        super().take(extras)
        self.pair = extras["texts"] == 2 if extras["texts"] else None
        self.features = int(extras["features"]) if self.options.linear else 0

    @once
    def simple(self, split: str) -> dict[str, np.ndarray]:
        texts = ([example.inputs for example in self.data.splits[name]] for name in ("train", split))
        return classify_baselines(next(texts), self.goals("train"), next(texts), len(self.labels))

    def test(self, model: Labeller, split: str, decode: DecodeConfig, say: Say, extent: Extent = WHOLE) -> list[Score]:
        """Accuracy and macro-F1."""
        found = self.probabilities(model, self.whole(split, model), extent)
        truth, self.covered = self.goals(split)[list(found)], len(found)
        self._tested = lambda: (
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
        return f" {BETWEEN} ".join(example.inputs), example.label

    def prompt(self, model: Labeller, text: str, decode: DecodeConfig) -> Prompt:
        return self._prompt(model, self._texts(text), self.ids(text))

    def _texts(self, text: str) -> list[str]:
        if self.sides == 1 and not self.either:
            return [text]
        sides = two_texts(text)
        if len(sides) == 1 and not self.either:
            raise UserError(f"this run reads pairs of texts: give two texts with a tab or {BETWEEN} between them")
        return sides

    def answer(self, model: Labeller, texts: list[str]) -> Iterator[Answer]:
        read = [self.ids(text) for text in texts]
        for sides, p in zip(read, self.judge(model, read)):
            yield self.labelled(p, *self.unread(model, sides))

    def table(self, model: Labeller, text: str, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The likely labels if the text (of a pair, the second one) ended after each of its tokens."""
        self.prompt(model, text, decode)
        *first, ids = self.ids(text)
        read = self.judge(model, [[*first, ids[: i + 1]] for i in range(len(ids))])
        return [self.guess(self.token(id), p, most) for id, p in zip(ids, read)]
