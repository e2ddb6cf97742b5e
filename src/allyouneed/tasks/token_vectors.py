"""model.vectors and model.freeze: a text model whose token vectors start from a file of word vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from allyouneed.data.vectors import Vectors, read_vectors
from allyouneed.errors import UserError
from allyouneed.nn.positions import Learned
from allyouneed.text import Tokenizer


def start_from_vectors(
    model: nn.Module, config: Any, tokenizers: Sequence[Tokenizer], say: Callable[[str], None]
) -> None:
    """Fill the rows of the token embeddings whose token, without spaces and else in lower case, is in the file
    model.vectors; say how many were found."""
    path, freeze = getattr(config, "vectors", ""), getattr(config, "freeze", False)
    if not path:
        return
    tables = token_tables(model, tokenizers)
    if not tables:
        raise UserError(f"model.vectors = {path}: this model has no token vectors that could start from a file")
    names = [_spellings(tokenizer) for _, tokenizer in tables]
    vectors = read_vectors(path, only={name for several in names for pair in several for name in pair})
    for (table, _), spellings in zip(tables, names):
        width = vectors.matrix.shape[1]
        if width != table.embedding_dim:
            key = "embedding" if hasattr(config, "embedding") else "width"
            raise UserError(
                f"the vectors of {path} are {width} wide, those of the model {table.embedding_dim}: "
                f"set model.{key}={width}"
            )
        found = _fill(table, spellings, vectors)
        if not found:
            raise UserError(
                f"none of the {len(spellings):,} tokens is in {path}: words need a tokenizer of words, text.kind=word"
            )
        rest = "the others stay as they are drawn" if found < len(spellings) else "all of them"
        say(f"word vectors: {found:,} of {len(spellings):,} tokens are in {path}; {rest}{', frozen' * freeze}")


def token_tables(model: nn.Module, tokenizers: Sequence[Tokenizer]) -> list[tuple[nn.Embedding, Tokenizer]]:
    """The token embeddings, source before target, each with the tokenizer whose ids it holds."""
    places = {id(m.table) for m in model.modules() if isinstance(m, Learned)}
    tables = [
        m for m in model.modules() if isinstance(m, nn.Embedding) and id(m) not in places
    ]  # shared ones come once
    found = []
    for number, table in enumerate(tables):
        fitting = [tokenizer for tokenizer in tokenizers if len(tokenizer) == table.num_embeddings]
        if fitting:
            found.append((table, fitting[min(number, len(fitting) - 1)]))
    return found


def freeze_vectors(model: nn.Module, config: Any, tokenizers: Sequence[Tokenizer]) -> None:
    """With model.freeze the token embeddings do not learn."""
    if not getattr(config, "freeze", False):
        return
    if not config.vectors:
        raise UserError("model.freeze = true keeps the vectors of a file as they are: name it with model.vectors")
    outputs = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    for table, _ in token_tables(model, tokenizers):
        if id(table.weight) in outputs:
            raise UserError(
                "model.freeze = true would freeze the output matrix too, which model.tie = true makes the same: "
                "set model.tie=false"
            )
        table.weight.requires_grad_(False)


def _spellings(tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """How each token may stand in a file."""
    tokens = [tokenizer.token(id).strip() for id in range(len(tokenizer))]
    return [(token, token.lower()) for token in tokens]


@torch.no_grad()
def _fill(table: nn.Embedding, spellings: list[tuple[str, str]], vectors: Vectors) -> int:
    rows = {word: row for row, word in enumerate(vectors.words)}
    found = [(id, rows.get(token, rows.get(lower, -1))) for id, (token, lower) in enumerate(spellings)]
    found = [(id, row) for id, row in found if row >= 0]
    if found:
        ids, at = (torch.tensor(column) for column in zip(*found))
        table.weight[ids] = torch.from_numpy(vectors.matrix)[at].to(table.weight)
    return len(found)
