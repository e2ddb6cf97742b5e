"""A model of another library, whatever files it came in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from allyouneed.text import Tokenizer


class Weights(Protocol):
    """The names and shapes of all tensors, known before any is read; a tensor is read when it is asked for."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def get(self, name: str) -> Tensor: ...


@dataclass(frozen=True)
class Source:
    """`config` is what the transformers library has in config.json, and the tensors have the names that it gives them.
    `tokenizers` are by the names of their files in a run: tokenizer.json, and tokenizer.target.json if a translator has
    another one for the target. `chat` is a chat template in Jinja; `pooling` is how sentence-transformers makes one
    vector of a text."""

    path: Path
    config: dict[str, Any]
    weights: Weights
    tokenizers: dict[str, Tokenizer] = field(default_factory=dict)
    generation: dict[str, Any] = field(default_factory=dict)  # generation_config.json
    chat: str = ""
    pictures: dict[str, Any] = field(default_factory=dict)  # preprocessor_config.json
    pooling: dict[str, Any] = field(default_factory=dict)  # 1_Pooling/config.json
    named: dict[str, str] = field(default_factory=dict)  # {"eos_token": "</s>"}, as a chat template writes them
