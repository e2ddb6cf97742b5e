"""The special tokens that a tokenizer.json puts around texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class Template(NamedTuple):
    """The ids before a text, between two texts, and after the last."""

    start: tuple[int, ...] = ()
    between: tuple[int, ...] = ()
    end: tuple[int, ...] = ()

    @staticmethod
    def of(processor: dict[str, Any] | None) -> Template:
        """From the post_processor of a tokenizer.json; nothing stands around texts if it names no special token."""
        processor = processor or {}
        kind = processor.get("type")
        if kind == "Sequence":
            found = (Template.of(inner) for inner in processor["processors"])
            return next((template for template in found if template != Template()), Template())
        if kind in ("BertProcessing", "RobertaProcessing"):
            sep = (processor["sep"][1],)
            return Template((processor["cls"][1],), sep if kind == "BertProcessing" else 2 * sep, sep)
        if kind != "TemplateProcessing":
            return Template()
        ids = {name: tuple(token["ids"]) for name, token in processor["special_tokens"].items()}
        start, end, *_ = (*_around(processor["single"], ids), ())
        _, between, *_ = (*_around(processor["pair"], ids), ())
        return Template(start, between, end)


def _around(pieces: Sequence[dict[str, Any]], ids: dict[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The special tokens before the first text of a template, and after each text."""
    found: list[tuple[int, ...]] = [()]
    for piece in pieces:
        if "Sequence" in piece:
            found.append(())
        else:
            found[-1] += ids[piece["SpecialToken"]["id"]]
    return found
