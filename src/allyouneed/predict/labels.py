"""classify and tag: labels of texts, and of their words."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.batch import Tensors
from allyouneed.config import DecodeConfig
from allyouneed.data.batches.base import Examples
from allyouneed.data.batches.labelled import Labelled
from allyouneed.data.formats.conll import PER_WORD, Span, spans, tagged
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.models.labeller import Labeller
from allyouneed.nn.heads import ClassifyHead, TagHead
from allyouneed.nn.spelling import spell
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import ALL_HEADS, Guess, Predictor, Said, Without, best_of
from allyouneed.predict.inputs import BETWEEN, check_numbers, two_texts, unknown_words
from allyouneed.predict.linear import WordPairs
from allyouneed.predict.processor import Processor
from allyouneed.text.layout import Layout, Tokens, first_pieces
from allyouneed.text.word_boundaries import WordCutter, WordText, find_words

UNCUT = 1 << 30
PADDING, SEPARATOR = "", "</s>"  # the first two rows of the table of letters


class LabelsProcessor(Processor):
    """What classify, tag and recognize share."""

    file = "labels.json"
    labels: list[str]  # in the order of the model's outputs

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.labels = []

    def extras(self) -> dict[str, Any]:
        return {"labels": self.labels}

    def take(self, extras: dict[str, Any]) -> None:
        self.labels = [str(label) for label in extras["labels"]]

    def same_outputs(self, other: Processor) -> bool:
        return isinstance(other, LabelsProcessor) and other.labels == self.labels


class Spelling:
    """The rows of words in a table of letters, for a body that reads letters; new words are added."""

    def __init__(self) -> None:
        self.rows: dict[str, int] = {PADDING: 0, SEPARATOR: 1}

    def read(self, words: Iterable[str]) -> list[int]:
        return [self.rows.setdefault(word, len(self.rows)) for word in words]

    def table(self, letters: int) -> np.ndarray:
        found = spell(list(self.rows), letters)
        found[0] = 0
        return found


class TextLabelsProcessor(LabelsProcessor):
    """What classify and tag share."""

    @property
    def spells(self) -> bool:
        """Whether the body reads words by their letters; then no tokenizer is needed, and a token is a word."""
        return bool(self.kind.BodyClass.spelled)

    def take_tokenizers(self, donor: Processor) -> None:
        if not self.spells:
            super().take_tokenizers(donor)

    @property
    def layout(self) -> Layout:
        return Layout(between=(1,)) if self.spells else super().layout

    def model_config(self) -> Any:
        return self.recipe.model if self.spells else super().model_config()

    def build_model(self) -> Labeller:
        config = self.model_config()
        body, reader = self.build_body(), self.kind.make_reader(config)
        return Labeller(body, self.head((reader or body).width, config.dropout), reader, base=self.base())

    @abstractmethod
    def head(self, width: int, dropout: float) -> nn.Module:
        """The head: vectors (…, width) -> label scores."""

    def base(self) -> nn.Module | None:
        """A model whose scores are added to those of the network, if there is one."""
        return None

    def batches(
        self,
        sides: Sequence[Ragged],
        goals: np.ndarray | Ragged,
        longest: int,
        spelling: Spelling,
        hidden: float = 0.0,
        weights: np.ndarray | None = None,
    ) -> Labelled:
        """Texts with their labels, cut to so many tokens; `hidden` is the part of the tokens that become unknown."""
        if not self.spells:
            unknown = self.tokenizer.unk
            return Labelled(sides, goals, self.layout, longest, unknown=unknown, hidden=hidden, weights=weights)
        letters = spelling.table(self.recipe.model.letters)
        return Labelled(sides, goals, self.layout, longest, letters=letters, weights=weights)


class ClassifyProcessor(TextLabelsProcessor):
    pair: bool | None = None  # None: not known before the data is read
    features = 0  # words and pairs of the linear model; 0: not known before it is fitted

    @property
    def either(self) -> bool:
        """Whether a text or a pair may be given: a run that was not trained here does not know which it is for."""
        return self.pair is None and not (self.recipe.data.name or self.recipe.data.path)

    @property
    def sides(self) -> int:  # type: ignore[override]
        return 2 if self.pair else 1

    def head(self, width: int, dropout: float) -> nn.Module:
        return ClassifyHead(width, len(self.labels), self.options.pool, dropout)

    def base(self) -> WordPairs | None:
        if not self.options.linear:
            return None
        return WordPairs(self.features, len(self.tokenizer), len(self.labels))

    def extras(self) -> dict[str, Any]:
        linear = {"features": self.features} if self.options.linear else {}
        return {**super().extras(), "texts": 0 if self.either else self.sides, **linear}

    def take(self, extras: dict[str, Any]) -> None:
        super().take(extras)
        self.pair = extras["texts"] == 2 if extras["texts"] else None
        self.features = int(extras["features"]) if self.options.linear else 0


@torch.inference_mode()
def probabilities(model: Labeller, examples: Examples, room: int, pieces: Iterable[np.ndarray]) -> dict[int, Tensor]:
    """The label probabilities of each example of these pieces, by its number, in order: (C,), or (T, C) for its
    tokens. `room` is the most tokens of a batch."""
    found: dict[int, Tensor] = {}
    for piece in pieces:
        for numbers in examples.cover(room, piece):
            batch = examples.collate(numbers).to(model.device)
            p = check_numbers(model(batch.tensors).float()).softmax(-1).cpu()
            for row, number, length in zip(p, numbers.tolist(), batch.tensors["lengths"].tolist()):
                found[number] = row[:length] if row.dim() > 1 else row
    return dict(sorted(found.items()))


class LabelsPredictor(Predictor):
    """What classify, tag and recognize share."""

    processor: LabelsProcessor
    model: Labeller

    @property
    def labels(self) -> list[str]:
        return self.processor.labels

    @property
    def room(self) -> int:
        """The most tokens of a batch."""
        return max(self.recipe.train.batch_tokens, 4096)

    def guess(self, token: str, p: Tensor, most: int) -> Guess:
        """The likely labels of a token, up to `most` of them; p (C,)."""
        return Guess(token, [(self.labels[i], value) for i, value in best_of(p, most)])

    def says(self, given: Any, decode: DecodeConfig, without: Without = ALL_HEADS) -> list[Said]:
        if not self.labels:
            return []
        logits, name = self._logits(given, decode, without), self.labels.__getitem__
        p = logits.value.softmax(-1)
        return [Said("", p, name)] if p.dim() == 1 else [Said(*one, name) for one in zip(logits.axes[0].labels, p)]

    def labelled(self, p: Tensor, further: Mapping[str, Any], note: str = "") -> Answer:
        """The answer that these probabilities (C,) give, with `further` details and a note for the terminal."""
        best = int(p.argmax())
        label, sure = self.labels[best], float(p[best])
        details = {
            "label": label,
            "probability": round(sure, 6),
            "probabilities": {name: round(value, 6) for name, value in zip(self.labels, p.tolist())},
            **further,
        }
        shown = f"{label}  {100 * sure:.1f} %{note}"
        return Answer(label, [best], float(p[best].log()), "stop", details=details, shown=shown)


class Texts(NamedTuple):
    """A text, or the two of a pair, as their tokens: ids, or words for a body that reads letters."""

    given: str
    tokens: list[list[Any]]
    spans: Sequence[tuple[int, int]] = ()  # tag: start and end of each word
    pieces: Tokens | None = None  # tag: the tokens by word
    unknown: Sequence[str] = ()


class TextLabelsPredictor(LabelsPredictor):
    """What classify and tag share."""

    processor: TextLabelsProcessor

    def _checked(self, texts: Sequence[str], read: Texts) -> Texts:
        """Raise a UserError for an empty text. All of its words may be unknown, as in a test."""
        if not all(text.strip() for text in texts) or not all(read.tokens):
            raise UserError("the text is empty: give some words")
        return read

    def unknown(self, given: Texts) -> Sequence[str]:
        return given.unknown

    def size(self, given: Texts) -> tuple[int, ...]:
        return tuple(map(len, given.tokens))

    def _batches(self, texts: Sequence[Texts]) -> Labelled:
        """Inputs as batches; all of them have one text, or all have two."""
        spelling = Spelling()
        read = spelling.read if self.processor.spells else list
        sides = [Ragged.of(read(text.tokens[side]) for text in texts) for side in range(len(texts[0].tokens))]
        goals, longest = np.zeros(len(texts), dtype=np.int64), self.model.limit or UNCUT
        return self.processor.batches(sides, goals, longest, spelling)

    def label_probabilities(self, texts: Sequence[Texts]) -> list[Tensor]:
        """The label probabilities of each text."""
        found: dict[int, Tensor] = {}
        for sides in {len(text.tokens) for text in texts}:
            numbers = [number for number, text in enumerate(texts) if len(text.tokens) == sides]
            batches = self._batches([texts[number] for number in numbers])
            read = probabilities(self.model, batches, self.room, [np.arange(len(numbers))])
            found |= dict(zip(numbers, read.values()))
        return [found[number] for number in range(len(texts))]

    def unread(self, text: Texts) -> tuple[dict[str, int], str]:
        """How many tokens of a text are beyond the limit of the model, for --json and for the terminal."""
        tokens, limit = sum(map(len, text.tokens)) + self.processor.layout.specials(len(text.tokens)), self.model.limit
        beyond = max(0, tokens - limit) if limit is not None else 0
        return ({"unread": beyond}, f"  ({beyond:,} of {tokens:,} tokens were not read)") if beyond else ({}, "")

    def _tensors(self, given: Texts) -> Tensors:
        return self._batches([given]).collate(np.arange(1)).to(self.model.device).tensors

    def _names(self, given: Texts, tensors: Tensors) -> list[str]:
        first, *second = given.tokens
        words = [*first, *(word for side in second for word in (SEPARATOR, *side))]
        return words if self.processor.spells else super()._names(given, tensors)


class ClassifyPredictor(TextLabelsPredictor):
    Processor = ClassifyProcessor
    table_heading: ClassVar[str] = "likely labels of the text up to here (· is a space)"
    processor: ClassifyProcessor

    @property
    def asks(self) -> str:  # type: ignore[override]
        either = f"a text, or two with {BETWEEN} between them"
        pair = f"two texts with {BETWEEN} between them"
        return either if self.processor.either else pair if self.processor.sides == 2 else "a text"

    def read(self, given: str, decode: DecodeConfig) -> Texts:
        pair, either = self.processor.sides == 2, self.processor.either
        texts = two_texts(given) if pair or either else [given]
        if pair and len(texts) == 1:
            raise UserError(f"this run reads pairs of texts: give two texts with a tab or {BETWEEN} between them")
        tokens, prefix = [classify_tokens(self.processor, text) for text in texts], self.processor.layout.prefix
        read = ((prefix + text, ids) for text, ids in zip(texts, tokens))
        unknown = () if self.processor.spells else unknown_words(self.tokenizer, *read)
        return self._checked(texts, Texts(given, tokens, unknown=unknown))

    def _answer(self, inputs: list[Texts], decode: DecodeConfig) -> Iterator[Answer]:
        for text, p in zip(inputs, self.label_probabilities(inputs)):
            yield self.labelled(p, *self.unread(text))

    def table(self, given: Texts, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The likely labels if the text (of a pair, the second one) ended after each of its tokens."""
        *first, tokens = given.tokens
        with self.lock:
            read = self.label_probabilities([Texts("", [*first, tokens[: i + 1]]) for i in range(len(tokens))])
        names = tokens if self.processor.spells else [self.tokenizer.token(id) for id in tokens]
        return [self.guess(name, p, most) for name, p in zip(names, read)]


def classify_tokens(processor: ClassifyProcessor, text: str) -> list[Any]:
    """The ids of a text, or its words for a body that reads letters."""
    if processor.spells:
        return [text[start:end] for start, end in find_words(text)]
    return processor.tokenizer.encode(processor.layout.prefix + text)


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
    table_heading: ClassVar[str] = "likely tags"
    processor: TagProcessor

    def accept(self, given: Sequence[str]) -> str:
        return WordText.of(given)

    def word_spans(self, text: str) -> list[tuple[int, int]]:
        return text.spans if isinstance(text, WordText) else self.processor.cutter.find(text)

    def tokenize_words(self, text: str, spans: Sequence[tuple[int, int]]) -> Tokens:
        return self.tokenizer.tokenize_words([[text[start:end] for start, end in spans]])[0]

    def unknown_among(self, text: str, spans: Sequence[tuple[int, int]], ids: Sequence[int]) -> tuple[str, ...]:
        return super().unknown_among(" ".join(text[start:end] for start, end in spans), spans, ids)

    def read(self, given: str, decode: DecodeConfig) -> Texts:
        spans = self.word_spans(given)
        if self.processor.spells:
            return self._checked([given], Texts(given, [[given[start:end] for start, end in spans]], spans))
        pieces = self.tokenize_words(given, spans)
        unknown = self.unknown_among(given, spans, pieces.ids)
        return self._checked([given], Texts(given, [pieces.ids], spans, pieces, unknown))

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
