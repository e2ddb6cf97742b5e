"""The Transformer: an encoder reads the source, a decoder writes the target and attends to it
(Vaswani et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.models.base import Body, BodyConfig, Positioned, Translator
from allyouneed.nn.block import BlockConfig, Stack
from allyouneed.nn.cache import KVCache
from allyouneed.nn.heads import LMHead
from allyouneed.nn.layers import Embedding
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace


@dataclass(frozen=True)
class TransformerConfig(Positioned, BodyConfig, BlockConfig):
    """The defaults of the paper, but with pre-norm blocks, which train without a careful warm-up."""

    vocab: int = option(0, "rows of the source embedding (0: as many as there are tokens)", low=0, high=2**24)
    target_vocab: int = option(0, "rows of the target embedding (0: as many as there are tokens)", low=0, high=2**24)
    decoder_layers: int = option(0, "blocks of the decoder (0: layers)", low=0, high=1000)
    context: int = option(512, "learned positions: longest sentence, in tokens", low=1, high=10**7)
    share: bool = option(True, "one embedding for source and target (needs a joint vocabulary)")
    tie: bool = option(True, "the output matrix is the target embedding")
    output_bias: bool = option(False, "a bias per output token")
    bos: int = option(1, "first token of every target", low=0, high=2**24, derived=True)

    def __post_init__(self) -> None:
        BlockConfig.__post_init__(self)
        BodyConfig.__post_init__(self)


class TransformerBody(Body):
    """Decoder(E[y] + P, Encoder(E[x] + P))"""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.width, self.limit = config.width, config.limit

        def embedding(vocab: int) -> Embedding:
            size, dropout = config.context, config.dropout
            return Embedding(vocab, config.width, positions=config.positions, size=size, dropout=dropout, scale=True)

        self.source = embedding(config.vocab)
        self.target = embedding(config.target_vocab)
        if config.share:
            self.target.tokens = self.source.tokens
        self.encoder = Stack(config, config.layers)
        self.decoder = Stack(config, config.decoder_layers or config.layers, cross=True)

    def encode(self, source: Tensor, lengths: Tensor, *, trace: Trace | None = None) -> Tensor:
        """source (B, S), right-padded, and true lengths (B,) -> memory (B, S, D)"""
        padding = Mask.padding(lengths, source.size(1))
        return self.encoder(self.source(source), padding, trace=trace and trace.at("encoder"))

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """The decoder's output at each position of the target (B, T): (B, T, D).

        Right-padding of the target needs no mask of its own: real positions see nothing to their right.
        """
        memory, padding = self.encode(source, lengths, trace=trace), Mask.padding(lengths, source.size(1))
        inner = trace and trace.at("decoder")
        return self.decoder(self.target(target), Mask(causal=True), memory=memory, memory_mask=padding, trace=inner)

    def begin(self, source: Tensor, lengths: Tensor, room: int) -> KVCache:
        return self._cache(room, self.encode(source, lengths), lengths)

    def step(self, tokens: Tensor, state: KVCache) -> Tensor:
        """(B,) -> (B, D)"""
        at = state.positions(1)
        return self.decoder(self.target(tokens[:, None], at, state.room), cache=state, at=at)[:, 0]

    def blank(self, rows: int, room: int) -> KVCache:
        """A cache of free rows, each with one blank source token."""
        blank = self.target.tokens.weight.new_zeros(rows, 1, self.width)
        return self._cache(room, blank, torch.ones(rows, dtype=torch.long, device=blank.device))

    def _cache(self, room: int, memory: Tensor, lengths: Tensor) -> KVCache:
        cache = self.decoder.empty_cache(len(memory), room, self.target.tokens.weight)
        cache.source = self.decoder.encode_source(memory, lengths)
        return cache

    def tables(self) -> list[nn.Embedding]:
        return [self.source.tokens, self.target.tokens]

    def stages(self) -> list[list[nn.Module]]:
        blocks = (*self.encoder.blocks, *self.decoder.blocks)
        return [[self.source, self.target], *([block] for block in blocks)]

    def looking(self, context: int) -> int:
        return self.encoder.looking(context) + self.decoder.looking(context)

    def remembered(self, tokens: int) -> int:
        return tokens * (self.encoder.remembered + self.decoder.remembered)


class Transformer(Translator):
    """p(y_t | y_<t, x) = softmax(W · Decoder(E[y_<t] + P, Encoder(E[x] + P)))"""

    Config = TransformerConfig
    tasks: ClassVar[tuple[str, ...]] = ("translate",)
    compiles: ClassVar[bool] = True
    body_fields: ClassVar[tuple[str, ...]] = (
        *("vocab", "target_vocab", "width", "layers", "decoder_layers", "heads", "kv_heads", "head_width"),
        *("value_width", "hidden", "activation", "norm", "norm_eps", "prenorm", "bias", "positions", "context"),
        *("score", "share"),
    )
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
        self.body = TransformerBody(config)
        tie = self.body.target.tokens if config.tie else None
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

    def alignment(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """The last layer, mean over its heads."""
        trace = trace or Trace("weights")
        self(source, lengths, target, trace=trace)
        return trace[f"decoder.{len(self.body.decoder.blocks) - 1}.cross.weights"].mean(1)
