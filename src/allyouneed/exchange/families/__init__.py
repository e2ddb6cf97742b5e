"""The families of models that can be read and written, by the model_type of their config.json."""

from __future__ import annotations

from typing import Any

from allyouneed.errors import UserError, option_name
from allyouneed.exchange.families.base import Family, Head
from allyouneed.exchange.families.berts import BERT, DISTILBERT, ROBERTA
from allyouneed.exchange.families.gpts import GPT2, LLAMA, MISTRAL, QWEN2
from allyouneed.exchange.families.translators import MARIAN, PEGASUS
from allyouneed.exchange.families.vits import VIT

__all__ = ["FAMILIES", "Family", "Head", "find_family"]

FAMILIES = {
    "gpt2": GPT2, "llama": LLAMA, "bert": BERT, "distilbert": DISTILBERT, "roberta": ROBERTA, "vit": VIT,
    "marian": MARIAN, "pegasus": PEGASUS, "mistral": MISTRAL, "qwen2": QWEN2,
}  # fmt: skip


def find_family(config: dict[str, Any], architecture: str = "") -> tuple[Family, Head]:
    """The family of a config.json, and the head of its architecture, or of another one that it is to be read as."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(f"config.json is of a model of type '{kind}'; this library reads {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    named = [architecture] if architecture else config.get("architectures") or [next(iter(family.heads))]
    if not isinstance(named, list) or not isinstance(named[0], str) or named[0] not in family.heads:
        asked = f"there is no {architecture}" if architecture else f"config.json is of the architecture {named}"
        known = ", ".join(family.heads)
        hint = "" if architecture else f"; {option_name('--as')} reads it as one of these"
        raise UserError(f"{asked}; of the type '{kind}' this library reads {known}{hint}")
    return family, family.heads[named[0]]
