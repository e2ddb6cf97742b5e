"""What a model is: a body that reads, and a head. What tasks may ask of each kind, declared here with defaults."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from allyouneed.batch import Tensors
from allyouneed.config import BodyConfig, option
from allyouneed.nn.heads import LMHead
from allyouneed.nn.init import ZERO, init_weights
from allyouneed.nn.layers import Embedding, last, pad
from allyouneed.nn.trace import Trace, record


@dataclass(frozen=True)
class TranslatorConfig(BodyConfig):
    """The settings of every translator."""

    vocab: int = option(0, "rows of the source embedding (0: as many as there are tokens)", low=0, high=2**24)
    target_vocab: int = option(0, "rows of the target embedding (0: as many as there are tokens)", low=0, high=2**24)
    bos: int = option(1, "first token of every target", low=0, high=2**24, derived=True)
    share: bool = option(True, "one embedding for source and target (needs a joint vocabulary)")
    tie: bool = option(True, "the output matrix is the target embedding")
    output_bias: bool = option(False, "a bias per output token")


class Positioned:
    """A config of which learned positions end at `context`."""

    positions: str
    context: int

    @property
    def limit(self) -> int | None:
        return self.context if self.positions == "learned" else None


@dataclass(frozen=True)
class StacksConfig(Positioned, TranslatorConfig):
    """The settings of a translator made of two stacks."""

    decoder_layers: int = option(0, "blocks of the decoder (0: layers)", low=0, high=1000)
    context: int = option(512, "learned positions: longest sentence, in tokens", low=1, high=10**7)


class Body(nn.Module):
    """Reads: tokens, letters or pixels in; one vector per token out."""

    spelled: ClassVar[bool] = False  # it reads letters (`chars`), not tokens (`ids`)
    width: int  # of its vectors
    limit: int | None = None  # tokens that it can read at most
    frozen: tuple[nn.Module, ...] = ()  # what does not learn

    def read(self, tensors: Tensors, trace: Trace | None = None) -> Tensor:
        """Texts -> (B, T, width). Vectors of padding mean nothing; it lies behind the text, where a body that sees no
        future does not look."""
        return self(tensors["ids"], trace=trace)

    def layers(self, trace: Trace, hidden: Tensor) -> list[Tensor]:
        """From a trace of embeddings and layers: the embeddings, what each layer gives, and last `hidden`, which `read`
        gave."""
        return [*trace.of("embeddings"), *trace.of("layers")[:-1], hidden]

    def summary(self, hidden: Tensor) -> Tensor:
        """What the vector of the first token says of the whole text: (B, T, D) -> (B, D)"""
        return hidden[:, 0]

    def leave_summary(self) -> None:
        """Nothing asks for the summary: what only serves it is not trained."""

    def stages(self) -> list[list[nn.Module]]:
        """Its parts from the lowest to the highest: the embeddings, then each layer."""
        raise NotImplementedError

    def tables(self) -> list[nn.Embedding]:
        """The token embeddings; none in a body that reads letters or images."""
        return [part.tokens for part in self.children() if isinstance(part, Embedding)]

    def fitted(self, name: str, tensor: Tensor) -> Tensor:
        """A tensor of the body of another run, as this body needs it."""
        return tensor

    def train(self, mode: bool = True) -> Body:
        """What is frozen drops nothing either."""
        super().train(mode and self not in self.frozen)
        for module in self.frozen:
            nn.Module.train(module, False)
        return self


class TranslatorBody(Body):
    """Reads a source and writes a target. The embeddings of the two may share one table."""

    def __init__(self, config: Any, width: int, **positions: Any) -> None:
        super().__init__()
        self.config, self.width, self.limit = config, width, config.limit
        self.source = Embedding(config.vocab, width, dropout=config.dropout, **positions)
        self.target = Embedding(config.target_vocab, width, dropout=config.dropout, **positions)
        if config.share:
            self.target.tokens = self.source.tokens

    def begin(self, source: Tensor, lengths: Tensor, room: int) -> Any:
        """Encode source (B, S), right-padded, of true lengths (B,): the state before the first target token."""
        raise NotImplementedError

    def empty(self, rows: int, room: int) -> Any:
        """A state of free rows, as if each had read one token."""
        blank = torch.zeros(rows, 1, dtype=torch.long, device=self.source.tokens.weight.device)
        return self.begin(blank, torch.ones_like(blank[:, 0]), room)


# By the name of a model.
SIZES = tomllib.loads((resources.files("allyouneed") / "models" / "sizes.toml").read_text(encoding="utf-8"))
# Settings that do not shape the body of most models.
FREE = ("freeze", "dropout", "attention_dropout", "drop_path", "tie", "output_bias", "bos")


class Model(nn.Module):
    """What every model has. A class is listed by its name in `catalog.py`."""

    Config: ClassVar[Any]
    BodyClass: ClassVar[Any] = None  # a Body
    sizes: ClassVar[dict[str, dict[str, Any]]]  # settings by the name of a size
    tasks: ClassVar[tuple[str, ...]]
    free: ClassVar[tuple[str, ...]] = FREE  # settings that do not shape the body
    fits: ClassVar[tuple[str, ...]] = ()  # free settings that are those of the run to start from, unless they are given
    compiles: bool = False  # torch.compile makes its loss faster
    in_place: ClassVar[bool] = False  # it learns without gradients and optimizer
    useful_at_start: bool = False  # before its first step; then that is evaluated, too
    config: Any
    body: Any

    @classmethod
    def body_fields(cls) -> tuple[str, ...]:
        """The settings that shape the body: a run that starts from another one has the same. None without a body."""
        return tuple(f.name for f in fields(cls.Config) if f.name not in cls.free) if cls.BodyClass else ()

    @classmethod
    def make_reader(cls, config: Any) -> nn.Module | None:
        """What reads all layers of the body for another head; None: the head reads the body's own vectors."""
        return None

    @classmethod
    def check(cls, config: Any, task: str) -> None:
        """A UserError if the settings do not go with the task."""

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def limit(self) -> int | None:
        """Tokens that a row may hold at most."""
        return self.body.limit

    def tables(self) -> list[nn.Embedding]:
        """The token embeddings that text.vectors can fill: of a translator, those of the source and of the target."""
        return self.body.tables()

    def loss(self, *batch: Any, **settings: Any) -> Any:
        """The loss of a batch, summed."""
        raise NotImplementedError


class Writer(Model):
    """Writes one token after another: a Stepper. `start` and `step` give the logits of the next token of each row."""

    prompted: ClassVar[bool]  # after `start` a row holds its whole input, or one token
    piece: ClassVar[int | None] = None  # tokens of a prompt that are read at once; None: all
    head: LMHead
    known = 0  # tokens that the tokenizer has; further rows of the output are never chosen (0: there are none)
    barred = -1  # a token that is never chosen (-1: there is none)
    compiled = False  # its step

    def choices(self, hidden: Tensor) -> Tensor:
        """(B, D) -> the logits of the tokens that there are."""
        logits = self.head(hidden)[:, : self.known or None]
        if self.barred >= 0:
            logits[:, self.barred] = -torch.inf
        return logits

    def empty(self, rows: int, room: int) -> Any:
        """The state of free rows, with room for so many tokens."""
        return self.body.empty(rows, room)

    def read_on(self, inputs: Sequence[Any], state: Any) -> Tensor:
        """Logits (B, V) after the next tokens of each prompt."""
        return self.read(*pad(inputs, self.device), state)

    def read(self, ids: Tensor, lengths: Tensor, state: Any) -> Tensor:
        """The same for prompts (B, T), right-padded."""
        raise NotImplementedError


class LanguageModel(Writer):
    """p(x_t | x_1 … x_{t-1}) = softmax(head(body(x_1 … x_{t-1})))

    The body is called with (ids, state, count, trace); its vector of a token knows that token and the past."""

    prompted: ClassVar[bool] = True
    piece: ClassVar[int | None] = 512
    carries: ClassVar[bool] = False  # training passes its state on from window to window
    signature: ClassVar[str] = ""  # of its scores

    def spell(self, tokens: Sequence[str]) -> None:
        """Learn how the tokens of the vocabulary are written; for bodies that read letters."""

    def ahead(self, ids: Tensor, *, state: Any = None, count: Tensor | None = None, trace: Trace | None = None) -> Any:
        """ids (B, T) -> (B, T, D). With a state, ids are the next tokens of each row, the first `count` (B,) of them
        real, and the state moves on."""
        return self.body(ids, state=state, count=count, trace=trace)

    def forward(self, ids: Tensor, *, trace: Trace | None = None) -> Tensor:
        """ids (B, T) -> logits (B, T, V) of each next token."""
        logits = self.head(self.ahead(ids, trace=trace and trace.at(self)))
        record(trace, self, "logits", logits)
        return logits

    def loss(self, ids: Tensor, targets: Tensor, smoothing: float = 0.0, state: Any = None) -> Tensor:
        """The cross-entropy of the next tokens, summed; in the middle of a text after `state`, which moves on."""
        return self.head.loss(self.ahead(ids, state=state), targets, smoothing)

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, Any]:
        """Read ragged prompts; logits (B, V) of what comes next."""
        state = self.empty(len(inputs), max(room, *map(len, inputs)))
        return self.read_on(inputs, state), state

    def read(self, ids: Tensor, lengths: Tensor, state: Any) -> Tensor:
        """The next tokens of prompts (B, T), right-padded; logits (B, V) of what comes next."""
        return self.choices(last(self.ahead(ids, state=state, count=lengths), lengths))

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """One more token per row, (B,) -> logits (B, V)."""
        return self.choices(self.ahead(tokens[:, None], state=state)[:, 0])


class Translator(Writer):
    """p(y_t | y_<t, x) = softmax(head(body(x, y_<t)))

    The body is called with (source, lengths, target, trace), `begin` reads sources, `step` one target token per row."""

    prompted: ClassVar[bool] = False
    feeds_itself: ClassVar[bool] = False  # training can feed it its own words

    def __init__(self, config: Any) -> None:
        super().__init__()
        if config.share and config.vocab != config.target_vocab:
            raise ValueError("model.share needs one vocabulary for source and target")
        self.config, self.body = config, self.BodyClass(config)
        tie = self.body.target.tokens if config.tie else None
        self.head = LMHead(self.body.width, config.target_vocab, tie=tie, bias=config.output_bias)
        if config.output_bias:
            init_weights(self.head, {"out.bias": ZERO})

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor, *, trace: Trace | None = None) -> Tensor:
        """source (B, S), right-padded, true lengths (B,), target (B, T) -> logits (B, T, V) of each next token."""
        logits = self.head(self.body(source, lengths, target, trace=trace and trace.at(self)))
        record(trace, self, "logits", logits)
        return logits

    def loss(self, source: Tensor, lengths: Tensor, target: Tensor, targets: Tensor, smoothing: float = 0.0) -> Tensor:
        """The cross-entropy of the next target tokens, summed."""
        return self.head.loss(self.body(source, lengths, target), targets, smoothing)

    def alignment(self, source: Tensor, lengths: Tensor, target: Tensor) -> tuple[Tensor, str]:
        """How much each target position attends to each of the source, (B, T, S), and which attention this is."""
        self(source, lengths, target, trace=(trace := Trace("weights")))
        return self.aligned(trace)

    def aligned(self, trace: Trace) -> tuple[Tensor, str]:
        """The `alignment`, from a trace of all attention weights."""
        raise NotImplementedError

    def start(self, inputs: Sequence[Sequence[int]], room: int) -> tuple[Tensor, Any]:
        """Read ragged source sentences; logits (B, V) of the first target token."""
        return self.begin(*pad(inputs, self.device), room)

    def begin(self, source: Tensor, lengths: Tensor, room: int) -> tuple[Tensor, Any]:
        """The same for sentences (B, S), right-padded."""
        state = self.body.begin(source, lengths, room)
        return self.step(torch.full_like(lengths, self.config.bos), state), state

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """One more target token per row, (B,) -> logits (B, V)."""
        return self.choices(self.body.step(tokens, state))
