"""embed: one vector per text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np
import torch

from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.metrics import unit
from allyouneed.models.embedder import Embedder
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import Guess, Names, Predictor
from allyouneed.predict.embedding import TOGETHER, Embedding, Row
from allyouneed.predict.processor import Processor
from allyouneed.predict.two_texts import BETWEEN
from allyouneed.text.layout import Layout


class EmbedProcessor(Processor):
    @property
    def layout(self) -> Layout:
        return Layout.of(self.tokenizer)

    def build_model(self) -> Embedder:
        config = self.model_config()
        body = self.kind.BodyClass(config)
        body.freeze(config.freeze)
        around = (0, 0) if self.options.specials else (len(self.layout.start), len(self.layout.end))
        return Embedder(body, self.options.pool, around)


class EmbedPredictor(Predictor):
    Processor = EmbedProcessor
    asks = f"a text, or two with {BETWEEN} between them"
    expects: ClassVar[str] = "nearest tokens (cosine in per cent)"
    processor: EmbedProcessor
    model: Embedder

    def __init__(self, processor: EmbedProcessor, model: Embedder) -> None:
        super().__init__(processor, model)
        self.pooling, self.pools_specials = self.options.pool, self.options.specials

    def read(self, given: str, decode: DecodeConfig) -> list[Row]:
        return Embedding(self).check(given)

    def _together(self, decode: DecodeConfig) -> int:
        return TOGETHER

    def _answer(self, inputs: list[list[Row]], decode: DecodeConfig) -> Iterator[Answer]:
        return Embedding(self).answer(inputs)

    def table(self, given: list[Row], decode: DecodeConfig, most: int = 5) -> list[Guess]:
        """The tokens whose embeddings are nearest to that of each token of the text."""
        with torch.inference_mode():
            table = unit(self.model.body.tables()[0].weight[: len(self.tokenizer)].float().cpu().numpy())
        found = []
        for id in (id for row in given for id in row.ids):
            cosines = table @ table[id]
            best = [i for i in np.argsort(-cosines, kind="stable").tolist() if i != id][:most]
            found.append(Guess(self.tokenizer.token(id), [(self.tokenizer.token(i), cosines[i]) for i in best]))
        return found

    def _look(self, given: list[Row], decode: DecodeConfig, trace: Trace) -> Names:
        if len(given) > 1:
            raise UserError("attention is that of one text, but two are given: give one")
        tensors = Embedding(self).tensors(given)
        self.model(tensors, trace=trace)
        tokens = [self.tokenizer.token(id) for id in tensors["ids"][0].tolist()]
        return lambda place: (tokens, tokens)
