"""The Transformer: an encoder reads the source, a decoder writes the target while looking at it
(Vaswani et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.nn.block import BlockConfig, Stack
from allyouneed.nn.cache import KVCache, Memory
from allyouneed.nn.heads import LMHead
from allyouneed.nn.layers import Embedding, pad
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace


@dataclass(frozen=True)
class TransformerConfig(BlockConfig):
    """The paper's choices, unless told otherwise; blocks are pre-norm, which trains without a careful warm-up."""

    vocab: int = option(0, "size of the source vocabulary", low=0, high=2**24, derived=True)
    target_vocab: int = option(0, "size of the target vocabulary", low=0, high=2**24, derived=True)
    decoder_layers: int = option(0, "blocks of the decoder (0: layers)", low=0, high=1000)
    context: int = option(512, "learned positions: longest sentence, in tokens", low=1, high=10**7)
    share: bool = option(True, "one embedding for source and target (needs a joint vocabulary)")
    tie: bool = option(True, "the output matrix is the target embedding")
    output_bias: bool = option(False, "a bias per output token")
    bos: int = option(1, "first token of every target", low=0, high=2**24, derived=True)


class Transformer(nn.Module):
    """p(y_t | y_<t, x) = softmax(W · Decoder(E[y_<t] + P, Encoder(E[x] + P)))"""

    Config = TransformerConfig
    tasks: ClassVar[tuple[str, ...]] = ("translate",)
    prompted: ClassVar[bool] = False
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 2, "heads": 4, "width": 128, "hidden": 512},
        "small": {"layers": 3, "heads": 4, "width": 256, "hidden": 1024},
        "base": {"layers": 6, "heads": 8, "width": 512, "hidden": 2048},
        "big": {"layers": 6, "heads": 16, "width": 1024, "hidden": 4096, "dropout": 0.3},
    }

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        if config.share and config.vocab != config.target_vocab:
            raise ValueError("model.share needs one vocabulary for source and target")
        self.config = config

        def embedding(vocab: int) -> Embedding:
            return Embedding(
                vocab,
                config.width,
                positions=config.positions,
                size=config.context,
                dropout=config.dropout,
                scale=True,
            )

        self.source = embedding(config.vocab)
        self.target = embedding(config.target_vocab)
        if config.share:
            self.target.tokens = self.source.tokens
        self.encoder = Stack(config, config.layers)
        self.decoder = Stack(config, config.decoder_layers or config.layers, cross=True)
        tie = self.target.tokens if config.tie else None
        self.head = LMHead(config.width, config.target_vocab, tie=tie, bias=config.output_bias)
        self._initialise()

    def _initialise(self) -> None:
        """Glorot for the matrices, normal with σ = d^-1/2 for the embeddings."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for module in self.modules():  # after the matrices: the output matrix may be an embedding
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.width**-0.5)

    @property
    def limit(self) -> int | None:
        """The most tokens a target may have: only learned positions run out."""
        return self.config.context if self.config.positions == "learned" else None

    def encode(self, source: Tensor, lengths: Tensor, *, trace: Trace | None = None) -> Tensor:
        """source (B, S), right-padded, and true lengths (B,) -> memory (B, S, D)"""
        inner = trace.at("encoder") if trace is not None else None
        return self.encoder(self.source(source), Mask.padding(lengths, source.size(1)), trace=inner)

    def body(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """What the decoder knows at each position of the target (B, T): (B, T, D).

        Right-padding of the target needs no mask of its own: real positions never look to the right.
        """
        memory = self.encode(source, lengths, trace=trace)
        inner = trace.at("decoder") if trace is not None else None
        return self.decoder(
            self.target(target),
            Mask(causal=True),
            memory=memory,
            memory_mask=Mask.padding(lengths, source.size(1)),
            trace=inner,
        )

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """Logits (B, T, V) of each next target token."""
        return self.head(self.body(source, lengths, target, trace=trace))

    def alignment(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """Where each target position looks (B, T, S): the mean over the heads of the last layer."""
        trace = trace or Trace("weights")
        self(source, lengths, target, trace=trace)
        last = len(self.decoder.blocks) - 1
        return trace[f"decoder.{last}.cross.weights"].mean(1)

    def loss(self, source: Tensor, lengths: Tensor, target: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of the next target tokens, summed."""
        return self.head.loss(self.body(source, lengths, target), targets, smoothing)

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, KVCache]:
        """Read ragged source sentences; logits (B, V) of the first word."""
        source, lengths = pad(inputs, self.device)
        cache = self.decoder.empty_cache(len(inputs), room, self.head.out.weight)
        cache.memory = self.decoder.remember(self.encode(source, lengths), lengths)
        first = torch.full((len(inputs),), self.config.bos, device=self.device)
        return self.step(first, cache), cache

    def step(self, tokens: Tensor, state: KVCache) -> Tensor:
        """One more target token a row, (B,) -> logits (B, V)."""
        x = self.target(tokens[:, None], state.length[:, None], state.room)
        return self.head(self.decoder(x, cache=state)[:, 0])

    def empty(self, rows: int, room: int) -> KVCache:
        """A cache of free rows, whose memory sees one blank source token."""
        cache = self.decoder.empty_cache(rows, room, self.head.out.weight)
        blank = self.head.out.weight.new_zeros(rows, 1, self.config.width)
        memory: Memory = self.decoder.remember(blank, torch.ones(rows, dtype=torch.long, device=self.device))
        cache.memory = memory
        return cache

    @property
    def device(self) -> torch.device:
        return self.head.out.weight.device
