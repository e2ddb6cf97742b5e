"""pretrain: fill in hidden words, and tell whether one passage follows another."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allyouneed.config import DecodeConfig, option
from allyouneed.data.batches import Batch
from allyouneed.data.masked import MaskedPassages, Passages
from allyouneed.data.report import Report, describe
from allyouneed.data.sentences import of_document
from allyouneed.data.store import Ragged, tokenize_rows, unknown_part
from allyouneed.errors import UserError
from allyouneed.metrics import Score, exact_score
from allyouneed.models.bert import Bert
from allyouneed.nn.batch import Tensors
from allyouneed.nn.losses import IGNORE
from allyouneed.nn.trace import Trace
from allyouneed.predict.answers import Answer, Prompt
from allyouneed.tasks.base import Alignment, Carry, Guess, Moment, Say, Task, once, traced
from allyouneed.tasks.checks import check_length, check_numbers
from allyouneed.tasks.extent import WHOLE, Extent
from allyouneed.tasks.lm import guesses
from allyouneed.tasks.two_texts import BETWEEN, two_texts
from allyouneed.text import Tokenizer
from allyouneed.text.layout import Laid, Layout

LIKELY = 5  # words that an answer gives for each [MASK]


@dataclass(frozen=True)
class PretrainOptions:
    chosen: float = option(0.15, "part of the tokens that are to be predicted", low=0.001, high=1.0)
    whole_words: bool = option(False, "choose all pieces of a word together")
    next: bool = option(True, "also learn whether the second passage follows the first")


class Pretrain(Task[Bert]):
    """loss = -Σ log p(x_i | the text with some words hidden) - Σ log p(B follows A, or not)"""

    Options = PretrainOptions
    shape = "text"
    asks = f"a text with [MASK] in it, or two with {BETWEEN} between them"
    expects = "likely words here"
    predicts = False

    @property
    def weights(self) -> dict[str, float]:  # type: ignore[override]
        return {"words": 1.0, "next": 1.0} if self.options.next else {"words": 1.0}

    def check_model(self) -> None:
        super().check_model()
        if self.options.next and self.recipe.model.pooler == "none":
            raise UserError(
                "model.pooler = none has nothing that could tell whether one passage follows another: set "
                "task.next=false, or take another pooler"
            )

    def make_tokenizers(self) -> dict[str, Tokenizer]:
        text = self.recipe.text
        tokenizer = Tokenizer.load(text.path) if text.path else Tokenizer.train(self.data.splits["train"], text)
        return {"tokenizer.json": tokenizer}

    def build_model(self) -> Bert:
        model = super().build_model()
        model.body.freeze(self.recipe.model.freeze)
        if not self.options.next:  # nothing would teach them
            model.body.leave_summary()
            if model.next is not None:
                model.next.requires_grad_(False)
        return model

    @property
    def layout(self) -> Layout:
        self.tokenizer.need("mask", "to hide words")
        self.tokenizer.need("cls", "before a text")
        self.tokenizer.need("sep", "after a text")
        return Layout.of(self.tokenizer, 2)

    @once
    def sentences(self, split: str) -> Ragged:
        """The tokens of each sentence; a row without tokens ends a document."""

        def rows() -> Iterator[str]:
            for document in self.data.splits[split].documents():  # type: ignore[attr-defined]
                yield from of_document(document)
                yield ""

        return tokenize_rows(rows(), self.tokenizer, self.token_key(split, "sentences"))

    @once
    def examples(self, split: str) -> MaskedPassages:
        follows, tokenizer = self.options.next, self.tokenizer
        room = self.longest - self.layout.specials(1 + follows)
        if room < 2:
            raise UserError(f"data.max_length = {self.longest} leaves no room for two passages: raise it")
        passages = Passages.pack(self.sentences(split), room // 2 if follows else room, halves=follows)
        special = {tokenizer.pad, tokenizer.unk, tokenizer.cls, tokenizer.sep, tokenizer.mask}
        words = np.array([id for id in range(len(tokenizer)) if id not in special and tokenizer.token(id)])
        pieces = np.array([tokenizer.token(id).startswith("##") for id in range(len(tokenizer))])
        if self.options.whole_words and not pieces.any():
            raise UserError("task.whole_words needs a tokenizer that marks pieces with ##: set it to false")
        found = MaskedPassages(
            passages,
            self.layout,
            mask=tokenizer.need("mask", "to hide words"),
            words=words,
            continues=pieces if self.options.whole_words else None,
            part=self.options.chosen,
            pairs=follows,
        )
        if follows and len(found.seconds) < 2:
            raise UserError(
                f"the {split} text has too few sentences to learn which follows which: give more text, or set "
                "task.next=false"
            )
        if not len(found):
            raise UserError(f"the {split} text has no words; give more data or another data.{split}_part")
        return found

    def report(self) -> Report:
        rows = {split: self.sentences(split) for split in self.data.splits}
        lengths = {split: found.lengths[found.lengths > 0] for split, found in rows.items()}
        unknown = {split: [unknown_part(self.tokenizer, [found])] for split, found in rows.items()}
        return describe(self.data, lengths, None, "tokens", unknown=unknown, advice=self.unknown_advice)

    def losses(
        self, model: Bert, batch: Batch, at: Moment | None = None, carry: Carry | None = None
    ) -> dict[str, Tensor]:
        words, following = model.loss(batch.tensors, self.options.next)
        return {"words": words, "next": following} if self.options.next else {"words": words}

    def items(self, split: str) -> int:
        return len(self.examples(split))

    @torch.inference_mode()
    def test(self, model: Bert, split: str, decode: DecodeConfig, say: Say, extent: Extent = WHOLE) -> list[Score]:
        """Loss and accuracy of the hidden words, and the accuracy of the next passages; what is hidden, and which
        passages are pairs, is always the same."""
        examples, self.covered = self.examples(split), 0
        sums, chosen, pairs = torch.zeros(3, dtype=torch.float64), 0, 0
        room = max(self.recipe.train.batch_tokens, 4096)
        for numbers in (batch for piece in extent.pieces(len(examples)) for batch in examples.cover(room, piece)):
            tensors = examples.collate(numbers).to(model.device).tensors
            hidden = model.body.read(tensors)
            logits = check_numbers(model.words(hidden.flatten(0, 1)[tensors["chosen"]]).float())
            targets = tensors["targets"]
            sums[0] += torch.nn.functional.cross_entropy(logits, targets, reduction="sum").cpu()
            sums[1] += (logits.argmax(-1) == targets).sum().cpu()
            chosen += len(targets)
            if self.options.next:
                truth = tensors["follows"]
                guess = model.follows(hidden).argmax(-1)
                sums[2] += ((guess == truth) & (truth != IGNORE)).sum().cpu()
                pairs += int((truth != IGNORE).sum())
            self.covered += len(numbers)
        detail = f"tok:{self.tokenizer.kind}-{len(self.tokenizer)}|chosen:{self.options.chosen:g}"
        detail += "|whole-words" if self.options.whole_words else ""
        detail += f"|length:{self.longest}|split:{split}|n:{chosen}"
        loss, right, following = sums.tolist()
        found = [
            Score("MLM loss", loss / max(1, chosen), detail),
            exact_score("MLM accuracy", int(right), max(1, chosen), detail),
        ]
        if self.options.next:
            found.append(exact_score("NSP accuracy", int(following), max(1, pairs), f"pairs:{pairs}|split:{split}"))
        return found

    def _sides(self, text: str) -> list[str]:
        sides = two_texts(text)
        if not all(side.strip() for side in sides):
            missing = "one of the two texts" if len(sides) > 1 else "the text"
            raise UserError(f"{missing} is empty: give some words")
        return sides

    def prompt(self, model: Bert, text: str, decode: DecodeConfig) -> Prompt:
        sides, ids = self._sides(text), self._laid(model, text).ids
        if len(sides) == 1 and self.tokenizer.mask not in ids:
            raise UserError(
                "there is nothing to fill in: write [MASK] for a hidden word, or give two texts with "
                f"{BETWEEN} between them"
            )
        if len(sides) == 2 and not self.options.next:
            raise UserError("this run has not learned which text follows which (task.next = false)")
        return Prompt(ids, 0)

    def predict(
        self, model: Bert, inputs: Iterable[str], decode: DecodeConfig, show: Callable[[str], None] | None = None
    ) -> Iterator[Answer]:
        for text in inputs:
            yield self._answer(model, text, self.prompt(model, text, decode).ids)

    def _laid(self, model: Bert, text: str) -> Laid:
        """One text or two, in which [MASK] is a hidden word."""
        first, *second = (self.tokenizer.encode(side, ("mask",)) for side in self._sides(text))
        laid = self.layout.lay(first, second[0] if second else None)
        check_length(model, len(laid.ids), "text")
        return laid

    def _tensors(self, model: Bert, text: str) -> Tensors:
        laid = self._laid(model, text)
        ids, segments = (torch.tensor([row], device=model.device) for row in (laid.ids, laid.segments))
        return {"ids": ids, "segments": segments, "lengths": torch.tensor([ids.size(1)], device=model.device)}

    @torch.inference_mode()
    def _answer(self, model: Bert, text: str, ids: list[int]) -> Answer:
        logits, following = model(self._tensors(model, text))
        p = check_numbers(logits[0, :, : len(self.tokenizer)].float()).softmax(-1)
        masks, shown, filled = [], [], list(ids)
        details: dict[str, Any] = {}
        for place in (i for i, id in enumerate(ids) if id == self.tokenizer.mask):
            top = p[place].topk(min(LIKELY, p.size(-1)))
            likely = [(self.tokenizer.token(i), value) for i, value in zip(top.indices.tolist(), top.values.tolist())]
            masks.append([{"word": word, "probability": round(value, 6)} for word, value in likely])
            shown.append("  ".join(f"{word} {100 * value:.1f} %" for word, value in likely))
            filled[place] = int(top.indices[0])
        if masks:
            details["masks"] = masks
        if len(self._sides(text)) == 2:
            follows = float(following[0].float().softmax(-1)[0])
            details["follows"] = round(follows, 6)
            shown.append(f"the second text follows the first: {100 * follows:.1f} %")
        answer = self.tokenizer.decode(filled) if masks else "yes" if details["follows"] >= 0.5 else "no"
        return Answer(answer, filled, 0.0, "stop", details=details, shown="\n".join(shown))

    @torch.inference_mode()
    def table(self, model: Bert, text: str, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        tensors = self._tensors(model, text)
        logits, _ = model(tensors)
        return guesses(logits[0], tensors["ids"][0].tolist(), self.tokenizer, most)

    @torch.inference_mode()
    def attention(self, model: Bert, text: str, decode: DecodeConfig) -> dict[str, Alignment]:
        tensors, trace = self._tensors(model, text), Trace("weights")
        model(tensors, trace=trace)
        tokens = [self.tokenizer.token(id) for id in tensors["ids"][0].tolist()]
        return traced(trace, lambda place: (tokens, tokens))
