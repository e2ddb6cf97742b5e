"""ConvSeq2Seq: a convolutional encoder reads the source, a causal convolutional decoder writes the target and attends
to the source in every layer (Gehring et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.models.base import SIZES, StacksConfig, Translator, TranslatorBody
from allyouneed.nn.cache import Encoded, RecurrentState
from allyouneed.nn.convolution import SQRT_HALF, ConvConfig, ConvStack
from allyouneed.nn.layers import real
from allyouneed.nn.trace import Trace


@dataclass(frozen=True)
class ConvSeq2SeqConfig(StacksConfig, ConvConfig):
    """The defaults are those of the paper."""

    positions: str = option("learned", "how positions are encoded", choices=("learned", "none"))


class ConvSeq2SeqBody(TranslatorBody):
    """Decoder(E[y] + P, Encoder(E[x] + P))"""

    def __init__(self, config: ConvSeq2SeqConfig) -> None:
        width = config.embedding or config.width
        super().__init__(config, width, positions=config.positions, size=config.context, scale=True)
        self.encoder = ConvStack(config, config.layers, causal=False)
        self.decoder = ConvStack(config, config.decoder_layers or config.layers, causal=True, cross=True)
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, source: Tensor, lengths: Tensor, *, trace: Trace | None = None) -> Encoded:
        """source (B, S), right-padded, and true lengths (B,) -> what the decoder attends to."""
        e, tokens = self.source(source, trace=trace), real(lengths, source.size(1))
        z = self.encoder(e, real=tokens, trace=trace)
        return {"keys": z, "values": (z + e) * SQRT_HALF, "real": tokens}

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """The decoder's output at each position of the target (B, T): (B, T, E)."""
        trace = trace and trace.at(self)
        encoded = self.encode(source, lengths, trace=trace)
        return self.dropout(self.decoder(self.target(target, trace=trace), source=encoded, trace=trace))

    def begin(self, source: Tensor, lengths: Tensor, room: int) -> RecurrentState:
        return self.decoder.empty(len(source), self.encode(source, lengths))

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """(B,) -> (B, E)"""
        return self.decoder(self.target(tokens[:, None], state.positions(1)), state=state)[:, 0]

    def stages(self) -> list[list[nn.Module]]:
        lowest = [self.source, self.target, self.encoder.into, self.decoder.into]
        return [lowest, *([block] for block in (*self.encoder.blocks, *self.decoder.blocks))]


class ConvSeq2Seq(Translator):
    """p(y_t | y_<t, x) = softmax(W · Decoder(E[y_<t] + P, Encoder(E[x] + P)))"""

    Config = ConvSeq2SeqConfig
    BodyClass = ConvSeq2SeqBody
    tasks = ("translate",)
    compiles = True
    sizes = SIZES["convseq2seq"]

    def aligned(self, trace: Trace) -> tuple[Tensor, str]:
        """The mean over the layers."""
        weights = [trace.get(block.cross, "weights") for block in self.body.decoder.blocks]
        return torch.cat(weights, dim=1).mean(1), f"mean of {len(weights)} decoder layer{'s' * (len(weights) > 1)}"
