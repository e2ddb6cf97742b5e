"""answer: a question about a text, answered by a piece of the text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.questions import AnswerWindows
from allyouneed.data.examples import Question
from allyouneed.data.report import Report, describe
from allyouneed.data.store import unknown_part
from allyouneed.errors import UserError
from allyouneed.metrics import Score
from allyouneed.metrics.spans import span_scores
from allyouneed.models.answerer import HEADS, Answerer
from allyouneed.predict.base import answered
from allyouneed.predict.questions import NO_ANSWER, AnswerProcessor, Asked, Piece
from allyouneed.tasks.base import WHOLE, Answering, Carry, Moment, Sample, TestBudget, once
from allyouneed.terminal import Say
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

    def check_model(self) -> None:
        super().check_model()
        if self.kind.BodyClass.spelled:
            raise UserError(f"model.kind = {self.recipe.model_kind} reads letters; the task answer needs tokens")

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
            lengths[split] = windows.question_lengths + windows.texts.lengths[windows.of] + self.layout.specials(2)
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
            "questions cut to half a window": int((windows.question_lengths < windows.questions.lengths).sum()),
            f"answers over {most} tokens, which are never found whole (task.longest)": int(
                (last - first >= most).sum()
            ),
            "answers that no window holds whole, learned as no answer (raise task.stride or data.max_length)": len(
                split_up
            ),
            "answers that no token covers, learned as no answer": int((asked & (first < 0)).sum()),
        }
        yield from (f"{split}: {count:,} {what}" for what, count in told.items() if count)

    def losses(
        self, model: Answerer, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        return {"answers": model.loss(batch.tensors)}

    def test(
        self, model: Answerer, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE
    ) -> list[Score]:
        """Exact match and F1; if there are questions without an answer, also for each kind of questions."""
        questions, predictor = self.questions(split), self.predictor(model)
        asked, found = Asked(questions, self.examples(split), self.texts(split)[0]), dict[int, Piece]()
        for piece in budget.pieces(len(questions)):
            read = predictor.search(asked, piece, 1)
            found |= {row: predictor.chosen(reading) for row, reading in read.items()}
        found, self.covered = dict(sorted(found.items())), len(found)
        given = {row: questions[row].context[piece.start : piece.end].strip() for row, piece in found.items()}
        self.tested = lambda: (
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

    def samples(self, model: Answerer, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        asked, predictor = self.sampled(split)[:most], self.predictor(model)
        answers = answered(predictor.answers([predictor.read_question(one) for one in asked], decode))
        return [
            Sample(one.question, answer.text or NO_ANSWER, one.answers[0][1] if one.answers else NO_ANSWER)
            for one, answer in zip(asked, answers)
        ]
