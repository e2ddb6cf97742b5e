"""ConvSeq2Seq: a convolutional encoder reads the source, a causal convolutional decoder writes the target and looks
at the source in every layer (Gehring et al., 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.nn.cache import RecurrentState
from allyouneed.nn.convolution import HALF, ConvConfig, ConvStack, Source
from allyouneed.nn.heads import LMHead
from allyouneed.nn.layers import Embedding, pad
from allyouneed.nn.trace import Trace


@dataclass(frozen=True)
class ConvSeq2SeqConfig(ConvConfig):
    """The paper's choices, unless told otherwise."""

    vocab: int = option(0, "source tokens: as many as the tokenizer has", low=0, settled=True)
    target_vocab: int = option(0, "target tokens: as many as the tokenizer has", low=0, settled=True)
    decoder_layers: int = option(0, "blocks of the decoder (0: as many as layers)", low=0)
    positions: str = option("learned", "where a token stands", choices=("learned", "none"))
    context: int = option(512, "learned positions: tokens a sentence may have", low=1)
    share: bool = option(True, "source and target use one embedding (needs one joint vocabulary)")
    tie: bool = option(True, "the output matrix is the target embedding")
    bos: int = option(1, "the token every target starts from", low=0, settled=True)


class ConvSeq2Seq(nn.Module):
    """p(y_t | y_<t, x) = softmax(W · Decoder(E[y_<t] + P, Encoder(E[x] + P)))"""

    Config = ConvSeq2SeqConfig
    tasks: ClassVar[tuple[str, ...]] = ("translate",)
    compiles: ClassVar[bool] = True
    prompted: ClassVar[bool] = False
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "tiny": {"layers": 3, "width": 128, "embedding": 128},
        "small": {"layers": 6, "width": 256, "embedding": 256},
        "base": {"layers": 10, "width": 512, "embedding": 256, "dropout": 0.25},
    }

    def __init__(self, config: ConvSeq2SeqConfig) -> None:
        super().__init__()
        if config.share and config.vocab != config.target_vocab:
            raise ValueError("model.share needs one vocabulary for source and target")
        self.config = config
        width = config.embedding or config.width

        def embedding(vocab: int) -> Embedding:
            return Embedding(
                vocab, width, positions=config.positions, size=config.context, dropout=config.dropout, scale=True
            )

        self.source = embedding(config.vocab)
        self.target = embedding(config.target_vocab)
        if config.share:
            self.target.tokens = self.source.tokens
        self.encoder = ConvStack(config, config.layers, causal=False)
        self.decoder = ConvStack(config, config.decoder_layers or config.layers, causal=True, cross=True)
        self.dropout = nn.Dropout(config.dropout)
        self.head = LMHead(width, config.target_vocab, tie=self.target.tokens if config.tie else None)
        for module in (*self.source.modules(), *self.target.modules()):
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=width**-0.5)

    @property
    def limit(self) -> int | None:
        """The most tokens a sentence may have: only learned positions run out."""
        return self.config.context if self.config.positions == "learned" else None

    def encode(self, source: Tensor, lengths: Tensor, *, trace: Trace | None = None) -> Source:
        """source (B, S), right-padded, and true lengths (B,) -> what the decoder looks at."""
        keep = torch.arange(source.size(1), device=source.device) < lengths[:, None]
        e = self.source(source)
        z = self.encoder(e, keep=keep, trace=trace.at("encoder") if trace is not None else None)
        return Source(z, (z + e) * HALF, keep)

    def body(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """What the decoder knows at each position of the target (B, T): (B, T, E)."""
        found = self.encode(source, lengths, trace=trace)
        inner = trace.at("decoder") if trace is not None else None
        return self.dropout(self.decoder(self.target(target), source=found, trace=inner))

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """Logits (B, T, V) of each next target token."""
        return self.head(self.body(source, lengths, target, trace=trace))

    def alignment(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """Where each target position looks (B, T, S): the mean over the layers."""
        trace = trace or Trace("weights")
        self(source, lengths, target, trace=trace)
        layers = range(len(self.decoder.blocks))
        return torch.cat([trace[f"decoder.{i}.cross.weights"] for i in layers], dim=1).mean(1)

    def loss(self, source: Tensor, lengths: Tensor, target: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of the next target tokens, summed."""
        return self.head.loss(self.body(source, lengths, target), targets, smoothing)

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, RecurrentState]:
        """Read ragged source sentences; logits (B, V) of the first word."""
        source, lengths = pad(inputs, self.device)
        state = self._state(self.encode(source, lengths))
        first = torch.full((len(inputs),), self.config.bos, device=self.device)
        return self.step(first, state), state

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """One more target token a row, (B,) -> logits (B, V)."""
        e = self.target(tokens[:, None], state.length[:, None])
        hidden = self.decoder(e, past=state.parts["past"], source=Source(**state.memory))
        state.advance(1)
        return self.head(hidden[:, 0])

    def empty(self, rows: int, room: int) -> RecurrentState:
        """A state of free rows, each with one blank source token."""
        blank = self.head.out.weight.new_zeros(rows, 1, self.head.out.in_features)
        return self._state(Source(blank, blank.clone(), torch.ones(rows, 1, dtype=torch.bool, device=self.device)))

    def _state(self, source: Source) -> RecurrentState:
        """Before the first token of each target."""
        rows = source.z.size(0)
        length = torch.zeros(rows, dtype=torch.long, device=self.device)
        return RecurrentState({"past": self.decoder.no_past(rows)}, length, memory=vars(source))

    def remembered(self, tokens: int) -> int:
        """Values that a backward pass over so many tokens of either side needs."""
        return tokens * (self.encoder.remembered + self.decoder.remembered + 3 * self.config.target_vocab)

    @property
    def device(self) -> torch.device:
        return self.head.out.weight.device
