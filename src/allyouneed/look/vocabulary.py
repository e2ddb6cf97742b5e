"""Vocabulary: all words of a run by their embeddings, in two dimensions, and the nearest words of each."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.errors import UserError
from allyouneed.look.view import View
from allyouneed.predict.base import Predictor, best_of
from allyouneed.predict.inputs import BETWEEN
from allyouneed.predict.words import WordsPredictor
from allyouneed.text import Tokenizer

MOST = 50_000  # words on a map: the first ones, which in most vocabularies are the frequent ones
NEAR = 10  # words that are listed as near to one
STORED = 1 << 34  # products that finding the nearest words of all words may take before it is left to a live page


class Table(NamedTuple):
    """An embedding, its tokenizer, and the words on the map."""

    title: str
    weight: Tensor
    tokenizer: Tokenizer
    ids: list[int]

    def vectors(self) -> Tensor:
        """Of length one, (V, D)"""
        with torch.inference_mode():
            return F.normalize(self.weight.detach()[torch.tensor(self.ids)].float().cpu(), dim=-1)

    def names(self) -> list[str]:
        return [self.tokenizer.token(id) for id in self.ids]


def tables(predictor: Predictor) -> list[Table]:
    """The tables of a run; those that the source and the target share count once."""
    model = predictor.model
    if isinstance(predictor, WordsPredictor):
        return [Table("words", model.inputs.weight, predictor.tokenizer, predictor.words().tolist()[:MOST])]
    several = {id(table): table for table in (model.tables() if hasattr(model, "body") and model.body else [])}
    tokenizers = [*predictor.processor.tokenizers.values()][: len(several)]
    titles = ["words"] if len(several) < 2 else ["source", "answer"]
    return [
        Table(title, table.weight, tokenizer, list(range(min(len(tokenizer), MOST, len(table.weight)))))
        for title, table, tokenizer in zip(titles, several.values(), tokenizers)
    ]


def show_vocabulary(view: View, predictor: Predictor, text: Any) -> None:
    """view.shown["vocabulary"]: one entry per table."""
    view.shown["vocabulary"] = [
        show_map(view, f"vocabulary.{number}", table, str(text or "") if isinstance(text, str) else "")
        for number, table in enumerate(tables(predictor))
        if len(table.ids) > 2
    ]


def show_map(view: View, key: str, table: Table, text: str) -> dict[str, Any]:
    size, width = len(table.ids), table.weight.size(1)
    rows = {id: row for row, id in enumerate(table.ids)}
    specials = ("mask",) if table.tokenizer.mask is not None else ()
    sides = [side.strip() for side in text.replace("\t", BETWEEN).split(BETWEEN) if side.strip()]
    try:
        ids = [id for side in sides for id in table.tokenizer.encode(side, specials)]
    except UserError:
        ids = []
    own = list(dict.fromkeys(rows[id] for id in ids if id in rows))
    whole = size * size * width <= STORED
    listed = list(range(size)) if whole else own
    most = min(NEAR, size - 1)

    @cache
    def drawn() -> tuple[Tensor, Tensor]:
        return flat(table.vectors())

    @cache
    def near() -> tuple[Tensor, Tensor]:
        return neighbours(table.vectors(), torch.tensor(listed, dtype=torch.long), most)

    return {
        "title": table.title,
        "all": len(table.tokenizer),
        "width": width,
        "words": view.values(f"{key}.words", table.names),
        "at": view.numbers(f"{key}.at", (size, 2), lambda: drawn()[0]),
        "share": view.numbers(f"{key}.share", (2,), lambda: drawn()[1]),
        "text": own,
        "near": None if whole else own,
        "nearest": view.integers(f"{key}.nearest", (len(listed), most), lambda: near()[1], optional=True),
        "cosines": view.numbers(f"{key}.cosines", (len(listed), most), lambda: near()[0], optional=True),
    }


def flat(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(V, D) -> (V, 2), their two principal components, and the part of the variance that each has."""
    centred = vectors - vectors.mean(0)
    values, axes = torch.linalg.eigh((centred.T @ centred).double())
    axes = axes.flip(1)[:, :2]
    axes = axes * axes.sum(0).sign()  # of the two signs of an axis, always the same
    return centred @ axes.float(), (values.flip(0)[:2] / values.sum().clamp(min=1e-12)).float()


def neighbours(vectors: Tensor, rows: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """The cosines (N, most) and the rows of the words nearest to those in `rows` (N,)."""
    found = []
    for some in rows.split(1024):
        cosines = vectors[some] @ vectors.T
        cosines[torch.arange(len(some)), some] = -2  # not itself
        found.append(cosines.topk(most))
    if not found:
        return torch.zeros(0, most), torch.zeros(0, most)
    return torch.cat([one.values for one in found]), torch.cat([one.indices for one in found])


def nearest(predictor: Predictor, number: int, row: int) -> list[tuple[int, float]]:
    """The rows of the words nearest to one, with their cosines."""
    vectors = tables(predictor)[number].vectors()
    cosines = vectors @ vectors[row]
    cosines[row] = -2
    return best_of(cosines, min(NEAR, len(cosines) - 1))
