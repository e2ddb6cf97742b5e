"""Inputs: two texts in one, a chat template, and checks of what a model reads and computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from allyouneed.decode.sample import NOT_A_NUMBER
from allyouneed.errors import UserError, shortened
from allyouneed.models.base import Model
from allyouneed.terminal import brief
from allyouneed.text import Tokenizer

BETWEEN = "|||"
MARKS = ("\t", BETWEEN)
NAMED = 8  # unknown words that a note or an error names
MOST_TEMPLATE = 100_000  # characters; the templates of well-known models have a few thousand


def two_texts(text: str) -> list[str]:
    """The texts on both sides of the first separator, stripped; the text itself if there is none."""
    marks = [mark for mark in MARKS if mark in text]
    return [side.strip() for side in text.split(min(marks, key=text.index), 1)] if marks else [text]


def check_template(template: str) -> None:
    """Raise a UserError for a template that is too large: its size bounds the time to parse it."""
    if len(template) > MOST_TEMPLATE:
        raise UserError(
            f"the chat template has {len(template):,} characters, and the most is {MOST_TEMPLATE:,}: "
            "take it out of the model's files"
        )


def fill_template(
    template: str, messages: Sequence[Mapping[str, str]], tokenizer: Tokenizer, tokens: Mapping[str, str]
) -> str:
    """The template around the messages of a chat, {"role": …, "content": …}, up to where the answer begins. `tokens`
    are the special tokens by the names that the template has for them."""
    text = " ".join(part for message in messages for part in message.values())
    typed = [token for token in tokenizer.special_tokens if token in text]
    if typed:
        raise UserError(f"the text has {typed[0]} in it, which marks the turns of this model's chat: leave it out")
    check_template(template)
    from allyouneed.text.jinja import fill

    ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos, "pad_token": tokenizer.pad}
    named: dict[str, Any] = {name: tokenizer.token(id) for name, id in ids.items() if id is not None} | {**tokens}
    named |= {"messages": [dict(message) for message in messages], "tools": None, "documents": None}
    try:
        return fill(template, {**named, "add_generation_prompt": True}, len(text))
    except ValueError as error:
        raise UserError(
            f"the chat template of this run cannot be used: {shortened(error, 200)}; try decode.chat=false"
        ) from None


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
    number = 0 if tokenizer.unk is None else ids.count(tokenizer.unk)
    if number * 2 > len(ids):
        unknown = ", ".join(repr(unit.strip() or unit) for unit in tokenizer.unknown(text)[:NAMED])
        raise UserError(f"most of the {what} is not in this model's vocabulary: {unknown}")
    return ids


def unknown_words(
    tokenizer: Tokenizer, *read: tuple[str, Sequence[int]], specials: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """The words and marks of texts, each with its ids, that are not in the vocabulary: once each, in order."""
    unknown = (tokenizer.unknown(text, specials) for text, ids in read if tokenizer.unk in ids)
    return tuple(dict.fromkeys(word for units in unknown for unit in units if (word := unit.strip())))


def unknown_note(words: Sequence[str]) -> str:
    """What is said of unknown words beside an answer."""
    more = ", …" * (len(words) > NAMED)
    return brief(f"this run does not know: {', '.join(map(repr, words[:NAMED]))}{more}")
