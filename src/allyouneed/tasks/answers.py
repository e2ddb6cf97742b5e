"""From prompts to answers: ids become text while they are decoded, stop strings end an answer, order is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

import numpy as np

from allyouneed.config import DecodeConfig
from allyouneed.data.picture_arrays import to_image
from allyouneed.decode import Decoder, Request, Stepper, beam_search
from allyouneed.text import Tokenizer


@dataclass(frozen=True)
class Prompt:
    """The ids that the Stepper starts from, the most tokens of the answer, and those besides eos that end it."""

    ids: list[int]
    max_new: int
    stop: frozenset[int] = frozenset()


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


def write(
    stepper: Stepper,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    decode: DecodeConfig,
    show: Callable[[str], None] | None = None,
) -> Iterator[Answer]:
    """The answer to each prompt, in order. Prompts are read as they are needed. `show` gets the first answer piece by
    piece while it is decoded."""
    if decode.method == "beam":
        return _beams(stepper, tokenizer, prompts, decode)
    return _rows(stepper, tokenizer, prompts, decode, show)


class _Draft:
    """An answer while it is decoded."""

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...], show: Callable[[str], None] | None) -> None:
        self.stream, self.stops, self.show = tokenizer.stream(), stops, show
        self.text, self.shown = "", 0
        self.tokens: list[int] = []
        self.logprob = 0.0

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

    def end(self, reason: str) -> Answer:
        if not self.add(self.stream.end()):
            self._show(0)
        return Answer(self.text, self.tokens, self.logprob, reason)


def _rows(
    stepper: Stepper,
    tokenizer: Tokenizer,
    prompts: Iterable[Prompt],
    decode: DecodeConfig,
    show: Callable[[str], None] | None,
) -> Iterator[Answer]:
    """Greedy decoding and sampling, in one Decoder. A prompt makes decode.n_best requests."""
    decoder = Decoder(stepper, decode.batch)
    source = (_request(prompt, decode, tokenizer.eos, number) for prompt in prompts for number in range(decode.n_best))
    drafts: dict[int, _Draft] = {}
    ready: dict[int, Answer] = {}
    due = 0
    while True:
        # At least decode.n_best requests, so that one prompt can always be answered.
        for request in islice(source, max(4 * decode.batch, decode.n_best) - len(drafts) - len(ready)):
            id = decoder.add(request)
            drafts[id] = _Draft(tokenizer, decode.stop, show if id == 0 else None)
        if not drafts:
            return
        for event in decoder.tick():
            draft = drafts.get(event.id)
            if draft is None:  # already ended by a stop string
                continue
            draft.logprob += event.logprob
            stopped = False
            if event.token is not None:
                draft.tokens.append(event.token)
                stopped = draft.add(draft.stream.add(event.token))
            if stopped:
                decoder.cancel(event.id)
                ready[event.id] = Answer(drafts.pop(event.id).text, draft.tokens, draft.logprob, "stop")
            elif event.done:
                ready[event.id] = drafts.pop(event.id).end(event.done)
        while all(due + number in ready for number in range(decode.n_best)):
            first, *others = (ready.pop(due + number) for number in range(decode.n_best))
            yield replace(first, others=others)
            due += decode.n_best


def _request(prompt: Prompt, decode: DecodeConfig, eos: int | None, number: int) -> Request:
    sampling = decode.method == "sample"
    return Request(
        prompt.ids,
        max_new=prompt.max_new,
        temperature=decode.temperature if sampling else 0.0,
        top_k=decode.top_k,
        top_p=decode.top_p,
        seed=decode.seed + number,
        stop=prompt.stop | ({eos} if eos is not None else set()),
    )


def _beams(stepper: Stepper, tokenizer: Tokenizer, prompts: Iterable[Prompt], decode: DecodeConfig) -> Iterator[Answer]:
    """Beam search in batches of similar length; the answers come in the order of the prompts."""
    source = iter(prompts)
    while several := list(islice(source, 8 * decode.batch)):
        order = sorted(range(len(several)), key=lambda i: len(several[i].ids))
        answers: dict[int, Answer] = {}
        for start in range(0, len(order), decode.batch):
            these = order[start : start + decode.batch]
            found = beam_search(
                stepper,
                [several[i].ids for i in these],
                beam=decode.beam,
                max_new=[several[i].max_new for i in these],
                eos=-1 if tokenizer.eos is None else tokenizer.eos,
                alpha=decode.alpha,
                length_penalty=decode.length_penalty,
                n_best=decode.n_best,
            )
            for i, hypotheses in zip(these, found):
                best, *others = (
                    Answer(
                        _cut(tokenizer.decode(h.tokens), decode.stop),
                        h.tokens,
                        h.logprob,
                        "stop" if h.finished else "length",
                        h.score,
                    )
                    for h in hypotheses
                )
                answers[i] = Answer(best.text, best.tokens, best.logprob, best.reason, best.score, others)
        yield from (answers[i] for i in range(len(several)))


def _cut(text: str, stops: tuple[str, ...]) -> str:
    """The text before the first stop string."""
    found = [at for s in stops if (at := text.find(s)) >= 0]
    return text[: min(found)] if found else text
