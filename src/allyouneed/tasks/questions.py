"""answer: a question about a text, answered by a piece of the text."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches import Batch
from allyouneed.data.examples import Question
from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged, unknown_part
from allyouneed.data.windows import LONGEST, NONE, AnswerWindows
from allyouneed.errors import UserError
from allyouneed.metrics import Score
from allyouneed.metrics.spans import span_scores
from allyouneed.models.answerer import HEADS, Answerer
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer, Prompt
from allyouneed.tasks.base import Alignment, Carry, Guess, Moment, Say, Task, once, traced
from allyouneed.tasks.checks import check_numbers
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.samples import Sample
from allyouneed.tasks.two_texts import BETWEEN, two_texts
from allyouneed.text import Tokenizer
from allyouneed.text.layout import Layout, Tokens

FILE = "answers.json"
NO_ANSWER = "(no answer in the text)"


@dataclass(frozen=True)
class AnswerOptions:
    head: str = option(
        "span", "what is learned: where an answer begins and ends, or which tokens are in it", choices=HEADS
    )
    stride: int = option(64, "tokens that neighbouring windows of a long text share", low=0, high=10**6)
    longest: int = option(30, "most tokens of an answer (0: as the training data has them)", low=0, high=10**4)
    margin: float = option(
        0.0, "no answer is chosen if its log-probability is higher than that of the best by this", low=-1e6, high=1e6
    )


class Piece(NamedTuple):
    """A piece of a text that may be the answer. Empty: there is none."""

    start: int  # in characters
    end: int
    logprob: float


class Reading(NamedTuple):
    """What was found in one text: pieces, the likeliest first; log p(no answer); windows that it was read in."""

    pieces: list[Piece]
    nothing: float
    windows: int


class AnswerQuestions(Task[Answerer]):
    """loss = -½ [log p(the answer begins at i) + log p(it ends at j)], or the mean cross-entropy of the tokens: inside
    the answer or not"""

    Options = AnswerOptions
    shape = "questions"
    unit = "window"
    weights: ClassVar[dict[str, float]] = {"answers": 1.0}
    asks = f"a question and a text with {BETWEEN} between them"
    expects = "likely begin and end"
    item_name = "questions"
    chooses_by = "F1"
    looking = 0.1
    unanswerable = False  # the training data has questions without an answer
    learned_longest = 0  # most tokens of an answer, by the training data

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        text = self.recipe.text
        if text.path:
            return {"tokenizer.json": Tokenizer.load(text.path)}

        def texts() -> Iterator[str]:
            before = ""
            for question in self.data.splits["train"]:
                yield f" {question.question}"
                if question.context != before:
                    yield f" {question.context}"
                before = question.context

        return {"tokenizer.json": Tokenizer.train(texts(), text)}

    def check_model(self) -> None:
        super().check_model()
        if self.kind.BodyClass.spelled:
            raise UserError(f"model.kind = {self.recipe.model_kind} reads letters; the task answer needs tokens")

    @property
    def layout(self) -> Layout:
        return Layout.of(self.tokenizer, 2)

    @property
    def most_tokens(self) -> int:
        """Of an answer."""
        return self.options.longest or self.learned_longest

    def build_model(self) -> Answerer:
        config = self.model_config()
        body = self.kind.BodyClass(config)
        body.freeze(config.freeze)
        return Answerer(body, self.options.head, config.dropout)

    @once
    def questions(self, split: str) -> list[Question]:
        return list(self.data.splits[split])

    @once
    def texts(self, split: str) -> tuple[list[Tokens], np.ndarray]:
        """The tokens of each text, and which text each question is about."""
        return self._tokenized([question.context for question in self.questions(split)])

    def _tokenized(self, contexts: Sequence[str]) -> tuple[list[Tokens], np.ndarray]:
        different: dict[str, int] = {}
        of = [different.setdefault(context, len(different)) for context in contexts]
        return [self.tokenizer.tokenize(context) for context in different], np.array(of, dtype=np.int64)

    def _windows(self, questions: Sequence[Question], texts: Sequence[Tokens], of: np.ndarray) -> AnswerWindows:
        asked = self.tokenizer.encode_batch([self.layout.prefix + question.question for question in questions])
        answers = [
            _place(texts[text].spans, *question.answers[0]) if question.answers else NONE
            for question, text in zip(questions, of.tolist())
        ]
        read, stride = Ragged.of(text.ids for text in texts), self.options.stride
        return AnswerWindows(Ragged.of(asked), read, of, answers, self.layout, self.longest, stride)

    @once
    def examples(self, split: str) -> AnswerWindows:
        texts, of = self.texts(split)
        found = self._windows(self.questions(split), texts, of)
        if not len(found.sizes):
            raise UserError(f"the {split} split has no questions; give more data or another data.{split}_part")
        if not (found.questions.lengths.all() and found.texts.lengths.all()):
            raise UserError(f"the {split} split has texts that the tokenizer gives no tokens: use another text.path")
        return found

    def report(self) -> Report:
        self.unanswerable = any(not question.answers for question in self.questions("train"))
        if not any(question.answers for question in self.questions("train")):
            raise UserError("no training question has an answer: there is nothing to learn")
        usual, self.learned_longest = self.examples("train").answer_lengths()
        lengths, unknown, classes = {}, {}, {}
        for split in self.data.splits:
            windows, silent = self.examples(split), sum(not question.answers for question in self.questions(split))
            if silent and not self.unanswerable:
                raise UserError(
                    f"the {split} split has {silent:,} questions without an answer, the training data has none: add "
                    "such questions to it, or remove these"
                )
            lengths[split] = windows.kept + windows.texts.lengths[windows.of] + self.layout.specials(2)
            unknown[split] = [unknown_part(self.tokenizer, [windows.questions, windows.texts])]
            classes[split] = {"with an answer": len(windows.of) - silent, "without": silent}
        counts = classes if self.unanswerable else None
        made = describe(self.data, lengths, self.longest, "tokens", counts, unknown, self.unknown_advice)
        made.notes = [line for split in self.data.splits for line in self._notes(split)]
        if not self.options.longest:
            made.notes.append(
                f"answers of up to {self.most_tokens} tokens are found, because 99 % of the training answers have "
                f"{usual} or fewer (task.longest)"
            )
        return made

    def _notes(self, split: str) -> Iterator[str]:
        """What does not fit as it is, for the user."""
        windows, most = self.examples(split), self.most_tokens
        long = windows.rows[windows.starts > 0]
        first, last = windows.answers.T
        asked = np.array([bool(question.answers) for question in self.questions(split)])
        whole = {*windows.rows[windows.holds(np.arange(len(windows.rows)))].tolist()}
        split_up = [row for row in np.flatnonzero(first >= 0).tolist() if row not in whole]
        told = {
            f"texts over {self.longest:,} tokens, read in windows": len({*windows.of[long].tolist()}),
            "questions cut to half a window": int((windows.kept < windows.questions.lengths).sum()),
            f"answers over {most} tokens, which are never found whole (task.longest)": int(
                (last - first >= most).sum()
            ),
            "answers that no window holds whole, learned as no answer (raise task.stride or data.max_length)": len(
                split_up
            ),
            "answers that no token covers, learned as no answer": int((asked & (first < 0)).sum()),
        }
        yield from (f"{split}: {count:,} {what}" for what, count in told.items() if count)

    def parts(self) -> dict[str, bytes]:
        found = {"unanswerable": self.unanswerable, "longest": self.learned_longest}
        return {**super().parts(), FILE: json.dumps(found).encode()}

    def read_parts(self, parts: Mapping[str, bytes]) -> None:
        super().read_parts(parts)
        try:
            found = json.loads(parts[FILE])
            self.unanswerable, self.learned_longest = bool(found["unanswerable"]), int(found.get("longest", 0))
            damaged = not (self.options.longest or 1 <= self.learned_longest <= LONGEST)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            damaged = True
        if damaged:
            raise UserError(f"{FILE} is damaged, or config.json does not list it")

    def same_outputs(self, other: Task) -> bool:
        return isinstance(other, AnswerQuestions) and other.options.head == self.options.head

    def losses(
        self, model: Answerer, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        return {"answers": model.loss(batch.tensors)}

    @torch.inference_mode()
    def _read(
        self, model: Answerer, windows: AnswerWindows, texts: Sequence[Tokens], among: np.ndarray, most: int
    ) -> dict[int, Reading]:
        """The answers to these questions, by their number: up to `most` pieces each."""
        found: dict[int, Reading] = {}
        for some in windows.groups(among, self.most_tokens):
            found |= self._read_group(model, windows, texts, some, most)
        return found

    def _read_group(
        self, model: Answerer, windows: AnswerWindows, texts: Sequence[Tokens], among: np.ndarray, most: int
    ) -> dict[int, Reading]:
        numbers = np.flatnonzero(np.isin(windows.rows, among))
        sizes = {row: len(texts[windows.of[row]].ids) for row in among.tolist()}
        tables = {row: torch.full((n, min(n, self.most_tokens)), -torch.inf) for row, n in sizes.items()}
        nothing: dict[int, list[float]] = {row: [] for row in tables}
        for batch in windows.cover(max(self.recipe.train.batch_tokens, 4096), numbers):
            tensors = windows.collate(batch).to(model.device).tensors
            logits = check_numbers(model(tensors).float()).cpu()
            places = zip(batch.tolist(), windows.begins(batch).tolist(), windows.nothing(batch).tolist())
            for rows, (number, begin, special) in zip(logits, places):
                row, start, end = (int(of[number]) for of in (windows.rows, windows.starts, windows.ends))
                table = tables[row][start:end]
                scores = model.spans(rows[begin : begin + end - start], table.size(1))
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
        silent = torch.tensor([nothing if self.unanswerable else -torch.inf])
        total = torch.cat([silent, scores]).logsumexp(0)
        top = scores.topk(min(most, len(scores)))
        found = []
        for place, score in zip(top.indices.tolist(), top.values.tolist()):
            if score > -torch.inf:
                first, length = divmod(place, table.size(1))
                found.append(Piece(spans[first][0], spans[first + length][1], score - float(total)))
        return Reading(found, float(silent - total), windows)

    def _chosen(self, reading: Reading) -> Piece:
        """The best piece, or none if that is likelier."""
        best = reading.pieces[0]
        return Piece(0, 0, reading.nothing) if reading.nothing > best.logprob + self.options.margin else best

    def test(self, model: Answerer, split: str, decode: DecodeConfig, say: Say, extent: Extent = WHOLE) -> list[Score]:
        """Exact match and F1; if there are questions without an answer, also for each kind of questions."""
        questions, windows, (texts, _) = self.questions(split), self.examples(split), self.texts(split)
        found: dict[int, Piece] = {}
        for piece in extent.pieces(len(questions)):
            read = self._read(model, windows, texts, piece, 1)
            found |= {row: self._chosen(reading) for row, reading in read.items()}
        found, self.covered = dict(sorted(found.items())), len(found)
        given = {row: questions[row].context[piece.start : piece.end].strip() for row, piece in found.items()}
        self._tested = lambda: (
            {
                **({"id": question.id} if question.id else {}),
                "question": question.question,
                "prediction": given[row],
                "reference": [text for _, text in question.answers],
                "probability": round(float(np.exp(found[row].logprob)), 6),
            }
            for row, question in enumerate(questions)
            if row in given
        )
        detail = f"|{self.options.head}|window:{self.longest}|stride:{self.options.stride}|split:{split}"

        def scored(rows: list[int]) -> list[Score]:
            truths = [[text for _, text in questions[row].answers] for row in rows]
            return span_scores([given[row] for row in rows], truths, detail)

        scores = scored(list(given))
        for told, wanted in (("answerable", True), ("unanswerable", False)) if self.unanswerable else ():
            rows = [row for row in given if bool(questions[row].answers) is wanted]
            for score in scored(rows)[: 2 if wanted else 1] if rows else ():
                scores.append(replace(score, name=f"{told} {score.name}"))
        return scores

    def _question(self, text: str) -> Question:
        sides = two_texts(text)
        if len(sides) == 1:
            raise UserError(f"give {self.asks}, or a tab")
        question, context = sides
        if not question or not context:
            raise UserError(f"the {'text' if question else 'question'} is empty: give {self.asks}")
        return Question(question, context)

    def prompt(self, model: Answerer, text: str, decode: DecodeConfig) -> Prompt:
        return Prompt(self._asked([self._question(text)])[0].collate(np.arange(1)).tensors["ids"][0].tolist(), 0)

    def _asked(self, questions: Sequence[Question]) -> tuple[AnswerWindows, list[Tokens]]:
        texts, of = self._tokenized([question.context for question in questions])
        windows = self._windows(questions, texts, of)
        if not (windows.questions.lengths.all() and windows.texts.lengths.all()):
            raise UserError("the tokenizer of this run has no tokens for this text")
        return windows, texts

    def predict(
        self, model: Answerer, inputs: Iterable[str], decode: DecodeConfig, show: Callable[[str], None] | None = None
    ) -> Iterator[Answer]:
        source = iter(inputs)
        while several := list(islice(source, decode.batch)):
            yield from self._answers(model, [self._question(text) for text in several], decode.n_best)

    def _answers(self, model: Answerer, questions: list[Question], most: int) -> Iterator[Answer]:
        windows, texts = self._asked(questions)
        found = self._read(model, windows, texts, np.arange(len(questions)), most)
        for row, question in enumerate(questions):
            reading = found[row]
            chosen = self._chosen(reading)
            first, *others = [chosen, *(piece for piece in reading.pieces if piece != chosen)][:most]
            listed = [_plain(question.context, piece) for piece in (first, *others)]
            details = {**listed[0], "windows": reading.windows, "answers": listed}
            if self.unanswerable:
                details["no_answer"] = round(float(np.exp(reading.nothing)), 6)
            told = f"  (read in {reading.windows} windows)" if reading.windows > 1 else ""
            best = _answer(question.context, first, told)
            rest = [_answer(question.context, piece) for piece in others]
            yield Answer(best.text, [], best.logprob, "stop", others=rest, details=details, shown=best.shown)

    def samples(self, model: Answerer, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        asked = self.sampled(split)[:most]
        answers = zip(asked, self._answers(model, asked, 1)) if asked else ()
        return [
            Sample(
                question.question, answer.text or NO_ANSWER, question.answers[0][1] if question.answers else NO_ANSWER
            )
            for question, answer in answers
        ]

    @torch.inference_mode()
    def table(self, model: Answerer, text: str, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """Of each token of the first window: how likely the answer begins and ends there, or is there."""
        windows, texts = self._asked([self._question(text)])
        tensors = windows.collate(np.arange(1)).to(model.device).tensors
        logits = check_numbers(model(tensors)[0].float())
        begin, ids = int(windows.begins(np.arange(1))[0]), texts[0].ids[: int(windows.ends[0])]
        if self.options.head == "span":
            p, names = logits.masked_fill(~tensors["allowed"][0][:, None], -torch.inf).softmax(0), ("begin", "end")
        else:
            p, names = logits.sigmoid(), ("inside", "")
        rows = p[begin : begin + len(ids)].tolist()
        return [Guess(self.tokenizer.token(id), list(zip(names, row))) for id, row in zip(ids, rows)]

    @torch.inference_mode()
    def attention(self, model: Answerer, text: str, decode: DecodeConfig) -> dict[str, Alignment]:
        windows, trace = self._asked([self._question(text)])[0], Trace("weights")
        tensors = windows.collate(np.arange(1)).to(model.device).tensors
        model(tensors, trace=trace)
        tokens = [self.tokenizer.token(id) for id in tensors["ids"][0].tolist()]
        return traced(trace, lambda place: (tokens, tokens))


def _place(spans: Sequence[tuple[int, int]], start: int, text: str) -> tuple[int, int]:
    """The first and the last token that overlap the characters of an answer."""
    end = start + len(text)
    inside = [place for place, (low, high) in enumerate(spans) if low < end and high > start]
    return (inside[0], inside[-1]) if inside else NONE


def _plain(context: str, piece: Piece) -> dict[str, Any]:
    text = context[piece.start : piece.end]
    start = piece.start + len(text) - len(text.lstrip())
    found = {"answer": text.strip(), "start": start, "end": start + len(text.strip())}
    return {**found, "probability": round(float(np.exp(piece.logprob)), 6)}


def _answer(context: str, piece: Piece, told: str = "") -> Answer:
    text = context[piece.start : piece.end].strip()
    shown = f"{text or NO_ANSWER}  {100 * float(np.exp(piece.logprob)):.1f} %{told}"
    return Answer(text, [], piece.logprob, "stop", shown=shown)
