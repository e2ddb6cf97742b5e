"""Block: attention, optional cross-attention, feed-forward, each with a residual and a norm. Stack: L of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from allyouneed.config import option
from allyouneed.errors import UserError
from allyouneed.nn.attention import Attention
from allyouneed.nn.cache import KVCache, Memory
from allyouneed.nn.layers import ACTIVATIONS, NORMS, FeedForward, make_norm
from allyouneed.nn.masks import Mask
from allyouneed.nn.positions import Rotary
from allyouneed.nn.trace import Trace

POSITIONS = ("sinusoidal", "sinusoidal_half", "learned", "rotary", "none")


@dataclass(frozen=True)
class BlockConfig:
    """What every model made of Blocks can be asked for."""

    width: int = option(128, "d_model", low=1)
    layers: int = option(4, "blocks", low=1)
    heads: int = option(4, "attention heads", low=1)
    kv_heads: int = option(0, "key/value heads (0: as many as heads)", low=0)
    head_width: int = option(0, "d_k of a head (0: width / heads)", low=0)
    value_width: int = option(0, "d_v of a head (0: as d_k)", low=0)
    hidden: int = option(0, "width inside the feed-forward layer (0: 4 * width)", low=0)
    activation: str = option("relu", "of the feed-forward layer", choices=ACTIVATIONS)
    norm: str = option("layer", "normalisation", choices=NORMS)
    norm_eps: float = option(1e-5, "added to the variance", low=0.0)
    prenorm: bool = option(True, "normalise before each part (true) or after its residual (false)")
    bias: bool = option(True, "biases in the linear layers")
    positions: str = option("sinusoidal", "where a token stands", choices=POSITIONS)
    dropout: float = option(0.1, "of each part's output and of the embeddings", low=0.0, high=1.0)
    attention_dropout: float = option(0.0, "of the attention weights", low=0.0, high=1.0)
    score: str = option(
        "scaled_dot", "how queries meet keys", choices=("scaled_dot", "dot", "cosine", "parameter_free")
    )
    vectors: str = option("", "a file of word vectors that the token embedding starts from")
    freeze: bool = option(False, "the word vectors stay as they are in the file")

    def __post_init__(self) -> None:
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
            self.width,
            self.heads,
            kv_heads=self.kv_heads,
            head_width=self.head_width,
            value_width=self.value_width,
            cross=cross,
            bias=self.bias,
            dropout=self.attention_dropout,
            score=self.score,
        )

    def make_norm(self) -> nn.Module:
        return make_norm(self.norm, self.width, bias=self.bias, eps=self.norm_eps)


class Block(nn.Module):
    """x = x + part(norm(x)) for each part (pre-norm), or x = norm(x + part(x)) (post-norm, as in the paper)."""

    def __init__(self, config: BlockConfig, *, cross: bool = False) -> None:
        super().__init__()
        self.prenorm = config.prenorm
        self.attention, self.attention_norm = config.attention(), config.make_norm()
        if cross:
            self.cross, self.cross_norm = config.attention(cross=True), config.make_norm()
        hidden = config.hidden or 4 * config.width
        self.feed_forward = FeedForward(config.width, hidden, activation=config.activation, bias=config.bias)
        self.feed_forward_norm = config.make_norm()
        self.dropout = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        mask: Mask,
        *,
        memory: Tensor | tuple[Tensor, Tensor] | None = None,
        memory_mask: Mask = Mask(),
        rotary: tuple[Tensor, Tensor] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        at: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Tensor:
        """`memory` is an encoder's output (B, S, D), or its keys and values where a cache has kept them."""

        def look(h: Tensor) -> Tensor:
            inner = trace.at("self") if trace is not None else None
            return self.attention(h, mask, rotary=rotary, cache=cache, layer=layer, at=at, trace=inner)

        def look_across(h: Tensor) -> Tensor:
            inner = trace.at("cross") if trace is not None else None
            kv = self.cross.keys_values(memory) if isinstance(memory, Tensor) else memory
            return self.cross(h, memory_mask, memory=kv, trace=inner)

        x = self._residual(x, look, self.attention_norm)
        if memory is not None:
            x = self._residual(x, look_across, self.cross_norm)
        return self._residual(x, self.feed_forward, self.feed_forward_norm)

    def _residual(self, x: Tensor, part: object, norm: nn.Module) -> Tensor:
        assert callable(part)
        if self.prenorm:
            return x + self.dropout(part(norm(x)))
        return norm(x + self.dropout(part(x)))


class Stack(nn.Module):
    """L blocks; a last norm when they are pre-norm. An encoder, a decoder, or a language model's body."""

    def __init__(self, config: BlockConfig, layers: int, *, cross: bool = False) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(Block(config, cross=cross) for _ in range(layers))
        self.norm = config.make_norm() if config.prenorm else nn.Identity()
        self.rotary = Rotary(config.key_width) if config.positions == "rotary" else None

    def forward(
        self,
        x: Tensor,
        mask: Mask = Mask(),
        *,
        cache: KVCache | None = None,
        count: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Mask = Mask(),
        trace: Trace | None = None,
    ) -> Tensor:
        """x (B, T, D) -> (B, T, D).

        With a cache, x are the next tokens of each row (of which the first `count` (B,) are real), and each sees
        itself and all before it. `memory` (B, S, D) is an encoder's output; a cache may hold its keys and values.
        """
        at, room = None, x.size(1)
        if cache is not None:
            room = cache.room
            at = cache.length[:, None] + torch.arange(x.size(1), device=x.device)  # (B, T)
            mask = Mask(keep=torch.arange(room, device=x.device) <= at[:, None, :, None])
        positions = torch.arange(x.size(1), device=x.device) if at is None else at
        rotary = self.rotary(positions, room) if self.rotary is not None else None
        kept: Memory | None = cache.memory if cache is not None else None
        if kept is not None:
            memory_mask = Mask(keep=kept.keep).settle(x.size(1), kept.keep.size(-1), x.device)
        elif memory is not None:
            memory_mask = memory_mask.settle(x.size(1), memory.size(1), x.device)
        mask = mask.settle(x.size(1), room, x.device)
        for i, block in enumerate(self.blocks):
            source = (kept.k[i], kept.v[i]) if kept is not None else memory
            inner = trace.at(i) if trace is not None else None
            x = block(
                x,
                mask,
                memory=source,
                memory_mask=memory_mask,
                rotary=rotary,
                cache=cache,
                layer=i,
                at=at,
                trace=inner,
            )
            if inner is not None:
                inner.keep("outputs", x)
        if cache is not None:
            cache.advance(x.size(1) if count is None else count)
        return self.norm(x)

    def empty_cache(self, rows: int, room: int, like: Tensor) -> KVCache:
        """A cache for so many rows of at least `room` tokens."""
        attention = self._attentions()[0]
        widths = (attention.head_width, attention.value_width)
        return KVCache.zeros(len(self.blocks), rows, attention.kv_heads, room, *widths, like)

    def remember(self, memory: Tensor, lengths: Tensor) -> Memory:
        """Keys and values of an encoder's output (B, S, D) for every layer, computed once a sentence."""
        pairs = [block.cross.keys_values(memory) for block in self.blocks]  # type: ignore[union-attr, operator]
        k, v = (torch.stack(list(side)) for side in zip(*pairs))
        keep = Mask.padding(lengths, memory.size(1)).keep
        assert keep is not None
        return Memory(k, v, keep)

    def _attentions(self) -> Sequence[Attention]:
        return [block.attention for block in self.blocks]  # type: ignore[misc]
