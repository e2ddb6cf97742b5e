"""What one example is: a pair of sentences, a text with its label, a sentence with one tag per word, a question, or an
image with its label or caption."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

READING = 3  # raise it whenever the same files give other examples or other text than before


class SentencePair(NamedTuple):
    """For translation."""

    source: str
    target: str


class LabelledText(NamedTuple):
    """For classification. `second` is the other text where an example is a pair of texts."""

    text: str
    label: str
    second: str | None = None


class TaggedSentence(NamedTuple):
    """For tagging: one tag per word. No word and no tag has a space in it."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


class Question(NamedTuple):
    """For question answering: the answers are pieces of the context. Without any, the context does not tell."""

    question: str
    context: str
    answers: tuple[tuple[int, str], ...] = ()  # where each begins in the context, and its text
    id: str = ""


class LabelledImage(NamedTuple):
    """An image with its label, with its caption, or, if these do not matter, with neither. It says where the image
    is, and does not hold its pixels. Splits are made by a hash of its content, unless they are made by captions."""

    where: str  # its file, and if that holds several, which one
    label: str  # its class, or its caption; "" if it has neither
    content: str  # a hash of what it shows, before it is scaled
    number: int = -1  # in an array of images; -1: it is a file of its own


TextExample = SentencePair | LabelledText | TaggedSentence | Question
Example = TextExample | LabelledImage


class Shape(NamedTuple):
    """The examples of a data set as rows of texts. A field is the number of one of the texts."""

    kind: Any  # the class of the examples; None: a row is a document
    inputs: tuple[int, ...]  # fields that a model reads; by the first one splits are made
    filled: tuple[int, ...]  # fields of which none may be blank

    def example(self, cells: Sequence[str]) -> Any:
        """The inverse of `to_cells`."""
        if self.kind is TaggedSentence:
            return TaggedSentence(*(tuple(cell.split(" ")) for cell in cells))
        if self.kind is Question:
            question, context, answers, id = cells
            return Question(question, context, tuple((start, text) for start, text in json.loads(answers)), id)
        return self.kind(*cells)


SHAPES = {
    "text": Shape(None, (0,), (0,)),
    "pairs": Shape(SentencePair, (0,), (0, 1)),
    "labels": Shape(LabelledText, (0, 2), (0, 1, 2)),
    "tags": Shape(TaggedSentence, (0,), (0, 1)),
    "questions": Shape(Question, (1, 0), (0, 1)),
}


def to_cells(example: TextExample) -> tuple[str, ...]:
    """The example as texts, one per field."""
    if isinstance(example, TaggedSentence):
        return " ".join(example.words), " ".join(example.tags)
    if isinstance(example, Question):
        return example.question, example.context, json.dumps(example.answers, ensure_ascii=False), example.id
    return tuple(text for text in example if text is not None)


def inputs(example: TextExample) -> tuple[str, ...]:
    """The texts that a model reads. The words of a sentence have single spaces between them."""
    cells = to_cells(example)
    fields = next(shape.inputs for shape in SHAPES.values() if shape.kind is type(example))
    return tuple(cells[field] for field in fields if field < len(cells))


def digest(text: str) -> int:
    """A 64-bit hash, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
