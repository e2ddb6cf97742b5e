"""Vocabulary: all words of a run by their embeddings, in two dimensions, and the nearest words of each."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from allyouneed.look.view import View
from allyouneed.predict.base import Predictor
from allyouneed.predict.inputs import BETWEEN
from allyouneed.predict.words import WordsPredictor

MOST = 50_000  # words on a map: the first ones, which in most vocabularies are the frequent ones
NEAR = 10  # words that are listed as near to one
STORED = 1 << 34  # products that the nearest words of all words may take before they are left to a live page


class Table(NamedTuple):
    """An embedding, its tokenizer, and the words on the map."""

    title: str
    weight: Tensor
    tokenizer: Any  # a Tokenizer
    ids: list[int]

    def vectors(self) -> Tensor:
        """Of length one, (V, D)"""
        return F.normalize(self.weight.detach()[torch.tensor(self.ids)].float().cpu(), dim=-1)


def tables(predictor: Predictor) -> list[Table]:
    """The tables of a run; one that the source and the target share counts once."""
    model = predictor.model
    if isinstance(predictor, WordsPredictor):
        return [Table("words", model.inputs.weight, predictor.tokenizer, predictor.words().tolist()[:MOST])]
    several = {id(table): table.weight for table in (model.tables() if hasattr(model, "body") else [])}
    titles = ["words"] if len(several) < 2 else ["source", "answer"]
    return [
        Table(title, weight, tokenizer, list(range(min(len(tokenizer), MOST, len(weight)))))
        for title, weight, tokenizer in zip(titles, several.values(), predictor.processor.tokenizers.values())
    ]


def show_vocabulary(view: View, predictor: Predictor, text: Any) -> None:
    """view.shown["vocabulary"]: one entry per table."""
    text, found = text if isinstance(text, str) else "", tables(predictor)

    def near(table: int, row: int) -> View:
        """The words nearest to a word, each with its cosine."""
        other, vectors = View(), found[table].vectors()
        (cosines,), (rows,) = neighbours(vectors, torch.tensor([row]), min(NEAR, len(vectors) - 1))
        other.shown["near"] = list(zip(rows.tolist(), cosines.tolist()))
        return other

    view.shown["vocabulary"] = [show_map(view, f"vocabulary.{i}", table, text) for i, table in enumerate(found)]
    view.questions["near"] = near


def show_map(view: View, key: str, table: Table, text: str) -> dict[str, Any]:
    size, most = len(table.ids), min(NEAR, len(table.ids) - 1)
    rows, specials = (
        {id: row for row, id in enumerate(table.ids)},
        ("mask",) if table.tokenizer.mask is not None else (),
    )
    ids = [id for side in text.split(BETWEEN) for id in table.tokenizer.encode(side.strip(), specials)]
    own = list(dict.fromkeys(rows[id] for id in ids if id in rows))
    whole = size * size * table.weight.size(1) <= STORED
    listed = torch.arange(size) if whole else torch.tensor(own, dtype=torch.long)
    plane, near = cache(lambda: flat(table.vectors())), cache(lambda: neighbours(table.vectors(), listed, most))
    return {
        "title": table.title,
        "all": len(table.tokenizer),
        "width": table.weight.size(1),
        "words": view.values(f"{key}.words", lambda: [table.tokenizer.token(id) for id in table.ids]),
        "at": view.numbers(f"{key}.at", (size, 2), lambda: plane()[0]),
        "share": view.numbers(f"{key}.share", (2,), lambda: plane()[1]),
        "text": own,
        "near": None if whole else own,  # the words of which the nearest are listed; None: all
        "nearest": view.integers(f"{key}.nearest", (len(listed), most), lambda: near()[1], optional=True),
        "cosines": view.numbers(f"{key}.cosines", (len(listed), most), lambda: near()[0], optional=True),
    }


def flat(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(V, D) -> (V, 2), their two principal components, and the part of the variance that each has."""
    centred = vectors - vectors.mean(0)
    values, axes = torch.linalg.eigh((centred.T @ centred).double())
    axes = axes.flip(1)[:, :2]
    axes = axes * axes.sum(0).sign()  # of the two signs of an axis, always the same
    return centred @ axes.float(), (values.flip(0)[:2] / values.sum()).float()


def neighbours(vectors: Tensor, rows: Tensor, most: int = NEAR) -> tuple[Tensor, Tensor]:
    """The cosines (N, most) and the rows of the words nearest to those in `rows` (N,)."""
    found = [(torch.zeros(0, most), torch.zeros(0, most, dtype=torch.long))]
    for some in rows.split(1024):
        cosines = vectors[some] @ vectors.T
        cosines[torch.arange(len(some)), some] = -2  # not itself
        best = cosines.topk(most)
        found.append((best.values, best.indices))
    return torch.cat([one[0] for one in found]), torch.cat([one[1] for one in found])
