"""classify: one label for a text, or for a pair of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn

from allyouneed.config import DecodeConfig, option
from allyouneed.data.examples import LabelledText
from allyouneed.data.store import Ragged, tokenize_rows
from allyouneed.errors import UserError
from allyouneed.metrics import Score, confusion, label_scores
from allyouneed.models.labeller import Labeller
from allyouneed.nn.heads import POOLS, ClassifyHead
from allyouneed.tasks.answers import Answer, Prompt
from allyouneed.tasks.base import Guess, Say, once
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.labelling import Labelling, LabellingOptions
from allyouneed.tasks.two_texts import BETWEEN, two_texts
from allyouneed.text.words import find_words


@dataclass(frozen=True)
class ClassifyOptions(LabellingOptions):
    pool: str = option(
        "max", "one vector per text: maximum or mean over its tokens, the last, or the first", choices=POOLS
    )


class Classify(Labelling):
    """loss = -log p(label | text); the text of a pair is both texts, joined by the layout."""

    Options = ClassifyOptions
    shape = "labels"
    unit = "text"
    chooses_by = "accuracy"
    expects = "likely labels of the text up to here (· is a space)"
    pair: bool | None = None  # None: not known before the data is read

    @property
    def asks(self) -> str:  # type: ignore[override]
        return f"two texts with {BETWEEN} between them" if self.sides == 2 else "a text"

    @property
    def sides(self) -> int:  # type: ignore[override]
        if self.pair is None:
            self.pair = next(iter(self.data.splits["train"])).second is not None
        return 2 if self.pair else 1

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

    @once
    def classes(self, split: str) -> Counter[str]:
        return Counter(example.label for example in self.data.splits[split])

    def find_labels(self) -> list[str]:
        found = self.classes("train")
        if len(found) < 2:
            raise UserError(f"all training texts have the label '{next(iter(found))}': at least two labels are needed")
        if len(found) > 20 and 2 * len(found) > found.total():
            first = ", ".join(f"'{label}'" for label in list(found)[:3])
            raise UserError(
                f"{found.total():,} training texts have {len(found):,} different labels ({first}, …): is this the "
                "label column? choose it with data.target, and the column of the texts with data.source"
            )
        # Numbers first, in numeric order; compared by length and digits, because `int` refuses very long ones.
        digits = {label: len(label.lstrip("0")) if label.isdecimal() else 0 for label in found}
        return sorted(found, key=lambda label: (not label.isdecimal(), digits[label], label))

    @once
    def goals(self, split: str) -> np.ndarray:
        self.unseen(split, self.classes(split), self.labels, "label")
        numbers = {label: number for number, label in enumerate(self.labels)}
        return np.fromiter((numbers[example.label] for example in self.data.splits[split]), dtype=np.int64)

    def extras(self) -> dict[str, Any]:
        return {**super().extras(), "texts": self.sides}

    def take(self, extras: dict[str, Any]) -> None:
        super().take(extras)
        self.pair = extras["texts"] == 2

    def test(self, model: Labeller, split: str, decode: DecodeConfig, say: Say, extent: Extent = WHOLE) -> list[Score]:
        """Accuracy and macro-F1."""
        found = self.probabilities(model, self.whole(split, model), extent)
        truth, self.covered = self.goals(split)[list(found)], len(found)
        self._tested = lambda: (
            self._record(example, found[number])
            for number, example in enumerate(self.data.splits[split])
            if number in found
        )
        table = confusion(truth, [int(p.argmax()) for p in found.values()], len(self.labels))
        scores = label_scores(table, f"|split:{split}")
        about = f"{self.origin(split)}, {split}: {len(truth):,} texts, {scores[0].value:.1f} % right"
        self.confused = table, self.labels, about
        return scores

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
        if self.sides == 1:
            return [text]
        sides = two_texts(text)
        if len(sides) == 1:
            raise UserError(f"this run reads pairs of texts: give two texts with a tab or {BETWEEN} between them")
        return sides

    def answer(self, model: Labeller, texts: list[str]) -> Iterator[Answer]:
        read = [self.ids(text) for text in texts]
        for sides, p in zip(read, self.judge(model, read)):
            best, (unread, told) = int(p.argmax()), self.unread(model, sides)
            label, sure = self.labels[best], float(p[best])
            details = {
                "label": label,
                "probability": round(sure, 6),
                "probabilities": {name: round(value, 6) for name, value in zip(self.labels, p.tolist())},
                **unread,
            }
            shown = f"{label}  {100 * sure:.1f} %{told}"
            yield Answer(label, [best], float(p[best].log()), "stop", details=details, shown=shown)

    def table(self, model: Labeller, text: str, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The likely labels if the text (of a pair, the second one) ended after each of its tokens."""
        self.prompt(model, text, decode)
        *first, ids = self.ids(text)
        read = self.judge(model, [[*first, ids[: i + 1]] for i in range(len(ids))])
        return [self.guess(self.token(id), p, most) for id, p in zip(ids, read)]
