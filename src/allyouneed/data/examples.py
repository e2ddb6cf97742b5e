"""What one example is: a pair of sentences, a text with its label, a sentence with one tag per word, a question, or a
picture with its label or caption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

READING = 3  # raise it whenever the same files give other examples or other text than before


class SentencePair(NamedTuple):
    """For translation."""

    source: str
    target: str

    @property
    def cells(self) -> tuple[str, ...]:
        """As texts, one per field."""
        return self

    @classmethod
    def of(cls, cells: Sequence[str]) -> Self:
        return cls(*cells)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The texts that a model reads."""
        return (self.source,)

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that is written in the example; nothing of it may be blank."""
        return self


class LabelledText(NamedTuple):
    """For classification. `second` is the other text where an example is a pair of texts."""

    text: str
    label: str
    second: str | None = None

    @property
    def cells(self) -> tuple[str, ...]:
        """As texts, one per field."""
        return (self.text, self.label) if self.second is None else (self.text, self.label, self.second)

    @classmethod
    def of(cls, cells: Sequence[str]) -> Self:
        return cls(*cells)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The texts that a model reads."""
        return (self.text,) if self.second is None else (self.text, self.second)

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that is written in the example; nothing of it may be blank."""
        return (*self.inputs, self.label)


class TaggedSentence(NamedTuple):
    """For tagging: one tag per word. No word and no tag has a space in it."""

    words: tuple[str, ...]
    tags: tuple[str, ...]

    @property
    def cells(self) -> tuple[str, ...]:
        """As texts, one per field."""
        return " ".join(self.words), " ".join(self.tags)

    @classmethod
    def of(cls, cells: Sequence[str]) -> Self:
        return cls(*(tuple(cell.split(" ")) for cell in cells))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The texts that a model reads: the words with single spaces between them."""
        return (" ".join(self.words),)

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that is written in the example; nothing of it may be blank."""
        return self.cells


class Question(NamedTuple):
    """For question answering: the answers are pieces of the context. Without any, the context does not tell."""

    question: str
    context: str
    answers: tuple[tuple[int, str], ...] = ()  # where each begins in the context, and its text
    id: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """As texts, one per field."""
        return self.question, self.context, json.dumps(self.answers, ensure_ascii=False), self.id

    @classmethod
    def of(cls, cells: Sequence[str]) -> Self:
        question, context, answers, id = cells
        return cls(question, context, tuple((start, text) for start, text in json.loads(answers)), id)

    @property
    def inputs(self) -> tuple[str, ...]:
        """The texts that a model reads. The context comes first: splits are made by a hash of it."""
        return (self.context, self.question)

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that may not be blank; there may be no answer."""
        return self.inputs


class LabelledPicture(NamedTuple):
    """A picture with its label, with its caption, or, if these do not matter, with neither. It says where the picture
    is, and does not hold its pixels."""

    where: str  # its file, and if that holds several, which one
    label: str  # its class, or its caption; "" if it has neither
    content: str  # a hash of what it shows, before it is scaled
    number: int = -1  # in an array of pictures; -1: it is a file of its own

    @property
    def inputs(self) -> tuple[str, ...]:
        """What tells pictures apart: splits are made by a hash of it, unless they are made by captions."""
        return (self.content,)

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that may not be blank, if the label matters."""
        return (self.content, self.label)


TextExample = SentencePair | LabelledText | TaggedSentence | Question
Example = TextExample | LabelledPicture


class Shape(NamedTuple):
    """The examples of a data set as rows of texts. A field is the number of one of the texts."""

    kind: Any  # the class of the examples; None: a row is a document
    inputs: tuple[int, ...]  # fields that a model reads; by the first one splits are made
    filled: tuple[int, ...]  # fields of which none may be blank


SHAPES = {
    "text": Shape(None, (0,), (0,)),
    "pairs": Shape(SentencePair, (0,), (0, 1)),
    "labels": Shape(LabelledText, (0, 2), (0, 1, 2)),
    "tags": Shape(TaggedSentence, (0,), (0, 1)),
    "questions": Shape(Question, (1, 0), (0, 1)),
}


def is_blank(example: Example) -> bool:
    """Whether some part of it is blank, so that it is dropped."""
    return not all(text.strip() for text in example.texts)


def digest(text: str) -> int:
    """A 64-bit hash, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
