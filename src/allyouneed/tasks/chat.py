"""Chat templates: a text becomes a turn of a conversation, as a model from elsewhere has learned to read it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from allyouneed.errors import UserError
from allyouneed.text import Tokenizer

MOST_TURNS = 100_000  # of all loops of a template
MOST_TEXT = 1_000_000  # characters
MOST_NUMBER = 1e9
WIDE = ("center", "format", "indent", "wordwrap", "filesizeformat")  # filters that make long texts of short ones


def fill_template(template: str, text: str, tokenizer: Tokenizer, tokens: Mapping[str, str]) -> str:
    """The template around one message of the user, up to where the answer begins. It runs in a sandbox that reaches
    neither files nor Python. `tokens` are the special tokens by the names that the template has for them."""
    typed = [token for token in tokenizer.special_tokens if token in text]
    if typed:
        raise UserError(f"the text has {typed[0]} in it, which marks the turns of this model's chat: leave it out")
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment, SecurityError

    left = MOST_TURNS

    def limited(*bounds: int) -> range:
        nonlocal left
        left -= len(range(*bounds))
        if left < 0:
            raise SecurityError("its loops are too long")
        return range(*bounds)

    def complain(message: str) -> None:
        raise jinja2.TemplateError(message)

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "%"})

        def call_binop(self, context: Any, operator: str, one: Any, other: Any) -> Any:
            numbers = isinstance(one, int | float) and isinstance(other, int | float)
            if operator == "**" or not numbers or max(abs(one), abs(other)) > MOST_NUMBER:
                raise SecurityError(f"it uses {operator} on what is not a small number")
            return one * other if operator == "*" else one % other

    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    sandbox.globals |= {"range": limited, "raise_exception": complain, "strftime_now": datetime.now().strftime}
    sandbox.filters["tojson"] = lambda value, **how: json.dumps(value, ensure_ascii=False, indent=how.get("indent"))
    for name in WIDE:
        del sandbox.filters[name]
    ids = {"bos_token": tokenizer.bos, "eos_token": tokenizer.eos, "pad_token": tokenizer.pad}
    named: dict[str, Any] = {name: tokenizer.token(id) for name, id in ids.items() if id is not None} | {**tokens}
    named |= {"messages": [{"role": "user", "content": text}], "tools": None, "documents": None}
    try:
        found = sandbox.from_string(template).render(add_generation_prompt=True, **named)
    except (
        *(jinja2.TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError),
        *(RecursionError, MemoryError),
    ) as error:
        raise UserError(
            f"the chat template of this run cannot be used: {str(error)[:200]}; try decode.chat=false"
        ) from None
    if len(found) > MOST_TEXT + len(text):
        raise UserError("the chat template of this run gives a text without end; try decode.chat=false")
    return found
