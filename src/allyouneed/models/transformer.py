"""The Transformer: an encoder reads the source, a decoder writes the target and attends to it
(Vaswani et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from allyouneed.models.base import SIZES, StacksConfig, Translator, TranslatorBody
from allyouneed.nn.block import BlockConfig, Stack
from allyouneed.nn.cache import KVCache
from allyouneed.nn.init import XAVIER, ZERO, Init, as_made, init_weights
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace


@dataclass(frozen=True)
class TransformerConfig(StacksConfig, BlockConfig):
    """The defaults of the paper, but with pre-norm blocks, which train without a careful warm-up."""


WEIGHTS: dict[str, Init] = {  # `Embedding` starts those of source and target
    "*norm*": as_made,
    "source.*": as_made,
    "target.*": as_made,
    "*.weight": XAVIER,
    "*.bias": ZERO,
}


class TransformerBody(TranslatorBody):
    """Decoder(E[y] + P, Encoder(E[x] + P))"""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, config.width, positions=config.positions, size=config.context, scale=True)
        self.encoder = Stack(config, config.layers)
        self.decoder = Stack(config, config.decoder_layers or config.layers, cross=True)
        init_weights(self, WEIGHTS)

    def encode(self, source: Tensor, lengths: Tensor, *, trace: Trace | None = None) -> Tensor:
        """source (B, S), right-padded, and true lengths (B,) -> memory (B, S, D)"""
        x = self.source(source, trace=trace)
        return self.encoder(x, Mask.padding(lengths, source.size(1)), trace=trace)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """The decoder's output at each position of the target (B, T): (B, T, D).

        Right-padding of the target needs no mask of its own: real positions see nothing to their right.
        """
        trace = trace and trace.at(self)
        memory, padding = self.encode(source, lengths, trace=trace), Mask.padding(lengths, source.size(1))
        y = self.target(target, trace=trace)
        return self.decoder(y, Mask(causal=True), memory=memory, memory_mask=padding, trace=trace)

    def begin(self, source: Tensor, lengths: Tensor, room: int) -> KVCache:
        cache = self.decoder.empty_cache(len(source), room, self.target.tokens.weight)
        cache.source = self.decoder.encode_source(self.encode(source, lengths), lengths)
        return cache

    def step(self, tokens: Tensor, state: KVCache) -> Tensor:
        """(B,) -> (B, D)"""
        at = state.positions(1)
        return self.decoder(self.target(tokens[:, None], at, state.room), cache=state, at=at)[:, 0]

    def stages(self) -> list[list[nn.Module]]:
        return [[self.source, self.target], *([block] for block in (*self.encoder.blocks, *self.decoder.blocks))]


class Transformer(Translator):
    """p(y_t | y_<t, x) = softmax(W · Decoder(E[y_<t] + P, Encoder(E[x] + P)))"""

    Config = TransformerConfig
    BodyClass = TransformerBody
    tasks = ("translate",)
    compiles = True
    sizes = SIZES["transformer"]

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        if not config.tie:
            init_weights(self.head, {"out.weight": XAVIER})

    def aligned(self, trace: Trace) -> tuple[Tensor, str]:
        """The last layer, mean over its heads."""
        layer, heads = len(self.body.decoder.blocks), self.config.heads
        shown = f"decoder layer {layer}, mean of {heads} head{'s' * (heads > 1)}"
        return trace.get(self.body.decoder.blocks[-1].cross, "weights").mean(1), shown
