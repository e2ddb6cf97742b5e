"""Vectors of texts and words, from any run; and the predictor of embed: one vector per text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from allyouneed.batch import Tensors
from allyouneed.config import DecodeConfig
from allyouneed.data.batches.base import fill
from allyouneed.data.line_vectors import CUT, EMPTY, WHOLE, LineVectors, vectors_of
from allyouneed.errors import UserError, shortened
from allyouneed.metrics import unit
from allyouneed.models.embedder import Embedder
from allyouneed.nn.heads import POOLS, pool
from allyouneed.nn.layers import pad
from allyouneed.nn.spelling import spell
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import Guess, Predictor
from allyouneed.predict.inputs import BETWEEN, check_length, check_numbers, two_texts
from allyouneed.predict.processor import Processor
from allyouneed.text.layout import Layout
from allyouneed.version import __version__

BATCH = 4096  # tokens that are read together
PIECE = 1 << 14  # lines that are embedded together
SHOWN = 6  # numbers of a vector that a terminal shows
CELLS = 1 << 24  # cosines that are in memory at a time

Layers = str | int | Sequence[int]


class Row(NamedTuple):
    """A text as a body reads it."""

    ids: list[int]  # its tokens, without the special ones; for a body that reads letters, the numbers of its words
    words: Sequence[int] = ()  # the word that each token is of; -1: none
    names: Sequence[str] = ()  # its words
    whole: bool = True  # nothing was cut off
    unknown: Sequence[str] = ()  # words that are not in the vocabulary


class EmbeddedWords(NamedTuple):
    """The words of a text that have tokens, and their vectors (words, D)."""

    words: list[str]
    vectors: np.ndarray


class Found(NamedTuple):
    """A line that is near to a text."""

    line: int
    text: str
    cosine: float


class Embedding(Predictor):
    """Answers a text by its vectors, from one layer of a run's body or from the mean of several.

    `layers`: "last", "mix" (the mean of all), a number (0: the embeddings), or several, "1,2". `pooling` makes one
    vector of those of the tokens: mean, max, first or last; mean and max leave out the special tokens, unless the run
    is made otherwise, and first is [CLS] in a model that has it. "" is the run's own. `words`: one vector per word, the
    mean of its tokens.
    """

    asks = "a text"

    def __init__(self, run: Predictor, layers: Layers = "last", pooling: str = "", words: bool = False) -> None:
        super().__init__(run.processor, run.model)
        if run.no_vectors:
            raise UserError(f"a run of the task '{run.recipe.task_kind}' has no vectors of texts: {run.no_vectors}")
        if pooling and pooling not in POOLS:
            raise UserError(f"there is no pooling '{shortened(pooling)}': choose one of {', '.join(POOLS)}")
        if pooling and words:
            raise UserError(f"pooling {pooling} makes one vector per text, but one per word is asked for: leave it out")
        self.run, self.lock, self.words = run, run.lock, words
        self.pooling = pooling or run.pooling
        self.layers = choose_layers(layers, len(self.model.body.stages()) - 1)
        self.spelled = bool(self.processor.kind.BodyClass.spelled)
        self.layout = Layout() if self.spelled else self.tokenizer.layout()
        self.around = len(self.layout.start), len(self.layout.end)
        self.left_out = (0, 0) if run.pools_specials else self.around
        self.corpus: list[tuple[int, str]] = []  # the lines that an answer searches, with their numbers
        self.matrix = np.zeros((0, 0), np.float32)  # their vectors, of length one
        self.most = 0  # lines per answer

    def row(self, text: str, cut: bool = False) -> Row:
        """The tokens of a text. A text that is too long for the model is an error, or is cut."""
        if not text.strip():
            raise UserError("the text is empty: give some words")
        row = self._row(text)
        if not row.ids:
            raise UserError("the text has no words that this model knows: give other words")
        return self.fit(row, cut)

    def _row(self, text: str) -> Row:
        spans = self.run.word_spans(text)
        names = [text[start:end] for start, end in spans]
        if self.spelled:
            return Row(list(range(len(names))), range(len(names)), names)
        tokens = self.run.tokenize_words(text, spans)
        return Row(tokens.ids, tokens.words, names) if self.words else Row(tokens.ids)

    def fit(self, row: Row, cut: bool) -> Row:
        """A row that the model can read: an error if it is too long or, if it may be cut, its beginning."""
        limit, special = self.model.limit, sum(self.around)
        if limit is None or len(row.ids) + special <= limit:
            return row
        if not cut or limit <= special:
            check_length(self.model, len(row.ids) + special, "text")
        room = limit - special
        return Row(row.ids[:room], row.words[:room], row.names, whole=False)

    def vectors(self, rows: Sequence[Row]) -> np.ndarray:
        """(N, D)"""
        found: dict[int, np.ndarray] = {}
        for numbers, hidden, lengths in self._hidden(rows):
            found |= zip(numbers, pool(hidden, lengths, self.pooling, self.left_out).cpu().numpy())
        return np.stack([found[i] for i in range(len(rows))]) if rows else np.zeros((0, 0), np.float32)

    def word_vectors(self, rows: Sequence[Row]) -> list[EmbeddedWords]:
        """The mean of the tokens of each word; words without a token are left out."""
        found: dict[int, EmbeddedWords] = {}
        for numbers, hidden, _ in self._hidden(rows):
            for number, vectors in zip(numbers, hidden.cpu()):
                words, names = torch.tensor(rows[number].words), rows[number].names
                own = vectors[self.around[0] :][: len(words)][words >= 0]  # (T, D) of the tokens of words
                there, at, counts = words[words >= 0].unique(return_inverse=True, return_counts=True)
                means = own.new_zeros(len(there), own.size(-1)).index_add_(0, at, own) / counts[:, None]
                found[number] = EmbeddedWords([names[i] for i in there.tolist()], means.numpy())
        return [found[i] for i in range(len(rows))]

    @torch.inference_mode()
    def _hidden(self, rows: Sequence[Row]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """In batches of about one length: the numbers of the rows, the vectors of their tokens (B, T, D), with those of
        the special tokens, and the lengths (B,)."""
        sizes = np.array([len(row.ids) for row in rows], dtype=np.int64) + sum(self.around)
        order = np.argsort(-sizes, kind="stable")
        for numbers in fill(order, sizes[order], BATCH):
            tensors = self.tensors([rows[i] for i in numbers])
            trace = Trace("embeddings", "layers") if self.layers else None
            with self.lock:
                hidden = self.model.body.read(tensors, trace)
            if trace is not None:
                hidden = self._mean(self.model.body.layers(trace, hidden))
            yield numbers.tolist(), check_numbers(hidden.float()), tensors["lengths"]

    def _mean(self, recorded: list[Tensor]) -> Tensor:
        chosen = [recorded[i] for i in self.layers]
        widths = [layer.size(-1) for layer in chosen]
        if len(set(widths)) > 1:
            shown = ", ".join(f"{layer} is {width} wide" for layer, width in zip(self.layers, widths))
            raise UserError(f"layers of different widths have no mean (layer {shown}): choose layers of one width")
        return torch.stack([layer.float() for layer in chosen]).mean(0)

    def tensors(self, rows: Sequence[Row]) -> Tensors:
        device = self.model.device
        if self.spelled:
            letters = self.recipe.model.letters
            chars = pad_sequence([torch.from_numpy(spell(row.names, letters)).long() for row in rows], batch_first=True)
            return {"chars": chars.to(device), "lengths": torch.tensor([len(row.ids) for row in rows], device=device)}
        ids, lengths = pad([[*self.layout.start, *row.ids, *self.layout.end] for row in rows], device)
        return {"ids": ids, "lengths": lengths, "segments": torch.zeros_like(ids)}

    def search(self, lines: Iterable[tuple[int, str]], most: int, store: bool = False) -> int:
        """Set the numbered lines of which answers give the `most` nearest. Lines without words are skipped, and long
        ones are cut to what the model can read; returns how many were cut. With `store`, the vectors of lines come from
        the cache if they were searched before."""
        given = [(number, text.strip()) for number, text in lines]
        texts, self.most, make = [text for _, text in given], most, self._line_vectors
        kinds, vectors = vectors_of(texts, self.fingerprint(), make) if store else make(texts)
        there = np.flatnonzero(kinds != EMPTY)
        self.corpus = [given[i] for i in there.tolist()]
        if not self.corpus:
            raise UserError("there are no lines to search: give some with words")
        self.matrix = unit(vectors[there])
        return int((kinds == CUT).sum())

    def _line_vectors(self, texts: Sequence[str]) -> LineVectors:
        """The vectors of lines, each cut to what the model can read."""
        kinds, vectors = np.full(len(texts), EMPTY, np.uint8), np.zeros((len(texts), 0), np.float32)
        for start in range(0, len(texts), PIECE):
            rows = {i: self._row(texts[i]) for i in range(start, min(start + PIECE, len(texts)))}
            rows = {i: self.fit(row, cut=True) for i, row in rows.items() if row.ids}
            for i, row in rows.items():
                kinds[i] = WHOLE if row.whole else CUT
            if rows:
                found = self.vectors(list(rows.values()))
                vectors = vectors if vectors.size else np.zeros((len(texts), found.shape[1]), np.float32)
                vectors[list(rows)] = found
        return LineVectors(kinds, vectors)

    def fingerprint(self) -> str:
        """A hash of all that the vectors of texts depend on: the weights, the settings and the parts of the run, the
        layers, the pooling, and what computes them."""
        digest, recipe = hashlib.blake2b(digest_size=16), self.recipe.to_dict()
        run = [recipe[section] for section in ("task", "model", "text")]
        way = [self.layers, self.pooling, self.left_out, str(self.model.device), torch.get_float32_matmul_precision()]
        way += [__version__, torch.__version__]
        digest.update(json.dumps([run, way], sort_keys=True, default=str).encode())
        for name, part in sorted(self.processor.parts().items()):
            digest.update(f"{name} {len(part)} ".encode() + part)
        for name, tensor in self.model.state_dict().items():
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
            digest.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
        return digest.hexdigest()

    def nearest(self, vectors: np.ndarray) -> Iterator[list[Found]]:
        """The lines nearest to each vector, (N, D), the nearest first."""
        step = max(1, CELLS // max(1, len(self.corpus)))
        for start in range(0, len(vectors), step):
            for cosines in unit(vectors[start : start + step]) @ self.matrix.T:
                best = np.argsort(-cosines, kind="stable")[: self.most]
                yield [Found(self.corpus[i][0], self.corpus[i][1], float(cosines[i])) for i in best.tolist()]

    def read(self, given: str, decode: DecodeConfig) -> list[Row]:
        """The rows of a text, or of two texts with a separator between them, which are compared."""
        sides = [given] if self.corpus else two_texts(given)
        if len(sides) > 1 and self.words:
            raise UserError("vectors of words are those of one text, but two are given: give one")
        return [self._flagged(side, self.row(side)) for side in sides]

    def _flagged(self, text: str, row: Row) -> Row:
        """A row with the unknown words of its text; a body that reads letters has none."""
        unknown = () if self.spelled else self.run.unknown_among(text, self.run.word_spans(text), row.ids)
        return row._replace(unknown=unknown)

    def size(self, given: list[Row]) -> tuple[int, ...]:
        return tuple(len(row.ids) for row in given)

    def unknown(self, given: list[Row]) -> Sequence[str]:
        return tuple(dict.fromkeys(word for row in given for word in row.unknown))

    def _answer(self, inputs: list[list[Row]], decode: DecodeConfig) -> Iterator[Answer]:
        """The vector of each text, the vectors of its words, the lines nearest to it, or the cosine of two texts."""
        rows = [row for several in inputs for row in several]
        if self.words:
            for words, vectors in self.word_vectors(rows):
                each = [{"word": word, "vector": _numbers(vector)} for word, vector in zip(words, vectors)]
                text = "\n".join(f"{word}  {_short(vector)}" for word, vector in zip(words, vectors))
                yield Answer(text, [], 0.0, "stop", details={"words": each})
            return
        texts = self.vectors(rows)
        if self.corpus:
            for near in self.nearest(texts):
                listed = [{"line": one.line, "text": one.text, "cosine": round(one.cosine, 6)} for one in near]
                shown = "\n".join(f"{one.cosine:7.4f}  {one.text}" for one in near)
                yield Answer(near[0].text, [], 0.0, "stop", details={"nearest": listed}, shown=shown)
            return
        rest = iter(texts)
        for several in inputs:
            own = [next(rest) for _ in several]
            if len(own) == 1:
                yield Answer(_short(own[0]), [], 0.0, "stop", details={"vector": _numbers(own[0])})
            else:
                cosine = float(np.matmul(*unit(np.stack(own))))
                text, details = f"{cosine:.4f}", {"cosine": round(cosine, 6)}
                yield Answer(text, [], 0.0, "stop", details=details, shown=f"cosine {text}")

    def _tensors(self, given: list[Row]) -> Tensors:
        if len(given) > 1:
            raise UserError("attention is that of one text, but two are given: give one")
        return self.tensors(given)


class EmbedProcessor(Processor):
    def build_model(self) -> Embedder:
        around = (0, 0) if self.options.specials else (len(self.layout.start), len(self.layout.end))
        return Embedder(self.build_body(), self.options.pool, around)


class EmbedPredictor(Embedding):
    Processor = EmbedProcessor
    asks = f"a text, or two with {BETWEEN} between them"
    table_heading: ClassVar[str] = "nearest tokens (cosine in per cent)"
    processor: EmbedProcessor
    model: Embedder

    def __init__(self, processor: EmbedProcessor, model: Embedder) -> None:
        Predictor.__init__(self, processor, model)
        self.pooling, self.pools_specials = self.options.pool, self.options.specials
        super().__init__(self)

    def table(self, given: list[Row], decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The tokens whose embeddings are nearest to that of each token of the text."""
        with torch.inference_mode():
            table = unit(self.model.body.tables()[0].weight[: len(self.tokenizer)].float().cpu().numpy())
        found = []
        for id in (id for row in given for id in row.ids):
            cosines = table @ table[id]
            best = [i for i in np.argsort(-cosines, kind="stable").tolist() if i != id][:most]
            found.append(Guess(self.tokenizer.token(id), [(self.tokenizer.token(i), cosines[i]) for i in best]))
        return found


def choose_layers(given: Layers, last: int) -> list[int]:
    """The numbers of the layers whose mean is asked for; none for the output of the body."""
    name = str(given) if isinstance(given, str | int) else ",".join(map(str, given))
    if name == "last":
        return []
    if name == "mix":
        return list(range(last + 1))
    numbers = [part.strip() for part in name.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 6 and int(part) <= last for part in numbers):
        raise UserError(
            f"layers = {shortened(name)}: this model has the layers 0 (the embeddings) to {last}; give one, several "
            "such as 0,1, mix for the mean of all, or last"
        )
    return [int(part) for part in numbers]


def _numbers(vector: np.ndarray) -> list[float]:
    return [round(float(value), 6) for value in vector]


def _short(vector: np.ndarray) -> str:
    more = " …" if len(vector) > SHOWN else ""
    return f"{' '.join(f'{value:.4f}' for value in vector[:SHOWN])}{more}  ({len(vector)} numbers)"
