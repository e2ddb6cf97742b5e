"""ELMo: words by their letters, read by two LSTM language models, forward and backward (Peters et al., 2018)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from allyouneed.batch import IGNORE, Tensors
from allyouneed.config import BodyConfig, option
from allyouneed.models.base import FREE, SIZES, Body, LanguageModel
from allyouneed.nn.cache import RecurrentState
from allyouneed.nn.heads import MIXES, LMHead, Mix
from allyouneed.nn.init import init_weights, normal
from allyouneed.nn.recurrent import Recurrent, from_parts, to_parts
from allyouneed.nn.spelling import LetterCNN, spell
from allyouneed.nn.trace import Trace, record


@dataclass(frozen=True)
class ELMoConfig(BodyConfig):
    """The first fields shape the body; the last ones are for reading with it, in tag and classify."""

    vocab: int = option(0, "rows of the output (0: as many as the tokenizer has words)", low=0, high=2**24)
    context: int = option(64, "words per training window", low=1, high=10**7)
    width: int = option(512, "width of the word vectors and of each LSTM", low=1, high=10**6)
    layers: int = option(2, "LSTM layers per direction", low=1, high=1000)
    letters: int = option(32, "bytes read per word, its two end marks included", low=3, high=10**4)
    filters: int = option(25, "outputs of a convolution over w letters, divided by w = 1 to 6", low=1, high=10**4)
    dropout: float = option(0.1, "dropout of the input of each LSTM and of the last output", low=0.0, high=1.0)
    mix: str = option("softmax", "mix of h_k = [f_k; b_k]: γ Σ softmax(w)_k h_k, Σ (f_k + b_k), or h_L", choices=MIXES)
    reader: int = option(256, "width of the LSTM that reads the mixed vectors, per direction", low=1, high=10**6)


class ELMoBody(Body):
    """h_0 = [x; x], the word by its letters; h_k = [f_k; b_k], what the two directions know of it in layer k:

    f_1 = LSTM(x),  f_k = f_{k-1} + LSTM(f_{k-1});  b_k the same over the sentence from its last word to its first
    """

    spelled = True

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__()
        self.config, self.width = config, 2 * config.width
        self.words = LetterCNN(config.width, config.letters, config.filters)
        lstm = ("lstm", config.width, config.width)
        self.forward_layers = nn.ModuleList(Recurrent(*lstm) for _ in range(config.layers))
        self.backward_layers = nn.ModuleList(Recurrent(*lstm) for _ in range(config.layers))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, words: Tensor, lengths: Tensor, trace: Trace | None = None) -> list[Tensor]:
        """Vectors of words (B, T, D) -> the L + 1 layers, each (B, T, 2D)."""
        record(trace, self, "embeddings", words)
        forward = self.one_direction(self.forward_layers, words, trace)
        reversed_trace = trace and trace.changed(lambda value: reverse(value, lengths))
        backward = self.one_direction(self.backward_layers, reverse(words, lengths), reversed_trace)
        return [torch.cat([f, reverse(b, lengths)], dim=-1) for f, b in zip(forward, backward)]

    def layers(self, trace: Trace, hidden: Tensor) -> list[Tensor]:
        """The two directions side by side."""
        (words,), layers = trace.of("embeddings"), zip(self.forward_layers, self.backward_layers)
        sides = [[words, words], *([trace.get(layer, "layers") for layer in both] for both in layers)]
        return [torch.cat(both, dim=-1) for both in sides]

    def read(self, tensors: Tensors, trace: Trace | None = None) -> Tensor:
        return self(self.words(tensors["chars"]), tensors["lengths"], trace)[-1]

    def empty(self, rows: int, room: int) -> RecurrentState:
        zeros = self.words.project.weight.new_zeros(rows, len(self.forward_layers), self.config.width)
        return RecurrentState({"h": zeros, "c": zeros.clone()})

    def stages(self) -> list[list[nn.Module]]:
        return [[self.words], *([*pair] for pair in zip(self.forward_layers, self.backward_layers))]

    def one_direction(
        self,
        layers: Iterable[Any],
        x: Tensor,
        trace: Trace | None = None,
        state: RecurrentState | None = None,
        count: Tensor | None = None,
    ) -> list[Tensor]:
        """x (B, T, D) and the output of each of these layers. Padding lies behind the words, where nothing reads it.
        With a state, x are the next words of each row, the first `count` (B,) real."""
        found, ends, state = [x], [], state or self.empty(len(x), 0)
        before = from_parts(state.parts)
        for k, layer in enumerate(layers):
            h, end = layer(self.dropout(x), count, tuple(part[k : k + 1] for part in before), trace=trace)
            x = x + h if k else h
            record(trace, layer, "layers", x)
            found.append(x)
            ends.append(end)
        after = tuple(torch.cat(parts) for parts in zip(*ends))  # h and c, each (L, B, D)
        state.advance(x.size(1) if count is None else count, **to_parts(after))
        return found


def reverse(x: Tensor, lengths: Tensor) -> Tensor:
    """x (B, T, …) with the words of each row from last to first; the padding stays behind them."""
    at = torch.arange(x.size(1), device=x.device).expand(x.shape[:2])
    mirrored = lengths[:, None] - 1 - at
    return x[torch.arange(len(x), device=x.device)[:, None], torch.where(mirrored < 0, at, mirrored)]


class ELMoReader(nn.Module):
    """For classify and tag: the body's layers mixed into one vector per word, read by a bidirectional LSTM."""

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__()
        self.mix = Mix(config.layers + 1, config.mix)
        self.dropout = nn.Dropout(config.dropout)
        mixed = config.width if config.mix == "sum" else 2 * config.width
        self.lstm = Recurrent("lstm", mixed, config.reader, bidirectional=True)
        self.width = self.lstm.out_width

    def forward(self, body: ELMoBody, tensors: Tensors, trace: Trace | None = None) -> Tensor:
        """chars (B, T, C), lengths (B,) -> (B, T, width)"""
        layers = body(body.words(tensors["chars"]), tensors["lengths"], trace)
        return self.lstm(self.dropout(self.mix(layers)), tensors["lengths"], trace=trace)[0]


class ELMo(LanguageModel):
    """Two language models with the same words and the same softmax, trained together:

    log p = ½ Σ_t [log p(x_t | x_1 … x_{t-1}) + log p(x_t | x_{t+1} … x_T)]
    """

    Config = ELMoConfig
    BodyClass = ELMoBody
    tasks = ("lm", "classify", "tag")
    free = (*FREE, "vocab", "mix", "reader")
    signature = "directions:mean of both"
    sizes = SIZES["elmo"]
    spelling: Tensor  # (V, C)

    def __init__(self, config: ELMoConfig) -> None:
        super().__init__()
        self.config = config
        self.body = ELMoBody(config)
        self.head = LMHead(config.width, config.vocab, bias=True)
        init_weights(self.head, {"out.weight": normal((config.width / 3) ** -0.5)})  # outputs of an LSTM are small
        # Of every word of the vocabulary; made from the tokenizer, so that no file need hold it.
        self.register_buffer("spelling", torch.zeros(config.vocab, config.letters, dtype=torch.int16), persistent=False)

    def spell(self, tokens: Sequence[str]) -> None:
        """Learn how the vocabulary is written; the space before a word is no part of it."""
        letters = spell([token.removeprefix(" ") for token in tokens], self.config.letters)
        self.spelling[: len(letters)] = torch.from_numpy(letters)

    def words(self, ids: Tensor) -> Tensor:
        """ids (B, T) -> (B, T, D), by their spelling."""
        return self.body.words(self.spelling[ids])

    @classmethod
    def make_reader(cls, config: ELMoConfig) -> ELMoReader:
        return ELMoReader(config)

    def ahead(
        self, ids: Tensor, state: RecurrentState | None = None, count: Tensor | None = None, trace: Trace | None = None
    ) -> Tensor:
        """The top of the forward direction."""
        words, body = self.words(ids), self.body
        record(trace, body, "embeddings", words)
        return body.one_direction(body.forward_layers, words, trace, state, count)[-1]

    def loss(self, ids: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:  # type: ignore[override]
        """The mean of two sums of cross-entropies: of the next words (forward), and of those before (backward)."""
        text = torch.cat([ids[:, :1], targets], dim=1)  # x_0 … x_T: forward predicts x_1 … x_T, backward x_{T-1} … x_0
        real = text != IGNORE
        top = self.body(self.words(text.clamp(min=0)), real.sum(1))[-1]
        forward, backward = self.body.dropout(top).chunk(2, dim=-1)
        goals = torch.cat([text[:, 1:], text[:, :-1].masked_fill(~real[:, 1:], IGNORE)])
        return 0.5 * self.head.loss(torch.cat([forward[:, :-1], backward[:, 1:]]), goals, smoothing)
