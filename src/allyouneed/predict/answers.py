"""From prompts to answers, in order: ids become text while they are decoded, and stop strings end an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from typing import Any

import numpy as np

from allyouneed.config import DecodeConfig
from allyouneed.data.formats.pixels import to_image
from allyouneed.decode import Event, Hypothesis, Request
from allyouneed.errors import UserError
from allyouneed.predict.writer import Session, Writer
from allyouneed.text import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """The ids that the Stepper starts from, the most tokens of the answer, and those besides eos that end it."""

    ids: list[int]
    max_new: int
    stop: frozenset[int] = frozenset()
    unknown: Sequence[str] = ()  # words of the user's text that are not in the vocabulary


@dataclass(frozen=True)
class Answer:
    """`logprob` is the sum over all tokens, with the end token; `reason` is why it ended, "stop" or "length"."""

    text: str
    tokens: list[int]
    logprob: float
    reason: str
    score: float = 0.0  # beam: the log-probability after the length penalty
    others: list[Answer] = field(default_factory=list)  # beam: the next best; sample: from the next seeds
    details: dict[str, Any] = field(default_factory=dict, repr=False)  # plain values, for --json
    shown: str = ""  # what the terminal shows, if more than the text
    image: np.ndarray | None = field(default=None, repr=False)  # (H, W, C) bytes, if the answer is an image
    end: int | None = None  # the token that has ended it, which `tokens` leaves out; None: it ended otherwise

    @property
    def whole(self) -> list[int]:
        """Its tokens, with the one that has ended it, if one has."""
        return self.tokens if self.end is None else [*self.tokens, self.end]

    def plain(self) -> dict[str, Any]:
        """It and the others for a program, as plain values."""
        found: dict[str, Any] = {}
        if not self.details.keys() - {"unknown"}:
            found, *others = (
                {"text": one.text, "logprob": round(one.logprob, 6), "reason": one.reason}
                for one in (self, *self.others)
            )
            if others:
                found["others"] = others
        return {**found, **self.details}

    @property
    def result(self) -> Any:
        """What `Run.predict` returns: the text, or the image as a PIL image."""
        return self.text if self.image is None else to_image(self.image)


Outcome = Answer | Exception  # an input has an answer, or an error


def flagged(outcome: Outcome, unknown: Sequence[str]) -> Outcome:
    """The answer; if its input has words that are not in the vocabulary, its details name them."""
    if isinstance(outcome, Exception) or not unknown:
        return outcome
    return replace(outcome, details={**outcome.details, "unknown": list(unknown)})


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


def write(
    writer: Writer,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    decode: DecodeConfig,
    show: Callable[[str], None] | None = None,
) -> Iterator[Outcome]:
    """The answer to each prompt, or its error, in order. Prompts are read as they are needed; each makes one request,
    for decode.n_best answers. `show` gets the pieces of the first answer while it is decoded; beam search has none.
    The longest of those that are read together start first, so that similar ones start together and none is left at the
    end; with `show` they keep their order, but for beams.
    """
    source, shows, beams = iter(prompts), iter([show]), decode.method == "beam"
    most = 8 * decode.batch if beams else max(1, 4 * decode.batch // decode.n_best)  # requests at a time
    due = deque[int]()  # requests in the order of their prompts
    drafts: dict[int, Drafts] = {}  # by request
    ready: dict[int, Outcome] = {}
    with writer.session(decode.batch) as session:
        while True:
            more = not due if beams else 2 * len(drafts) <= most and len(due) < 2 * most
            several = list(enumerate(islice(source, (most - len(drafts)) * more)))
            ids = dict[int, int]()
            for i, prompt in sorted(several, key=lambda item: -len(item[1].ids) * (beams or not show)):
                ids[i] = session.add(request_for(prompt, decode, tokenizer.eos))
                drafts[ids[i]] = Drafts(tokenizer, decode, [next(shows, None)])
            due.extend(ids[i] for i, _ in several)
            if not due:
                return
            for event in session.wait():
                if event.id in drafts and (outcome := drafts[event.id].take(event, session)) is not None:
                    ready[event.id] = outcome
                    del drafts[event.id]
            while due and due[0] in ready:
                yield ready.pop(due.popleft())


class Drafts:
    """What is written for one request: each of its answers. `shows` get the pieces of the first ones; beam search has
    none."""

    def __init__(
        self, tokenizer: Tokenizer, decode: DecodeConfig, shows: Sequence[Callable[[str], None] | None]
    ) -> None:
        self.tokenizer, self.stops, count = tokenizer, decode.stop, decode.n_best * (decode.method != "beam")
        self.each = [Draft(tokenizer, decode.stop, show) for _, show in zip_longest(range(count), shows[:count])]

    def take(self, event: Event, session: Session) -> Outcome | None:
        """The outcome of the request, if no more events matter after this one."""
        if event.error is not None:
            return event.error
        if not self.each:
            return _joined(searched(h, self.tokenizer, self.stops) for h in event.hypotheses)
        draft = self.each[event.answer]
        if draft.answer is None:  # not ended by a stop string
            draft.take(event)
            if draft.answer is not None and not event.done:
                session.cancel(event.id, event.answer)
        answers = [draft.answer for draft in self.each if draft.answer is not None]
        return _joined(answers) if len(answers) == len(self.each) else None


def _joined(answers: Iterable[Answer]) -> Answer:
    """The first answer, with the others."""
    first, *others = answers
    return replace(first, others=others)


class Draft:
    """An answer while it is decoded."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...], show: Callable[[str], None] | None) -> None:
        self.tokenizer, self.stream, self.stops, self.show = tokenizer, tokenizer.stream(), stops, show
        self.text, self.shown = "", 0
        self.tokens: list[int] = []
        self.logprob = 0.0
        self.answer: Answer | None = None  # once it has ended

    @property
    def watched(self) -> bool:
        """Whether its text matters before its end."""
        return bool(self.stops) or self.show is not None

    def add(self, piece: str) -> bool:
        """Append text. If a stop string is complete, cut it off and return True."""
        before = len(self.text)
        self.text += piece
        longest = max(map(len, self.stops), default=0)
        found = [at for s in self.stops if (at := self.text.find(s, max(0, before - longest))) >= 0]
        if found:
            self.text = self.text[: min(found)]
        self._show(0 if found else max(0, longest - 1))
        return bool(found)

    def _show(self, hidden: int) -> None:
        """Show what is new, but not the last `hidden` characters: they may become a stop string."""
        if self.show is not None and len(self.text) - hidden > self.shown:
            self.show(self.text[self.shown : len(self.text) - hidden])
            self.shown = len(self.text) - hidden

    def take(self, event: Event) -> None:
        """The next token, or the end."""
        self.logprob += event.logprob
        stopped = False
        if event.token is not None:
            self.tokens.append(event.token)
            stopped = self.watched and self.add(self.stream.add(event.token))
        if event.done and not self.watched:
            self.text = self.tokenizer.decode(self.tokens)
        elif event.done and not stopped:
            stopped = self.add(self.stream.end())
            self._show(0)
        if stopped or event.done:
            reason, end = ("stop", None) if stopped else (str(event.done), event.end)
            self.answer = Answer(self.text, self.tokens, self.logprob, reason, end=end)


def request_for(prompt: Prompt, decode: DecodeConfig, eos: int | None) -> Request:
    """A prompt as a search takes it."""
    beams, ends = decode.method == "beam", set() if eos is None else {eos}
    return Request(
        prompt.ids,
        max_new=prompt.max_new,
        temperature=decode.temperature if decode.method == "sample" else 0.0,
        top_k=decode.top_k,
        top_p=decode.top_p,
        seed=decode.seed,
        stop=ends if beams else prompt.stop | ends,
        answers=decode.n_best,
        beam=decode.beam if beams else None,
        alpha=decode.alpha,
        length_penalty=decode.length_penalty,
    )


def searched(h: Hypothesis, tokenizer: Tokenizer, stops: tuple[str, ...]) -> Answer:
    """What a beam search has found, as an answer."""
    whole = tokenizer.decode(h.tokens)
    text = whole[: min((at for s in stops if (at := whole.find(s)) >= 0), default=len(whole))]
    end = tokenizer.eos if h.finished and text == whole else None
    return Answer(text, h.tokens, h.logprob, "stop" if h.finished else "length", h.score, end=end)
