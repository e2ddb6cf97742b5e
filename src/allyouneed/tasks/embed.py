"""embed: one vector per text, learned from pairs of texts that belong together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.pairs import GroupedPairs
from allyouneed.data.report import Report, describe
from allyouneed.data.store import Ragged, tokenize_rows, unknown_part
from allyouneed.errors import UserError
from allyouneed.metrics import Score, find_nearest, retrieval_scores
from allyouneed.models.embedder import Embedder
from allyouneed.nn.heads import POOLS
from allyouneed.predict.embed import Embedding, EmbedProcessor, Row
from allyouneed.tasks.base import WHOLE, Answering, Carry, Moment, Sample, TestBudget, once
from allyouneed.terminal import Say

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
        """The tokens of both sides; a UserError if the split or a text in it is empty."""
        pairs, prefix = self.data.splits[split], self.layout.prefix
        sources, targets = pairs.texts("source"), pairs.texts("target")
        found = (
            tokenize_rows(sources, self.tokenizer, self.token_key(split, "source", prefix)),
            tokenize_rows(targets, self.tokenizer, self.token_key(split, "target", prefix)),
        )
        if len(found[0]) < 2:
            raise UserError(
                f"the {split} split has {len(found[0])} pairs, and two are needed: give more data or another "
                f"data.{split}_part"
            )
        if not all(side.lengths.all() for side in found):
            raise UserError(f"the {split} split has texts that the tokenizer gives no tokens: use another text.path")
        return found

    @once
    def examples(self, split: str) -> GroupedPairs:
        return GroupedPairs(*self.rows(split), self.layout, self.longest, self.options.group)

    def report(self) -> Report:
        both = {split: self.rows(split) for split in self.data.splits}
        lengths = {split: (source.lengths, target.lengths) for split, (source, target) in both.items()}
        unknown = {split: [unknown_part(self.tokenizer, [side]) for side in sides] for split, sides in both.items()}
        limit = self.longest - self.layout.specials(1)
        return describe(self.data, lengths, limit, unknown=unknown, advice=self.unknown_advice)

    def losses(
        self, model: Embedder, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        return {"pairs": model.loss(batch.tensors, self.options.temperature)}

    def test(
        self, model: Embedder, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE
    ) -> list[Score]:
        """Whether the target of each source is the nearest of all different targets of the split. If sources are equal,
        the targets of all of them are right."""
        pairs, (sources, targets) = list(self.data.splits[split]), self.rows(split)
        embedding, number, right = Embedding(self.predictor(model)), dict[str, int](), dict[str, list[int]]()
        for pair in pairs:
            found = number.setdefault(pair.target, len(number))
            right.setdefault(pair.source, []).append(found)
        first = {pair.target: i for i, pair in reversed(list(enumerate(pairs)))}
        texts, among = embedding.vectors([self._row(embedding, targets[first[text]]) for text in number]), list(number)
        nearest, ranks = dict[int, str](), dict[int, int]()
        for piece in budget.pieces(len(pairs)):
            queries = embedding.vectors([self._row(embedding, sources[i]) for i in piece])
            near, rank = find_nearest(queries, texts, [right[pairs[i].source] for i in piece])
            nearest |= {int(i): among[at] for i, at in zip(piece, near)}
            ranks |= {int(i): int(at) for i, at in zip(piece, rank)}
        self.covered = len(ranks)
        self.tested = lambda: (
            {"source": pairs[i].source, "prediction": nearest[i], "reference": pairs[i].target, "rank": ranks[i]}
            for i in sorted(ranks)
        )
        tokens = f"{self.tokenizer.kind}-{len(self.tokenizer)}"
        detail = f"|pool:{self.options.pool}|tok:{tokens}|split:{split}"
        return retrieval_scores(np.array(list(ranks.values())), len(among), detail)

    def _row(self, embedding: Embedding, ids: np.ndarray) -> Row:
        """A text of the data, cut at the limit of the model."""
        return embedding.fit(Row(ids.tolist()), cut=True)

    @once
    def sampled(self, split: str) -> Any:
        """The first pairs of a split: samples look for their targets among them."""
        return list(islice(self.data.splits[split], AMONG))

    def samples(self, model: Embedder, split: str, decode: DecodeConfig, most: int) -> list[Sample]:
        pairs, embedding = self.sampled(split), Embedding(self.predictor(model))
        embedding.search(enumerate(pair.target for pair in pairs), 1)
        asked = pairs[:: -(-len(pairs) // most)]
        near = embedding.nearest(embedding.vectors([embedding.read(pair.source, cut=True) for pair in asked]))
        return [Sample(pair.source, found.text, pair.target) for pair, (found,) in zip(asked, near)]
