"""GPT: a stack of causal blocks that predicts the next token (Radford et al., 2018, 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.models.base import SIZES, Body, LanguageModel, Positioned
from allyouneed.nn.block import POSITIONS, BlockConfig, Stack
from allyouneed.nn.cache import KVCache
from allyouneed.nn.heads import LMHead
from allyouneed.nn.init import ZERO, as_made, init_weights, normal
from allyouneed.nn.layers import ACTIVATIONS, Embedding
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace, record


@dataclass(frozen=True)
class GPTConfig(Positioned, BlockConfig):
    """GPT-2's choices, unless told otherwise."""

    vocab: int = option(0, "rows of the embedding (0: as many as the tokenizer has tokens)", low=0, high=2**24)
    context: int = option(256, "tokens per training window", low=1, high=10**7)
    activation: str = option("gelu_tanh", "activation in the feed-forward layer", choices=ACTIVATIONS)
    positions: str = option("learned", "how positions are encoded", choices=POSITIONS)
    tie: bool = option(True, "the output matrix is the embedding matrix")


class GPTBody(Body):
    """Stack(E[x] + P): each vector knows its token and all before it."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.embedding = Embedding(
            config.vocab, config.width, positions=config.positions, size=config.context, dropout=config.dropout
        )
        self.width, self.limit = config.width, config.limit
        self.stack = Stack(config, config.layers)
        # What is added to the residual stream starts smaller, so that the stream keeps its size through L blocks.
        added = normal(0.02 / math.sqrt(2 * config.layers))
        init_weights(self, {"*norm*": as_made, "*out.weight": added, "*.weight": normal(0.02), "*.bias": ZERO})

    def forward(
        self,
        ids: Tensor,
        mask: Mask = Mask(causal=True),
        *,
        state: KVCache | None = None,
        count: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """ids (B, T) -> (B, T, D). With a cache, ids are the next tokens of each row, the first `count` (B,) real."""
        at = state.positions(ids.size(1)) if state is not None else None
        x = self.embedding(ids, at, state.room if state is not None else 0)
        record(trace, self, "embeddings", x)
        return self.stack(x, mask, cache=state, at=at, count=count, trace=trace)

    def empty(self, rows: int, room: int) -> KVCache:
        """A cache of free rows."""
        return self.stack.empty_cache(rows, room, self.embedding.tokens.weight)

    def stages(self) -> list[list[nn.Module]]:
        return [[self.embedding], *([block] for block in self.stack.blocks)]


class GPT(LanguageModel):
    """p(x_t | x_1 … x_{t-1}) = softmax(W · Stack(E[x] + P))"""

    Config = GPTConfig
    BodyClass = GPTBody
    tasks = ("lm", "classify", "tag", "answer", "embed")
    compiles = True
    sizes = SIZES["gpt"]

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.body = GPTBody(config)
        self.head = LMHead(config.width, config.vocab, tie=self.body.embedding.tokens if config.tie else None)
        if not config.tie:
            init_weights(self.head, {"*": normal(0.02)})
