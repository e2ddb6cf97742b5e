"""Requests through a Decoder or a BeamSearch to their ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from allyouneed.decode import Hypothesis, Request, Stepper
from allyouneed.decode.beam import BeamSearch
from allyouneed.predict.decoder import Decoder


def generate(
    stepper: Stepper, requests: Iterable[Request], rows: int
) -> Iterator[tuple[int, list[int], list[float], str]]:
    """(index, tokens, log-probabilities, why it ended) of each request, in their order; after "stop" the
    log-probabilities have one more entry, that of the stop token."""
    decoder = Decoder(stepper, rows)
    source = iter(requests)
    texts: dict[int, tuple[list[int], list[float]]] = {}
    ends: dict[int, str] = {}
    due = 0
    while True:
        for request in islice(source, 4 * rows - len(texts)):
            texts[decoder.add(request)] = [], []
        if not texts:
            return
        for event in decoder.tick():
            if event.error is not None:
                raise event.error
            tokens, logprobs = texts[event.id]
            logprobs.append(event.logprob)
            if event.token is not None:
                tokens.append(event.token)
            if event.done:
                ends[event.id] = event.done
        while due in ends:
            yield due, *texts.pop(due), ends.pop(due)
            due += 1


def beam_search(
    stepper: Stepper,
    inputs: Sequence[Any],
    *,
    max_new: int | Sequence[int],
    eos: int,
    n_best: int = 1,
    record: Callable[[str, Tensor], None] | None = None,
    **settings: Any,
) -> list[list[Hypothesis]]:
    """The n best hypotheses of each input, all in one batch. `settings` are those of a Request. `record` gets the live
    hypotheses of each step by name; a Trace has such a method."""
    most = [max_new] * len(inputs) if isinstance(max_new, int) else max_new
    search, answers = BeamSearch(stepper, len(inputs)), dict[int, list[Hypothesis]]()
    search.record = record
    for ids, each in zip(inputs, most, strict=True):
        search.add(Request(ids, each, stop=[eos], answers=n_best, **settings))
    while search.busy:
        for event in search.tick():
            if event.error is not None:
                raise event.error
            answers[event.id] = event.hypotheses
    return [answers[id] for id in range(len(inputs))]
