"""Sequence to sequence: a recurrent encoder reads the source, a recurrent decoder writes the target, with attention
(Bahdanau et al., 2015; Luong et al., 2015) or with one context vector (Cho et al., 2014)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.errors import UserError
from allyouneed.models.base import SIZES, Translator, TranslatorBody, TranslatorConfig
from allyouneed.nn.attention import attend
from allyouneed.nn.cache import Encoded, RecurrentState
from allyouneed.nn.init import init_weights, normal
from allyouneed.nn.layers import last, real
from allyouneed.nn.masks import Mask
from allyouneed.nn.recurrent import CELLS, Hidden, Recurrent, from_parts, to_parts
from allyouneed.nn.scores import make_score
from allyouneed.nn.trace import Trace

SCORES = ("additive", "dot", "general", "cosine", "none")
Choose = Callable[[Tensor], Tensor]  # the next input from an output: (B, E) -> (B,)


@dataclass(frozen=True)
class Seq2SeqConfig(TranslatorConfig):
    """The settings of a recurrent encoder and decoder."""

    embedding: int = option(0, "width of the token vectors (0: width)", low=0, high=10**6)
    width: int = option(256, "width of the decoder, and of both encoder directions together", low=2, high=10**6)
    layers: int = option(1, "layers of the encoder", low=1, high=1000)
    decoder_layers: int = option(0, "layers of the decoder (0: layers)", low=0, high=1000)
    cell: str = option("gru", "recurrent cell", choices=CELLS)
    score: str = option("additive", "score of a state and a source token (none: one context vector)", choices=SCORES)
    memory: str = option("last", "attention reads the last layer, or a learned mix of all", choices=("last", "mix"))
    dropout: float = option(0.1, "dropout of embeddings, between layers and before the output", low=0.0, high=1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2:
            raise UserError(f"model.width = {self.width} is split between two directions: it must be even")


class Seq2SeqBody(TranslatorBody):
    """h = Encoder(E[x]), read in both directions; then, with s_0 = tanh(W h_end), for each target token

    c_t = Σ_j a_tj h_j,  a_t = softmax_j score(s_{t-1}, h_j)      (without attention c = tanh(W h_end), at every step)
    s_t = f(s_{t-1}, y_{t-1}, c_t)
    o_t = tanh(U [s_t; c_t; y_{t-1}])
    """

    def __init__(self, config: Seq2SeqConfig) -> None:
        width, size = config.width, config.embedding or config.width
        super().__init__(config, size, positions="none", size=0)
        layers, dropout = config.decoder_layers or config.layers, config.dropout
        for embedding in (self.source, self.target):
            init_weights(embedding, {"*": normal(0.3)})
        self.encoder = Recurrent(config.cell, size, width // 2, config.layers, bidirectional=True, dropout=dropout)
        self.mix = nn.Parameter(torch.full((config.layers,), 1 / config.layers)) if config.memory == "mix" else None
        self.decoder = Recurrent(config.cell, size + width, width, layers, dropout=dropout)
        states = 2 if config.cell == "lstm" else 1  # h and c, or h
        self.first = nn.Linear(width, states * layers * width)
        self.score = make_score(config.score, width, width) if config.score != "none" else None
        if self.score is None:
            self.context = nn.Linear(width, width)
        self.out = nn.Linear(width + width + size, size)
        self.dropout = nn.Dropout(dropout)

    def encode(self, source: Tensor, lengths: Tensor, trace: Trace | None = None) -> tuple[Encoded, Hidden]:
        """source (B, S), right-padded, and true lengths (B,) -> what the decoder attends to, its first state. Without
        attention there is one value (B, 1, D)."""
        layers = self.encoder.layer_outputs(self.source(source, trace=trace), lengths, trace)
        h = layers[-1] if self.mix is None else torch.einsum("l,lbsd->bsd", self.mix, torch.stack(layers))
        forward, backward = h.chunk(2, dim=-1)
        end = torch.cat([last(forward, lengths), backward[:, 0]], dim=-1)  # each direction after its last token
        state = torch.tanh(self.first(end)).unflatten(-1, (-1, len(self.decoder.layers), self.config.width))
        first = tuple(state.permute(1, 2, 0, 3))  # each (L, B, D)
        if self.score is None:
            return {"values": torch.tanh(self.context(end))[:, None]}, first
        return {"keys": self.score.keys(h), "values": h, "real": real(lengths, source.size(1))}, first

    def context_for(self, s: Tensor, encoded: Encoded, trace: Trace | None = None) -> Tensor:
        """c_t for the states s_{t-1} of each sentence: (B, N, D) -> (B, N, D)"""
        if self.score is None:
            return encoded["values"].expand_as(s)
        k, v, mask = encoded["keys"][:, None], encoded["values"][:, None], Mask(encoded["real"][:, None, None])
        return attend(s[:, None], k, v, mask, score=self.score, trace=trace and trace.at(self.score))[:, 0]

    def output(self, s: Tensor, c: Tensor, y: Tensor) -> Tensor:
        """tanh(U [s_t; c_t; y_{t-1}]), (..., E)"""
        return self.dropout(torch.tanh(self.out(torch.cat([s, c, y], dim=-1))))

    def forward(
        self,
        source: Tensor,
        lengths: Tensor,
        target: Tensor,
        *,
        p: float = 1.0,
        choose: Choose | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """The decoder's output at each position of the target (B, T): (B, T, E). Each input token is the true one with
        the probability p (teacher forcing), otherwise the one that `choose` picks."""
        trace = trace and trace.at(self)
        encoded, first = self.encode(source, lengths, trace)
        y = self.target(target, trace=trace)  # (B, T, E)
        if self.score is None and p == 1:  # all inputs are known: one call for all steps
            c = encoded["values"].expand(-1, target.size(1), -1)
            return self.output(self.decoder(torch.cat([y, c], dim=-1), state=first, trace=trace)[0], c, y)
        s, c, y = self.unroll(y, encoded, first, p, choose)
        if trace is not None:  # what each step did, in one call for all
            self.context_for(torch.cat([first[0][-1][:, None], s[:, :-1]], dim=1), encoded, trace)
            self.decoder(torch.cat([y, c], dim=-1), state=first, trace=trace)
        return self.output(s, c, y)

    def unroll(self, true: Tensor, encoded: Encoded, first: Hidden, p: float, choose: Choose | None) -> list[Tensor]:
        """Step by step, as each state decides where the next one looks: s_t, c_t and the input y_{t-1}, each (B, T, …);
        `true` (B, T, E) are the true inputs."""
        steps, state, s = [], first, first[0][-1]
        own = true.new_full(true.shape[:1], self.config.bos, dtype=torch.long)
        forced = torch.rand(true.size(1), len(true), 1, device=true.device) < p
        for t, y in enumerate(true.unbind(1)):
            y = y if p == 1 else torch.where(forced[t], y, self.target(own))
            c = self.context_for(s[:, None], encoded)[:, 0]
            s, state = self.decoder.step(torch.cat([y, c], dim=-1), state)
            steps.append((s, c, y))
            if choose is not None and p < 1:
                own = choose(self.output(s, c, y))
        return [torch.stack(parts, dim=1) for parts in zip(*steps)]

    def begin(self, source: Tensor, lengths: Tensor, room: int) -> RecurrentState:
        """Before the first token of each target; parts are (B, L, D)."""
        encoded, first = self.encode(source, lengths)
        return RecurrentState(to_parts(first), source=encoded)

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """(B,) -> (B, E)"""
        before = from_parts(state.parts)
        beams = before[0][-1].unflatten(0, (len(state.source["values"]), -1))  # (sentences, beams, D)
        y, c = self.target(tokens), self.context_for(beams, state.source).flatten(0, 1)
        s, after = self.decoder.step(torch.cat([y, c], dim=-1), before)
        state.advance(1, **to_parts(after))
        return self.output(s, c, y)

    def stages(self) -> list[list[nn.Module]]:
        return [[self.source, self.target], *([layer] for layer in (*self.encoder.layers, *self.decoder.layers))]


class Seq2Seq(Translator):
    """p(y_t | y_<t, x) = softmax(W o_t)"""

    Config = Seq2SeqConfig
    BodyClass = Seq2SeqBody
    tasks = ("translate",)
    feeds_itself = True
    sizes = SIZES["seq2seq"]

    def aligned(self, trace: Trace) -> tuple[Tensor, str]:
        """The weights a_t."""
        if self.body.score is None:
            raise UserError("this model has no attention (model.score = none), so there is no alignment to show")
        return trace.get(self.body.score, "weights")[:, 0], f"{self.config.score} attention"

    def loss(
        self, source: Tensor, lengths: Tensor, target: Tensor, targets: Tensor, smoothing: float = 0.0, p: float = 1.0
    ) -> Tensor:
        """The cross-entropy of the next target tokens, summed, with teacher forcing p."""
        hidden = self.body(source, lengths, target, p=p, choose=lambda h: self.head(h).argmax(-1))
        return self.head.loss(hidden, targets, smoothing)
