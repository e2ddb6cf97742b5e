"""Lines of input, each with its answer or with the error that says why it has none."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from allyouneed.errors import UserError
from allyouneed.predict.answers import Answer

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
    check: Callable[[str], object],
    predict: Callable[[Iterable[str], bool], Iterator[Answer]],
) -> Iterator[Line]:
    """Every line in order, for any number of lines. A line that could not be read is given as its error. `first` is the
    number of the first line; `join` makes a text of its words; `check` raises a UserError for a text that the model
    cannot read; `predict` answers texts, which it reads as it needs them, all together or one alone (True)."""
    source = enumerate(lines, first)
    waiting: deque[Line] = deque()  # read, and not yet yielded
    reading, ended = False, False

    def checked(number: int, line: Text | UserError) -> Line:
        if isinstance(line, UserError):
            return Line(number, "", error=line)
        text = ""
        try:
            text = join(line)
            if text.strip():
                check(text)
        except UserError as error:
            return Line(number, text, error=error)
        return Line(number, text)

    def questions() -> Iterator[str]:
        nonlocal reading, ended
        while not ended:
            reading = True
            item = next(source, None)
            reading = False
            if item is None:
                ended = True
                return
            waiting.append(line := checked(*item))
            if line.asks:
                yield line.text

    def alone(line: Line) -> Line:
        if not line.asks:
            return line
        try:
            return replace(line, answer=next(predict([line.text], True)))
        except UserError as error:
            return replace(line, error=error)

    while not ended:
        try:
            for answer in predict(questions(), False):
                while not waiting[0].asks:
                    yield waiting.popleft()
                yield replace(waiting.popleft(), answer=answer)
        except UserError:
            if reading:  # the error comes from reading, not from an answer
                raise
        while waiting:  # after an error: each line alone, so that only the bad lines have no answer
            yield alone(waiting.popleft())
