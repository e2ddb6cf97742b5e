"""The Transformer: an encoder reads the source, a decoder writes the target and attends to it
(Vaswani et al., 2017)."""

from __future__ import annotations

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
class TransformerConfig(BlockConfig):
    """The defaults of the paper, but with pre-norm blocks, which train without a careful warm-up."""

    vocab: int = option(0, "source tokens, set by the tokenizer", low=0, settled=True)
    target_vocab: int = option(0, "target tokens, set by the tokenizer", low=0, settled=True)
    decoder_layers: int = option(0, "blocks of the decoder (0: as many as layers)", low=0)
    context: int = option(512, "learned positions: the most tokens of a sentence", low=1)
    share: bool = option(True, "source and target use one embedding (needs one joint vocabulary)")
    tie: bool = option(True, "the output matrix is the target embedding")
    output_bias: bool = option(False, "one bias per token of the output")
    bos: int = option(1, "the token every target starts from", low=0, settled=True)


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
            size, dropout = config.context, config.dropout
            return Embedding(vocab, config.width, positions=config.positions, size=size, dropout=dropout, scale=True)

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
        """The most tokens of a target: only learned positions have a limit."""
        return self.config.context if self.config.positions == "learned" else None

    def encode(self, source: Tensor, lengths: Tensor, *, trace: Trace | None = None) -> Tensor:
        """source (B, S), right-padded, and true lengths (B,) -> memory (B, S, D)"""
        padding = Mask.padding(lengths, source.size(1))
        return self.encoder(self.source(source), padding, trace=trace and trace.at("encoder"))

    def body(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """The decoder's output at each position of the target (B, T): (B, T, D).

        Right-padding of the target needs no mask of its own: real positions see nothing to their right.
        """
        memory, padding = self.encode(source, lengths, trace=trace), Mask.padding(lengths, source.size(1))
        inner = trace and trace.at("decoder")
        return self.decoder(self.target(target), Mask(causal=True), memory=memory, memory_mask=padding, trace=inner)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """Logits (B, T, V) of each next target token."""
        return self.head(self.body(source, lengths, target, trace=trace))

    def alignment(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """How much each target position attends to each of the source (B, T, S): the last layer, mean over heads."""
        trace = trace or Trace("weights")
        self(source, lengths, target, trace=trace)
        return trace[f"decoder.{len(self.decoder.blocks) - 1}.cross.weights"].mean(1)

    def loss(self, source: Tensor, lengths: Tensor, target: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of the next target tokens, summed."""
        return self.head.loss(self.body(source, lengths, target), targets, smoothing)

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, KVCache]:
        """Read ragged source sentences; logits (B, V) of the first target token."""
        source, lengths = pad(inputs, self.device)
        cache = self._cache(room, self.encode(source, lengths), lengths)
        return self.step(torch.full_like(lengths, self.config.bos), cache), cache

    def step(self, tokens: Tensor, state: KVCache) -> Tensor:
        """One more target token per row, (B,) -> logits (B, V)."""
        at = state.positions(1)
        return self.head(self.decoder(self.target(tokens[:, None], at, state.room), cache=state, at=at)[:, 0])

    def empty(self, rows: int, room: int) -> KVCache:
        """A cache of free rows, each with one blank source token."""
        blank = torch.zeros(rows, 1, self.config.width, device=self.device)
        return self._cache(room, blank, torch.ones(rows, dtype=torch.long, device=self.device))

    def _cache(self, room: int, memory: Tensor, lengths: Tensor) -> KVCache:
        cache = self.decoder.empty_cache(len(memory), room, self.head.out.weight)
        cache.source = self.decoder.encode_source(memory, lengths)
        return cache

    @property
    def device(self) -> torch.device:
        return self.head.out.weight.device
