"""wordvectors: the words near to a word, or to a sum of words, and a map of words."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig
from allyouneed.data.builtin import family
from allyouneed.data.vectors import Vectors
from allyouneed.errors import UserError
from allyouneed.metrics import unit
from allyouneed.models.word2vec import Word2Vec
from allyouneed.nn.trace import Trace, record
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import Guess, Names, Predictor, best_of
from allyouneed.predict.processor import Processor

NEAREST = 10  # words per answer
FEWEST, MOST = 5, 60  # words on a map that nobody chose
TERM = re.compile(r"([+\-−–]?) ?([^ +\-−–]+)")  # of a sum: its sign, and a word
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


class WordsProcessor(Processor):
    @property
    def longest(self) -> int:
        """Tokens per window."""
        return int(self.recipe.model.context)


class Sum(NamedTuple):
    """man + aunt - uncle: the sign and the id of each word."""

    given: str
    terms: list[tuple[int, int]]


class WordsPredictor(Predictor):
    """king → queen 0.85, prince 0.80, …; man + aunt - uncle → woman"""

    Processor = WordsProcessor
    asks = "a word, or a sum such as man + aunt - uncle"
    table_heading: ClassVar[str] = "nearest (cosine in per cent)"
    full_precision: ClassVar[bool] = True
    no_vectors: ClassVar[str] = "it has one vector per word, and finds the words near to man + aunt - uncle"
    model: Word2Vec

    def vectors(self) -> Vectors:
        """The vectors of the words in the training text, the most frequent first."""
        ids = self.words()
        names = [self.tokenizer.token(id) for id in ids.tolist()]
        return Vectors(names, self.model.inputs.weight[ids].detach().cpu().numpy())

    def words(self) -> Tensor:
        """The ids of the words in the training text, the most frequent first."""
        ids = self.model.counts.nonzero().squeeze(1)
        return ids[self.model.counts[ids].argsort(descending=True, stable=True)]

    def map_words(self, words: Sequence[str]) -> WordMap:
        """These words, or usual ones if there are none, with their vectors."""
        known = list(dict.fromkeys(self.tokenizer.token(id) for id in self._ids(words)))
        vectors = self.vectors()
        found = chosen_words(vectors, known) if known else usual_words(vectors)
        if found is None or len(found.words) < 2:
            raise UserError("a map needs at least two words: give more of them")
        return found

    def read(self, given: str, decode: DecodeConfig) -> Sum:
        text = " ".join(given.split())
        terms = TERM.findall(text)
        if not terms or TERM.sub("", text).strip():
            raise UserError(f"'{given}' is not {self.asks}")
        ids = self._ids([word for _, word in terms], given)
        return Sum(given, [(1 if sign in ("", "+") else -1, id) for (sign, _), id in zip(terms, ids)])

    def _ids(self, words: Sequence[str], given: str = "") -> list[int]:
        """The ids of words; a UserError names those that the run does not have, each with similar spellings. `given` is
        the sum that they are from."""
        ids = [self.tokenizer.encode(word) for word in words]
        unknown = [word for word, own in zip(words, ids) if len(own) != 1 or not self.model.counts[own[0]] > 0]
        left, _, right = given.partition("=")
        if given and any("=" in word for word in unknown):
            side, rest = ("left", right) if len(right) > len(left) else ("right", left)
            raise UserError(f"leave out '=' and what is {side} of it: {rest.strip()}")
        known = [self.tokenizer.token(id) for id in self.words().tolist()] if unknown else []
        messages = []
        for word in dict.fromkeys(unknown):
            close = difflib.get_close_matches(word.lower(), known, n=3, cutoff=0.6)
            hint = f"; similar spellings: {', '.join(close)}" if close else ""
            messages.append(f"'{word}' is not among the {len(known):,} words of this run{hint}")
        if messages:
            raise UserError(". ".join(messages))
        return [own[0] for own in ids]

    def _run_traced(self, given: Sum, decode: DecodeConfig, trace: Trace) -> Names:
        ids = torch.tensor([[id for _, id in given.terms]], device=self.model.device)
        model, vectors = self.model, self.model.inputs(ids)
        record(trace.at(model), model.inputs, "embeddings", vectors)
        record(trace.at(model), model.outputs, "logits", vectors @ model.outputs.weight.T)
        words = [self.tokenizer.token(id) for _, id in given.terms]
        return lambda path: (words, words)

    @torch.inference_mode()
    def _answer(self, inputs: list[Sum], decode: DecodeConfig) -> Iterator[Answer]:
        """The words with the largest cosine to a word or a sum of words, without those in the input."""
        for text, terms in inputs:
            near = self._nearest(terms, NEAREST)
            if not near:
                raise UserError(f"'{text}' has no nearest word: its sum is zero, or there is no other word; change it")
            details = {"nearest": [{"word": self.tokenizer.token(id), "cosine": round(c, 6)} for id, c in near]}
            first, *others = (Answer(self.tokenizer.token(id), [id], 0.0, "stop", cosine) for id, cosine in near)
            yield replace(first, others=others, details=details)

    def _nearest(self, terms: list[tuple[int, int]], most: int) -> list[tuple[int, float]]:
        """cos(v, Σ ± v_i / |v_i|), the largest first."""
        ids = self.words()
        vectors = torch.nn.functional.normalize(self.model.inputs.weight)
        goal = sum((sign * vectors[id] for sign, id in terms), torch.zeros_like(vectors[0]))
        if goal.norm() < 1e-6:
            return []
        ids = ids[~torch.isin(ids, torch.tensor([id for _, id in terms], device=ids.device))]
        cosines = vectors[ids] @ (goal / goal.norm())
        return [(int(ids[i]), cosine) for i, cosine in best_of(cosines, most)]

    @torch.inference_mode()
    def table(self, given: Sum, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The words nearest to each word."""
        token = self.tokenizer.token
        return [
            Guess(token(id), [(token(other), cosine) for other, cosine in self._nearest([(1, id)], most)])
            for _, id in given.terms
        ]
