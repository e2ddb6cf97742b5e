"""ConvNet: a stack of causal gated convolutions that predicts the next token (Dauphin et al., 2017)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.models.base import SIZES, Body, LanguageModel, Positioned
from allyouneed.nn.cache import RecurrentState
from allyouneed.nn.convolution import ConvConfig, ConvStack
from allyouneed.nn.heads import LMHead
from allyouneed.nn.layers import Embedding
from allyouneed.nn.trace import Trace, record


@dataclass(frozen=True)
class ConvNetConfig(Positioned, ConvConfig):
    """No positions, unless told otherwise: a convolution knows the order of what it sees."""

    vocab: int = option(0, "rows of the embedding (0: as many as the tokenizer has tokens)", low=0, high=2**24)
    context: int = option(256, "tokens per training window", low=1, high=10**7)
    positions: str = option("none", "how positions are encoded", choices=("learned", "none"))
    tie: bool = option(True, "the output matrix is the embedding matrix")


class ConvBody(Body):
    """ConvStack(E[x]): each vector knows its token and the layers · (kernel - 1) before it."""

    def __init__(self, config: ConvNetConfig) -> None:
        super().__init__()
        c = config
        self.width, self.limit = c.embedding or c.width, c.limit
        self.embedding = Embedding(
            c.vocab, self.width, positions=c.positions, size=c.context, dropout=c.dropout, scale=True
        )
        self.stack = ConvStack(config, config.layers, causal=True)
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self, ids: Tensor, state: RecurrentState | None = None, count: Tensor | None = None, trace: Trace | None = None
    ) -> Tensor:
        """ids (B, T) -> (B, T, E). With a state, ids are the next tokens of each row, the first `count` (B,) real."""
        x = self.embedding(ids, None if state is None else state.positions(ids.size(1)))
        record(trace, self, "embeddings", x)
        return self.dropout(self.stack(x, state=state, count=count, trace=trace))

    def empty(self, rows: int, room: int) -> RecurrentState:
        return self.stack.empty(rows)

    def stages(self) -> list[list[nn.Module]]:
        return [[self.embedding, self.stack.into], *([block] for block in self.stack.blocks)]


class ConvNet(LanguageModel):
    """p(x_t | x_{t-n} … x_{t-1}) = softmax(W · ConvStack(E[x])), where n = 1 + layers · (kernel - 1)"""

    Config = ConvNetConfig
    BodyClass = ConvBody
    tasks = ("lm", "classify", "tag", "answer", "embed")
    compiles = True
    sizes = SIZES["convnet"]

    def __init__(self, config: ConvNetConfig) -> None:
        super().__init__()
        self.config = config
        self.body = ConvBody(config)
        self.head = LMHead(self.body.width, config.vocab, tie=self.body.embedding.tokens if config.tie else None)
