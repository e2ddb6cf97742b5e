"""Steps that are recorded once and replayed: the same tokens as steps that are run each time."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from allyouneed.decode import Request
from allyouneed.decode.beam import BeamSearch
from allyouneed.decode.recorded import EAGER, Recorded
from allyouneed.models.dalle import DALLE, DALLEConfig
from allyouneed.models.gpt import GPT, GPTConfig
from allyouneed.models.transformer import Transformer, TransformerConfig
from allyouneed.predict.decoder import Decoder
from generation import generate

KINDS = ("gpt", "rotary", "transformer", "guided")


def given(kind: str, device: str) -> tuple[Any, list[Request]]:
    """A stepper and requests of many lengths, which join and leave, while the cache grows."""
    torch.manual_seed(1)
    model: Any
    if kind == "transformer":
        model = Transformer(TransformerConfig(layers=2, heads=2, width=32, vocab=50, target_vocab=50))
    elif kind == "guided":
        model = DALLE(DALLEConfig(layers=2, heads=2, width=32, vocab=40, caption=6, codes=50, grid=16, dropout=0.0))
    else:
        positions = "rotary" if kind == "rotary" else "learned"
        model = GPT(GPTConfig(layers=2, heads=2, width=32, vocab=50, context=600, positions=positions))
    model = model.eval().to(device)
    for p in model.parameters():
        torch.nn.init.normal_(p, std=0.3)
    inputs = [[3 + i % 30] * (1 + i % 5) for i in range(12)]
    if kind == "guided":
        inputs = [model.prompt(some) for some in inputs]
    guided = {"guidance": 1.5, "free": model.prompt([])} if kind == "guided" else {}
    return model, [Request(some, 20 + 19 * i, i % 3 / 2, seed=i, **guided) for i, some in enumerate(inputs)]


def written(stepper: Any, requests: list[Request]) -> list[Any]:
    return [(i, tokens, end) for i, tokens, _, end in generate(stepper, requests, 5)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_a_replayed_step_gives_the_same_tokens(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stepper, requests = given(kind, "cuda")
    recordings, record = [], Recorded._record
    monkeypatch.setattr(Recorded, "_record", lambda *given: recordings.append(1) or record(*given))
    replayed = written(stepper, requests)
    assert len(recordings) >= 3
    monkeypatch.setattr("allyouneed.decode.recorded.EAGER", 1 << 30)
    assert replayed == written(stepper, requests)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_recorded_again_only_when_tensors_move(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: a graph is a call on the tokens and the tensors of the recording."""

    class Graph:
        def __init__(self, recorded: Recorded) -> None:
            self.recorded, self.places = recorded, self.found(recorded)
            rows = recorded.work.__self__  # type: ignore[attr-defined]
            chosen = torch.empty(2, len(rows.tokens), dtype=torch.int32)
            self.result = chosen if recorded is rows._choice else rows.logits

        @staticmethod
        def found(recorded: Recorded) -> list[Any]:
            rows = recorded.work.__self__  # type: ignore[attr-defined]
            read = rows.tokens, rows.logits, rows._whole, rows._parts
            return [*(tensor.data_ptr() for tensor in read), *rows.state.storage() * (recorded is not rows._choice)]

        def pool(self) -> None:
            """None is shared."""

        def replay(self) -> None:
            assert self.places == self.found(self.recorded)
            self.result.copy_(self.recorded.work())

    stepper, requests = given(kind, "cpu")
    plain, recordings = written(stepper, requests), []

    def record(recorded: Recorded) -> tuple[Graph, Any]:
        (calls,) = {n for kind, n in recorded._calls.items() if n > EAGER and kind not in recorded._graphs}
        recordings.append((recorded.work.__name__, calls))
        graph = Graph(recorded)
        return graph, graph.result

    monkeypatch.setattr(Recorded, "_record", record)
    start = Decoder.__init__

    def begin(decoder: Decoder, stepper: Any, rows: int) -> None:
        start(decoder, stepper, rows)
        decoder.records = True

    monkeypatch.setattr(Decoder, "__init__", begin)
    assert written(stepper, requests) == plain
    assert {calls for _, calls in recordings} == {EAGER + 1}
    steps = [name for name, _ in recordings].count("_stepped")
    assert 3 <= steps <= 16  # by the number of rows and the part of their room that is read
    assert 2 <= len(recordings) - steps <= 8  # the choice: by the number of rows and whether any is sampled


def searched(model: Any, records: bool | None = None) -> dict[int, Any]:
    """What beams find for sentences that join and leave, in two rounds."""
    search = BeamSearch(model, 4)
    search.records = search.records if records is None else records
    found: dict[int, Any] = {}
    for size in (3, 9):
        for i in range(size):
            search.add(Request([3 + i] * (1 + i % 3), 30 + 11 * (i % 4), beam=3, answers=2, stop={7}))
        while search.busy:
            for event in search.tick():
                assert event.error is None
                found[event.id] = [(h.tokens, h.finished) for h in event.hypotheses]
    return found


@pytest.mark.parametrize("kind", ["gpt", "rotary", "transformer"])
def test_a_search_is_recorded_again_only_when_tensors_move(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: a graph is a call on the tensors of the recording."""

    class Graph:
        def __init__(self, recorded: Recorded) -> None:
            search = recorded.work.__self__  # type: ignore[attr-defined]
            self.recorded = recorded
            self.places = self.found(search)
            flags = torch.empty(2, len(search._slots), dtype=torch.bool)
            self.result = flags if recorded is search._extend else search.logits

        def found(self, search: BeamSearch) -> Any:
            """The bookkeeping reads no state, so it does not matter to it which tensors are the spare ones."""
            parts = [t.data_ptr() for t in search.state.parts.values()] * (self.recorded is search._step)
            return search._storage(), parts

        def pool(self) -> None:
            """None is shared."""

        def replay(self) -> None:
            assert self.places == self.found(self.recorded.work.__self__)  # type: ignore[attr-defined]
            self.result.copy_(self.recorded.work())

    model, _ = given(kind, "cpu")
    recordings = []

    def record(recorded: Recorded) -> tuple[Graph, Any]:
        recordings.append(recorded.work.__name__)
        graph = Graph(recorded)
        return graph, graph.result

    monkeypatch.setattr(Recorded, "_record", record)
    plain = searched(model)
    assert not recordings
    assert searched(model, records=True) == plain
    assert 2 <= len(recordings) <= 10, "of a step and of a choice: new when slots, the room or the inputs grow"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", ["gpt", "rotary", "transformer"])
def test_a_replayed_search_finds_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = given(kind, "cuda")
    recordings, record = [], Recorded._record
    monkeypatch.setattr(Recorded, "_record", lambda *given: recordings.append(1) or record(*given))
    replayed = searched(model)
    assert len(recordings) >= 2
    assert replayed == searched(model, records=False)


def test_the_tensors_of_a_cache_stay_in_their_places_until_it_grows() -> None:
    model = GPT(GPTConfig(layers=2, heads=2, width=16, vocab=11, context=300)).eval()
    for guided in ({}, {"guidance": 2.0, "free": [1, 2]}):
        decoder = Decoder(model, 2)
        decoder.add(Request([1, 2], max_new=101, **guided))
        places = []
        for _ in range(100):
            decoder.tick()
            places.append(decoder.state.storage())
        assert [i for i, (a, b) in enumerate(pairwise(places)) if a != b] == [*range(14, 100, 16)]


def test_a_state_is_kept_for_each_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that its recorded steps are used again, by the next who asks."""
    monkeypatch.setattr("allyouneed.decode.recorded.EAGER", 1 << 30)
    model = GPT(GPTConfig(layers=2, heads=2, width=16, vocab=11, context=300)).eval()
    decoder = Decoder(model, 8)
    decoder.records = True
    states = []
    for several in (1, 3, 1, 5, 3):
        for _ in range(several):
            decoder.add(Request([1, 2], max_new=3))
        decoder.tick()
        decoder.tick()
        states.append((len(decoder._slots), id(decoder.state)))
        while decoder.busy:
            decoder.tick()
    assert [rows for rows, _ in states] == [1, 4, 1, 8, 4]
    assert states[0] == states[2]
    assert states[1] == states[4]
