"""RNN: one state that reads a text token by token; as a language model, or as a reader of whole sentences
(Elman, 1990; Hochreiter and Schmidhuber, 1997; Cho et al., 2014)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.errors import UserError
from allyouneed.nn.cache import RecurrentState
from allyouneed.nn.heads import LMHead
from allyouneed.nn.layers import pad
from allyouneed.nn.recurrent import CELLS, Hidden, Recurrent


@dataclass(frozen=True)
class RNNConfig:
    """An LSTM that reads forward, unless told otherwise."""

    vocab: int = option(0, "size of the vocabulary", low=0, high=2**24, derived=True)
    context: int = option(64, "tokens per training window; only the state crosses its border", low=1, high=10**7)
    width: int = option(256, "width of the state, per direction", low=1, high=10**6)
    layers: int = option(1, "recurrent layers", low=1, high=1000)
    cell: str = option("lstm", "kind of recurrent cell", choices=CELLS)
    bidirectional: bool = option(False, "classify, tag: read in both directions")
    embedding: int = option(0, "width of the token vectors (0: width)", low=0, high=10**6)
    dropout: float = option(0.1, "dropout of the input and output of each layer", low=0.0, high=1.0)
    tie: bool = option(False, "lm: the output matrix is the embedding matrix")
    vectors: str = option("", "a file of word vectors that the token embedding starts from")
    freeze: bool = option(False, "the word vectors of the file are not trained")

    def __post_init__(self) -> None:
        if self.tie and self.embedding not in (0, self.width):
            raise UserError(
                f"model.tie = true makes the embedding the output matrix, but model.embedding = {self.embedding} "
                f"is not model.width = {self.width}: leave it at 0, or set model.tie = false"
            )


class RNNBody(nn.Module):
    """Token vectors, and layers that read them."""

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocab, config.embedding or config.width)
        # So small that what is learned of a rare word soon outweighs the chance it began with.
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5 if config.tie else 0.1)
        self.recurrent = Recurrent(
            config.cell,
            self.embedding.embedding_dim,
            config.width,
            config.layers,
            bidirectional=config.bidirectional,
            dropout=config.dropout,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.width = self.recurrent.out_width

    def forward(self, ids: Tensor, lengths: Tensor | None = None, state: Hidden | None = None) -> tuple[Tensor, Hidden]:
        """ids (B, T), right-padded -> (B, T, width), and the state after the last token."""
        hidden, state = self.recurrent(self.dropout(self.embedding(ids)), lengths, state)
        return self.dropout(hidden), state


class RNNReader(nn.Module):
    """Sentences -> a vector for each token."""

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        self.body = RNNBody(config)
        self.width = self.body.width

    def forward(self, tensors: dict[str, Tensor]) -> Tensor:
        """ids (B, T) and lengths (B,) -> (B, T, width)"""
        return self.body(tensors["ids"], tensors["lengths"])[0]


class RNN(nn.Module):
    """h_t = f(h_{t-1}, E[x_t]),  p(x_{t+1} | x_1 … x_t) = o_t = softmax(W_ho h_t)"""

    Config = RNNConfig
    Reader = RNNReader
    tasks: ClassVar[tuple[str, ...]] = ("lm", "classify", "tag")
    prompted: ClassVar[bool] = True
    body_fields: ClassVar[tuple[str, ...]] = ("width", "layers", "cell", "bidirectional", "embedding")
    recurrent = True  # training carries the state from window to window
    limit: int | None = None  # a state has read as much as it has read
    sizes: ClassVar[dict[str, dict[str, Any]]] = {
        "nano": {"layers": 1, "width": 64},
        "small": {"layers": 1, "width": 256},
        "medium": {"layers": 2, "width": 512, "dropout": 0.3},
        "large": {"layers": 2, "width": 1024, "dropout": 0.5},
    }

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        if config.bidirectional:
            raise UserError("model.bidirectional = true: a language model must not read what it is to predict")
        self.config = config
        self.body = RNNBody(config)
        self.head = LMHead(config.width, config.vocab, tie=self.body.embedding if config.tie else None)

    def forward(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> logits (B, T, V) of each next token."""
        return self.head(self.body(ids)[0])

    def loss(self, ids: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of the next tokens, summed; the text begins here."""
        return self.head.loss(self.body(ids)[0], targets, smoothing)

    def loss_after(
        self, before: dict[str, Tensor], ids: Tensor, targets: Tensor, smoothing: float = 0.0
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """The same in the middle of a text: `before` is what has been read, each part (B, L, D); and what has been
        read after it."""
        hidden, state = self.body(ids, state=_hidden(before))
        return self.head.loss(hidden, targets, smoothing), _parts(state)

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, RecurrentState]:
        """Read ragged prompts; logits (B, V) of what comes next."""
        ids, lengths = pad(inputs, self.device)
        hidden, state = self.body(ids, lengths)
        last = hidden[torch.arange(len(inputs), device=ids.device), lengths - 1]
        return self.head(last), RecurrentState(_parts(state), lengths)

    def step(self, tokens: Tensor, state: RecurrentState) -> Tensor:
        """One more token a row, (B,) -> logits (B, V)."""
        hidden, new = self.body(tokens[:, None], state=_hidden(state.parts))
        state.advance(1, **_parts(new))
        return self.head(hidden[:, 0])

    def empty(self, rows: int, room: int) -> RecurrentState:
        """A state of free rows."""
        zeros = self.body.recurrent.zeros(rows, self.head.out.weight.detach())
        return RecurrentState(_parts(zeros), torch.zeros(rows, dtype=torch.long, device=self.device))

    def remembered(self, tokens: int) -> int:
        """Values the backward pass needs of so many tokens: the gates and states of each layer, and the logits."""
        config = self.config
        gates = {"rnn": 1, "gru": 3, "lstm": 4}[config.cell]
        layers = config.layers * (gates + 4) * config.width
        return tokens * (2 * self.body.embedding.embedding_dim + layers + 3 * config.vocab)

    @property
    def device(self) -> torch.device:
        return self.head.out.weight.device


def _parts(state: Hidden) -> dict[str, Tensor]:
    """(h,) or (h, c), each (L, B, D) -> by name, row first (B, L, D)"""
    return {name: t.transpose(0, 1) for name, t in zip("hc", state)}


def _hidden(parts: dict[str, Tensor]) -> Hidden:
    return tuple(parts[name].transpose(0, 1) for name in "hc" if name in parts)
