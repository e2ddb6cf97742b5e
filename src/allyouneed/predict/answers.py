"""From prompts to answers: ids become text while they are decoded, stop strings end an answer, order is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from allyouneed.config import DecodeConfig
from allyouneed.data.formats.decoding import to_image
from allyouneed.decode import BeamRequest, Hypothesis
from allyouneed.decode.beam import Found
from allyouneed.decode.sample import NO_TOKEN
from allyouneed.errors import UserError
from allyouneed.predict.decoder import Event, Request
from allyouneed.predict.writer import Writer
from allyouneed.text import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """The ids that the Stepper starts from, the most tokens of the answer, and those besides eos that end it."""

    ids: list[int]
    max_new: int
    stop: frozenset[int] = frozenset()
    text: str = ""  # as the user gave it


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
    picture: np.ndarray | None = field(default=None, repr=False)  # (H, W, C) bytes, if the answer is a picture

    @property
    def result(self) -> Any:
        """What `Run.predict` returns: the text, or the picture as an image of Pillow."""
        return self.text if self.picture is None else to_image(self.picture)


Outcome = Answer | Exception  # an input has an answer, or an error


def write(
    writer: Writer,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    decode: DecodeConfig,
    show: Callable[[str], None] | None = None,
) -> Iterator[Outcome]:
    """The answer to each prompt, or its error, in order. Prompts are read as they are needed. `show` gets the first
    answer piece by piece while it is decoded."""
    if decode.method == "beam":
        return _beams(writer, tokenizer, prompts, decode)
    return _rows(writer, tokenizer, prompts, decode, show)


class _Draft:
    """An answer while it is decoded."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...], show: Callable[[str], None] | None) -> None:
        self.stream, self.stops, self.show = tokenizer.stream(), stops, show
        self.text, self.shown = "", 0
        self.tokens: list[int] = []
        self.logprob = 0.0
        self.answer: Answer | None = None  # once it has ended

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

    def _show(self, hold: int) -> None:
        """Show what is new, but not the last `hold` characters: they may become a stop string."""
        if self.show is not None and len(self.text) - hold > self.shown:
            self.show(self.text[self.shown : len(self.text) - hold])
            self.shown = len(self.text) - hold

    def take(self, event: Event) -> None:
        """The next token, or the end."""
        self.logprob += event.logprob
        stopped = False
        if event.token is not None:
            self.tokens.append(event.token)
            stopped = self.add(self.stream.add(event.token))
        if event.done and not stopped and not self.add(self.stream.end()):
            self._show(0)
        if stopped or event.done:
            self.answer = Answer(self.text, self.tokens, self.logprob, "stop" if stopped else str(event.done))


def _rows(
    writer: Writer,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    decode: DecodeConfig,
    show: Callable[[str], None] | None,
) -> Iterator[Outcome]:
    """Greedy decoding and sampling. A prompt makes one request, for decode.n_best answers."""
    source, due = iter(prompts), 0
    drafts: dict[int, list[_Draft]] = {}  # by request
    ready: dict[int, Outcome] = {}
    with writer.session(decode.batch) as session:
        while True:
            # At least one request, so that a prompt with many answers is answered, too.
            room = max(1, 4 * decode.batch // decode.n_best) - len(drafts) - len(ready)
            for prompt in islice(source, max(0, room)):
                number = session.add(_request(prompt, decode, tokenizer.eos))
                shown = [show if number == 0 and not answer else None for answer in range(decode.n_best)]
                drafts[number] = [_Draft(tokenizer, decode.stop, one) for one in shown]
            if not drafts and not ready:
                return
            for event in session.wait():
                assert isinstance(event, Event)
                if event.error is not None:
                    ready[event.id] = event.error
                    del drafts[event.id]
                    continue
                draft = drafts[event.id][event.answer]
                if draft.answer is None:  # not already ended by a stop string
                    draft.take(event)
                    if draft.answer is not None and not event.done:
                        session.cancel(event.id, event.answer)
            for number in [number for number, several in drafts.items() if all(draft.answer for draft in several)]:
                first, *others = (draft.answer for draft in drafts.pop(number) if draft.answer is not None)
                ready[number] = replace(first, others=others)
            while due in ready:
                yield ready.pop(due)
                due += 1


def _request(prompt: Prompt, decode: DecodeConfig, eos: int | None) -> Request:
    sampling = decode.method == "sample"
    return Request(
        prompt.ids,
        max_new=prompt.max_new,
        temperature=decode.temperature if sampling else 0.0,
        top_k=decode.top_k,
        top_p=decode.top_p,
        seed=decode.seed,
        stop=prompt.stop | ({eos} if eos is not None else set()),
        answers=decode.n_best,
    )


def _beams(writer: Writer, tokenizer: Tokenizer, prompts: Iterable[Prompt], decode: DecodeConfig) -> Iterator[Outcome]:
    """Beam search over prompts of similar length; the answers come in the order of the prompts."""
    source = iter(prompts)
    while several := list(islice(source, 8 * decode.batch)):
        with writer.session(decode.batch) as session:
            order = sorted(range(len(several)), key=lambda i: len(several[i].ids))
            places = {session.add(beam_request(several[i], decode, tokenizer.eos)): i for i in order}
            answers: dict[int, Outcome] = {}
            while len(answers) < len(several):
                for found in session.wait():
                    if found.error is not None or not isinstance(found, Found):
                        answers[places[found.id]] = found.error or UserError(NO_TOKEN)
                        continue
                    first, *others = (_found(h, tokenizer, decode.stop) for h in found.hypotheses)
                    answers[places[found.id]] = replace(first, others=others)
        yield from (answers[i] for i in range(len(several)))


def beam_request(prompt: Prompt, decode: DecodeConfig, eos: int | None) -> BeamRequest:
    """A prompt as beam search takes it."""
    return BeamRequest(
        prompt.ids,
        max_new=prompt.max_new,
        beam=decode.beam,
        eos=-1 if eos is None else eos,
        alpha=decode.alpha,
        length_penalty=decode.length_penalty,
        n_best=decode.n_best,
    )


def _found(h: Hypothesis, tokenizer: Tokenizer, stops: tuple[str, ...]) -> Answer:
    text, reason = _cut(tokenizer.decode(h.tokens), stops), "stop" if h.finished else "length"
    return Answer(text, h.tokens, h.logprob, reason, h.score)


def _cut(text: str, stops: tuple[str, ...]) -> str:
    """The text before the first stop string."""
    found = [at for s in stops if (at := text.find(s)) >= 0]
    return text[: min(found)] if found else text
