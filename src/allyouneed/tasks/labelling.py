"""What classify and tag share: labels that a run keeps, texts read in batches, and no label that training never saw."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed import catalog
from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches import Batch, Labelled, Letters
from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged, tokenize_rows
from allyouneed.errors import UserError
from allyouneed.figures import confusion_matrix
from allyouneed.models.labeller import Labeller
from allyouneed.nn.spelling import spell
from allyouneed.tasks.answers import Answer, Prompt
from allyouneed.tasks.base import Carry, Guess, Moment, Task, once
from allyouneed.text import Tokenizer

FILE = "labels.json"
UNCUT = 1 << 30


@dataclass(frozen=True)
class LabellingOptions:
    smoothing: float = option(0.0, "label smoothing", low=0.0, high=1.0)
    unknown: float = option(
        0.05,
        "part of the tokens hidden as <unk> in training, to learn to read around them (not of words read by letters)",
        low=0.0,
        high=1.0,
    )


class Labelling(Task):
    """loss = -Σ log p(label | text)"""

    Options: ClassVar[type] = LabellingOptions
    weights: ClassVar[dict[str, float]] = {"labels": 1.0}
    labels: list[str]  # in the order of the model's outputs
    confused: tuple[np.ndarray, list[str], str] | None = None  # of the last test: counts, classes, title

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.labels = []

    @property
    def kind(self) -> Any:
        return catalog.model(self.recipe.model_kind)

    @property
    def spelled(self) -> bool:
        """Whether the model reads words by their letters; then a token is a word."""
        return getattr(self.kind, "spelled", False)

    def check(self) -> None:
        super().check()
        if self.spaced and self.recipe.text.kind != "word" and not self.recipe.text.path:
            raise UserError(
                f'here a token is a word: text.kind = "{self.recipe.text.kind}" cannot be, set text.kind=word'
            )

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        text = self.recipe.text
        if text.path:
            return {"tokenizer.json": Tokenizer.load(text.path)}
        texts = (part for example in self.data.splits["train"] for part in self.read(example))
        return {"tokenizer.json": Tokenizer.train(texts, text, spaced=self.spaced)}

    @property
    def spaced(self) -> bool:
        """Whether `read` gives words between single spaces, one token each."""
        return self.spelled

    @abstractmethod
    def read(self, example: Sequence[str]) -> list[str]:
        """The texts of an example as the tokenizer takes them."""

    def model_config(self) -> Any:
        return replace(self.recipe.model, vocab=len(self.tokenizer))

    def build_model(self) -> nn.Module:
        reader = self.kind.Reader(self.model_config())
        return Labeller(reader, self.head(reader.width, getattr(self.recipe.model, "dropout", 0.0)))

    @abstractmethod
    def head(self, width: int, dropout: float) -> nn.Module:
        """From vectors to labels."""

    @property
    def longest(self) -> int:
        """Where examples are cut in training."""
        limit = getattr(self.kind.Reader, "limit", None)
        return min(self.recipe.data.max_length, limit) if isinstance(limit, int) else self.recipe.data.max_length

    @once
    def rows(self, split: str) -> list[Ragged]:
        """The tokens of a split: a Ragged for each text of an example."""
        found = []
        for side in range(self.sides):
            path, mark = self._store(split, f"{self.recipe.task_kind}{side}", self.tokenizer)
            texts = (self.read(example)[side] for example in self.data.splits[split])
            found.append(tokenize_rows(texts, self.tokenizer, path, mark))
        self._check(split, found)
        return found

    def _check(self, split: str, rows: list[Ragged]) -> None:
        """A tokenizer from elsewhere may make nothing of a text, or several tokens of a word."""
        if not len(rows[0]):
            raise UserError(f"the {split} split has no examples; give more data or another data.{split}_part")
        if any(not side.lengths.all() for side in rows):
            raise UserError(f"the {split} split has texts of which the tokenizer makes nothing: take another text.path")
        if self.spaced:
            words = sum(len(text.split(" ")) for example in self.data.splits[split] for text in self.read(example))
            if words != sum(len(side.tokens) for side in rows):
                raise UserError(
                    f"the tokenizer {self.recipe.text.path} does not make one token of each word, as it must here"
                )

    @property
    def sides(self) -> int:
        """Texts of an example."""
        return 1

    @abstractmethod
    def goals(self, split: str) -> np.ndarray | Ragged:
        """The labels of a split, as numbers."""

    def examples(self, split: str, longest: int | None = None) -> Labelled:
        words = ([text.split(" ") for text in self.read(example)] for example in self.data.splits[split])
        return self._labelled(self.rows(split), self.goals(split), words, longest or self.longest)

    def _labelled(
        self, sides: list[Ragged], goals: np.ndarray | Ragged, words: Iterable[list[list[str]]], longest: int
    ) -> Labelled:
        """Texts side by side as one, with their letters where the model reads those."""
        texts = join(sides, self.tokenizer.eos, longest)
        if not self.spelled:
            return Labelled(texts, goals, longest)
        places: dict[str, int] = {"": 0, "</s>": 1}  # "" is no word: padding
        rows = [[[places.setdefault(word, len(places)) for word in side] for side in example] for example in words]
        letters = join([Ragged.of(example[i] for example in rows) for i in range(len(sides))], 1, longest)
        table = spell(list(places), self.recipe.model.letters)
        table[0] = 0
        return Labelled(texts, goals, longest, Letters(letters, table))

    def report(self) -> Report:
        if not self.labels:
            self.labels = self.find_labels()
        lengths = {}
        for split in self.data.splits:
            sides = [side.lengths for side in self.rows(split)]
            lengths[split] = np.sum(sides, axis=0) + len(sides) - 1  # with what stands between two texts
        for split in self.data.splits:
            self.goals(split)  # complains of labels that training has not
        unit = "words" if self.spaced else "tokens"
        return describe(self.data, lengths, self.longest, unit, {split: self.classes(split) for split in lengths})

    @abstractmethod
    def find_labels(self) -> list[str]:
        """From the training data, in a fixed order."""

    @abstractmethod
    def classes(self, split: str) -> Counter[str]:
        """How often each class occurs in a split."""

    def unseen(self, split: str, found: Counter[str], known: Iterable[str], what: str) -> None:
        """Complains of classes that training never saw."""
        strange = {name: count for name, count in found.items() if name not in set(known)}
        if strange:
            told = ", ".join(f"'{name}' ({count:,})" for name, count in sorted(strange.items())[:10])
            more = f" and {len(strange) - 10:,} more" if len(strange) > 10 else ""
            raise UserError(
                f"the {split} split has {len(strange):,} {what}{'s' if len(strange) > 1 else ''} that training never "
                f"saw, in {sum(strange.values()):,} places: {told}{more}; the model cannot learn them: correct them, "
                "give training examples of them, or take them out"
            )

    def parts(self) -> dict[str, bytes]:
        return {**super().parts(), FILE: json.dumps(self.extras(), indent=2, ensure_ascii=False).encode("utf-8")}

    def extras(self) -> dict[str, Any]:
        """What labels.json holds."""
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
        """The inverse of `extras`."""
        self.labels = [str(label) for label in extras["labels"]]

    def losses(
        self, model: Any, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        tensors = {name: t for name, t in batch.tensors.items() if name != "targets"}
        smoothing = 0.0
        if model.training:
            smoothing = self.options.smoothing
            hidden = torch.rand(tensors["ids"].shape, device=tensors["ids"].device) < self.options.unknown
            tensors["ids"] = tensors["ids"].masked_fill(hidden, self.tokenizer.unk)
        return {"labels": model.loss(tensors, batch.tensors["targets"], smoothing)}

    @torch.inference_mode()
    def probabilities(self, model: Any, examples: Labelled) -> list[Tensor]:
        """Of each example, in order: (C,), or (T, C) where each token has a label."""
        found: dict[int, Tensor] = {}
        for numbers in examples.cover(max(self.recipe.train.batch_tokens, 4096)):
            batch = examples.collate(numbers).to(model.device)
            p = model(batch.tensors).float().softmax(-1).cpu()
            for row, number, length in zip(p, numbers.tolist(), batch.tensors["lengths"].tolist()):
                found[number] = row[:length] if row.dim() > 1 else row
        return [found[number] for number in range(len(found))]

    def judge(self, model: Any, sequences: list[tuple[list[int], list[str]]]) -> list[Tensor]:
        """The same for what a person gave: ids, and words where a token is one."""
        texts = Ragged.of(ids for ids, _ in sequences)
        nothing = np.zeros(len(sequences), dtype=np.int64)
        return self.probabilities(model, self._labelled([texts], nothing, ([words] for _, words in sequences), UNCUT))

    def guess(self, token: str, p: Tensor, most: int) -> Guess:
        """The likeliest labels, p (C,)."""
        top = p.topk(min(most, len(p)))
        return Guess(token, [(self.labels[i], value) for i, value in zip(top.indices.tolist(), top.values.tolist())])

    def draw(self, folder: Path, split: str) -> list[Path]:
        """The confusion matrix of the last test."""
        if self.confused is None:
            return []
        table, names, title = self.confused
        out = folder / "confusion.png"
        confusion_matrix(table, names, out, f"{self.origin.removeprefix('data:')}, {title}")
        return [out]

    def predict(
        self, model: Any, inputs: Iterable[str], decode: DecodeConfig, show: Callable[[str], None] | None = None
    ) -> Iterator[Answer]:
        source = iter(inputs)
        while several := list(islice(source, 8 * decode.batch)):
            for text in several:
                self.prompt(model, text, decode)
            yield from self.answer(model, several)

    @abstractmethod
    def answer(self, model: Any, texts: list[str]) -> Iterator[Answer]:
        """The answers to texts that `prompt` found good."""

    def _prompt(self, model: Any, ids: list[int]) -> Prompt:
        if model.limit is not None and len(ids) > model.limit:
            raise UserError(
                f"the text has {len(ids)} tokens, this model's learned positions end at {model.limit}: shorten it"
            )
        return Prompt(ids, 0)


def join(sides: list[Ragged], between: int, longest: int) -> Ragged:
    """Each row's texts as one, `between` between them. What is too long is cut from the longer of two texts first."""
    if len(sides) == 1:
        return sides[0]
    first, second = sides
    room = longest - 1
    keep = np.minimum(first.lengths, np.maximum(room - second.lengths, (room + 1) // 2))
    rest = np.minimum(second.lengths, room - keep)
    return Ragged.of(
        [*first[i][:one].tolist(), between, *second[i][:other].tolist()]
        for i, (one, other) in enumerate(zip(keep, rest))
    )
