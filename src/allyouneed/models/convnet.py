"""ConvNet: a stack of causal gated convolutions that predicts the next token (Dauphin et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.nn.cache import RecurrentState
from allyouneed.nn.convolution import ConvConfig, ConvStack
from allyouneed.nn.heads import LMHead
from allyouneed.nn.layers import Embedding, pad
from allyouneed.nn.trace import Trace


@dataclass(frozen=True)
class ConvNetConfig(ConvConfig):
    """No positions, unless told otherwise: a convolution knows the order of what it sees."""

    vocab: int = option(0, "tokens: as many as the tokenizer has", low=0, settled=True)
    context: int = option(256, "tokens a training window holds", low=1)
    positions: str = option("none", "where a token stands", choices=("learned", "none"))
    tie: bool = option(True, "the output matrix is the embedding matrix")


class ConvNet(nn.Module):
    """p(x_t | x_{t-n} … x_{t-1}) = softmax(W · ConvStack(E[x])), where n = 1 + layers · (kernel - 1)"""

    Config = ConvNetConfig
    tasks: ClassVar[tuple[str, ...]] = ("lm",)
    compiles: ClassVar[bool] = True
    prompted: ClassVar[bool] = True
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 4, "width": 64, "kernel": 4},
        "small": {"layers": 8, "width": 192, "kernel": 4},
        "base": {"layers": 12, "width": 512, "kernel": 4},
    }

    def __init__(self, config: ConvNetConfig) -> None:
        super().__init__()
        self.config = config
        width = config.embedding or config.width
        self.embedding = Embedding(
            config.vocab, width, positions=config.positions, size=config.context, dropout=config.dropout, scale=True
        )
        self.stack = ConvStack(config, config.layers, causal=True)
        self.dropout = nn.Dropout(config.dropout)
        self.head = LMHead(width, config.vocab, tie=self.embedding.tokens if config.tie else None)
        for module in self.embedding.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=width**-0.5)

    @property
    def limit(self) -> int | None:
        """The most tokens a row may hold: only learned positions run out."""
        return self.config.context if self.config.positions == "learned" else None

    def body(
        self,
        ids: Tensor,
        *,
        state: RecurrentState | None = None,
        count: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """ids (B, T) -> (B, T, E): what is known of each position from itself and the few before it.

        With a state, ids are the next tokens of each row, of which the first `count` (B,) are real.
        """
        if state is None:
            return self.dropout(self.stack(self.embedding(ids), trace=trace))
        at = state.length[:, None] + torch.arange(ids.size(1), device=ids.device)
        hidden = self.stack(self.embedding(ids, at), past=state.parts["past"], count=count, trace=trace)
        state.advance(ids.size(1) if count is None else count)
        return hidden

    def forward(self, ids: Tensor, *, trace: Trace | None = None) -> Tensor:
        """ids (B, T) -> logits (B, T, V) of each next token."""
        return self.head(self.body(ids, trace=trace))

    def loss(self, ids: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of the next tokens, summed."""
        return self.head.loss(self.body(ids), targets, smoothing)

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, RecurrentState]:
        """Read ragged prompts; logits (B, V) of what comes next."""
        ids, lengths = pad(inputs, self.device)
        state = self.empty(len(inputs), room)
        hidden = self.body(ids, state=state, count=lengths)
        return self.head(hidden[torch.arange(len(inputs), device=ids.device), lengths - 1]), state

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """One more token a row, (B,) -> logits (B, V)."""
        return self.head(self.body(tokens[:, None], state=state)[:, 0])

    def empty(self, rows: int, room: int) -> RecurrentState:
        """A state of free rows: before the first token there are zeros."""
        length = torch.zeros(rows, dtype=torch.long, device=self.device)
        return RecurrentState({"past": self.stack.no_past(rows)}, length)

    def remembered(self, tokens: int) -> int:
        """Values that a backward pass over so many tokens needs."""
        return tokens * (self.stack.remembered + 3 * self.config.vocab)

    @property
    def device(self) -> torch.device:
        return self.embedding.tokens.weight.device
