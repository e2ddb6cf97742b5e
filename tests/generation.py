"""Requests through a Decoder to their ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from allyouneed.decode import Request, Stepper
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
