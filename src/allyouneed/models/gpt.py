"""GPT: a stack of causal blocks that predicts the next token (Radford et al., 2018, 2019)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.nn.block import BlockConfig, Stack
from allyouneed.nn.cache import KVCache
from allyouneed.nn.heads import LMHead
from allyouneed.nn.layers import Embedding, pad
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace


@dataclass(frozen=True)
class GPTConfig(BlockConfig):
    """GPT-2's choices, unless told otherwise."""

    vocab: int = option(0, "tokens: as many as the tokenizer has", low=0, settled=True)
    context: int = option(256, "tokens a training window holds", low=1)
    activation: str = option(
        "gelu_tanh", "of the feed-forward layer", choices=("relu", "gelu", "gelu_tanh", "silu", "swiglu")
    )
    positions: str = option(
        "learned", "where a token stands", choices=("learned", "rotary", "sinusoidal", "sinusoidal_half", "none")
    )
    tie: bool = option(True, "the output matrix is the embedding matrix")


class GPT(nn.Module):
    """p(x_t | x_1 … x_{t-1}) = softmax(W · Stack(E[x] + P))"""

    Config = GPTConfig
    tasks: ClassVar[tuple[str, ...]] = ("lm",)
    compiles: ClassVar[bool] = True
    prompted: ClassVar[bool] = True
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "nano": {"layers": 3, "heads": 3, "width": 48},
        "micro": {"layers": 4, "heads": 4, "width": 128},
        "mini": {"layers": 6, "heads": 6, "width": 192},
        "gpt2": {"layers": 12, "heads": 12, "width": 768, "context": 1024},
        "gpt2-medium": {"layers": 24, "heads": 16, "width": 1024, "context": 1024},
        "gpt2-large": {"layers": 36, "heads": 20, "width": 1280, "context": 1024},
        "gpt2-xl": {"layers": 48, "heads": 25, "width": 1600, "context": 1024},
    }

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = Embedding(
            config.vocab, config.width, positions=config.positions, size=config.context, dropout=config.dropout
        )
        self.stack = Stack(config, config.layers)
        self.head = LMHead(config.width, config.vocab, tie=self.embedding.tokens if config.tie else None)
        self._initialise()

    def _initialise(self) -> None:
        """Normal with σ = 0.02; what ends on the residual stream smaller by sqrt(2 L), so that it keeps its size."""
        for name, p in self.named_parameters():
            if p.dim() < 2:
                continue  # norms start at one, biases at zero
            last = name.endswith("out.weight") and "blocks" in name
            nn.init.normal_(p, std=0.02 / math.sqrt(2 * self.config.layers) if last else 0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    @property
    def limit(self) -> int | None:
        """The most tokens a row may hold: only learned positions run out."""
        return self.config.context if self.config.positions == "learned" else None

    def body(
        self,
        ids: Tensor,
        mask: Mask = Mask(causal=True),
        *,
        cache: KVCache | None = None,
        count: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """ids (B, T) -> (B, T, D): what is known of each position from itself and its past."""
        at, room = None, 0
        if cache is not None:
            at, room = cache.length[:, None] + torch.arange(ids.size(1), device=ids.device), cache.room
        x = self.embedding(ids, at, room)
        return self.stack(x, mask, cache=cache, count=count, trace=trace)

    def forward(self, ids: Tensor, mask: Mask = Mask(causal=True), *, trace: Trace | None = None) -> Tensor:
        """ids (B, T) -> logits (B, T, V) of each next token."""
        return self.head(self.body(ids, mask, trace=trace))

    def loss(self, ids: Tensor, targets: Tensor, smoothing: float = 0.0, mask: Mask = Mask(causal=True)) -> Tensor:
        """The cross-entropy of the next tokens, summed."""
        return self.head.loss(self.body(ids, mask), targets, smoothing)

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, KVCache]:
        """Read ragged prompts; logits (B, V) of what comes next."""
        ids, lengths = pad(inputs, self.device)
        cache = self.empty(len(inputs), max(room, ids.size(1)))
        hidden = self.body(ids, cache=cache, count=lengths)
        return self.head(hidden[torch.arange(len(inputs), device=ids.device), lengths - 1]), cache

    def step(self, tokens: Tensor, state: KVCache) -> Tensor:
        """One more token a row, (B,) -> logits (B, V)."""
        return self.head(self.body(tokens[:, None], cache=state)[:, 0])

    def empty(self, rows: int, room: int) -> KVCache:
        """A cache of free rows."""
        return self.stack.empty_cache(rows, room, self.embedding.tokens.weight)

    @property
    def device(self) -> torch.device:
        return self.embedding.tokens.weight.device
