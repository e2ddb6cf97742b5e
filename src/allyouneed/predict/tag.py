"""tag: each word of a text gets a tag, which marks an entity or a part of speech."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from allyouneed.config import DecodeConfig
from allyouneed.data.formats.conll import PER_WORD, Span, spans, tagged
from allyouneed.nn.heads import TagHead
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import Guess
from allyouneed.predict.labels import TextLabelsPredictor, TextLabelsProcessor, Texts
from allyouneed.text.layout import Tokens, first_pieces
from allyouneed.text.word_boundaries import WordCutter, WordText

SCHEME = "IOB2"  # of the entities of the model; a file may have another


class TagProcessor(TextLabelsProcessor):
    scheme = SCHEME  # of the training data, and of the answers
    cutter = WordCutter()  # as the training data is cut into words

    def head(self, width: int, dropout: float) -> nn.Module:
        return TagHead(width, len(self.labels), dropout)

    def extras(self) -> dict[str, Any]:
        return {**super().extras(), "scheme": self.scheme, "words": self.cutter.to_dict()}

    def take(self, extras: dict[str, Any]) -> None:
        super().take(extras)
        self.scheme = str(extras["scheme"])
        self.cutter = WordCutter.parse(extras["words"]) if "words" in extras else WordCutter()

    def found(self, p: Tensor) -> list[Span]:
        """The predicted entities of a sentence; p (words, C)."""
        return spans([self.labels[i] for i in p.argmax(-1).tolist()])

    def tags(self, p: Tensor) -> list[str]:
        """The predicted tags of a sentence, in the scheme of the training data; p (words, C)."""
        if self.scheme == PER_WORD:
            return [self.labels[i] for i in p.argmax(-1).tolist()]
        return tagged(self.found(p), len(p), self.scheme)

    def by_word(self, p: Tensor, tokens: Tokens | None, words: int) -> Tensor:
        """Tag probabilities of tokens (T, C) -> of words (words, C), those of the first token of each word. A word
        that was cut off or has no token gets the tag O, or the first tag."""
        if tokens is None:
            at = [i if i < len(p) else -1 for i in range(words)]
        else:
            shift, room = len(self.layout.start), len(p) - self.layout.specials(1)
            at = [i + shift if 0 <= i < room else -1 for i in first_pieces(tokens.words, words)]
        outside = torch.zeros(1, p.size(-1))
        outside[0, 0 if self.scheme == PER_WORD else self.labels.index("O")] = 1
        return torch.cat([p, outside])[at]


class TagPredictor(TextLabelsPredictor):
    Processor = TagProcessor
    asks = "a text"
    expects: ClassVar[str] = "likely tags"
    processor: TagProcessor

    def joined(self, words: Sequence[str]) -> str:
        return WordText.of(words)

    def word_spans(self, text: str) -> list[tuple[int, int]]:
        return text.spans if isinstance(text, WordText) else self.processor.cutter.find(text)

    def tokenize_words(self, text: str, spans: Sequence[tuple[int, int]]) -> Tokens:
        return self.tokenizer.tokenize_words([[text[start:end] for start, end in spans]])[0]

    def read(self, given: str, decode: DecodeConfig) -> Texts:
        spans = self.word_spans(given)
        words = [given[start:end] for start, end in spans]
        pieces = None if self.processor.spells else self.tokenizer.tokenize_words([words])[0]
        return self._checked([given], Texts(given, [words if pieces is None else pieces.ids], spans, pieces))

    def _tag_probabilities(self, inputs: Sequence[Texts]) -> Iterator[Tensor]:
        """The tag probabilities (words, C) of each text."""
        for text, p in zip(inputs, self.label_probabilities(inputs)):
            yield self.processor.by_word(p, text.pieces, len(text.spans))

    def _answer(self, inputs: list[Texts], decode: DecodeConfig) -> Iterator[Answer]:
        for read, p in zip(inputs, self._tag_probabilities(inputs)):
            text, best, (unread, note) = read.given, p.max(-1), self.unread(read)
            words, tags = [text[start:end] for start, end in read.spans], self.processor.tags(p)
            marked, entities = " ".join(f"{word}/{tag}" for word, tag in zip(words, tags)), dict[str, Any]()
            if self.processor.scheme != PER_WORD:
                entities = {"entities": named(text, read.spans, self.processor.found(p))}
                marked = mark(text, entities["entities"])
            details = {"text": marked, **entities, "words": words, "tags": tags, **unread}
            sure = float(best.values.log().sum())
            yield Answer(marked, best.indices.tolist(), sure, "stop", details=details, shown=marked + note)

    def table(self, given: Texts, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        with self.lock:
            (read,) = self._tag_probabilities([given])
        return [self.guess(given.given[start:end], p, most) for (start, end), p in zip(given.spans, read)]


def named(text: str, spans: Sequence[tuple[int, int]], entities: Sequence[Span]) -> list[dict[str, Any]]:
    """Entities with their text and where it is."""
    return [
        {"type": span.kind, "text": text[start:end], "start": start, "end": end}
        for span in entities
        for start, end in [(spans[span.start][0], spans[span.end - 1][1])]
    ]


def mark(text: str, entities: Sequence[dict[str, Any]]) -> str:
    """The text with its entities in brackets: [Ada Lovelace person] went to [London place]."""
    pieces, at = [], 0
    for entity in entities:
        pieces += [text[at : entity["start"]], f"[{entity['text']} {entity['type']}]"]
        at = entity["end"]
    return "".join([*pieces, text[at:]])
