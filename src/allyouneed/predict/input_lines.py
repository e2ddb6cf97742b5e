"""Lines of input, each with its answer or with the error that says why it has none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from allyouneed.errors import UserError
from allyouneed.predict.answers import Answer, Outcome

Text = str | Sequence[str]  # for a tagger, a text may be the list of its words


@dataclass(frozen=True)
class Line:
    """A line of input with its answer, or with the error that says why there is none; a blank line has neither."""

    number: int
    text: str
    answer: Answer | None = None
    error: UserError | None = None

    @property
    def asks(self) -> bool:
        """Whether it can be given to the model."""
        return self.error is None and bool(self.text.strip())


def answer_lines(
    lines: Iterable[Text | UserError],
    first: int,
    join: Callable[[Text], str],
    read: Callable[[str], Any],
    answers: Callable[[Iterable[Any]], Iterator[Outcome]],
) -> Iterator[Line]:
    """Every line in order, for any number of lines. A line that could not be read is given as its error. `first` is the
    number of the first line; `join` makes a text of its words; `read` raises a UserError for a text that the model
    cannot read; `answers` answers what was read, which it takes as it needs it."""
    waiting: deque[Line] = deque()  # read, and not yet yielded

    def inputs() -> Iterator[Any]:
        for number, line in enumerate(lines, first):
            text, given = "", None
            try:
                if isinstance(line, UserError):
                    raise line
                text = join(line)
                given = read(text) if text.strip() else None
            except UserError as error:
                waiting.append(Line(number, text, error=error))
                continue
            waiting.append(asked := Line(number, text))
            if asked.asks:
                yield given

    for outcome in answers(inputs()):
        while not waiting[0].asks:
            yield waiting.popleft()
        line = waiting.popleft()
        if isinstance(outcome, UserError):
            yield replace(line, error=outcome)
        elif isinstance(outcome, Exception):
            raise outcome
        else:
            yield replace(line, answer=outcome)
    yield from waiting
