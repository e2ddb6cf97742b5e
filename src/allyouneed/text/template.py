"""The special tokens that a tokenizer.json puts around texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def template_spec(single: Sequence[str], pair: Sequence[str], ids: Mapping[str, int]) -> dict[str, Any]:
    """The post_processor of a tokenizer.json: what stands around one text "$A", and around two, "$A" and "$B"."""

    def parts(names: Sequence[str]) -> list[dict[str, Any]]:
        second = names.index("$B") if "$B" in names else len(names)
        return [
            {"Sequence": {"id": name[1], "type_id": int(i >= second)}}
            if name in ("$A", "$B")
            else {"SpecialToken": {"id": name, "type_id": int(i >= second)}}
            for i, name in enumerate(names)
        ]

    tokens = {name: {"id": name, "ids": [ids[name]], "tokens": [name]} for name in pair if name not in ("$A", "$B")}
    return {"type": "TemplateProcessing", "single": parts(single), "pair": parts(pair), "special_tokens": tokens}


def _around(pieces: Sequence[dict[str, Any]], ids: dict[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
    """The special tokens before the first text of a template, and after each text."""
    found: list[tuple[int, ...]] = [()]
    for piece in pieces:
        if "Sequence" in piece:
            found.append(())
        else:
            found[-1] += ids[piece["SpecialToken"]["id"]]
    return found
