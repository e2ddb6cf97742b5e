"""Questions beside their texts; a long text comes in several windows, and the answer is a range of tokens in one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from allyouneed.batch import Tensors
from allyouneed.data.batches.base import Examples, Numbers, Size, lay_rows
from allyouneed.data.store import Ragged
from allyouneed.text.layout import Layout

NONE = (-1, -1)  # no answer
SHORTEST, LONGEST = 8, 512  # limits of the longest answer that is looked for, in tokens
MARGIN = 1.5
CELLS = 1 << 24  # pieces of texts whose scores are in memory at once


class AnswerWindows(Examples):
    """Example i is window i: `rows[i]` is its question, and it shows the tokens `starts[i]` to `ends[i]` of the text of
    that question, text `of[rows[i]]`. Answers are the first and the last token in the text. A window without the whole
    answer has none; then the targets are the special token at `nothing`. A question is cut to half a window."""

    def __init__(
        self,
        questions: Ragged,
        texts: Ragged,
        of: np.ndarray,
        answers: Sequence[tuple[int, int]],
        layout: Layout,
        longest: int,
        stride: int,
    ) -> None:
        self.questions, self.texts, self.of, self.layout, self.longest = questions, texts, of, layout, longest
        self.answers = np.array(answers, dtype=np.int64).reshape(-1, 2)
        self.question_lengths = np.minimum(questions.lengths, max(1, (longest - layout.specials(2)) // 2))
        sizes = zip(self.question_lengths.tolist(), texts.lengths[of].tolist())
        windows = [(row, *w) for row, (q, t) in enumerate(sizes) for w in layout.windows(q, t, longest, stride)]
        self.rows, self.starts, self.ends = np.array(windows, dtype=np.int64).reshape(-1, 3).T
        super().__init__(self.question_lengths[self.rows] + self.ends - self.starts + layout.specials(2))

    def begins(self, numbers: Numbers) -> np.ndarray:
        """Where the text begins in each row."""
        around = len(self.layout.start) + len(self.layout.between)
        return np.asarray(self.question_lengths[self.rows[numbers]] + around)

    def nothing(self, numbers: Numbers) -> np.ndarray:
        """The place of the token that means "no answer" in each row: the first special token."""
        return np.zeros(len(numbers), np.int64) if self.layout.start else self.begins(numbers) - 1

    def holds(self, numbers: Numbers) -> np.ndarray:
        """Whether each window has the whole answer."""
        first, last = self.answers[self.rows[numbers]].T
        return np.asarray((first >= self.starts[numbers]) & (last < self.ends[numbers]) & (first >= 0))

    def answer_lengths(self) -> tuple[int, int]:
        """The tokens that 99 % of the answers have at most, and, with a margin, those of the longest to look for: no
        longer than a window, and not as long as a few exceptions, which would let in many wrong answers."""
        first, last = self.answers.T
        lengths = np.sort((last - first + 1)[first >= 0])
        usual = int(lengths[math.ceil(0.99 * len(lengths)) - 1]) if len(lengths) else 0
        return usual, min(self.longest, LONGEST, max(SHORTEST, math.ceil(MARGIN * usual)))

    def groups(self, questions: np.ndarray, most: int) -> list[np.ndarray]:
        """The questions in groups. The pieces of up to `most` tokens of the texts of a group are about CELLS, or those
        of a single text if it has more."""
        sizes = self.texts.lengths[self.of[questions]]
        before = np.cumsum(sizes * np.minimum(sizes, most)) // CELLS
        return np.split(questions, np.flatnonzero(np.diff(before)) + 1)

    def size(self, numbers: Numbers, key: int) -> Size:
        return Size({"answers": len(numbers)}, int(self.sizes[numbers].sum()))

    def tensors(self, numbers: Numbers, key: int) -> Tensors:
        row, start, end = self.rows[numbers], self.starts[numbers], self.ends[numbers]
        of = self.of[row]
        laid = lay_rows(
            self.layout,
            [
                (self.questions.tokens, self.questions.offsets[row], self.question_lengths[row]),
                (self.texts.tokens, self.texts.offsets[of] + start, end - start),
            ],
        )
        first, last = self.answers[row].T
        there = self.holds(numbers)
        shift, nothing = self.begins(numbers) - start, self.nothing(numbers)
        targets = np.stack([np.where(there, first + shift, nothing), np.where(there, last + shift, nothing)], axis=1)
        allowed = laid.inside[1]
        allowed[np.arange(len(numbers)), nothing] = True
        return {
            "ids": torch.from_numpy(laid.ids),
            "lengths": torch.from_numpy(laid.lengths),
            "segments": torch.from_numpy(laid.segments),
            "allowed": torch.from_numpy(allowed),
            "targets": torch.from_numpy(targets),
        }
