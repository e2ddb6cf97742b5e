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
    if isinstance(predictor, WordsPredictor):
        ids = predictor.words().tolist()[:MOST]
        return [Table("words", predictor.model.inputs.weight, predictor.tokenizer, ids)]
    weights = list(dict.fromkeys(one.weight for one in predictor.model.tables())) if predictor.model.BodyClass else []
    titles = ["words"] if len(weights) < 2 else ["source", "answer"]
    return [
        Table(title, weight, tokenizer, list(range(min(len(tokenizer), MOST, len(weight)))))
        for title, weight, tokenizer in zip(titles, weights, predictor.processor.tokenizers.values())
    ]


def show_vocabulary(view: View, predictor: Predictor, text: Any) -> None:
    """view.shown["vocabulary"]: one entry per table."""
    text, found = text if isinstance(text, str) else "", tables(predictor)

    def near(table: int, row: int) -> View:
        """The words nearest to a word, each with its cosine."""
        other, ((cosines,), (rows,)) = View(), neighbours(found[table].vectors(), torch.tensor([row]))
        other.shown["near"] = list(zip(rows.tolist(), cosines.tolist()))
        return other

    view.shown["vocabulary"] = [show_map(view, f"vocabulary.{i}", table, text) for i, table in enumerate(found)]
    view.questions["near"] = near


def show_map(view: View, key: str, table: Table, text: str) -> dict[str, Any]:
    """The words, and the nearest of all of them or, of very many, of those of the text."""
    (size, width), most, token = (len(table.ids), table.weight.size(1)), min(NEAR, len(table.ids) - 1), table.tokenizer
    specials, rows = ("mask",) if token.mask is not None else (), {id: row for row, id in enumerate(table.ids)}
    ids = [id for side in text.split(BETWEEN) for id in token.encode(side.strip(), specials)]
    own = list(dict.fromkeys(rows[id] for id in ids if id in rows))
    whole = size * size * width <= STORED
    listed = torch.arange(size) if whole else torch.tensor(own, dtype=torch.long)
    plane, near = cache(lambda: flat(table.vectors())), cache(lambda: neighbours(table.vectors(), listed))
    return {
        "title": table.title,
        "all": len(token),
        "width": width,
        "words": view.put(f"{key}.words", lambda: [token.token(id) for id in table.ids], "json"),
        "at": view.put(f"{key}.at", lambda: plane()[0], shape=(size, 2)),
        "share": view.put(f"{key}.share", lambda: plane()[1], shape=(2,)),
        "text": own,
        "near": None if whole else own,  # the words of which the nearest are listed; None: all
        "nearest": view.put(f"{key}.nearest", lambda: near()[1], "int32", (len(listed), most), optional=True),
        "cosines": view.put(f"{key}.cosines", lambda: near()[0], shape=(len(listed), most), optional=True),
    }


def flat(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """(V, D) -> (V, 2), their two principal components, and the part of the variance that each has."""
    centred = vectors - vectors.mean(0)
    values, axes = torch.linalg.eigh((centred.T @ centred).double())
    axes = axes.flip(1)[:, :2]
    axes = axes * axes.sum(0).sign()  # of the two signs of an axis, always the same
    return centred @ axes.float(), (values.flip(0)[:2] / values.sum()).float()


def neighbours(vectors: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The cosines (N, NEAR) and the rows of the words nearest to those in `rows` (N,); there may be fewer words."""
    most = min(NEAR, len(vectors) - 1)
    found = [(torch.zeros(0, most), torch.zeros(0, most, dtype=torch.long))]
    for some in rows.split(1024):
        cosines = vectors[some] @ vectors.T
        cosines[torch.arange(len(some)), some] = -2  # not itself
        best = cosines.topk(most)
        found.append((best.values, best.indices))
    return torch.cat([one[0] for one in found]), torch.cat([one[1] for one in found])
