"""What a user gives to a model, and what the model gives back: checked."""

from __future__ import annotations

from torch import Tensor

from allyouneed.decode.sample import NOT_A_NUMBER
from allyouneed.errors import UserError
from allyouneed.models.base import Model
from allyouneed.text import Tokenizer


def check_length(model: Model, tokens: int, what: str) -> None:
    """Raise a UserError if a text is longer than the model can read."""
    if model.limit is not None and tokens > model.limit:
        raise UserError(f"the {what} has {tokens} tokens, but this model reads at most {model.limit}: shorten it")


def check_numbers(logits: Tensor) -> Tensor:
    """The logits, if none of them is NaN."""
    if bool(logits.isnan().any()):
        raise UserError(NOT_A_NUMBER)
    return logits


def check_input(text: str, tokenizer: Tokenizer, what: str) -> list[int]:
    """The ids of the user's text; a UserError if it is empty or mostly unknown."""
    if not text.strip():
        raise UserError(f"the {what} is empty: give some text")
    ids = tokenizer.encode(text)
    unknown = 0 if tokenizer.unk is None else ids.count(tokenizer.unk)
    if unknown * 2 > len(ids):
        strange = ", ".join(repr(unit.strip() or unit) for unit in tokenizer.unknown(text)[:8])
        raise UserError(f"most of the {what} is not in this model's vocabulary: {strange}")
    return ids
