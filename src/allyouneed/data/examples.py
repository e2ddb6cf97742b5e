"""What one example is: a pair of sentences, a text with its label, or a sentence with a tag for each word."""

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


Example = SentencePair | LabelledText | TaggedSentence
