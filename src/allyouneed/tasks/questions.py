"""answer: a question about a text, answered by a piece of the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.questions import AnswerWindows
from allyouneed.data.examples import Question
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.metrics import Score, span_scores
from allyouneed.models.answerer import HEADS, Answerer
from allyouneed.predict.questions import NO_ANSWER, AnswerProcessor, Asked, Piece
from allyouneed.tasks.base import Answering, Answers, Carry, Losses, Moment, Pieces, Sample, once
from allyouneed.text.layout import Tokens


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


class AnswerQuestions(AnswerProcessor, Answering[Answerer]):
    """loss = -½ [log p(the answer begins at i) + log p(it ends at j)], or the mean cross-entropy of the tokens: inside
    the answer or not"""

    Options = AnswerOptions
    shape = "questions"
    unit = "window"
    weights: ClassVar[dict[str, float]] = {"answers": 1.0}
    item_name = "questions"
    chooses_by = "F1"
    eval_share = 0.1

    def training_texts(self) -> Iterator[str]:
        before = ""
        for question in self.data.splits["train"]:
            yield f" {question.question}"
            if question.context != before:
                yield f" {question.context}"
            before = question.context

    @once
    def questions(self, split: str) -> list[Question]:
        return list(self.data.splits[split])

    @once
    def texts(self, split: str) -> tuple[list[Tokens], np.ndarray]:
        """The tokens of each text, and which text each question is about."""
        return self.tokenized([question.context for question in self.questions(split)])

    @once
    def examples(self, split: str) -> AnswerWindows:
        texts, of = self.texts(split)
        questions = self.questions(split)
        found = self.windows(questions, self.encoded([one.question for one in questions]), texts, of)
        self.check_rows(split, [found.questions, found.texts])
        return found

    @property
    def cut(self) -> int:
        return self.longest

    def study(self) -> None:
        silent = {split: self._unanswered(split) for split in self.data.splits}
        self.unanswerable = silent["train"] > 0
        if silent["train"] == len(self.questions("train")):
            raise UserError("no training question has an answer: there is nothing to learn")
        _, self.learned_longest = self.examples("train").answer_lengths()
        for split, count in silent.items():
            if count and not self.unanswerable:
                raise UserError(
                    f"the {split} split has {count:,} questions without an answer, the training data has none: add "
                    "such questions to it, or remove these"
                )

    def notes(self) -> Iterator[str]:
        for split in self.data.splits:
            yield from (f"{split}: {count:,} {what}" for what, count in self._unfit(split).items() if count)
        if not self.options.longest:
            usual, _ = self.examples("train").answer_lengths()
            yield (
                f"answers of up to {self.most_tokens} tokens are found, because 99 % of the training answers have "
                f"{usual} or fewer (task.longest)"
            )

    def rows(self, split: str) -> tuple[Ragged, Ragged]:
        windows = self.examples(split)
        return windows.questions, windows.texts

    def lengths(self, split: str) -> np.ndarray:
        windows = self.examples(split)
        return np.asarray(windows.question_lengths + windows.texts.lengths[windows.of] + self.layout.specials(2))

    def classes(self, split: str) -> dict[str, int] | None:
        silent, total = self._unanswered(split), len(self.questions(split))
        return {"with an answer": total - silent, "without": silent} if self.unanswerable else None

    def _unanswered(self, split: str) -> int:
        return sum(not question.answers for question in self.questions(split))

    def _unfit(self, split: str) -> dict[str, int]:
        """How many texts, questions and answers do not fit as they are."""
        windows, most = self.examples(split), self.most_tokens
        first, last = windows.answers.T
        long = np.unique(windows.of[windows.rows[windows.starts > 0]])
        whole = np.unique(windows.rows[windows.holds(np.arange(len(windows.rows)))])
        counts = {
            f"texts over {self.longest:,} tokens, read in windows": len(long),
            "questions cut to half a window": (windows.question_lengths < windows.questions.lengths).sum(),
            f"answers over {most} tokens, which are never found whole (task.longest)": (last - first >= most).sum(),
            "answers that no window holds whole, learned as no answer (raise task.stride or data.max_length)": (
                (first >= 0).sum() - len(whole)
            ),
            "answers that no token covers, learned as no answer": (first < 0).sum() - self._unanswered(split),
        }
        return {what: int(count) for what, count in counts.items()}

    def losses(self, model: Answerer, batch: Batch, at: Moment | None = None, carry: Carry | None = None) -> Losses:
        return {"answers": model.loss(batch.tensors)}

    def answer(self, model: Answerer, split: str, decode: DecodeConfig, pieces: Pieces) -> Answers:
        predictor = self.predictor(model)
        asked = Asked(self.questions(split), self.examples(split), self.texts(split)[0])
        for piece in pieces:
            for number, reading in predictor.search(asked, piece, 1).items():
                yield number, predictor.chosen(reading)

    def scores(self, split: str, decode: DecodeConfig, answers: Mapping[int, Piece]) -> list[Score]:
        """Exact match and F1; if there are questions without an answer, also for each kind of questions."""
        pairs = ((self.questions(split)[number], piece) for number, piece in answers.items())
        rows = [(_text(question, piece), _references(question)) for question, piece in pairs]
        detail = f"|{self.options.head}|window:{self.longest}|stride:{self.options.stride}|split:{split}"
        scores = span_scores(rows, detail)
        for kind, some, count in (("answerable", True, 2), ("unanswerable", False, 1)) if self.unanswerable else ():
            if chosen := [row for row in rows if bool(row[1]) is some]:
                scores += [replace(s, name=f"{kind} {s.name}") for s in span_scores(chosen, detail)[:count]]
        return scores

    def record(self, example: Question, answer: Piece) -> dict[str, Any]:
        return {
            **({"id": example.id} if example.id else {}),
            "question": example.question,
            "prediction": _text(example, answer),
            "reference": _references(example),
            "probability": round(float(np.exp(answer.logprob)), 6),
        }

    def sample(self, example: Question, answer: Piece) -> Sample:
        answers = (_text(example, answer), *_references(example), "")
        return Sample(example.question, *(text or NO_ANSWER for text in answers[:2]))


def _text(question: Question, piece: Piece) -> str:
    return question.context[piece.start : piece.end].strip()


def _references(question: Question) -> list[str]:
    return [text for _, text in question.answers]
