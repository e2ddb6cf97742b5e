"""How texts are laid out for a model: special tokens around them, a pair as one row, long texts in windows."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from allyouneed.errors import UserError


@dataclass(frozen=True)
class Tokens:
    """The tokens of one text: ids; the word each belongs to (-1: white space between words); its characters
    (start, end) in the text."""

    ids: list[int]
    words: list[int]
    spans: list[tuple[int, int]]


@dataclass(frozen=True)
class Laid:
    """One or two texts as the model reads them: ids; segments (0: start, A and what follows A up to and including
    `between`; 1: B and its end); for each token which text it is of (`side`: 0, 1, or -1 for special tokens) and its
    place `at` in the tokens of that text (-1 for special tokens)."""

    ids: list[int]
    segments: list[int]
    side: list[int]
    at: list[int]


@dataclass(frozen=True)
class Layout:
    """The ids around texts: start A between B end; of one text: start A end. `prefix` is what the tokenizer puts before
    a text."""

    start: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    prefix: str = ""

    @staticmethod
    def parse(processor: dict[str, Any] | None) -> Layout:
        """From the post_processor of a tokenizer.json; nothing stands around texts if it names no special token."""
        processor = processor or {}
        kind = processor.get("type")
        if kind == "Sequence":
            found = map(Layout.parse, processor["processors"])
            return next((layout for layout in found if layout != Layout()), Layout())
        if kind in ("BertProcessing", "RobertaProcessing"):
            sep = (processor["sep"][1],)
            return Layout((processor["cls"][1],), sep if kind == "BertProcessing" else 2 * sep, sep)
        if kind != "TemplateProcessing":
            return Layout()
        ids = {name: tuple(token["ids"]) for name, token in processor["special_tokens"].items()}
        start, end, *_ = (*_around(processor["single"], ids), ())
        _, between, *_ = (*_around(processor["pair"], ids), ())
        return Layout(start, between, end)

    def specials(self, texts: int) -> int:
        """How many special tokens stand around one or two texts."""
        return len(self.start) + len(self.end) + (len(self.between) if texts == 2 else 0)

    def cut(self, lengths: Sequence[np.ndarray], most: int) -> list[np.ndarray]:
        """How many tokens of each text stay so that the whole has at most `most`. Of a pair the longer is cut first.

        `lengths`: an array for each text of an example, one or two; one number per example in each.
        """
        texts = len(lengths)
        room = most - self.specials(texts)
        if room < texts:
            raise UserError(
                f"at most {most} tokens are too few: {self.specials(texts)} of them are special tokens, and "
                f"{'the text needs' if texts == 1 else 'two texts need'} {texts} more; raise data.max_length"
            )
        if texts == 1:
            return [np.minimum(lengths[0], room)]
        first, second = lengths
        first = np.minimum(first, np.maximum(room - second, (room + 1) // 2))
        return [first, np.minimum(second, room - first)]

    def lay(self, a: Sequence[int], b: Sequence[int] | None = None, most: int | None = None) -> Laid:
        """One text or two in a row, cut to `most` tokens."""
        texts = [a] if b is None else [a, b]
        if most is not None:
            lengths = self.cut([np.array([len(text)]) for text in texts], most)
            texts = [text[: int(length[0])] for text, length in zip(texts, lengths)]
        # (tokens, segment, side) in order
        parts: list[tuple[Sequence[int], int, int]] = [(self.start, 0, -1), (texts[0], 0, 0)]
        if b is not None:
            parts += [(self.between, 0, -1), (texts[1], 1, 1)]
        parts.append((self.end, len(texts) - 1, -1))
        return Laid(
            ids=[id for tokens, _, _ in parts for id in tokens],
            segments=[segment for tokens, segment, _ in parts for _ in tokens],
            side=[side for tokens, _, side in parts for _ in tokens],
            at=[-1 if side < 0 else place for tokens, _, side in parts for place in range(len(tokens))],
        )

    def windows(self, a: int, b: int, most: int, stride: int) -> list[tuple[int, int]]:
        """A long second text (b tokens) beside a whole first one (a tokens): ranges of the second, each as long as
        fits, the next one `stride` tokens back into the last, or half of what fits if that is less; together all."""
        room = most - self.specials(2) - a
        if room < 1:
            raise UserError(
                f"the first text has {a} tokens: with {self.specials(2)} special tokens no room is left for the second "
                f"in {most}; shorten it, or raise data.max_length"
            )
        step = room - max(0, min(stride, room // 2))
        return [(start, min(start + room, b)) for start in range(0, max(1, b - room + step), step)]


def post_processor(
    start: Sequence[str], between: Sequence[str], end: Sequence[str], ids: Mapping[str, int]
) -> dict[str, Any]:
    """The post_processor of a tokenizer.json that puts these tokens around one text and around two."""

    def special(names: Sequence[str], segment: int) -> list[dict[str, Any]]:
        return [{"SpecialToken": {"id": name, "type_id": segment}} for name in names]

    a, b = ({"Sequence": {"id": name, "type_id": segment}} for segment, name in enumerate("AB"))
    names = (*start, *between, *end)
    return {
        "type": "TemplateProcessing",
        "single": [*special(start, 0), a, *special(end, 0)],
        "pair": [*special(start, 0), a, *special(between, 0), b, *special(end, 1)],
        "special_tokens": {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in names},
    }


def _around(pieces: Sequence[dict[str, Any]], ids: Mapping[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The special tokens before the first text of a template, and after each text."""
    found: list[tuple[int, ...]] = [()]
    for piece in pieces:
        if "Sequence" in piece:
            found.append(())
        else:
            found[-1] += ids[piece["SpecialToken"]["id"]]
    return found


def words_of(spans: Sequence[tuple[int, int]], words: Sequence[tuple[int, int]]) -> list[int]:
    """For each span the number of the first word that it overlaps, -1 if there is none. The words are in order."""
    there = [(number, start, end) for number, (start, end) in enumerate(words) if start < end]
    ends = [end for _, _, end in there]
    found = []
    for start, end in spans:
        next_word = bisect_right(ends, start)
        found.append(there[next_word][0] if next_word < len(there) and there[next_word][1] < end else -1)
    return found


def first_pieces(words: Sequence[int], count: int | None = None) -> list[int]:
    """The index of the first token of each word, from the words of the tokens (`Tokens.words`). There are `count`
    words, or as many as the tokens name; a word without a token has -1."""
    first = [-1] * (max(words, default=-1) + 1 if count is None else count)
    for index in reversed(range(len(words))):
        if words[index] >= 0:
            first[words[index]] = index
    return first
