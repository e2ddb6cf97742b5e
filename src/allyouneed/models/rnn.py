"""RNN: one state that reads a text token by token; as a language model, or as a reader of whole texts
(Elman, 1990; Hochreiter and Schmidhuber, 1997; Cho et al., 2014)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from allyouneed.batch import Tensors
from allyouneed.config import BodyConfig, option
from allyouneed.errors import UserError
from allyouneed.models.base import SIZES, Body, LanguageModel
from allyouneed.nn.cache import RecurrentState
from allyouneed.nn.heads import LMHead
from allyouneed.nn.init import init_weights, normal
from allyouneed.nn.recurrent import CELLS, Recurrent, from_parts, to_parts
from allyouneed.nn.trace import Trace, record


@dataclass(frozen=True)
class RNNConfig(BodyConfig):
    """An LSTM that reads forward, unless told otherwise."""

    vocab: int = option(0, "rows of the embedding (0: as many as the tokenizer has tokens)", low=0, high=2**24)
    context: int = option(64, "tokens per training window; only the state crosses its border", low=1, high=10**7)
    width: int = option(256, "width of the state, per direction", low=1, high=10**6)
    layers: int = option(1, "recurrent layers", low=1, high=1000)
    cell: str = option("lstm", "kind of recurrent cell", choices=CELLS)
    bidirectional: bool = option(False, "read in both directions (not for lm)")
    embedding: int = option(0, "width of the token vectors (0: width)", low=0, high=10**6)
    dropout: float = option(0.1, "dropout of the input and output of each layer", low=0.0, high=1.0)
    tie: bool = option(False, "lm: the output matrix is the embedding matrix")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tie and self.embedding not in (0, self.width):
            raise UserError(
                f"model.tie = true makes the embedding the output matrix, but model.embedding = {self.embedding} "
                f"is not model.width = {self.width}: leave it at 0, or set model.tie = false"
            )


class RNNBody(Body):
    """h_t = f(h_{t-1}, E[x_t]), in one direction or both."""

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        c = config
        self.embedding = nn.Embedding(c.vocab, c.embedding or c.width)
        # Small, so that what is learned of a rare word soon outweighs its random start.
        init_weights(self.embedding, {"*": normal(c.width**-0.5 if c.tie else 0.1)})
        self.recurrent = Recurrent(
            c.cell, c.embedding or c.width, c.width, c.layers, bidirectional=c.bidirectional, dropout=c.dropout
        )
        self.dropout = nn.Dropout(c.dropout)
        self.width = self.recurrent.out_width

    def forward(
        self, ids: Tensor, state: RecurrentState | None = None, count: Tensor | None = None, trace: Trace | None = None
    ) -> Tensor:
        """ids (B, T), the first `count` (B,) of each row real -> (B, T, width). A state moves on."""
        before = from_parts(state.parts) if state is not None else None
        x = self.dropout(self.embedding(ids))
        record(trace, self, "embeddings", x)
        hidden, after = self.recurrent(x, count, before, trace)
        if state is not None:
            state.advance(ids.size(1) if count is None else count, **to_parts(after))
        return self.dropout(hidden)

    def read(self, tensors: Tensors, trace: Trace | None = None) -> Tensor:
        return self(tensors["ids"], count=tensors["lengths"], trace=trace)

    def tables(self) -> list[nn.Embedding]:
        return [self.embedding]

    def stages(self) -> list[list[nn.Module]]:
        return [[self.embedding], *([layer] for layer in self.recurrent.layers)]

    def empty(self, rows: int, room: int) -> RecurrentState:
        """Rows that have read nothing."""
        return RecurrentState(to_parts(self.recurrent.zeros(rows, self.embedding.weight)))


class RNN(LanguageModel):
    """h_t = f(h_{t-1}, E[x_t]),  p(x_{t+1} | x_1 … x_t) = o_t = softmax(W_ho h_t)"""

    Config = RNNConfig
    BodyClass = RNNBody
    tasks = ("lm", "classify", "tag", "answer", "embed")
    carries = True
    sizes = SIZES["rnn"]

    @classmethod
    def check(cls, config: RNNConfig, task: str) -> None:
        if config.bidirectional and task == "lm":
            raise UserError(
                "model.bidirectional = true: a language model would read what it is to predict; leave it at false"
            )

    def __init__(self, config: RNNConfig) -> None:
        super().__init__()
        self.check(config, "lm")
        self.config = config
        self.body = RNNBody(config)
        self.head = LMHead(config.width, config.vocab, tie=self.body.embedding if config.tie else None)
