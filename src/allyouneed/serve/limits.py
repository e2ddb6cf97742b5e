"""Limits: what a server takes on, and from whom."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one server takes on at most, so that its memory and its time are bounded."""

    rows: int = 32  # answers that a run decodes together
    waiting: int = 128  # requests that wait, per run; further ones are refused with 429
    cache: int = 1 << 30  # bytes of what the rows of a run remember
    body: int = 2 << 20  # bytes of a request
    texts: int = 128  # in one request
    characters: int = 100_000  # of a text
    prompt: int = 8192  # tokens that are read before an answer is written
    output: int = 2048  # tokens of an answer
    answers: int = 16  # to one prompt
    numbers: int = 1_000_000  # that a trace has
    seconds: float = 300.0  # from a request to the end of its answer
    sending: float = 20.0  # seconds in which a client has to send its request
    key: str = ""  # that every request has to show; "": none
    origins: tuple[str, ...] = ()  # other pages that may ask (CORS)
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")  # names that the server answers to; (): any
