"""embed: one vector per text, learned from pairs of texts that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.pairs import GroupedPairs
from allyouneed.data.examples import SentencePair
from allyouneed.data.store import Ragged
from allyouneed.errors import UserError
from allyouneed.metrics import Score, find_nearest, retrieval_scores
from allyouneed.models.embedder import Embedder
from allyouneed.nn.heads import POOLS
from allyouneed.predict.embed import Embedding, EmbedProcessor, Row
from allyouneed.tasks.base import Answering, Answers, Carry, Losses, Moment, Pieces, Sample, once

AMONG = 100  # targets among which a sample looks for the nearest


@dataclass(frozen=True)
class EmbedOptions:
    pool: str = option(
        "mean", "one vector per text: mean or maximum over its tokens, the first, or the last", choices=POOLS
    )
    specials: bool = option(False, "the mean and the maximum are also over the special tokens")
    temperature: float = option(0.05, "what the cosines are divided by", low=1e-3, high=100.0)
    group: int = option(32, "pairs per group: each text is told from so many others, less one", low=2, high=10**4)


class Embed(EmbedProcessor, Answering[Embedder]):
    """loss = -Σ log p(target | source): the softmax of their cosines among the targets of a group, and the other way"""

    Options = EmbedOptions
    shape = "pairs"
    unit = "pair"
    weights: ClassVar[dict[str, float]] = {"pairs": 1.0}

    def check(self) -> None:
        super().check()
        if not self.recipe.text.joint:
            raise UserError("text.joint = false gives two vocabularies, but one body reads all texts: leave it at true")

    def training_texts(self) -> Iterator[str]:
        return (f" {side}" for pair in self.data.splits["train"] for side in pair)

    @once
    def rows(self, split: str) -> tuple[Ragged, Ragged]:
        prefix = self.layout.prefix
        found = self.tokenize(split, "source", prefix), self.tokenize(split, "target", prefix)
        self.check_rows(split, found, least=2)
        return found

    @once
    def examples(self, split: str) -> GroupedPairs:
        return GroupedPairs(*self.rows(split), self.layout, self.longest, self.options.group)

    @property
    def cut(self) -> int:
        return self.longest - self.layout.specials(1)

    def losses(self, model: Embedder, batch: Batch, at: Moment | None = None, carry: Carry | None = None) -> Losses:
        return {"pairs": model.loss(batch.tensors, self.options.temperature)}

    def answer(self, model: Embedder, split: str, decode: DecodeConfig, pieces: Pieces) -> Answers:
        """Which of all different targets of the split is the nearest to each source, and the rank of the right one. If
        sources are equal, the targets of all of them are right."""
        pairs, (sources, targets) = list(self.data.splits[split]), self.rows(split)
        embedding, number, right = Embedding(self.predictor(model)), dict[str, int](), dict[str, list[int]]()
        for pair in pairs:
            right.setdefault(pair.source, []).append(number.setdefault(pair.target, len(number)))
        first = {pair.target: i for i, pair in reversed(list(enumerate(pairs)))}
        among = list(number)
        texts = embedding.vectors([self._row(embedding, targets[first[text]]) for text in among])
        for piece in pieces:
            queries = embedding.vectors([self._row(embedding, sources[i]) for i in piece])
            found = zip(*find_nearest(queries, texts, [right[pairs[i].source] for i in piece]))
            for i, (near, rank) in zip(piece.tolist(), found):
                yield i, (among[near], int(rank))

    def scores(self, split: str, decode: DecodeConfig, answers: Mapping[int, tuple[str, int]]) -> list[Score]:
        """How often the target of a source is the nearest, and the mean reciprocal rank."""
        detail = f"|pool:{self.options.pool}|tok:{self.tokenizer.kind}-{len(self.tokenizer)}|split:{split}"
        among = len(set(self.data.splits[split].texts("target")))
        return retrieval_scores(np.array([rank for _, rank in answers.values()]), among, detail)

    def record(self, example: SentencePair, answer: tuple[str, int]) -> dict[str, Any]:
        text, rank = answer
        return {"source": example.source, "prediction": text, "reference": example.target, "rank": rank}

    def _row(self, embedding: Embedding, ids: np.ndarray) -> Row:
        """A text of the data, cut at the limit of the model."""
        return embedding.fit(Row(ids.tolist()), cut=True)

    def samples(self, model: Embedder, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        """The targets that are looked for are among the first of the split."""
        pairs, embedding = list(islice(self.data.splits[split], AMONG)), Embedding(self.predictor(model))
        embedding.search(enumerate(pair.target for pair in pairs), 1)
        asked = pairs[:: -(-len(pairs) // most)]
        near = embedding.nearest(embedding.vectors([embedding.row(pair.source, cut=True) for pair in asked]))
        return [Sample(pair.source, found.text, pair.target) for pair, (found,) in zip(asked, near)]
