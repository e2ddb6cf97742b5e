"""Chat templates: a text becomes a turn of a conversation, as a model from elsewhere has learned to read it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allyouneed.errors import UserError, shortened
from allyouneed.text import Tokenizer

MOST_TEMPLATE = 100_000  # characters; the templates of well-known models have a few thousand


def check_template(template: str) -> None:
    """Before a template is kept or read: its size bounds the time to read it."""
    if len(template) > MOST_TEMPLATE:
        raise UserError(
            f"the chat template has {len(template):,} characters, and the most is {MOST_TEMPLATE:,}: "
            "take it out of the model's files"
        )


def fill_template(template: str, text: str, tokenizer: Tokenizer, tokens: Mapping[str, str]) -> str:
    """The template around one message of the user, up to where the answer begins. `tokens` are the special tokens by
    the names that the template has for them."""
    typed = [token for token in tokenizer.special_tokens if token in text]
    if typed:
        raise UserError(f"the text has {typed[0]} in it, which marks the turns of this model's chat: leave it out")
    check_template(template)
    from allyouneed.text.jinja import fill

    ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos, "pad_token": tokenizer.pad}
    named: dict[str, Any] = {name: tokenizer.token(id) for name, id in ids.items() if id is not None} | {**tokens}
    named |= {"messages": [{"role": "user", "content": text}], "tools": None, "documents": None}
    try:
        return fill(template, {**named, "add_generation_prompt": True}, len(text))
    except ValueError as error:
        raise UserError(
            f"the chat template of this run cannot be used: {shortened(error, 200)}; try decode.chat=false"
        ) from None
