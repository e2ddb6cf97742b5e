"""Block: attention, optional cross-attention, feed-forward, each with a residual and a norm. Stack: L of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from torch import Tensor, nn

from allyouneed.config import BodyConfig, option
from allyouneed.errors import UserError
from allyouneed.nn.attention import Attention
from allyouneed.nn.cache import KVCache, LayerCache
from allyouneed.nn.layers import ACTIVATIONS, NORMS, Drop, FeedForward, make_norm, real
from allyouneed.nn.masks import Mask
from allyouneed.nn.positions import Rotary
from allyouneed.nn.trace import Trace, record

POSITIONS = ("sinusoidal", "sinusoidal_half", "learned", "rotary", "none")


@dataclass(frozen=True)
class BlockConfig(BodyConfig):
    """The settings of every model made of Blocks."""

    width: int = option(128, "d_model, the width of the model", low=1, high=10**6)
    layers: int = option(4, "blocks", low=1, high=1000)
    heads: int = option(4, "attention heads", low=1, high=10**4)
    kv_heads: int = option(0, "key/value heads (0: heads)", low=0, high=10**4)
    head_width: int = option(0, "d_k per head (0: width / heads)", low=0, high=10**6)
    value_width: int = option(0, "d_v per head (0: d_k)", low=0, high=10**6)
    hidden: int = option(0, "width inside the feed-forward layer (0: 4 * width)", low=0, high=10**7)
    activation: str = option("relu", "activation in the feed-forward layer", choices=ACTIVATIONS)
    norm: str = option("layer", "normalisation", choices=NORMS)
    norm_eps: float = option(1e-5, "added to the variance in each norm", low=0.0, high=1.0)
    prenorm: bool = option(True, "normalise before each part (true) or after its residual (false)")
    residual: bool = option(True, "add each part's output to its input (true) or replace it (false)")
    feed_forward: bool = option(True, "a feed-forward part in each block")
    bias: bool = option(True, "biases in the linear layers")
    positions: str = option("sinusoidal", "how positions are encoded", choices=POSITIONS)
    rotary_base: float = option(10000.0, "rotary: slowest turn, in positions per radian", low=1.0, high=1e12)
    rotary_stretch: float = option(1.0, "rotary: how many times slower the slow turns are", low=1.0, high=1e6)
    rotary_context: int = option(0, "rotary_stretch: slow is a turn of so many tokens (0: any)", low=0, high=2**40)
    dropout: float = option(0.1, "dropout of each part's output and of the embeddings", low=0.0, high=1.0)
    attention_dropout: float = option(0.0, "dropout of the attention weights", low=0.0, high=1.0)
    drop_path: float = option(
        0.0, "stochastic depth: how often the last block adds nothing to a row, the first never", low=0.0, high=0.999999
    )
    score: str = option(
        "scaled_dot", "score of a query and a key", choices=("scaled_dot", "dot", "cosine", "parameter_free")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.head_width and self.width % self.heads:
            raise UserError(f"model.heads = {self.heads} does not divide model.width = {self.width}")
        if self.kv_heads and self.heads % self.kv_heads:
            raise UserError(f"model.kv_heads = {self.kv_heads} does not divide model.heads = {self.heads}")
        if self.positions == "rotary" and self.key_width % 2:
            raise UserError(f"rotary positions need an even head width, not {self.key_width}")
        if self.positions.startswith("sinusoidal") and self.width % 2:
            raise UserError(f"sinusoidal positions need an even model.width, not {self.width}")
        if self.score == "parameter_free" and (self.kv_heads or self.head_width or self.value_width):
            raise UserError("model.score = parameter_free has no projections: leave kv_heads and the head widths at 0")

    @property
    def key_width(self) -> int:
        return self.head_width or self.width // self.heads

    def attention(self, *, cross: bool = False) -> Attention:
        return Attention(
            self.width, self.heads, kv_heads=self.kv_heads, head_width=self.head_width, value_width=self.value_width,
            cross=cross, bias=self.bias, dropout=self.attention_dropout, score=self.score,
        )  # fmt: skip

    def make_norm(self) -> nn.Module:
        return make_norm(self.norm, self.width, bias=self.bias, eps=self.norm_eps)


class Block(nn.Module):
    """x = x + part(norm(x)) for each part (pre-norm), or x = norm(x + part(x)) (post-norm, as in the paper)."""

    def __init__(self, config: BlockConfig, *, cross: bool = False, drop_path: float = 0.0) -> None:
        super().__init__()
        self.prenorm, self.residual = config.prenorm, config.residual
        self.attention, self.attention_norm = config.attention(), config.make_norm()
        if cross:
            self.cross, self.cross_norm = config.attention(cross=True), config.make_norm()
        self.feed_forward: FeedForward | None = None
        if config.feed_forward:
            hidden = config.hidden or 4 * config.width
            self.feed_forward = FeedForward(config.width, hidden, activation=config.activation, bias=config.bias)
            self.feed_forward_norm = config.make_norm()
        self.dropout = Drop(config.dropout, drop_path)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        *,
        memory: Tensor | tuple[Tensor, Tensor] | None = None,
        memory_mask: Mask = Mask(),
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: LayerCache | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """x (B, T, D) -> (B, T, D). `memory` is an encoder's output (B, S, D), or its keys and values."""
        if trace is not None and (known := trace.known.get(trace.at(self).path)) is not None:
            return known.to(x)
        h = self.attention_norm(x) if self.prenorm else x
        x = self._add(x, self.attention(h, mask, rotary=rotary, cache=cache, trace=trace), self.attention_norm)
        if memory is not None:
            h = self.cross_norm(x) if self.prenorm else x
            x = self._add(x, self.cross(h, memory_mask, memory=memory, trace=trace), self.cross_norm)
        if self.feed_forward is not None:
            h = self.feed_forward_norm(x) if self.prenorm else x
            y = self.feed_forward(h)
            x = self._add(x, y, self.feed_forward_norm)
            record(trace, self, "feed_forward", y)
        record(trace, self, "layers", x)
        return x

    def _add(self, x: Tensor, part: Tensor, norm: nn.Module) -> Tensor:
        """The residual connection around a part, and in post-norm its norm."""
        x = x + self.dropout(part) if self.residual else self.dropout(part)
        return x if self.prenorm else norm(x)


class Stack(nn.Module):
    """L blocks, and a last norm if they are pre-norm. An encoder, a decoder, or the body of a language model."""

    def __init__(self, config: BlockConfig, layers: int, *, cross: bool = False) -> None:
        super().__init__()
        c = self.config = config
        drops = [config.drop_path * i / max(1, layers - 1) for i in range(layers)]
        self.blocks = nn.ModuleList(Block(config, cross=cross, drop_path=drop) for drop in drops)
        self.norm = config.make_norm() if config.prenorm else nn.Identity()
        self.step: Callable[..., Tensor] = Block.__call__  # how a block reads one token per row
        self.rotary: Rotary | None = None
        if c.positions == "rotary":
            self.rotary = Rotary(c.key_width, c.rotary_base, stretch=c.rotary_stretch, context=c.rotary_context)

    def forward(
        self,
        x: Tensor,
        mask: Mask = Mask(),
        *,
        memory: Tensor | None = None,
        memory_mask: Mask = Mask(),
        cache: KVCache | None = None,
        at: Tensor | None = None,
        count: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """x (B, T, D) -> (B, T, D). `memory` (B, S, D) is an encoder's output.

        With a cache, x are the next tokens of each row, at the positions `at` = cache.positions(T); the first `count`
        (B,) of them are real. Each sees itself and all before it, as far as `mask` (over the cache's room) allows. The
        keys and values of a memory are then those in the cache.
        """
        time, room = x.size(1), x.size(1)
        memories: Sequence[Tensor | tuple[Tensor, Tensor] | None] = [memory] * len(self.blocks)
        if memory is not None:
            memory_mask = memory_mask.prepare(time, memory.size(1), x.device)
        if cache is not None:
            at = cache.positions(time) if at is None else at
            room, mask = cache.room, cache.mask(at, mask)
            if source := cache.source:
                memories = list(zip(source["k"].unbind(1), source["v"].unbind(1)))
                memory_mask = Mask(source["real"][:, None, None]).prepare(time, source["real"].size(1), x.device)
        mask = mask.prepare(time, room, x.device)
        if cache is not None and time == 1:
            mask, memory_mask = mask.added(x.dtype), memory_mask.added(x.dtype)
        positions = torch.arange(time, device=x.device) if at is None else at
        rotary = self.rotary(positions, room) if self.rotary is not None else None
        layers = cache.layers(positions) if cache is not None else repeat(None)
        run = self.step if cache is not None and time == 1 and trace is None else Block.__call__
        for i, (block, layer) in enumerate(zip(self.blocks, layers)):
            given = {"memory": memories[i], "memory_mask": memory_mask, "rotary": rotary, "cache": layer}
            x = run(block, x, mask, **given, trace=trace)
        if cache is not None:
            cache.advance(x.size(1) if count is None else count)
        return self.norm(x)

    def empty_cache(self, rows: int, room: int, like: Tensor) -> KVCache:
        """A cache for so many rows of at least `room` tokens, with the dtype and device of `like`."""
        c = self.config
        shape, k, v = (rows, len(self.blocks), c.kv_heads or c.heads, room), c.key_width, c.value_width or c.key_width
        return KVCache({"k": like.new_zeros(*shape, k), "v": like.new_zeros(*shape, v)})

    def encode_source(self, memory: Tensor, lengths: Tensor) -> dict[str, Tensor]:
        """What a cache holds of an encoder's output (B, S, D): keys and values for every layer, once per sentence."""
        pairs = [block.cross.keys_values(memory) for block in self.blocks]  # type: ignore[union-attr, operator]
        k, v = (torch.stack(side, dim=1) for side in zip(*pairs))
        return {"k": k, "v": v, "real": real(lengths, memory.size(1))}
