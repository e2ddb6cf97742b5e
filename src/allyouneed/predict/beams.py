"""Beams: searches with one beam width, which requests join and leave."""

from __future__ import annotations

from collections import deque
from itertools import count

import torch

from allyouneed.decode.beam import BeamRequest, Found, Search
from allyouneed.decode.stepper import Stepper


class Beams:
    """Up to `most` sentences at a time over one Stepper; each tick gives every hypothesis a token."""

    def __init__(self, stepper: Stepper, most: int) -> None:
        self.stepper, self.most = stepper, most
        self._ids = count()
        self._waiting: deque[tuple[int, BeamRequest]] = deque()
        self._search: Search | None = None

    def add(self, request: BeamRequest) -> int:
        """Queue a request; the id is that of what is found."""
        id = next(self._ids)
        self._waiting.append((id, request))
        return id

    def cancel(self, id: int, answer: int | None = None) -> None:
        """Nothing will be found for this request; one that is already done may be cancelled too."""
        self._waiting = deque(item for item in self._waiting if item[0] != id)
        here = self._search.sentences if self._search is not None else []
        if self._search is not None and any(sentence.id == id for sentence in here):
            self._search.keep([i for i, sentence in enumerate(here) if sentence.id != id])
            self._search = self._search if self._search.sentences else None

    @property
    def busy(self) -> bool:
        """Whether a tick has anything left to do."""
        return bool(self._waiting) or self._search is not None

    @torch.inference_mode()
    def tick(self) -> list[Found]:
        """One more token for every hypothesis, and a first one for sentences that join; returns what is found."""
        here = len(self._search.sentences) if self._search is not None else 0
        free = self.most - here
        # To join costs a copy of the whole state. So of many that wait, none joins before a quarter of the places is
        # free.
        found = []
        if free >= min(len(self._waiting), max(1, self.most // 4)):
            found = self._start([self._waiting.popleft() for _ in range(min(free, len(self._waiting)))])
        if self._search is not None:
            found += self._search.advance(self.stepper)
            self._search = self._search if self._search.sentences else None
        return found

    def _start(self, new: list[tuple[int, BeamRequest]]) -> list[Found]:
        """Read inputs; if this fails for several, each alone, so that an error belongs to its request."""
        if not new:
            return []
        try:
            made = Search.start(self.stepper, new)
        except Exception as error:
            if len(new) > 1:
                return [found for one in new for found in self._start([one])]
            return [Found(new[0][0], [], error)]
        if self._search is None:
            self._search = made
        else:
            self._search.join(made, self.stepper)
        return []
