"""pretrain: hidden words are filled in, and one text follows another or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from allyouneed.batch import Tensors
from allyouneed.config import DecodeConfig
from allyouneed.errors import UserError
from allyouneed.models.bert import Bert
from allyouneed.predict.answers import Answer
from allyouneed.predict.base import ALL_HEADS, Guess, Predictor, Said, Without, best_of
from allyouneed.predict.inputs import BETWEEN, check_length, check_numbers, two_texts, unknown_words
from allyouneed.predict.lm import guesses, said_of
from allyouneed.predict.processor import Processor
from allyouneed.text.layout import Laid, Layout

LIKELY = 5  # words that an answer gives for each [MASK]
READ = ("mask",)  # the special tokens that are read where they are typed


class FillProcessor(Processor):
    sides = 2

    @property
    def layout(self) -> Layout:
        self.tokenizer.need("mask", "to hide words")
        self.tokenizer.need("cls", "before a text")
        self.tokenizer.need("sep", "after a text")
        return super().layout

    def build_model(self) -> Bert:
        model: Bert = super().build_model()
        if not self.options.next:  # nothing would teach them
            model.body.leave_summary()
            if model.next is not None:
                model.next.requires_grad_(False)
        return model


@dataclass(frozen=True)
class Gaps(Laid):
    """One or two texts in which words are hidden."""

    unknown: Sequence[str] = ()


class FillPredictor(Predictor):
    Processor = FillProcessor
    asks = f"a text with [MASK] in it, or two with {BETWEEN} between them"
    table_heading = "likely words here"
    processor: FillProcessor
    model: Bert

    def read(self, given: str, decode: DecodeConfig) -> Gaps:
        sides = two_texts(given)
        if not all(side.strip() for side in sides):
            missing = "one of the two texts" if len(sides) > 1 else "the text"
            raise UserError(f"{missing} is empty: give some words")
        ids = [self.tokenizer.encode(side, READ) for side in sides]
        laid = self.processor.layout.lay(ids[0], ids[1] if len(ids) > 1 else None)
        check_length(self.model, len(laid.ids), "text")
        return Gaps(**vars(laid), unknown=unknown_words(self.tokenizer, *zip(sides, ids), specials=READ))

    def unknown(self, given: Gaps) -> Sequence[str]:
        return given.unknown

    def _tensors(self, given: Gaps) -> Tensors:
        device = self.model.device
        ids, segments = (torch.tensor([row], device=device) for row in (given.ids, given.segments))
        return {"ids": ids, "segments": segments, "lengths": torch.tensor([ids.size(1)], device=device)}

    @torch.inference_mode()
    def _answer(self, inputs: list[Gaps], decode: DecodeConfig) -> list[Answer]:
        return [self._fill(given) for given in inputs]

    def _fill(self, given: Gaps) -> Answer:
        ids, pair = given.ids, 1 in given.segments
        if not pair and self.tokenizer.mask not in ids:
            raise UserError(
                "there is nothing to fill in: write [MASK] for a hidden word, or give two texts with "
                f"{BETWEEN} between them"
            )
        if pair and not self.options.next:
            raise UserError("this run has not learned which text follows which (task.next = false)")
        logits, following = self.model(self._tensors(given))
        p = check_numbers(logits[0, :, : len(self.tokenizer)].float()).softmax(-1)
        masks, shown, filled = [], [], list(ids)
        details: dict[str, Any] = {}
        for at in (i for i, id in enumerate(ids) if id == self.tokenizer.mask):
            likely = best_of(p[at], LIKELY)
            words = [(self.tokenizer.token(i), value) for i, value in likely]
            masks.append([{"word": word, "probability": round(value, 6)} for word, value in words])
            shown.append("  ".join(f"{word} {100 * value:.1f} %" for word, value in words))
            filled[at] = likely[0][0]
        if masks:
            details["masks"] = masks
        if pair:
            follows = float(following[0].float().softmax(-1)[0])
            details["follows"] = round(follows, 6)
            shown.append(f"the second text follows the first: {100 * follows:.1f} %")
        answer = self.tokenizer.decode(filled) if masks else "yes" if details["follows"] >= 0.5 else "no"
        return Answer(answer, filled, 0.0, "stop", details=details, shown="\n".join(shown))

    @torch.inference_mode()
    def table(self, given: Gaps, decode: DecodeConfig, most: int = 5) -> list[Guess]:
        with self.lock:
            logits, _ = self.model(self._tensors(given))
        return guesses(logits[0], given.ids, self.tokenizer, most)

    def says(self, given: Gaps, decode: DecodeConfig, without: Without = ALL_HEADS) -> list[Said]:
        said = said_of(self._logits(given, decode, without), self.tokenizer)
        return [one for one, id in zip(said, given.ids) if id == self.tokenizer.mask]
