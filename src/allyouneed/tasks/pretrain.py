"""pretrain: fill in hidden words, and tell whether one passage follows another."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from allyouneed.batch import IGNORE
from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches.base import Batch
from allyouneed.data.batches.masked import MaskedPassages, Passages
from allyouneed.data.sentences import of_document
from allyouneed.data.store import Ragged, tokenize_rows
from allyouneed.errors import UserError
from allyouneed.metrics import Score, exact_score
from allyouneed.models.bert import Bert
from allyouneed.predict.fill import FillProcessor
from allyouneed.predict.inputs import check_numbers
from allyouneed.tasks.base import WHOLE, Carry, Losses, Moment, Task, TestBudget, once
from allyouneed.terminal import Say


@dataclass(frozen=True)
class PretrainOptions:
    chosen: float = option(0.15, "part of the tokens that are to be predicted", low=0.001, high=1.0)
    whole_words: bool = option(False, "choose all pieces of a word together")
    next: bool = option(True, "also learn whether the second passage follows the first")


class Pretrain(FillProcessor, Task[Bert]):
    """loss = -Σ log p(x_i | the text with some words hidden) - Σ log p(B follows A, or not)"""

    Options = PretrainOptions
    shape = "text"

    @property
    def weights(self) -> dict[str, float]:  # type: ignore[override]
        return {"words": 1.0, "next": 1.0} if self.options.next else {"words": 1.0}

    def check(self) -> None:
        super().check()
        if self.options.next and self.recipe.model.pooler == "none":
            raise UserError(
                "model.pooler = none has nothing that could tell whether one passage follows another: set "
                "task.next=false, or take another pooler"
            )

    @once
    def sentences(self, split: str) -> Ragged:
        """The tokens of each sentence; a row without tokens ends a document."""

        def rows() -> Iterator[str]:
            for document in self.data.splits[split].documents():
                yield from of_document(document)
                yield ""

        return tokenize_rows(rows(), self.tokenizer, self.token_key(split, "sentences"))

    @once
    def examples(self, split: str) -> MaskedPassages:
        follows = self.options.next
        room = self.longest - self.layout.specials(1 + follows)
        if room < 2:
            raise UserError(f"data.max_length = {self.longest} leaves no room for two passages: raise it")
        passages = Passages.pack(self.sentences(split), room // 2 if follows else room, halves=follows)
        found = self.hide(passages, pairs=follows)
        if follows and len(found.seconds) < 2:
            raise UserError(
                f"the {split} text has too few sentences to learn which follows which: give more text, or set "
                "task.next=false"
            )
        self.check_examples(split, len(found))
        return found

    def hide(self, passages: Passages, pairs: bool) -> MaskedPassages:
        """Passages with hidden words, one by one or in `pairs`."""
        tokenizer = self.tokenizer
        special = {tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask}
        words = np.array([id for id in range(len(tokenizer)) if id not in special and tokenizer.token(id)])
        pieces = np.array([tokenizer.token(id).startswith("##") for id in range(len(tokenizer))])
        if self.options.whole_words and not pieces.any():
            raise UserError("task.whole_words needs a tokenizer that marks pieces with ##: set it to false")
        return MaskedPassages(
            passages,
            self.layout,
            mask=tokenizer.need("mask", "to hide words"),
            words=words,
            continues=pieces if self.options.whole_words else None,
            part=self.options.chosen,
            pairs=pairs,
        )

    def rows(self, split: str) -> list[Ragged]:
        return [self.sentences(split)]

    def lengths(self, split: str) -> np.ndarray:
        lengths = self.sentences(split).lengths
        return lengths[lengths > 0]

    def losses(self, model: Bert, batch: Batch, at: Moment | None = None, carry: Carry | None = None) -> Losses:
        words, following = model.loss(batch.tensors, self.options.next)
        return {"words": words, "next": following} if self.options.next else {"words": words}

    def items(self, split: str) -> int:
        return len(self.examples(split))

    @torch.inference_mode()
    def test(self, model: Bert, split: str, decode: DecodeConfig, say: Say, budget: TestBudget = WHOLE) -> list[Score]:
        """Loss and accuracy of the hidden words, and the accuracy of the next passages; what is hidden, and which
        passages are pairs, is always the same."""
        examples, self.covered = self.examples(split), 0
        loss, right, following, chosen, pairs = 0.0, 0, 0, 0, 0
        pieces = budget.pieces(len(examples))
        for numbers in (batch for piece in pieces for batch in examples.cover(self.test_tokens, piece)):
            tensors = examples.collate(numbers).to(model.device).tensors
            hidden = model.body.read(tensors)
            logits = check_numbers(model.words(hidden.flatten(0, 1)[tensors["chosen"]]).float())
            targets = tensors["targets"]
            loss += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").item()
            right += int((logits.argmax(-1) == targets).sum())
            chosen += len(targets)
            if self.options.next:
                following += int((model.follows(hidden).argmax(-1) == tensors["follows"]).sum())
                pairs += int((tensors["follows"] != IGNORE).sum())
            self.covered += len(numbers)
        detail = f"tok:{self.tokenizer.kind}-{len(self.tokenizer)}|chosen:{self.options.chosen:g}"
        detail += "|whole-words" if self.options.whole_words else ""
        detail += f"|length:{self.longest}|split:{split}|n:{chosen}"
        found = [
            Score("MLM loss", loss / max(1, chosen), detail),
            exact_score("MLM accuracy", right, max(1, chosen), detail),
        ]
        if self.options.next:
            found.append(exact_score("NSP accuracy", following, max(1, pairs), f"pairs:{pairs}|split:{split}"))
        return found
