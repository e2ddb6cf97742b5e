"""Steppers without a model: the next token's logits are a random function of everything a row has seen."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ENTRIES = 4099  # a prime: prefixes spread over the table
TOP = 2**40


class ToyState:
    """The tokens of each row, and a number for each input that all its beams share."""

    def __init__(self, tokens: Tensor, length: Tensor, memory: Tensor) -> None:
        self.tokens, self.length, self.memory = tokens, length, memory

    @property
    def room(self) -> int:
        return self.tokens.shape[1]

    @property
    def beams(self) -> int:
        return len(self.tokens) // len(self.memory)

    def put(self, inputs: Tensor, other: ToyState) -> None:
        assert self.beams == other.beams
        assert other.room <= self.room, "a state larger than the one it joins"
        rows = (inputs.unsqueeze(1) * self.beams + torch.arange(self.beams, device=inputs.device)).flatten()
        self.tokens[rows, : other.room] = other.tokens
        self.length[rows] = other.length
        self.memory[inputs] = other.memory

    def reorder(self, rows: Tensor, stay: bool = False) -> None:
        if rows.device.type == "cpu":
            block = torch.arange(len(rows)) // self.beams
            assert (rows // self.beams == block).all(), "a beam left its sentence"
        self.tokens, self.length = self.tokens[rows], self.length[rows]

    def select(self, rows: Tensor) -> ToyState:
        kept = (rows.unsqueeze(1) * self.beams + torch.arange(self.beams, device=rows.device)).flatten()
        return ToyState(self.tokens[kept], self.length[kept], self.memory[rows])

    def expand(self, beams: int) -> ToyState:
        assert self.beams == 1
        return ToyState(self.tokens.repeat_interleave(beams, 0), self.length.repeat_interleave(beams), self.memory)

    def storage(self) -> None:
        """A step may move them."""

    def grow(self, room: int) -> None:
        more = self.tokens.new_full((len(self.tokens), max(0, room - self.room)), 99)
        self.tokens = torch.cat([self.tokens, more], dim=1)


class ToyLM:
    """Inputs are prompts of ids. `ends` raises the odds of token 0, `ban` is the part of logits that are -inf."""

    prompted = True
    compiled = False
    piece: int | None = None

    def __init__(
        self, vocab: int, seed: int = 0, ends: float = 0.0, ban: float = 0.0, limit: int | None = None
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.table = 2 * torch.randn(ENTRIES, vocab, generator=generator)
        self.table[:, 0] += ends
        self.table[torch.rand(ENTRIES, vocab, generator=generator) < ban] = float("-inf")
        self.limit = limit
        self.starts: list[int] = []  # how many joined at each start
        self.steps: list[int] = []  # rows of each step
        self.pieces: list[list[int]] = []  # tokens of each row that `read_on` has read

    def to(self, device: str) -> ToyLM:
        self.table = self.table.to(device)
        return self

    @property
    def device(self) -> torch.device:
        return self.table.device

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, ToyState]:
        memory = torch.zeros(len(inputs), dtype=torch.long)
        return self._start(inputs, memory, room)

    def read_on(self, inputs: Sequence[Sequence[int]], state: ToyState) -> Tensor:
        for row, ids in enumerate(inputs):
            at = int(state.length[row])
            state.tokens[row, at : at + len(ids)] = torch.tensor(ids)
            state.length[row] += len(ids)
        self.pieces.append([len(ids) for ids in inputs])
        return self._logits(state)

    def _start(self, prompts: Sequence[Sequence[int]], memory: Tensor, room: int) -> tuple[Tensor, ToyState]:
        self.starts.append(len(prompts))
        longest = max(len(prompt) for prompt in prompts)
        tokens = torch.full((len(prompts), max(room, longest)), 99)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt)
        length = torch.tensor([len(prompt) for prompt in prompts])
        device = self.table.device
        state = ToyState(tokens.to(device), length.to(device), memory.to(device))
        return self._logits(state), state

    def step(self, tokens: Tensor, state: ToyState) -> Tensor:
        self.steps.append(len(tokens))
        if tokens.device.type == "cpu":
            assert int(state.length.max()) < min(state.room, self.limit or TOP), "a row ran out of room"
            assert 0 <= int(tokens.min()) <= int(tokens.max()) < self.table.shape[1]
        state.tokens.scatter_(1, state.length.unsqueeze(1), tokens.unsqueeze(1))
        state.length += 1
        return self._logits(state)

    def empty(self, rows: int, room: int) -> ToyState:
        tokens = torch.full((rows, room), 99, device=self.table.device)
        zeros = torch.zeros(rows, dtype=torch.long, device=self.table.device)
        return ToyState(tokens, zeros, zeros.clone())

    def _logits(self, state: ToyState) -> Tensor:
        at = torch.arange(state.room, device=state.tokens.device)
        each = ((state.tokens + 7) * 1_000_003 + at * 7_368_787) ** 2 % 1_000_000_007
        seen = (each * (at < state.length.unsqueeze(1))).sum(1)
        seen = seen + state.memory.repeat_interleave(state.beams) * 104_729
        return self.table[seen % ENTRIES]


class ToyTranslator(ToyLM):
    """Inputs are source ids; a row begins with token 1, and its logits depend on the source through the memory."""

    prompted = False

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, ToyState]:
        memory = torch.tensor([sum((token + 3) * 31 ** (i % 8) for i, token in enumerate(ids)) for ids in inputs])
        return self._start([[1]] * len(inputs), memory, room)
