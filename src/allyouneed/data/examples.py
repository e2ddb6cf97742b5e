"""What one example is: a pair of sentences, a text with its label, a sentence with one tag per word, a question, or a
picture with its label or caption."""

from __future__ import annotations

from typing import NamedTuple


class SentencePair(NamedTuple):
    """For translation."""

    source: str
    target: str

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
    def inputs(self) -> tuple[str, ...]:
        """The texts that a model reads: the words with single spaces between them."""
        return (" ".join(self.words),)

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that is written in the example; nothing of it may be blank."""
        return (" ".join(self.words), " ".join(self.tags))


class Question(NamedTuple):
    """For question answering: the answers are pieces of the context. Without any, the context does not tell."""

    question: str
    context: str
    answers: tuple[tuple[int, str], ...] = ()  # where each begins in the context, and its text
    id: str = ""

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


Example = SentencePair | LabelledText | TaggedSentence | Question | LabelledPicture
