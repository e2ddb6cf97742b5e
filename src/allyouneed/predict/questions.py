"""answer: a question about a text, answered by a span of the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allyouneed.batch import Tensors
from allyouneed.config import DecodeConfig
from allyouneed.data.batches.questions import LONGEST, NONE, AnswerWindows
from allyouneed.data.examples import Question
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.models.answerer import Answerer
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import ALL_HEADS, Guess, Predictor, Said, Without, best_of
from allyouneed.predict.inputs import BETWEEN, check_numbers, two_texts, unknown_words
from allyouneed.predict.processor import Processor
from allyouneed.text.layout import Tokens

NO_ANSWER = "(no answer in the text)"


class Piece(NamedTuple):
    """A span of a text that may be the answer. Empty: there is none."""

    start: int  # in characters
    end: int
    logprob: float


class Reading(NamedTuple):
    """What was found in one text: pieces, the likeliest first; log p(no answer); windows that it was read in."""

    pieces: list[Piece]
    nothing: float
    windows: int


class TokenizedQuestion(NamedTuple):
    """A question and its text, as their tokens."""

    question: Question
    ids: list[int]
    text: Tokens
    unknown: Sequence[str] = ()


class Asked(NamedTuple):
    """Questions with the windows of their texts, whose tokens these are."""

    questions: Sequence[Question]
    windows: AnswerWindows
    texts: list[Tokens]


class AnswerProcessor(Processor):
    file = "answers.json"
    unanswerable = False  # the training data has questions without an answer
    learned_longest = 0  # most tokens of an answer, by the training data

    sides = 2

    @property
    def most_tokens(self) -> int:
        """The most tokens of an answer."""
        return self.options.longest or self.learned_longest

    def build_model(self) -> Answerer:
        return Answerer(self.build_body(), self.options.head, self.recipe.model.dropout)

    def extras(self) -> dict[str, Any]:
        return {"unanswerable": self.unanswerable, "longest": self.learned_longest}

    def take(self, extras: dict[str, Any]) -> None:
        self.unanswerable, self.learned_longest = bool(extras["unanswerable"]), int(extras.get("longest", 0))
        if not (self.options.longest or 1 <= self.learned_longest <= LONGEST):
            raise ValueError

    def same_outputs(self, other: Processor) -> bool:
        return isinstance(other, AnswerProcessor) and other.options.head == self.options.head

    def tokenized(self, contexts: Sequence[str]) -> tuple[list[Tokens], np.ndarray]:
        """The tokens of each different text, and the index of the text of each question."""
        different: dict[str, int] = {}
        of = [different.setdefault(context, len(different)) for context in contexts]
        return [self.tokenizer.tokenize(context) for context in different], np.array(of, dtype=np.int64)

    def encoded(self, questions: Sequence[str]) -> list[list[int]]:
        """The ids of each question."""
        return self.tokenizer.encode_batch([self.layout.prefix + question for question in questions])

    def windows(
        self, questions: Sequence[Question], ids: Sequence[list[int]], texts: Sequence[Tokens], of: np.ndarray
    ) -> AnswerWindows:
        """The windows of questions with these ids; `of` is the index of the text of each question."""
        answers = [
            _overlap(texts[text].spans, *question.answers[0]) if question.answers else NONE
            for question, text in zip(questions, of.tolist())
        ]
        read, stride = Ragged.of(text.ids for text in texts), self.options.stride
        return AnswerWindows(Ragged.of(ids), read, of, answers, self.layout, self.longest, stride)


class AnswerPredictor(Predictor):
    Processor = AnswerProcessor
    asks = f"a question and a text with {BETWEEN} between them"
    table_heading: ClassVar[str] = "likely begin and end"
    processor: AnswerProcessor
    model: Answerer

    def read(self, given: str, decode: DecodeConfig) -> TokenizedQuestion:
        sides = two_texts(given)
        if len(sides) == 1:
            raise UserError(f"give {self.asks}, or a tab")
        question, context = sides
        if not question or not context:
            raise UserError(f"the {'text' if question else 'question'} is empty: give {self.asks}")
        return self.read_question(Question(question, context))

    def read_question(self, question: Question) -> TokenizedQuestion:
        (ids,), ((text,), _) = self.processor.encoded([question.question]), self.processor.tokenized([question.context])
        if not ids or not text.ids:
            raise UserError("the tokenizer of this run has no tokens for this text")
        prefix = self.processor.layout.prefix
        sides = (prefix + question.question, ids), (prefix + question.context, text.ids)
        return TokenizedQuestion(question, ids, text, unknown_words(self.tokenizer, *sides))

    def unknown(self, given: TokenizedQuestion) -> Sequence[str]:
        return given.unknown

    def gather(self, inputs: Sequence[TokenizedQuestion]) -> Asked:
        """A batch of questions, with the windows of their texts."""
        questions = [one.question for one in inputs]
        different = {one.question.context: one.text for one in inputs}
        number = {context: i for i, context in enumerate(different)}
        of, texts = np.array([number[question.context] for question in questions]), list(different.values())
        return Asked(questions, self.processor.windows(questions, [one.ids for one in inputs], texts, of), texts)

    def _answer(self, inputs: list[TokenizedQuestion], decode: DecodeConfig) -> Iterator[Answer]:
        asked, most = self.gather(inputs), decode.n_best
        readings = self.search(asked, np.arange(len(asked.questions)), most)
        for row, question in enumerate(asked.questions):
            read = readings[row]
            chosen = self.chosen(read)
            pieces = [chosen, *(piece for piece in read.pieces if piece != chosen)][:most]
            best, *others = (_answer(question.context, piece) for piece in pieces)
            listed = [best.details, *(other.details for other in others)]
            details = {**best.details, "windows": read.windows, "answers": listed}
            if self.processor.unanswerable:
                details["no_answer"] = round(float(np.exp(read.nothing)), 6)
            note = f"  (read in {read.windows} windows)" if read.windows > 1 else ""
            yield replace(best, others=others, details=details, shown=best.shown + note)

    @torch.inference_mode()
    def search(self, asked: Asked, among: np.ndarray, most: int) -> dict[int, Reading]:
        """The answers to these questions, by their number: up to `most` pieces each."""
        groups = asked.windows.groups(among, self.processor.most_tokens)
        return {row: read for some in groups for row, read in self._search_group(asked, some, most).items()}

    def _search_group(self, asked: Asked, among: np.ndarray, most: int) -> dict[int, Reading]:
        _, windows, texts = asked
        numbers = np.flatnonzero(np.isin(windows.rows, among))
        sizes = {row: len(texts[windows.of[row]].ids) for row in among.tolist()}
        longest = self.processor.most_tokens
        tables = {row: torch.full((n, min(n, longest)), -torch.inf) for row, n in sizes.items()}
        nothing: dict[int, list[float]] = {row: [] for row in tables}
        for batch in windows.cover(max(self.recipe.train.batch_tokens, 4096), numbers):
            tensors = windows.collate(batch).to(self.model.device).tensors
            logits = check_numbers(self.model(tensors).float()).cpu()
            begins, nothings = windows.begins(batch).tolist(), windows.nothing(batch).tolist()
            for rows, number, begin, special in zip(logits, batch.tolist(), begins, nothings):
                row, start, end = (int(of[number]) for of in (windows.rows, windows.starts, windows.ends))
                table = tables[row][start:end]
                scores = self.model.spans(rows[begin : begin + end - start], table.size(1))
                torch.maximum(table, scores, out=table)  # a piece in two windows counts by the better one
                nothing[row].append(float(rows[special].sum()))
        return {
            row: self._best(table, texts[windows.of[row]].spans, min(nothing[row]), len(nothing[row]), most)
            for row, table in tables.items()
        }

    def _best(
        self, table: Tensor, spans: Sequence[tuple[int, int]], nothing: float, windows: int, most: int
    ) -> Reading:
        scores = table.flatten()
        silent = torch.tensor([nothing if self.processor.unanswerable else -torch.inf])
        total = torch.cat([silent, scores]).logsumexp(0)
        found = []
        for index, score in best_of(scores, most):
            if score > -torch.inf:
                first, length = divmod(index, table.size(1))
                found.append(Piece(spans[first][0], spans[first + length][1], score - float(total)))
        return Reading(found, float(silent - total), windows)

    def chosen(self, read: Reading) -> Piece:
        """The best piece, or none if that is likelier."""
        best = read.pieces[0]
        return Piece(0, 0, read.nothing) if read.nothing > best.logprob + self.options.margin else best

    @torch.inference_mode()
    def table(self, given: TokenizedQuestion, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """Of each token of the first window: how likely the answer begins and ends there, or is there."""
        with self.lock:
            logits = check_numbers(self.model(self._tensors(given))[0].float())
        tokens, p = self.likely_at(given, logits)
        return [Guess(token, list(zip(self.labels, row))) for token, row in zip(tokens, p.tolist())]

    def says(self, given: TokenizedQuestion, decode: DecodeConfig, without: Without = ALL_HEADS) -> list[Said]:
        tokens, p = self.likely_at(given, self._logits(given, decode, without).value)
        if self.options.head == "span":
            tokens, p = [*tokens, NO_ANSWER], torch.cat([p, (1 - p.sum(0, keepdim=True)).clamp(min=0)])
        return [Said(label, p[:, i], tokens.__getitem__) for i, label in enumerate(self.labels)]

    def likely_at(self, given: TokenizedQuestion, logits: Tensor) -> tuple[list[str], Tensor]:
        """The tokens of the text in the first window, and from its logits (T, labels), how likely each label is at each
        of them."""
        _, windows, texts = self.gather([given])
        begin, ids = int(windows.begins(np.arange(1))[0]), texts[0].ids[: int(windows.ends[0])]
        if self.options.head == "span":
            allowed = self._tensors(given)["allowed"][0].to(logits.device)
            p = logits.masked_fill(~allowed[:, None], -torch.inf).softmax(0)
        else:
            p = logits.sigmoid()
        return [self.tokenizer.token(id) for id in ids], p[begin : begin + len(ids)]

    @property
    def labels(self) -> list[str]:
        return ["begin", "end"] if self.options.head == "span" else ["inside"]

    def _tensors(self, given: TokenizedQuestion) -> Tensors:
        """Of the first window."""
        return self.gather([given]).windows.collate(np.arange(1)).to(self.model.device).tensors


def _overlap(spans: Sequence[tuple[int, int]], start: int, text: str) -> tuple[int, int]:
    """The first and the last token that overlap the characters of an answer."""
    end = start + len(text)
    inside = [i for i, (low, high) in enumerate(spans) if low < end and high > start]
    return (inside[0], inside[-1]) if inside else NONE


def _answer(context: str, piece: Piece) -> Answer:
    whole, p = context[piece.start : piece.end], float(np.exp(piece.logprob))
    text, start = whole.strip(), piece.start + len(whole) - len(whole.lstrip())
    details = {"answer": text, "start": start, "end": start + len(text), "probability": round(p, 6)}
    return Answer(text, [], piece.logprob, "stop", details=details, shown=f"{text or NO_ANSWER}  {100 * p:.1f} %")
