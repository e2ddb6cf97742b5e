"""text.vectors and text.freeze: token embeddings that start from a file of word vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import nn

from allyouneed.config import TextConfig
from allyouneed.data.vectors import read_vectors
from allyouneed.errors import UserError
from allyouneed.models.base import Model
from allyouneed.text import Tokenizer


def start_from_vectors(
    model: Model, text: TextConfig, tokenizers: Sequence[Tokenizer], say: Callable[[str], None]
) -> None:
    """Fill the rows of the token embeddings whose token is in the file text.vectors; say how many were found. Spaces
    around a token are ignored; a token that the file lacks is looked up in lower case."""
    path, freeze = text.vectors, text.freeze
    if not path:
        return
    tables = token_tables(model, tokenizers)
    if not tables:
        raise UserError(f"text.vectors = {path}: this model has no token embeddings that could start from a file")
    # Each token without spaces around it, as it is and in lower case.
    tokens = [[tokenizer.token(id).strip() for id in range(len(tokenizer))] for _, tokenizer in tables]
    vectors = read_vectors(path, only={form for some in tokens for token in some for form in (token, token.lower())})
    rows = {word: row for row, word in enumerate(vectors.words)}
    for (table, _), names in zip(tables, tokens):
        width = vectors.matrix.shape[1]
        if width != table.embedding_dim:
            raise UserError(
                f"the vectors of {path} are {width} wide, those of the model {table.embedding_dim}: "
                f"set model.embedding={width}, or model.width={width} if this model has no model.embedding"
            )
        at = torch.tensor([rows.get(name, rows.get(name.lower(), -1)) for name in names])
        found = int((at >= 0).sum())
        if not found:
            raise UserError(
                f"none of the {len(names):,} tokens is in {path}: word vectors need a word tokenizer, text.kind=word"
            )
        with torch.no_grad():
            ids = (at >= 0).nonzero().squeeze(1)
            table.weight[ids] = torch.from_numpy(vectors.matrix)[at[ids]].to(table.weight)
        rest = "the others start at random" if found < len(names) else "all of them"
        say(f"word vectors: {found:,} of {len(names):,} tokens are in {path}; {rest}{'; all are frozen' * freeze}")


def token_tables(model: Model, tokenizers: Sequence[Tokenizer]) -> list[tuple[nn.Embedding, Tokenizer]]:
    """The token embeddings, source before target, each with its tokenizer; a shared one only once."""
    found: dict[int, tuple[nn.Embedding, Tokenizer]] = {}
    for number, table in enumerate(model.tables()):
        found.setdefault(id(table), (table, tokenizers[min(number, len(tokenizers) - 1)]))
    return list(found.values())


def freeze_vectors(model: Model, text: TextConfig, tokenizers: Sequence[Tokenizer]) -> None:
    """Freeze the token embeddings if text.freeze is set."""
    if not text.freeze:
        return
    outputs = {id(m.weight) for m in model.modules() if isinstance(m, nn.Linear)}
    for table, _ in token_tables(model, tokenizers):
        if id(table.weight) in outputs:
            raise UserError(
                "text.freeze = true would also freeze the output matrix, which is the embedding matrix if "
                "model.tie = true: set model.tie=false"
            )
        table.weight.requires_grad_(False)
