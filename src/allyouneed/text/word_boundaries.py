"""The words of running text, where they stand: by a plain rule, or as the training data of a tagger has them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from allyouneed.errors import UserError

# A word may have hyphens and dots inside (well-known, 3.5, bit.ly) and a mark before it (@name, #topic); the short
# endings of English ('s, 'll) are words; so is any other character that is not white space.
WORD = re.compile(r"[@#]?\w+(?:[-.]\w+)*|['’](?:s|m|d|t|re|ve|ll)\b|\S")

# What is written with no space after it, or with none before it: marks, and short words such as l' and n't.
OPENING, CLOSING = frozenset("([{<\"'“‘«¿¡$£€"), frozenset(".,;:!?)]}>\"'”’»…%")
ENDINGS = frozenset(mark + letters for mark in "'’" for letters in ("s", "m", "d", "t", "re", "ve", "ll"))
BEGINNING, ENDING = re.compile(r"\w+['’]"), re.compile(r"n?['’]\w+", re.IGNORECASE)
# Marks between letters, or between a letter and a digit. Between digits they belong to a number: 1,000 or 10:30.
INSIDE = re.compile(r"(?<=[^\W\d])[^\w\s]+(?=\w)|(?<=\w)[^\w\s]+(?=[^\W\d])")
LINK = re.compile(r"(?:https?:|www\.)\S", re.IGNORECASE)
LONGEST_AFFIX, LONGEST_WORD = 8, 100  # characters, of what is looked up

Span = tuple[int, int]  # start and end, in characters


def find_words(text: str) -> list[Span]:
    """The span of each word; between them is white space or nothing."""
    return [found.span() for found in WORD.finditer(text)]


def unbroken(word: str) -> str:
    """A word as it stands among others. A space in it would end it; a no-break space looks the same."""
    return word.strip().replace(" ", "\N{NO-BREAK SPACE}")


class WordText(str):
    """A text that is given as its words: they stand between single spaces, and are not cut again."""

    @staticmethod
    def of(words: Sequence[str]) -> WordText:
        if not words:
            raise UserError("the text is an empty list: give its words")
        strange = [word for word in words if not isinstance(word, str) or not word.strip()]
        if strange:
            raise UserError(f"{strange[0]!r} is not a word: a text is a string, or a list of words, which are strings")
        return WordText(" ".join(map(unbroken, words)))

    @property
    def spans(self) -> list[Span]:
        return [found.span() for found in re.finditer("[^ ]+", self)]


@dataclass(frozen=True)
class WordCutter:
    """Cuts a text into words as its training data is cut.

    What stands between spaces is a word, without the marks and endings at its sides that are words of their own.
    Inside, it is cut at marks that no training word has there. A training word, a number and a link are not cut.
    """

    before: frozenset[str] = OPENING  # cut off before a word
    after: frozenset[str] = CLOSING | ENDINGS  # cut off after a word
    joins: frozenset[str] = frozenset("-.")  # marks that may stand inside a word
    whole: frozenset[str] = frozenset()  # training words that the rule would cut: "U.S.", ":)"

    @staticmethod
    def learn(sentences: Iterable[Sequence[str]]) -> WordCutter:
        """From the words of the training data. A mark or an ending is cut off, unless more different words have it than
        times it stands alone."""
        counts = Counter(word for words in sentences for word in words)
        before = OPENING.union(word for word in counts if OPENING.issuperset(word) or BEGINNING.fullmatch(word))
        after = WordCutter.after.union(word for word in counts if CLOSING.issuperset(word) or ENDING.fullmatch(word))
        sizes = range(1, LONGEST_AFFIX + 1)
        longer = [word for word in counts if re.search(r"\w", word)]
        begin = Counter(word[:size] for word in longer for size in sizes if size < len(word))
        end = Counter(word[-size:] for word in longer for size in sizes if size < len(word))
        cutter = WordCutter(
            before=frozenset(word for word in before if counts[word] >= begin[word]),
            after=frozenset(word for word in after if counts[word] >= end[word]),
            joins=WordCutter.joins.union(*(INSIDE.findall(word) for word in counts if not LINK.match(word))),
        )
        return replace(cutter, whole=frozenset(word for word in counts if len(cutter._cut(word, 0, len(word))) > 1))

    def find(self, text: str) -> list[Span]:
        """The span of each word. A text in which a comma or a full stop stands alone is already cut, unless a mark is
        to be cut off at its end."""
        pieces = [found.span() for found in re.finditer(r"\S+", text)]
        cut = [self._cut(text, start, end) for start, end in pieces]
        if cut and len(cut[-1]) == 1 and any(text[start:end] in (".", ",") for start, end in pieces):
            return pieces
        return [span for spans in cut for span in spans]

    def _cut(self, text: str, start: int, end: int) -> list[Span]:
        """The words of what stands between two spaces."""
        if text[start:end].isalnum() or LINK.match(text, start, end):
            return [(start, end)]
        left: list[Span] = []
        right: list[Span] = []
        while not self._is_word(text, start, end):
            sizes = range(min(LONGEST_AFFIX, end - start - 1), 0, -1)
            if size := next((size for size in sizes if text[start : start + size] in self.before), 0):
                left.append((start, start + size))
                start += size
            elif size := next((size for size in sizes if text[end - size : end] in self.after), 0):
                right.append((end - size, end))
                end -= size
            else:
                marks = [] if LINK.match(text, start, end) else INSIDE.finditer(text, start, end)
                for found in marks:
                    if found[0] not in self.joins:
                        left += [(start, found.start()), found.span()]
                        start = found.end()
                break
        return [*left, (start, end), *reversed(right)]

    def _is_word(self, text: str, start: int, end: int) -> bool:
        piece = text[start : min(end, start + LONGEST_WORD)]
        return start + len(piece) == end and any(piece in words for words in (self.whole, self.before, self.after))

    def to_dict(self) -> dict[str, list[str]]:
        return {field.name: sorted(getattr(self, field.name)) for field in fields(self)}

    @staticmethod
    def parse(found: Any) -> WordCutter:
        """The inverse of `to_dict`; a ValueError for anything else."""
        names = {field.name for field in fields(WordCutter)}
        if not isinstance(found, dict) or found.keys() != names:
            raise ValueError(f"it does not have the lists {', '.join(sorted(names))}")
        for words in found.values():
            if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
                raise ValueError(f"{words!r} is not a list of words")
        return WordCutter(**{name: frozenset(words) for name, words in found.items()})
