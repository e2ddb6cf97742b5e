"""DALL-E: a GPT over one sequence, the tokens of a caption and then the codes of its image (Ramesh et al., 2021)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.batch import Tensors
from allyouneed.config import option
from allyouneed.models.base import SIZES, Body, Writer
from allyouneed.nn.block import BlockConfig, Stack
from allyouneed.nn.cache import KVCache
from allyouneed.nn.heads import LMHead
from allyouneed.nn.init import ZERO, Init, as_made, init_weights, normal, published
from allyouneed.nn.layers import ACTIVATIONS
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace, record


@dataclass(frozen=True)
class DALLEConfig(BlockConfig):
    vocab: int = option(0, "rows of the word embedding (0: as many as the tokenizer has tokens)", low=0, high=2**24)
    caption: int = option(16, "tokens of a caption, at most", low=1, high=10**6)
    codes: int = option(0, "size of the codebook (0: that of task.image_tokenizer)", low=0, high=2**24)
    grid: int = option(
        0, "codes in a row and in a column of an image (0: as task.image_tokenizer has them)", low=0, high=4096
    )
    activation: str = option("gelu", "activation in the feed-forward layer", choices=ACTIVATIONS)
    positions: str = option("learned", "of the caption; codes have those of their row and column", choices=("learned",))

    @property
    def limit(self) -> int:
        """Tokens of a row: a blank, the caption, and the codes."""
        return 1 + self.caption + self.grid**2


TABLES = ("words", "codes", "positions", "rows", "columns")
WEIGHTS: dict[str, Init] = {
    "*norm*": as_made,
    **{f"{table}.*": normal(0.02) for table in TABLES},
    "*.weight": published,
    "*.bias": ZERO,
}


class DALLEBody(Body):
    """Stack([words + P; codes + rows + columns]): each vector knows its token and all before it."""

    def __init__(self, config: DALLEConfig) -> None:
        super().__init__()
        self.config, self.width, self.limit = config, config.width, config.limit
        self.words = nn.Embedding(config.vocab + 1, config.width)  # the last is the blank, which fills a short caption
        self.codes = nn.Embedding(config.codes, config.width)
        self.positions = nn.Embedding(1 + config.caption, config.width)
        self.rows, self.columns = (nn.Embedding(config.grid, config.width) for _ in range(2))
        self.dropout, self.stack = nn.Dropout(config.dropout), Stack(config, config.layers)
        init_weights(self, WEIGHTS)

    def embed_words(self, words: Tensor) -> Tensor:
        """(B, 1 + caption) -> (B, 1 + caption, D)"""
        return self.words(words) + self.positions.weight

    def embed_codes(self, codes: Tensor, at: Tensor) -> Tensor:
        """Codes (B, N) at the positions (B, N) or (N,) of the image, counted row by row -> (B, N, D)"""
        at = at.clamp(0, self.config.grid**2 - 1)  # rows that nobody reads may be anywhere
        down, across = at // self.config.grid, at % self.config.grid
        return self.codes(codes) + self.rows(down) + self.columns(across)

    def forward(self, words: Tensor, codes: Tensor, *, trace: Trace | None = None) -> Tensor:
        """words (B, 1 + caption), codes (B, N) -> (B, 1 + caption + N, D)"""
        positions = torch.arange(codes.size(1), device=codes.device)
        x = self.dropout(torch.cat([self.embed_words(words), self.embed_codes(codes, positions)], dim=1))
        record(trace, self, "embeddings", x)
        return self.stack(x, Mask(causal=True), trace=trace)

    def empty(self, rows: int, room: int) -> KVCache:
        return self.stack.empty_cache(rows, room, self.words.weight)

    def read(self, tensors: Tensors, trace: Trace | None = None) -> Tensor:
        return self(tensors["ids"], tensors["codes"], trace=trace)

    def stages(self) -> list[list[nn.Module]]:
        return [[self.words, self.codes, self.positions, self.rows, self.columns], *([b] for b in self.stack.blocks)]


class DALLE(Writer):
    """p(caption, codes) = Π p(word_i | words before) · Π p(code_j | caption, codes before)"""

    Config = DALLEConfig
    BodyClass = DALLEBody
    prompted = True
    tasks = ("draw",)
    compiles = True
    sizes = SIZES["dalle"]

    def __init__(self, config: DALLEConfig) -> None:
        super().__init__()
        self.config, self.body = config, DALLEBody(config)
        self.head, self.word_head = LMHead(config.width, config.codes), LMHead(config.width, config.vocab + 1)
        init_weights(self.head, WEIGHTS)
        init_weights(self.word_head, WEIGHTS)

    @property
    def blank(self) -> int:
        """The word before a caption, and behind a short one."""
        return int(self.config.vocab)

    def prompt(self, ids: Sequence[int]) -> list[int]:
        """A caption as the model reads it; without ids, that of an image of anything."""
        return [self.blank, *ids, *[self.blank] * (self.config.caption - len(ids))]

    def forward(self, words: Tensor, codes: Tensor, *, trace: Trace | None = None) -> tuple[Tensor, Tensor]:
        """words (B, 1 + caption), codes (B, N) -> the logits of each next word (B, caption, V + 1), and of each code
        (B, N, K)"""
        trace = trace and trace.at(self)
        hidden, at = self.body(words, codes[:, :-1], trace=trace), self.config.caption
        found, chosen = self.word_head(hidden[:, :at]), self.head(hidden[:, at:])
        record(trace, self.word_head, "logits", found)
        record(trace, self.head, "logits", chosen)
        return found, chosen

    def loss(self, words: Tensor, targets: Tensor, codes: Tensor) -> Tensor:
        """(2,): the cross-entropy of the words, targets (B, caption), and that of the codes; summed."""
        hidden, at = self.body(words, codes[:, :-1]), self.config.caption
        return torch.stack([self.word_head.loss(hidden[:, :at], targets), self.head.loss(hidden[:, at:], codes)])

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, Any]:
        """Read captions, as `prompt` gives them, and the codes that images begin with; logits (B, K) of the next."""
        rows, at = torch.tensor(inputs, device=self.device), 1 + self.config.caption
        state = self.empty(len(inputs), max(room, rows.size(1)))
        codes = self.body.embed_codes(rows[:, at:], torch.arange(rows.size(1) - at, device=self.device))
        hidden = self.body.stack(torch.cat([self.body.embed_words(rows[:, :at]), codes], dim=1), cache=state)
        return self.choices(hidden[:, -1]), state

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """One more code per row, (B,) -> logits (B, K)."""
        at = state.positions(1) - 1 - self.config.caption
        return self.choices(self.body.stack(self.body.embed_codes(tokens[:, None], at), cache=state)[:, 0])
