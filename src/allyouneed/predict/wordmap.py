"""Which words a map of word vectors shows."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from allyouneed.data.builtin import family
from allyouneed.data.vectors import Vectors
from allyouneed.metrics import unit

FEWEST, MOST = 5, 60  # words on a map that nobody chose
FREQUENT = 200  # the most frequent words, such as "the", say little; of a small vocabulary, a tenth


@dataclass(frozen=True)
class WordMap:
    """Words and their vectors (N, D), each of length 1; arrows from one word to another."""

    words: list[str]
    vectors: np.ndarray
    shown: str = ""  # which words these are
    arrows: Sequence[tuple[str, str]] = field(default=())


def chosen_words(
    vectors: Vectors, words: Sequence[str], shown: str = "", arrows: Sequence[tuple[str, str]] = ()
) -> WordMap:
    """A map of these words, which have vectors."""
    rows = {word: row for row, word in enumerate(vectors.words)}
    return WordMap(list(words), unit(vectors.matrix[[rows[word] for word in words]]), shown, arrows)


def usual_words(vectors: Vectors) -> WordMap | None:
    """A map of couples such as uncle and aunt, with an arrow from him to her. If the text does not have them, of its
    frequent words; None if these are too few."""
    known = set(vectors.words)
    couples = [couple for couple in family.couples() if known >= set(couple)]
    if len(couples) >= 3:
        return chosen_words(vectors, [word for couple in couples for word in couple], arrows=couples)
    words = frequent_words(vectors.words)
    return chosen_words(vectors, words, f"{len(words)} frequent words of the text") if len(words) >= FEWEST else None


def frequent_words(words: Sequence[str]) -> list[str]:
    """Up to MOST content words, given all words with the most frequent first: without the very frequent ones, and
    without short ones, most of which are "and" or "with"."""
    rest = words[min(FREQUENT, len(words) // 10) :]
    return [word for word in rest if _is_content(word)][:MOST]


def _is_content(word: str) -> bool:
    """Whether it has letters only, and more than three if its script has capitals: in others, one may be a word."""
    letters = all(unicodedata.category(letter)[0] in "LM" for letter in word)
    return letters and (len(word) > 3 or word.lower() == word.upper())
