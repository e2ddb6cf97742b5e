"""BERT: a stack of blocks that see both ways; it learns to fill in hidden words (Devlin et al., 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from allyouneed.batch import Tensors
from allyouneed.config import option
from allyouneed.models.base import SIZES, Body, Model, Positioned
from allyouneed.nn.block import POSITIONS, BlockConfig, Stack
from allyouneed.nn.heads import MaskedHead
from allyouneed.nn.init import ZERO, Init, as_made, init_weights, normal, published
from allyouneed.nn.layers import ACTIVATIONS, Embedding
from allyouneed.nn.losses import cross_entropy
from allyouneed.nn.masks import Mask
from allyouneed.nn.trace import Trace, record

POOLERS = ("tanh", "relu", "none")


@dataclass(frozen=True)
class BertConfig(Positioned, BlockConfig):
    """BERT's choices, unless told otherwise."""

    vocab: int = option(0, "rows of the embedding (0: as many as the tokenizer has tokens)", low=0, high=2**24)
    context: int = option(512, "learned positions: longest text, in tokens", low=1, high=10**7)
    segments: int = option(2, "texts in a row that are told apart (below 2: they are not)", low=0, high=100)
    pooler: str = option("tanh", "what [CLS] becomes for a whole text: act(W h + b), or h itself", choices=POOLERS)
    activation: str = option("gelu", "activation in the feed-forward layer and before the words", choices=ACTIVATIONS)
    norm_eps: float = option(1e-12, "added to the variance in each norm", low=0.0, high=1.0)
    prenorm: bool = option(False, "normalise before each part (true) or after its residual (false)")
    positions: str = option("learned", "how positions are encoded", choices=POSITIONS)
    attention_dropout: float = option(0.1, "dropout of the attention weights", low=0.0, high=1.0)


WEIGHTS: dict[str, Init] = {
    "*norm*": as_made,
    "embedding.*": normal(0.02),
    "segments.*": normal(0.02),
    "*weight": published,
    "*bias": ZERO,
}


class BertBody(Body):
    """Stack(norm(E[x] + S[segment] + P)): each vector knows its whole text."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.embedding = Embedding(config.vocab, config.width, positions=config.positions, size=config.context)
        self.width, self.limit = config.width, config.limit
        self.segments = nn.Embedding(config.segments, config.width) if config.segments else None
        self.norm, self.dropout = config.make_norm(), nn.Dropout(config.dropout)
        self.stack = Stack(config, config.layers)
        self.pooler = nn.Linear(config.width, config.width) if config.pooler != "none" else None
        self.squash = torch.relu if config.pooler == "relu" else torch.tanh
        init_weights(self, WEIGHTS)

    def forward(
        self, ids: Tensor, lengths: Tensor, segments: Tensor | None = None, *, trace: Trace | None = None
    ) -> Tensor:
        """ids (B, T), right-padded, true lengths (B,), and to which text each token belongs (B, T) -> (B, T, D)"""
        x = self.embedding(ids)
        if self.segments is not None:
            apart = segments is not None and self.segments.num_embeddings > 1
            x = x + self.segments(segments if apart else torch.zeros_like(ids))
        x = self.dropout(self.norm(x))
        record(trace, self, "embeddings", x)
        return self.stack(x, Mask.padding(lengths, ids.size(1)), trace=trace)

    def read(self, tensors: Tensors, trace: Trace | None = None) -> Tensor:
        return self(tensors["ids"], tensors["lengths"], tensors.get("segments"), trace=trace)

    def summary(self, hidden: Tensor) -> Tensor:
        """tanh(W h_[CLS] + b), learned by telling whether one sentence follows another; or as model.pooler says."""
        return hidden[:, 0] if self.pooler is None else self.squash(self.pooler(hidden[:, 0]))

    def leave_summary(self) -> None:
        if self.pooler is not None:
            self.pooler.requires_grad_(False)

    def stages(self) -> list[list[nn.Module]]:
        embeddings = [part for part in (self.embedding, self.segments, self.norm) if part is not None]
        return [embeddings, *([block] for block in self.stack.blocks)]


class Bert(Model):
    """p(x_i | the text with x_i hidden) = softmax(E · norm(act(W h_i))), and p(B follows A) from h_[CLS]."""

    Config = BertConfig
    BodyClass = BertBody
    tasks = ("pretrain", "classify", "tag", "answer", "embed")
    compiles = True
    sizes = SIZES["bert"]

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.config, self.body = config, BertBody(config)
        self.words = MaskedHead(self.body.embedding.tokens, config.activation, config.make_norm())
        # 0: B follows A, 1: it does not. Only the pooler can tell.
        self.next = nn.Linear(config.width, 2) if self.body.pooler is not None else None
        init_weights(self.words, WEIGHTS)
        if self.next is not None:
            init_weights(self.next, WEIGHTS)
        init_weights(self.body.embedding, {"*": normal(0.02)})  # which the words share

    def forward(self, tensors: Tensors, *, trace: Trace | None = None) -> tuple[Tensor, Tensor]:
        """-> logits of each word (B, T, V), and of whether the second text follows the first (B, 2)"""
        trace = trace and trace.at(self)
        hidden = self.body.read(tensors, trace)
        words, follows = self.words(hidden), self.follows(hidden)
        record(trace, self.words, "logits", words)
        return words, follows

    def follows(self, hidden: Tensor) -> Tensor:
        """(B, T, D) -> (B, 2); zeros in a model that has no pooler"""
        return hidden.new_zeros(len(hidden), 2) if self.next is None else self.next(self.body.summary(hidden))

    def loss(self, tensors: Tensors, follows: bool = True) -> tuple[Tensor, Tensor]:
        """The cross-entropy of the chosen words, and that of the next sentences (0 unless `follows`), each summed."""
        hidden = self.body.read(tensors)
        chosen = hidden.flatten(0, 1)[tensors["chosen"]]  # (N, D)
        words = self.words.loss(chosen, tensors["targets"])
        if not follows:
            return words, words.new_zeros(())
        return words, cross_entropy(self.follows(hidden), tensors["follows"])
